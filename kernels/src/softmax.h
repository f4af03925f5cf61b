// exp(x - maximum) of a row, in place, and the sum of it. NaN anywhere makes every result NaN.
#pragma once

#include "functions.h"

namespace forescribe {
namespace FS_ISA {

// The largest number of a row; NaN is passed over.
FS_INLINE float largest(const float *x, int64_t count) {
    float best = -__builtin_inff();
    int64_t i = 0;
    if (count >= LANES) {
        F top = load(x);
        for (i = LANES; i + LANES <= count; i += LANES) {
            const F value = load(x + i);
            top = value > top ? value : top;
        }
        float part[LANES];
        store(part, top);
        for (int lane = 0; lane < LANES; lane++)
            if (part[lane] > best) best = part[lane];
    }
    for (; i < count; i++)
        if (x[i] > best) best = x[i];
    return best;
}

// Returns the sum of the exponentials. `x` has room for a multiple of LANES; what lies behind `count` is
// overwritten with zeros.
FS_INLINE float exponentials(float *x, int64_t count) {
    const float top = largest(x, count);
    for (int64_t i = count; i % LANES; i++) x[i] = top;
    F part = F{};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const F value = exp(load(x + i) - all(top));
        store(x + i, value);
        part += value;
    }
    float rest = 0;
    if (i < count) {
        store(x + i, exp(load(x + i) - all(top)));
        for (int64_t j = i; j < count; j++) rest += x[j];
        for (int64_t j = count; j < i + LANES; j++) x[j] = 0;
    }
    return sum(part) + rest;
}

}  // namespace FS_ISA
}  // namespace forescribe
