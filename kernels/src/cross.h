// Cross-attention of one row and head, and the keys and values that it reads.
//
// Both are matrices in panels (layout.h), so that attention is two products. Values behind S are zero and get no
// weight.
#pragma once

#include "epilogues.h"
#include "product.h"
#include "softmax.h"

namespace forescribe {
namespace FS_ISA {

constexpr int64_t QUERIES = 48;  // at a time: bounds the buffer of scores

// Rows of `query` (stride apart, `head` columns) over `sources` positions; out has the same stride.
// scores: QUERIES * padded(sources) + QUERIES floats.
template <class C>
void cross_attend(const float *query, int64_t stride, int64_t rows, const C *keys, const C *values,
                  int64_t head, int64_t sources, float *scores, float *out) {
    const int64_t width = padded(sources);
    float *factor = scores + QUERIES * width;
    for (int64_t begin = 0; begin < rows; begin += QUERIES) {
        const int64_t count = rows - begin < QUERIES ? rows - begin : QUERIES;
        product(query + begin * stride, stride, count, keys, head, 0, width / PANEL,
                Write{scores, width, nullptr});
        for (int64_t r = 0; r < count; r++) {
            factor[r] = 1.0f / exponentials(scores + r * width, sources);
            for (int64_t i = sources; i < width; i++) scores[r * width + i] = 0;
        }
        product(scores, width, count, values, width, 0, panels(head),
                Cut{out + begin * stride, stride, head, factor});
    }
}

// Into a panel matrix: row `row` is input number `row`, columns are outputs. For keys: rows are columns of
// the head, columns positions. For values: rows are positions, columns are columns of the head.
// Straight from the registers: by way of an array the whole product took twice as long.
template <class C>
struct Pack {
    C *out;
    int64_t inputs;          // of the matrix that is written
    const float *by_row;     // bias of each row, or null
    const float *by_column;  // padded to whole panels, or null
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        const F bias = by_row ? all(by_row[row]) : F{};
        for (int i = 0; i < PARTS; i++)
            put_part(out + column * inputs, row, i, with_bias(v[i], by_column, column + i * LANES) + bias);
    }
    static FS_INLINE void put_part(float *panel, int64_t row, int i, const F &value) {
        store(panel + row * PANEL + i * LANES, value);
    }
    static FS_INLINE void put_part(uint16_t *panel, int64_t row, int i, const F &value) {
        uint16_t *at = panel + (row / 2 * PANEL + i * LANES) * 2;  // pairs of rows in 32 bits
        U pair;
        __builtin_memcpy(&pair, at, sizeof pair);
        const U half = narrow(value);
        pair = row & 1 ? (pair & 0xffffu) | (half << 16) : (pair & 0xffff0000u) | half;
        __builtin_memcpy(at, &pair, sizeof pair);
    }
};

// Encoder states [S, D] into a panel of 16 positions, zero-padded.
template <class S>
void pack_states(const float *states, int64_t sources, int64_t width, int64_t panel, S *out) {
    S *to = out + panel * width * PANEL;
    for (int64_t i = 0; i < PANEL; i++) {
        const int64_t s = panel * PANEL + i;
        for (int64_t k = 0; k < width; k++)
            put(to + place<S>(k, i), s < sources ? states[s * width + k] : 0.0f);
    }
}

// Keys of one layer, row and head: weight rows [head, D] times packed states. Behind S they are the bias: the
// scores there are not used.
template <class C, class S>
void cross_keys(const float *weight, const float *bias, int64_t head, const S *packed,
                int64_t sources, int64_t width, C *keys) {
    product(weight, width, head, packed, width, 0, panels(sources),
            Pack<C>{keys, head, bias, nullptr});
}

// Values: states [S, D] times the panels of this head. Positions behind S are zero.
template <class C, class W>
void cross_values(const float *states, const W *weight, const float *bias, int64_t head,
                  int64_t sources, int64_t width, C *values) {
    const int64_t slots = padded(sources);
    product(states, width, sources, weight, width, 0, panels(head),
            Pack<C>{values, slots, nullptr, bias});
    for (int64_t p = 0; p < panels(head); p++)
        for (int64_t s = sources; s < slots; s++)
            for (int i = 0; i < PARTS; i++) Pack<C>::put_part(values + p * PANEL * slots, s, i, F{});
}

}  // namespace FS_ISA
}  // namespace forescribe
