// Products of a few rows with a matrix in panels: the loop that nearly all of a forward's time is spent in.
//
// Every output is one chain of multiply-adds over the inputs in order, whatever the number of rows, panels
// or threads: a row's result does not depend on the batch it is computed in, to the last bit.
// One row alone takes several panels at a time, because a chain waits for its predecessor.
// Where the processor multiplies bfloat16 and the matrix is stored so, rows are rounded to bfloat16 first.
#pragma once

#include "layout.h"
#include "narrowed.h"
#include "vector.h"

namespace forescribe {
namespace FS_ISA {

#if defined(FS_LANES) || defined(__AVX512F__) || defined(__aarch64__) || (defined(__AVX2__) && defined(__FMA__))
constexpr int ROWS = 6;  // rows at a time; with 16 columns they fill the registers
#else
constexpr int ROWS = 3;
#endif

constexpr int AHEAD = 2048;  // bytes: six rows with weights from memory took 3.1 ms without, 2.2 with

// Panels at a time, so that about 8 chains are under way.
constexpr int panels_for(int rows) {
    return LANES == 16 ? (rows <= 4 ? 4 : 2) : LANES == 8 ? (rows == 1 ? 4 : rows <= 3 ? 2 : 1)
                                                          : (rows == 1 ? 2 : 1);
}

// One input of one panel: the first or the second of a pair. A pair in bfloat16 is loaded twice, because the
// sums leave no register to keep it in.
template <int SECOND>
FS_INLINE void input(const float *pair, F (&out)[PARTS]) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) out[i] = load(pair + SECOND * PANEL + i * LANES);
}

template <int SECOND>
FS_INLINE void input(const uint16_t *pair, F (&out)[PARTS]) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) {
        U both;
        __builtin_memcpy(&both, pair + 2 * i * LANES, sizeof both);
        out[i] = bits<F>(SECOND ? both & 0xffff0000u : both << 16);
    }
}

template <int SECOND, int R, int P, class W>
FS_INLINE void accumulate(const float *from, int64_t stride, const W *pair, int64_t size,
                          F (&sums)[R][P][PARTS]) {
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        F w[PARTS];
        input<SECOND>(pair + p * size, w);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const F x = all(from[r * stride + SECOND]);
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) sums[r][p][i] = fma(x, w[i], sums[r][p][i]);
        }
    }
}

// A pair of inputs.
template <int R, int P, class W>
FS_INLINE void accumulate_pair(const float *from, int64_t stride, const W *pair, int64_t size,
                               F (&sums)[R][P][PARTS]) {
    accumulate<0>(from, stride, pair, size, sums);
    accumulate<1>(from, stride, pair, size, sums);
}

#if FS_BFLOAT16_PRODUCTS
template <int R, int P>
FS_INLINE void accumulate_pair(const uint16_t *from, int64_t stride, const uint16_t *pair, int64_t size,
                               F (&sums)[R][P][PARTS]) {
    __m512bh w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) __builtin_memcpy(&w[p], pair + p * size, sizeof w[p]);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        int32_t both;
        __builtin_memcpy(&both, from + r * stride, sizeof both);
        const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) sums[r][p][0] = (F)_mm512_dpbf16_ps((__m512)sums[r][p][0], x, w[p]);
    }
}
#endif

// R rows of inputs times P neighbouring panels; epilogue(row, column, vectors of the 16 columns).
template <int R, int P, class A, class W, class E>
FS_INLINE void tile(const A *from, int64_t stride, const W *w, int64_t inputs, int64_t row,
                    int64_t column, E &epilogue) {
    const int64_t size = inputs * PANEL;
    F sums[R][P][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) sums[r][p][i] = F{};
    for (int64_t k = 0; k < inputs; k += 2) {
        if (R >= 3)  // with fewer rows the loads alone keep the memory busy
#pragma GCC unroll 4
            for (int p = 0; p < P; p++)
#pragma GCC unroll 2
                for (unsigned line = 0; line < sizeof(W) / 2; line++)
                    __builtin_prefetch((const char *)(w + p * size + k * PANEL) + AHEAD + 64 * line);
        accumulate_pair(from + k, stride, w + k * PANEL, size, sums);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) epilogue(row + r, column + p * PANEL, sums[r][p]);
}

// R rows of inputs, which are rows of outputs from `row` on, times `count` panels.
template <int R, class A, class W, class E>
void rows_of(const A *from, int64_t stride, const W *w, int64_t inputs, int64_t row, int64_t panel,
             int64_t count, E &epilogue) {
    constexpr int P = panels_for(R);
    const int64_t size = inputs * PANEL;
    int64_t p = 0;
    for (; p + P <= count; p += P)
        tile<R, P>(from, stride, w + p * size, inputs, row, (panel + p) * PANEL, epilogue);
    for (; p < count; p++)
        tile<R, 1>(from, stride, w + p * size, inputs, row, (panel + p) * PANEL, epilogue);
}

// `rows` rows, which are rows of outputs from `first` on, times panels [low, high).
template <class A, class W, class E>
void rows_product(const A *a, int64_t stride, int64_t rows, int64_t first, const W *w, int64_t inputs,
                  int64_t low, int64_t high, E &epilogue) {
    // With few rows several panels go together; with many, one panel meets all rows.
    const int64_t together = rows <= ROWS ? high - low : panels_for(ROWS);
    for (int64_t p = low; p < high; p += together) {
        const int64_t count = p + together < high ? together : high - p;
        const W *panel = w + p * inputs * PANEL;
        int64_t r = 0;
        for (; rows - r >= 2 * ROWS || rows - r == ROWS; r += ROWS)
            rows_of<ROWS>(a + r * stride, stride, panel, inputs, first + r, p, count, epilogue);
        // The rest in two equal parts: 4 + 4 rows keep more chains under way than 6 + 2.
        while (r < rows) {
            const int64_t left = rows - r, take = left > ROWS ? (left + 1) / 2 : left;
            const A *from = a + r * stride;
            switch (take) {
                case 1: rows_of<1>(from, stride, panel, inputs, first + r, p, count, epilogue); break;
                case 2: rows_of<2>(from, stride, panel, inputs, first + r, p, count, epilogue); break;
                case 3: rows_of<3>(from, stride, panel, inputs, first + r, p, count, epilogue); break;
                case 4: rows_of<4>(from, stride, panel, inputs, first + r, p, count, epilogue); break;
                case 5: rows_of<5>(from, stride, panel, inputs, first + r, p, count, epilogue); break;
                default: rows_of<6>(from, stride, panel, inputs, first + r, p, count, epilogue); break;
            }
            r += take;
        }
    }
}

// Rows [0, rows) of `a` times the panels [low, high) of `w`. Inputs are even.
template <class W, class E>
void product(const float *a, int64_t stride, int64_t rows, const W *w, int64_t inputs, int64_t low,
             int64_t high, E epilogue) {
    constexpr bool narrows = FS_BFLOAT16_PRODUCTS && sizeof(W) == 2;
    // Panels are read once from memory for all rows; a chunk of rows stays in the second cache level.
    int64_t chunk = inputs > 512 ? 48 : 96;
    if (narrows && chunk * inputs > NARROWED) chunk = NARROWED / inputs;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
        const int64_t count = begin + chunk < rows ? chunk : rows - begin;
        const float *from = a + begin * stride;
#if FS_BFLOAT16_PRODUCTS
        if constexpr (narrows) {
            const uint16_t *halves = narrowed(from, stride, count, inputs);
            rows_product(halves, inputs, count, begin, w, inputs, low, high, epilogue);
            continue;
        }
#endif
        rows_product(from, stride, count, begin, w, inputs, low, high, epilogue);
    }
}

}  // namespace FS_ISA
}  // namespace forescribe
