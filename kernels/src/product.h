// Products of a few rows with a matrix in panels: the loop that nearly all of a forward's time is spent in.
//
// Every output is one chain of multiply-adds over the inputs in order, whatever the number of rows, panels
// or threads: a row's result does not depend on the batch it is computed in, to the last bit.
// One row alone takes several panels at a time, because a chain waits for its predecessor.
// Where the processor multiplies bfloat16 and the matrix is stored so, rows are rounded to bfloat16 first. With
// a matrix in int8 they are rounded to int8 (int8.h), and sums are integers until the epilogue.
#pragma once

#include "int8.h"
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

// The distance of panels, in elements.
template <class W>
FS_INLINE int64_t panel_size(int64_t inputs) {
    return sizeof(W) == 1 ? int8_panel(inputs) : inputs * PANEL;
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
    const int64_t size = panel_size<W>(inputs);
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

// The same over rows and weights in int8.
template <int R, int P, class E>
FS_INLINE void tile(const uint8_t *from, int64_t stride, const int8_t *w, int64_t inputs, int64_t row,
                    int64_t column, E &epilogue) {
    const int64_t size = int8_panel(inputs), length = quads(inputs) * 4;
    I sums[R][P][PARTS];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int i = 0; i < PARTS; i++) {
            I begin = I{};
            if (SHIFT) __builtin_memcpy(&begin, w + p * size + length * PANEL + 4 * (PANEL + i * LANES), sizeof begin);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums[r][p][i] = begin;
        }
    for (int64_t k = 0; k < length; k += 4) {
        I weights[P][PARTS];
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            if (R >= 3) __builtin_prefetch((const char *)(w + p * size + k * PANEL) + AHEAD);
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++)
                __builtin_memcpy(&weights[p][i], w + p * size + k * PANEL + 4 * i * LANES, sizeof(I));
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            int32_t x;
            __builtin_memcpy(&x, from + r * stride + k, sizeof x);
#pragma GCC unroll 4
            for (int p = 0; p < P; p++)
#pragma GCC unroll 4
                for (int i = 0; i < PARTS; i++) sums[r][p][i] = quad(sums[r][p][i], x, weights[p][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        float scale;
        __builtin_memcpy(&scale, from + r * stride + length, sizeof scale);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            F values[PARTS];
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++)
                values[i] = __builtin_convertvector(sums[r][p][i], F) *
                            (all(scale) * load((const float *)(w + p * size + length * PANEL) + i * LANES));
            epilogue(row + r, column + p * PANEL, values);
        }
    }
}

// R rows of inputs, which are rows of outputs from `row` on, times `count` panels.
template <int R, class A, class W, class E>
void rows_of(const A *from, int64_t stride, const W *w, int64_t inputs, int64_t row, int64_t panel,
             int64_t count, E &epilogue) {
    constexpr int P = panels_for(R);
    const int64_t size = panel_size<W>(inputs);
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
        const W *panel = w + p * panel_size<W>(inputs);
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

constexpr int64_t GROUP = 8;     // panels of int8 at a time
constexpr int64_t CHUNK = 96;    // rows at a time, at most

struct Keep {
    float *out;  // [rows, GROUP * PANEL]
    int64_t first;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++) store(out + row * GROUP * PANEL + column - first + i * LANES, v[i]);
    }
};

// Rounded rows times a group of panels. One function for all epilogues: the loops over integers were half of
// the compiler's time otherwise, and a result is stored and loaded once more.
static __attribute__((noinline)) void int8_group(const uint8_t *bytes, int64_t rows, const int8_t *w,
                                                 int64_t inputs, int64_t low, int64_t high, float *out) {
    Keep keep{out, low * PANEL};
    rows_product(bytes, row_bytes(inputs), rows, 0, w, inputs, low, high, keep);
}

template <class E>
void int8_product(const uint8_t *bytes, int64_t rows, int64_t first, const int8_t *w, int64_t inputs,
                  int64_t low, int64_t high, E &epilogue) {
    float out[CHUNK * GROUP * PANEL] __attribute__((aligned(64)));
    for (int64_t begin = low; begin < high; begin += GROUP) {
        const int64_t end = begin + GROUP < high ? begin + GROUP : high;
        int8_group(bytes, rows, w, inputs, begin, end, out);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t p = begin; p < end; p++) {
                F values[PARTS];
                for (int i = 0; i < PARTS; i++)
                    values[i] = load(out + r * GROUP * PANEL + (p - begin) * PANEL + i * LANES);
                epilogue(first + r, p * PANEL, values);
            }
    }
}

// Rows [0, rows) of `a` times the panels [low, high) of `w`. Inputs are even.
template <class W, class E>
void product(const float *a, int64_t stride, int64_t rows, const W *w, int64_t inputs, int64_t low,
             int64_t high, E epilogue) {
    constexpr bool narrows = FS_BFLOAT16_PRODUCTS && sizeof(W) == 2;
    // Panels are read once from memory for all rows; a chunk of rows stays in the second cache level.
    int64_t chunk = inputs > 512 ? CHUNK / 2 : CHUNK;
    if (narrows && chunk * inputs > NARROWED) chunk = NARROWED / inputs;
    if (sizeof(W) == 1 && chunk * row_bytes(inputs) > ROUNDED) chunk = ROUNDED / row_bytes(inputs);
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
        if constexpr (sizeof(W) == 1) {
            const uint8_t *bytes = rounded_rows(from, stride, count, inputs);
            int8_product(bytes, count, begin, w, inputs, low, high, epilogue);
        } else {
            rows_product(from, stride, count, begin, w, inputs, low, high, epilogue);
        }
    }
}

}  // namespace FS_ISA
}  // namespace forescribe
