// exp, erf and the activations over vectors.
//
// Polynomials fitted for this file (Chebyshev, float64); the error against float64 is below 2 units in the
// last place for exp and below 2e-7 for erf. NaN in, NaN out. No tables, no branches.
#pragma once

#include "vector.h"

namespace forescribe {
namespace FS_ISA {

// exp(x), x clamped to [-87, 88]: results stay normal numbers.
FS_INLINE F exp(const F &value) {
    const F x = at_most(at_least(value, -87.0f), 88.0f);
    const F shifted = fma(x, all(1.44269504f), all(12582912.0f));  // 1.5 * 2^23: rounds to an integer
    const F whole = shifted - all(12582912.0f);
    F r = fma(whole, all(-0.693145752f), x);  // ln 2 in two parts
    r = fma(whole, all(-1.42860677e-6f), r);
    F p = all(1.393373322e-3f);
    p = fma(p, r, all(8.363235385e-3f));
    p = fma(p, r, all(4.166646417e-2f));
    p = fma(p, r, all(1.666657664e-1f));
    p = fma(p, r, all(5.000000014e-1f));
    p = fma(r * r, p, r) + all(1.0f);
    const U exponent = (bits<U>(shifted) << 23) + 0x3f800000u;
    return p * bits<F>(exponent);
}

// erf(x): an odd polynomial below 1, 1 - exp(polynomial) above, constant from 4 on.
FS_INLINE F erf(const F &x) {
    const F size = bits<F>(bits<U>(x) & 0x7fffffffu);
    const F z = at_most(size, 4.0f), square = z * z;
    F low = all(-9.673590254e-6f);
    low = fma(low, square, all(1.126825370e-4f));
    low = fma(low, square, all(-8.484396524e-4f));
    low = fma(low, square, all(5.221053411e-3f));
    low = fma(low, square, all(-2.686543831e-2f));
    low = fma(low, square, all(1.128378262e-1f));
    low = fma(low, square, all(-3.761263848e-1f));
    low = fma(low, square, all(1.128379167f)) * z;
    F high = all(1.614061602e-6f);
    high = fma(high, z, all(-4.559062242e-5f));
    high = fma(high, z, all(5.927695376e-4f));
    high = fma(high, z, all(-4.740222340e-3f));
    high = fma(high, z, all(2.636471736e-2f));
    high = fma(high, z, all(-1.099782451e-1f));
    high = fma(high, z, all(-6.319370937e-1f));
    high = fma(high, z, all(-1.130166676f));
    high = fma(high, z, all(3.032129692e-4f));
    high = all(1.0f) - exp(high);
    const F result = z < all(1.0f) ? low : high;  // NaN takes `high`, which is NaN too
    return bits<F>(bits<U>(result) | (bits<U>(x) & 0x80000000u));
}

FS_INLINE F gelu(const F &x) {
    const F half = x * all(0.5f);
    return fma(half, erf(x * all(0.707106781f)), half);
}

FS_INLINE F silu(const F &x) { return x / (all(1.0f) + exp(-x)); }

FS_INLINE F relu(const F &x) { return at_least(x, 0.0f); }

}  // namespace FS_ISA
}  // namespace forescribe
