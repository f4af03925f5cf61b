// Self-attention of an encoder: every position reads every position of its window.
//
// Keys and values of one head are taken in blocks that stay in the caches, with running maxima and sums of the
// softmax: the scores of all pairs are never stored. Blocks begin at the same keys for every query, so a
// query's result does not depend on the queries beside it. C is the storage of keys and values.
#pragma once

#include "epilogues.h"
#include "product.h"
#include "softmax.h"

namespace forescribe {
namespace FS_ISA {

constexpr int64_t ATTEND_ROWS = 48;   // queries at a time
constexpr int64_t ATTEND_KEYS = 512;  // keys at a time; a multiple of 16

// Floats of the buffers of `attend_all`: scores, sums of values, and three numbers of each query.
constexpr int64_t attend_floats(int64_t head) {
    return ATTEND_ROWS * (ATTEND_KEYS + padded(head) + 3) + 2 * SPARE;
}

// Values of the keys of one head; its values take padded(head) for each position.
constexpr int64_t all_keys(int64_t sources, int64_t head) { return padded(sources) * head; }
constexpr int64_t all_values(int64_t sources, int64_t head) { return padded(sources) * padded(head); }

// The first value of column panel `panel` of the block of keys that begins at `key`: blocks are panel matrices
// of their own (layout.h), one behind the other.
FS_INLINE int64_t value_block(int64_t sources, int64_t head, int64_t key, int64_t panel) {
    const int64_t left = padded(sources) - key, keys = left < ATTEND_KEYS ? left : ATTEND_KEYS;
    return key * padded(head) + panel * keys * PANEL;
}

// Rows [begin, end) of keys and values `[rows, stride]`, row 0 being position `begin`, into one head's panels.
// Positions behind `sources` become zeros with the last rows.
template <class C>
void store_keys(const float *rows, int64_t stride, int64_t begin, int64_t end, int64_t sources, int64_t head,
                C *keys) {
    const int64_t stop = end == sources ? padded(sources) : end;
    for (int64_t s = begin; s < stop; s++) {
        const float *from = rows + (s - begin) * stride;
        C *to = keys + s / PANEL * PANEL * head;
        for (int64_t k = 0; k < head; k++)
            put(to + place<C>(k, s % PANEL), s < sources ? from[k] : 0.0f);
    }
}

template <class C>
void store_values(const float *rows, int64_t stride, int64_t begin, int64_t end, int64_t sources,
                  int64_t head, C *values) {
    const int64_t stop = end == sources ? padded(sources) : end;
    for (int64_t s = begin; s < stop; s++) {
        const int64_t block = s / ATTEND_KEYS * ATTEND_KEYS;
        for (int64_t p = 0; p < panels(head); p++) {
            const float *from = rows + (s - begin) * stride + p * PANEL;
            C *to = values + value_block(sources, head, block, p);
            const int64_t columns = s < sources ? (head - p * PANEL < PANEL ? head - p * PANEL : PANEL) : 0;
            for (int64_t i = 0; i < PANEL; i++)
                put(to + place<C>(s - block, i), i < columns ? from[i] : 0.0f);
        }
    }
}

// Scores [0, count) of a query become exponentials; its sum and its values so far are brought to the new
// maximum. Scores behind `count` up to `width` become zeros.
inline void renew(float *scores, int64_t count, int64_t width, float &top, float &sum, float *blend,
                  int64_t columns) {
    const float found = largest(scores, count), best = found > top ? found : top;
    float rest = 0;
    const float whole = exponentials(scores, count, best, rest);  // `width` is a multiple of 16: there is room
    for (int64_t j = count; j < width; j++) scores[j] = 0;
    float scale = 1.0f;
    if (best > top) {
        float lanes[LANES];
        store(lanes, exp(all(top - best)));
        scale = lanes[0];
        for (int64_t c = 0; c < columns; c += LANES) store(blend + c, load(blend + c) * all(scale));
    }
    top = best;
    sum = sum * scale + (whole + rest);
}

// Rows [0, count) of `query`, at most ATTEND_ROWS, over all keys of one head; the result replaces the queries.
template <class C>
void attend_all(float *query, int64_t stride, int64_t count, const C *keys, const C *values, int64_t head,
                int64_t sources, float *buffer) {
    const int64_t columns = padded(head);
    float *scores = buffer, *blend = scores + ATTEND_ROWS * ATTEND_KEYS + SPARE;
    float *top = blend + ATTEND_ROWS * columns, *sum = top + ATTEND_ROWS;
    for (int64_t i = 0; i < count * columns; i++) blend[i] = 0;
    for (int64_t r = 0; r < count; r++) top[r] = -__builtin_inff(), sum[r] = 0;
    for (int64_t key = 0; key < sources; key += ATTEND_KEYS) {
        const int64_t left = padded(sources) - key, width = left < ATTEND_KEYS ? left : ATTEND_KEYS;
        const int64_t real = sources - key < width ? sources - key : width;
        product(query, stride, count, keys + key * head, head, 0, width / PANEL,
                Write{scores, width, nullptr});
        for (int64_t r = 0; r < count; r++)
            renew(scores + r * width, real, width, top[r], sum[r], blend + r * columns, columns);
        product(scores, width, count, values + value_block(sources, head, key, 0), width, 0, panels(head),
                Add{blend, columns, nullptr});
    }
    for (int64_t r = 0; r < count; r++) {
        const float scale = 1.0f / sum[r];
        for (int64_t c = 0; c < head; c++) query[r * stride + c] = blend[r * columns + c] * scale;
    }
}

}  // namespace FS_ISA
}  // namespace forescribe
