// Products of a few rows with a matrix in panels: the loop that nearly all of a forward's time is spent in.
//
// Every output is one chain of multiply-adds over the inputs in order, whatever the number of rows, panels
// or threads: a row's result does not depend on the batch it is computed in, to the last bit.
// One row alone takes several panels at a time, because a chain waits for its predecessor.
// Where the processor multiplies bfloat16 and the matrix is stored so, rows are rounded to bfloat16 first. With
// a matrix in int8 they are rounded to int8 (int8.h), and sums are integers until the epilogue. A matrix of
// float32 may be kept in fewer bytes (exact.h).
#pragma once

#include "exact.h"
#include "forescribe.h"
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
    if (Exact<W>::value) return exact_panel<W>(inputs);
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

// One input of rows and panels that are kept narrow.
template <int R, int P, class W>
FS_INLINE void accumulate_exact(const float *from, int64_t stride, const W *w, int64_t inputs, int64_t k,
                                F (&sums)[R][P][PARTS]) {
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        F weights[PARTS];
        exact_input(w + p * exact_panel<W>(inputs), inputs, k, weights);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const F x = all(from[r * stride + k]);
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) sums[r][p][i] = fma(x, weights[i], sums[r][p][i]);
        }
    }
}

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
                for (unsigned line = 0; line * 2 < sizeof(W); line++)
                    __builtin_prefetch((const char *)(w + p * size + k * PANEL) + AHEAD + 64 * line);
        if constexpr (Exact<W>::value) {
            accumulate_exact(from, stride, w, inputs, k, sums);
            accumulate_exact(from, stride, w, inputs, k + 1, sums);
        } else {
            accumulate_pair(from + k, stride, w + k * PANEL, size, sums);
        }
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
    // Narrow panels are fewer bytes under way, so there are more of them.
    constexpr int P = Exact<W>::value && LANES == 16 && R == 5 ? 4 : panels_for(R);
    const int64_t size = panel_size<W>(inputs);
    int64_t p = 0;
    for (; p + P <= count; p += P)
        tile<R, P>(from, stride, w + p * size, inputs, row, (panel + p) * PANEL, epilogue);
    for (; p < count; p++)
        tile<R, 1>(from, stride, w + p * size, inputs, row, (panel + p) * PANEL, epilogue);
}

// `rows` rows, which are rows of outputs from `first` on, times panels [low, high), of which `w` is the first.
template <class A, class W, class E>
void rows_product(const A *a, int64_t stride, int64_t rows, int64_t first, const W *w, int64_t inputs,
                  int64_t low, int64_t high, E &epilogue) {
    // With few rows several panels go together; with many, one panel meets all rows.
    const int64_t together = rows <= ROWS ? high - low : panels_for(ROWS);
    for (int64_t p = low; p < high; p += together) {
        const int64_t count = p + together < high ? together : high - p;
        const W *panel = w + (p - low) * panel_size<W>(inputs);
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

constexpr int64_t GROUP = 8;     // panels at a time whose results are stored before the epilogue
constexpr int64_t CHUNK = 96;    // rows at a time, at most

struct Keep {
    float *out;  // [rows, GROUP * PANEL]
    int64_t first;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++) store(out + row * GROUP * PANEL + column - first + i * LANES, v[i]);
    }
};

// Rows times a group of panels. One function for all epilogues: these loops were half of the compiler's time
// otherwise, and a result is stored and loaded once more.
template <class A, class W>
__attribute__((noinline)) void group(const A *from, int64_t stride, int64_t rows, const W *w, int64_t inputs,
                                     int64_t low, int64_t high, float *out) {
    Keep keep{out, low * PANEL};
    rows_product(from, stride, rows, 0, w, inputs, low, high, keep);
}

// At most CHUNK rows times panels [low, high), of which `w` is the first.
template <class A, class W, class E>
void grouped_product(const A *from, int64_t stride, int64_t rows, int64_t first, const W *w, int64_t inputs,
                     int64_t low, int64_t high, E &epilogue) {
    float out[CHUNK * GROUP * PANEL] __attribute__((aligned(64)));
    for (int64_t begin = low; begin < high; begin += GROUP) {
        const int64_t end = begin + GROUP < high ? begin + GROUP : high;
        group(from, stride, rows, w + (begin - low) * panel_size<W>(inputs), inputs, begin, end, out);
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
    w += low * panel_size<W>(inputs);
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
            grouped_product(bytes, row_bytes(inputs), count, begin, w, inputs, low, high, epilogue);
        } else {
            rows_product(from, stride, count, begin, w, inputs, low, high, epilogue);
        }
    }
}

constexpr int64_t FEW = 8;  // rows in two tiles that widen every number themselves

// Floats of a thread's buffer for panels in float32.
constexpr int64_t widened_floats(int64_t inputs) { return panels_for(ROWS) * PANEL * inputs; }

// ROWS rows times P panels that are kept narrow, which are stored in float32 in passing: [P][K][16] at `wide`, and
// the results [ROWS, P * PANEL] at `out`.
template <int P, class X>
__attribute__((noinline)) void widening_tile(const float *from, int64_t stride, const X *w, int64_t inputs,
                                             float *wide, float *out) {
    const int64_t size = exact_panel<X>(inputs);
    F sums[ROWS][P][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) sums[r][p][i] = F{};
    for (int64_t k = 0; k < inputs; k++) {
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            F weights[PARTS];
            __builtin_prefetch((const char *)(w + p * size + k * PANEL) + AHEAD);
            exact_input(w + p * size, inputs, k, weights);
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) store(wide + (p * inputs + k) * PANEL + i * LANES, weights[i]);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const F x = all(from[r * stride + k]);
#pragma GCC unroll 4
                for (int i = 0; i < PARTS; i++) sums[r][p][i] = fma(x, weights[i], sums[r][p][i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
#pragma GCC unroll 4
            for (int i = 0; i < PARTS; i++) store(out + (r * P + p) * PANEL + i * LANES, sums[r][p][i]);
}

// P panels from `p` on, of which `w` is the first.
template <int P, class X, class E>
void widened_product(const float *a, int64_t stride, int64_t rows, const X *w, int64_t inputs, int64_t p,
                     float *wide, E &epilogue) {
    float out[ROWS * P * PANEL] __attribute__((aligned(64)));
    widening_tile<P>(a, stride, w, inputs, wide, out);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t each = 0; each < P; each++) {
            F values[PARTS];
            for (int i = 0; i < PARTS; i++) values[i] = load(out + (r * P + each) * PANEL + i * LANES);
            epilogue(r, (p + each) * PANEL, values);
        }
    rows_product(a + ROWS * stride, stride, rows - ROWS, ROWS, (const float *)wide, inputs, p, p + P, epilogue);
}

// Rows [0, rows) of `a` times the panels [low, high) of a matrix that is kept narrow. Many rows need every number
// several times: it is stored in float32, at `wide`, in passing by the first tile.
template <class X, class E>
void exact_product(const float *a, int64_t stride, int64_t rows, const X *w, int64_t inputs, int64_t low,
                   int64_t high, float *wide, E &epilogue) {
    constexpr int P = panels_for(ROWS);
    const int64_t size = exact_panel<X>(inputs);
    if (rows <= FEW) return grouped_product(a, stride, rows, 0, w + low * size, inputs, low, high, epilogue);
    int64_t p = low;
    for (; p + P <= high; p += P)
        widened_product<P>(a, stride, rows, w + p * size, inputs, p, wide, epilogue);
    for (; p < high; p++)
        widened_product<1>(a, stride, rows, w + p * size, inputs, p, wide, epilogue);
}

// Rows [0, rows) of `a` times the panels [low, high) of a matrix; W is the storage of the model's matrices, and
// `wide` a buffer of this thread, of `widened_floats`.
template <class W, class E>
void product(const float *a, int64_t stride, int64_t rows, const fs_linear &l, int64_t inputs, int64_t low,
             int64_t high, float *wide, E epilogue) {
    if constexpr (sizeof(W) == sizeof(float)) {
        if (l.storage == FS_EXACT_INT8)
            return exact_product(a, stride, rows, (const Byte *)l.weight, inputs, low, high, wide, epilogue);
        if (l.storage == FS_EXACT_FLOAT16)
            return exact_product(a, stride, rows, (const Half *)l.weight, inputs, low, high, wide, epilogue);
        if (l.storage == FS_EXACT_BFLOAT16)
            return exact_product(a, stride, rows, (const Upper *)l.weight, inputs, low, high, wide, epilogue);
    }
    product(a, stride, rows, (const W *)l.weight, inputs, low, high, epilogue);
}

// Output `n` of a matrix, which is no product of rounded numbers: [inputs].
inline void output_of(const fs_linear &l, int64_t inputs, int64_t n, float *out) {
    const int64_t p = n / PANEL, i = n % PANEL, first = p * inputs * PANEL;
    const Byte *bytes = (const Byte *)l.weight + p * exact_panel<Byte>(inputs);
    const Half *halves = (const Half *)l.weight + p * exact_panel<Half>(inputs);
    for (int64_t k = 0; k < inputs; k++) {
        const int64_t at = k * PANEL + i;
        out[k] = l.storage == FS_FLOAT32         ? ((const float *)l.weight)[first + at]
                 : l.storage == FS_BFLOAT16      ? widen(((const uint16_t *)l.weight)[first + place<uint16_t>(k, i)])
                 : l.storage == FS_EXACT_INT8    ? number(bytes, inputs, at)
                 : l.storage == FS_EXACT_FLOAT16 ? number(halves, inputs, at)
                                                 : number((const Upper *)l.weight + first, inputs, at);
    }
}

}  // namespace FS_ISA
}  // namespace forescribe
