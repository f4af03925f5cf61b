// Products of a few rows with a matrix in panels: the loop that nearly all of a forward's time is spent in.
//
// Every output is one chain of multiply-adds over the inputs in order, whatever the number of rows, panels
// or threads: a row's result does not depend on the batch it is computed in, to the last bit.
// One row alone takes several panels at a time, because a chain waits for its predecessor.
#pragma once

#include "layout.h"
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

// R rows of `a` times P neighbouring panels; epilogue(row, column, vectors of the 16 columns).
template <int R, int P, class W, class E>
FS_INLINE void tile(const float *a, int64_t stride, const W *w, int64_t inputs, int64_t row,
                    int64_t column, E &epilogue) {
    const int64_t size = inputs * PANEL;
    F sums[R][P][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) sums[r][p][i] = F{};
    const float *from = a + row * stride;
    for (int64_t k = 0; k < inputs; k += 2) {
        if (R >= 3)  // with fewer rows the loads alone keep the memory busy
#pragma GCC unroll 4
            for (int p = 0; p < P; p++)
#pragma GCC unroll 2
                for (unsigned line = 0; line < sizeof(W) / 2; line++)
                    __builtin_prefetch((const char *)(w + p * size + k * PANEL) + AHEAD + 64 * line);
        accumulate<0>(from + k, stride, w + k * PANEL, size, sums);
        accumulate<1>(from + k, stride, w + k * PANEL, size, sums);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) epilogue(row + r, column + p * PANEL, sums[r][p]);
}

template <int R, class W, class E>
void rows_of(const float *a, int64_t stride, const W *w, int64_t inputs, int64_t row, int64_t panel,
             int64_t count, E &epilogue) {
    constexpr int P = panels_for(R);
    const int64_t size = inputs * PANEL;
    int64_t p = 0;
    for (; p + P <= count; p += P)
        tile<R, P>(a, stride, w + p * size, inputs, row, (panel + p) * PANEL, epilogue);
    for (; p < count; p++)
        tile<R, 1>(a, stride, w + p * size, inputs, row, (panel + p) * PANEL, epilogue);
}

// Rows [0, rows) of `a` times the panels [low, high) of `w`. Inputs are even.
template <class W, class E>
void product(const float *a, int64_t stride, int64_t rows, const W *w, int64_t inputs, int64_t low,
             int64_t high, E epilogue) {
    // Panels are read once from memory for all rows; a chunk of rows stays in the second cache level.
    const int64_t chunk = inputs > 512 ? 48 : 96;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
        const int64_t end = begin + chunk < rows ? begin + chunk : rows;
        // With few rows several panels go together; with many, one panel meets all rows.
        const int64_t together = end - begin <= ROWS ? high - low : panels_for(ROWS);
        for (int64_t p = low; p < high; p += together) {
            const int64_t count = p + together < high ? together : high - p;
            const W *from = w + p * inputs * PANEL;
            int64_t r = begin;
            for (; end - r >= 2 * ROWS || end - r == ROWS; r += ROWS)
                rows_of<ROWS>(a, stride, from, inputs, r, p, count, epilogue);
            // The rest in two equal parts: 4 + 4 rows keep more chains under way than 6 + 2.
            while (r < end) {
                const int64_t left = end - r, take = left > ROWS ? (left + 1) / 2 : left;
                switch (take) {
                    case 1: rows_of<1>(a, stride, from, inputs, r, p, count, epilogue); break;
                    case 2: rows_of<2>(a, stride, from, inputs, r, p, count, epilogue); break;
                    case 3: rows_of<3>(a, stride, from, inputs, r, p, count, epilogue); break;
                    case 4: rows_of<4>(a, stride, from, inputs, r, p, count, epilogue); break;
                    case 5: rows_of<5>(a, stride, from, inputs, r, p, count, epilogue); break;
                    default: rows_of<6>(a, stride, from, inputs, r, p, count, epilogue); break;
                }
                r += take;
            }
        }
    }
}

}  // namespace FS_ISA
}  // namespace forescribe
