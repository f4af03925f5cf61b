// Rows rounded to bfloat16, for products that multiply in bfloat16.
//
// A thread rounds all rows that it reads, also where others read them too: that costs less than a barrier.
#pragma once

#include "vector.h"

namespace forescribe {

constexpr int64_t NARROWED = 1 << 18;  // numbers at a time: 48 rows of 5,120; half a megabyte of each thread

namespace FS_ISA {

#if FS_BFLOAT16_PRODUCTS
// [rows, inputs] in a buffer of this thread, valid until the next call. Inputs are even.
inline const uint16_t *narrowed(const float *from, int64_t stride, int64_t rows, int64_t inputs) {
    static thread_local uint16_t buffer[NARROWED] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r++) {
        const float *row = from + r * stride;
        uint16_t *to = buffer + r * inputs;
        int64_t k = 0;
        for (; k + LANES <= inputs; k += LANES) {
            const __m256bh half = _mm512_cvtneps_pbh((__m512)load(row + k));
            __builtin_memcpy(to + k, &half, sizeof half);
        }
        for (; k < inputs; k++) to[k] = narrow(row[k]);
    }
    return buffer;
}
#endif

}  // namespace FS_ISA
}  // namespace forescribe
