// Rows rounded to 8-bit integers, and products of such rows with matrices in 8-bit integers.
//
// Each row has a scale of its own (its largest magnitude is 127), each output of a matrix too (layout.h), so
// that a row's result depends on no other row. Sums of products are exact 32-bit integers: they have no
// order, and are the same on all instruction sets, at every batch and with every number of threads.
#pragma once

#include "layout.h"
#include "vector.h"

#if (defined(__AVX512VNNI__) || defined(__AVXVNNI__)) && !defined(FS_LANES)
#define FS_INT8_DOTS 1 /* vpdpbusd: sums of four products of unsigned with signed bytes, per lane */
#else
#define FS_INT8_DOTS 0
#endif

namespace forescribe {

constexpr int64_t ROUNDED = 1 << 18;  // bytes at a time: 50 rows of 5,120
constexpr int64_t ROW_TAIL = 64;      // bytes behind a row: its scale

namespace FS_ISA {

// Where bytes must be unsigned, 128 is added to a row's numbers, and 128 times the sum of an output's weights
// is taken from its sums: `panel_offsets` are where they begin.
constexpr int32_t SHIFT = FS_INT8_DOTS ? 128 : 0;
constexpr float NOTHING = 7.888609e-31f;  // 2^-100: rows below are zeros, as 127 / magnitude has to be finite

FS_INLINE int64_t row_bytes(int64_t inputs) { return quads(inputs) * 4 + ROW_TAIL; }

FS_INLINE U magnitude(const F &value) { return bits<U>(value) & 0x7fffffffu; }

// The largest magnitude of a row; NaN where one is NaN (as an integer it is larger than any number).
FS_INLINE float largest_magnitude(const float *from, int64_t inputs) {
    U top = U{};
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) {
        const U value = magnitude(load(from + k));
        top = value > top ? value : top;
    }
    uint32_t best = 0, lanes[LANES];
    __builtin_memcpy(lanes, &top, sizeof lanes);
    for (int i = 0; i < LANES; i++)
        if (lanes[i] > best) best = lanes[i];
    for (; k < inputs; k++) {
        const uint32_t value = bits<uint32_t>(from[k]) & 0x7fffffffu;
        if (value > best) best = value;
    }
    return bits<float>(best);
}

// The integer nearest to `value`, even at ties, in the low byte; plus SHIFT.
FS_INLINE uint8_t rounded(float value) {
    return (uint8_t)(bits<uint32_t>(value + 12582912.0f) + (uint32_t)SHIFT);  // 1.5 * 2^23
}

FS_INLINE void round_row(const float *from, int64_t inputs, uint8_t *to) {
    typedef uint8_t B __attribute__((vector_size(LANES)));
    const float top = largest_magnitude(from, inputs);
    const bool zero = top < NOTHING;
    const float factor = zero ? 0.0f : 127.0f / top, scale = zero ? 0.0f : top / 127.0f;
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) {
        const F value = load(from + k) * all(factor) + all(12582912.0f);
        const B bytes = __builtin_convertvector((bits<U>(value) + (uint32_t)SHIFT) & 0xffu, B);
        __builtin_memcpy(to + k, &bytes, sizeof bytes);
    }
    for (; k < inputs; k++) to[k] = rounded(from[k] * factor);
    for (; k < quads(inputs) * 4; k++) to[k] = 0;  // their weights are zero
    __builtin_memcpy(to + quads(inputs) * 4, &scale, sizeof scale);
}

// [rows, row_bytes] in a buffer of this thread, valid until the next call. A thread rounds all rows that it
// reads, as for bfloat16 (narrowed.h).
inline const uint8_t *rounded_rows(const float *from, int64_t stride, int64_t rows, int64_t inputs) {
    static thread_local uint8_t buffer[ROUNDED] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r++) round_row(from + r * stride, inputs, buffer + r * row_bytes(inputs));
    return buffer;
}

// sums + the products of four bytes of a row, in `x`, with four weights of each lane's output.
FS_INLINE I quad(const I &sums, int32_t x, const I &w) {
#if FS_INT8_DOTS && defined(__AVX512VNNI__)
    return (I)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(x), (__m512i)w);
#elif FS_INT8_DOTS
    return (I)_mm256_dpbusd_avx_epi32((__m256i)sums, _mm256_set1_epi32(x), (__m256i)w);
#elif defined(__AVX2__) && defined(__FMA__) && !defined(FS_LANES)
    // |x| <= 127 and |w| <= 127: two products are below 2^15, so no sum of 16 bits saturates.
    const __m256i row = _mm256_set1_epi32(x), size = _mm256_abs_epi8(row), ones = _mm256_set1_epi16(1);
#if defined(__AVX512F__)
    const __m512i whole = (__m512i)w;
    const __m256i low = _mm512_castsi512_si256(whole), high = _mm512_extracti64x4_epi64(whole, 1);
    const __m256i first = _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(low, row)), ones);
    const __m256i second = _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(high, row)), ones);
    return sums + (I)_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
#else
    return sums + (I)_mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8((__m256i)w, row)), ones);
#endif
#else
    const U bytes = bits<U>(w);
    I total = sums;
    for (int i = 0; i < 4; i++)
        total += (bits<I>(bytes << (24 - 8 * i)) >> 24) * (int32_t)(int8_t)((uint32_t)x >> (8 * i));
    return total;
#endif
}

}  // namespace FS_ISA
}  // namespace forescribe
