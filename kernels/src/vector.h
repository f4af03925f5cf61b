// Vectors of the instruction set that this translation unit is compiled for.
//
// Compiler vector extensions, with intrinsics only for the fused multiply-add, whose contraction must not
// depend on the optimiser: the same sum has to round the same way in every instantiation.
// Everything lies in a namespace per instruction set, so that the linker cannot merge functions of two.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define FS_INLINE inline __attribute__((always_inline))

// Products with matrices in bfloat16 multiply in bfloat16: two products and their sum per lane and instruction.
#if defined(__AVX512BF16__) && !defined(FS_LANES)
#define FS_BFLOAT16_PRODUCTS 1
#else
#define FS_BFLOAT16_PRODUCTS 0
#endif

namespace forescribe {
namespace FS_ISA {

#if defined(FS_LANES)
constexpr int LANES = FS_LANES;  // wider than the machine's vectors: a test of the AVX-512 paths elsewhere
#elif defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int PANEL = 16;              // columns of a panel of packed weights
constexpr int PARTS = PANEL / LANES;   // vectors of a panel

typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t H __attribute__((vector_size(2 * LANES)));

template <class To, class From>
FS_INLINE To bits(const From &value) {
    static_assert(sizeof(To) == sizeof(From), "the same number of bits");
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

FS_INLINE F load(const float *at) {
    F value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

FS_INLINE void store(float *at, const F &value) { __builtin_memcpy(at, &value, sizeof value); }

FS_INLINE F all(float value) { return value - F{}; }

FS_INLINE F fma(const F &a, const F &b, const F &c) {
#if defined(__AVX512F__) && !defined(FS_LANES)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__) && !defined(FS_LANES)
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__) && !defined(FS_LANES)
    F sum;
    for (int i = 0; i < LANES; i++) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#else
    return a * b + c;  // compiled with -ffp-contract=off
#endif
}

// Comparisons with NaN are false, so `value` stays NaN in both.
FS_INLINE F at_least(const F &value, float bound) { return value < all(bound) ? all(bound) : value; }
FS_INLINE F at_most(const F &value, float bound) { return value > all(bound) ? all(bound) : value; }

FS_INLINE float fma(float a, float b, float c) {
#if (defined(__FMA__) || defined(__aarch64__)) && !defined(FS_LANES)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// A sum over a row is kept in PANEL partial sums, in vectors of any width, which are then added in halves: the
// order is the same on every instruction set.
FS_INLINE float sum(const F (&values)[PARTS]) {
    float part[PANEL];
    for (int i = 0; i < PARTS; i++) store(part + i * LANES, values[i]);
    for (int half = PANEL / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

// bfloat16: the upper half of a float32.
FS_INLINE float widen(uint16_t value) { return bits<float>((uint32_t)value << 16); }

FS_INLINE uint16_t narrow(float value) {
    uint32_t word = bits<uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((word >> 16) | 0x40);  // NaN stays NaN
    return (uint16_t)((word + 0x7fffu + ((word >> 16) & 1)) >> 16);                  // to nearest even
}

// In the lower halves of 32-bit lanes.
FS_INLINE U narrow(const F &value) {
    const U word = bits<U>(value);
    const U nan = (word >> 16) | 0x40u, rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    return (word & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}

FS_INLINE F load(const uint16_t *at) {
    H half;
    __builtin_memcpy(&half, at, sizeof half);
    return bits<F>(__builtin_convertvector(half, U) << 16);
}

FS_INLINE float scalar(const float *at) { return *at; }
FS_INLINE float scalar(const uint16_t *at) { return widen(*at); }
FS_INLINE void put(float *at, float value) { *at = value; }
FS_INLINE void put(uint16_t *at, float value) { *at = narrow(value); }

template <bool FIRST, class A, class B>
struct Chosen {
    using type = A;
};
template <class A, class B>
struct Chosen<false, A, B> {
    using type = B;
};

// Where input `k` of column `i` lies in a panel (layout.h).
template <class C>
FS_INLINE int64_t place(int64_t k, int64_t i) {
    return sizeof(C) == 4 ? k * PANEL + i : (k / 2 * PANEL + i) * 2 + (k & 1);
}

}  // namespace FS_ISA
}  // namespace forescribe
