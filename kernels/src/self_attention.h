// Self-attention of all nodes of one row and one head of keys: write keys and values, then read.
#pragma once

#include "attention.h"
#include "steps.h"

namespace forescribe {
namespace FS_ISA {

// One layer's caches and this forward's projections.
template <class C>
struct SelfAttention {
    C *keys, *values;     // [batch, key heads, slots, head]
    const float *project; // [M, stride]: queries, keys, values of all heads
    float *out;           // [M, out_stride]
    int64_t stride, out_stride, head, heads, key_heads, slots, window;  // window 0: none

    void operator()(const fs_step &step, int64_t b, int64_t h, float *scores) const {
        const int64_t row = step.rows ? step.rows[b] : b, group = heads / key_heads;
        C *key = keys + (row * key_heads + h) * slots * head;
        C *value = values + (row * key_heads + h) * slots * head;
        for (int64_t i = 0; i < step.nodes; i++) {
            const float *k = project + (b * step.nodes + i) * stride + (heads + h) * head;
            const float *v = k + key_heads * head;
            const int64_t slot = slot_of(step, b, i) * head;
            for (int64_t c = 0; c < head; c++) put(key + slot + c, k[c]);
            for (int64_t c = 0; c < head; c++) put(value + slot + c, v[c]);
        }
        for (int64_t i = 0; i < step.nodes; i++) {
            const Reads reads = reads_of(step, b, i);
            for (int64_t g = h * group; g < (h + 1) * group; g++) {
                const int64_t m = b * step.nodes + i;
                attend(project + m * stride + g * head, key, value, head, reads, scores,
                       out + m * out_stride + g * head);
            }
        }
    }

    Reads reads_of(const fs_step &step, int64_t b, int64_t i) const {
        if (const int64_t *path = path_of(step, b, i)) {
            const int64_t length = step.lengths[b * step.nodes + i], skip = window && length > window ? length - window : 0;
            return Reads{0, 0, path + skip, length - skip};
        }
        const int64_t end = step.start[b] + i + 1, high = end < step.reach ? end : step.reach;
        const int64_t low = window && end > window ? end - window : 0;
        return Reads{low < high ? low : high, high, nullptr, 0};
    }
};

}  // namespace FS_ISA
}  // namespace forescribe
