// Self-attention of one query over slots of a cache [T, head size].
//
// A query reads the slots [low, high), or a list of slots, the path of a beam. Other slots are never loaded,
// so that what lies in them, NaN included, cannot reach a result. The order of all sums depends on the slots'
// order alone: a path gives the same bits as the same chain.
#pragma once

#include "softmax.h"

namespace forescribe {
namespace FS_ISA {

struct Reads {
    int64_t low, high;     // slots [low, high)
    const int64_t *extra;  // then these
    int64_t extras;
    FS_INLINE int64_t count() const { return high - low + extras; }
    FS_INLINE int64_t slot(int64_t i) const { return i < high - low ? low + i : extra[i - (high - low)]; }
};

// `head` is a multiple of 8: a rest is half a panel.
template <class C>
FS_INLINE float dot(const float *query, const C *key, int64_t head) {
    F parts[PARTS] = {};
    int64_t i = 0;
    for (; i + PANEL <= head; i += PANEL)
        for (int p = 0; p < PARTS; p++)
            parts[p] = fma(load(query + i + p * LANES), load(key + i + p * LANES), parts[p]);
    float rest = 0;
    for (; i < head; i++) rest += query[i] * scalar(key + i);
    return sum(parts) + rest;
}

// NV vectors of the weighted sum of values, from `column` on.
template <int NV, class C>
FS_INLINE void blend(const float *weights, const C *values, int64_t head, int64_t column,
                     const Reads &reads, float scale, float *out) {
    F sums[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) sums[v] = F{};
    const int64_t together = reads.high - reads.low, all_slots = reads.count();
    const C *row = values + reads.low * head + column;
    for (int64_t i = 0; i < together; i++, row += head) {
        const F w = all(weights[i]);
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) sums[v] = fma(w, load(row + v * LANES), sums[v]);
    }
    for (int64_t i = together; i < all_slots; i++) {
        const F w = all(weights[i]);
        const C *at = values + reads.slot(i) * head + column;
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) sums[v] = fma(w, load(at + v * LANES), sums[v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++) store(out + column + v * LANES, sums[v] * all(scale));
}

// out [head] = softmax(query . keys) . values; `scores` has room for the slots and one vector more.
template <class C>
void attend(const float *query, const C *keys, const C *values, int64_t head, const Reads &reads,
            float *scores, float *out) {
    const int64_t count = reads.count();
    for (int64_t i = 0; i < count; i++) scores[i] = dot(query, keys + reads.slot(i) * head, head);
    const float scale = 1.0f / exponentials(scores, count);
    int64_t column = 0;
    for (; column + 8 * LANES <= head; column += 8 * LANES)
        blend<8>(scores, values, head, column, reads, scale, out);
    for (; column + 2 * LANES <= head; column += 2 * LANES)
        blend<2>(scores, values, head, column, reads, scale, out);
    for (; column + LANES <= head; column += LANES)
        blend<1>(scores, values, head, column, reads, scale, out);
    for (; column < head; column++) {
        float rest = 0;
        for (int64_t i = 0; i < count; i++)
            rest = fma(scores[i], scalar(values + reads.slot(i) * head + column), rest);
        out[column] = rest * scale;
    }
}

}  // namespace FS_ISA
}  // namespace forescribe
