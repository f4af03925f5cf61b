// Parts that decoder forwards share: sizes of a step, checks of its indices, what a node reads.
#pragma once

#include "forescribe.h"
#include "layout.h"

namespace forescribe {

// Every slot and token of a step, before anything is written.
inline int32_t check_step(const fs_step &step, int64_t batch, int64_t slots, int64_t vocab) {
    if (step.batch < 1 || step.nodes < 1 || step.reach < 1 || step.threads < 1) return FS_BAD_SHAPE;
    if (step.paths && (!step.lengths || step.path_slots < 1 || step.path_slots > slots)) return FS_BAD_SHAPE;
    if (step.reach > slots || step.nodes > slots) return FS_BAD_SHAPE;
    for (int64_t b = 0; b < step.batch; b++) {
        const int64_t row = step.rows ? step.rows[b] : b;
        if (row < 0 || row >= batch) return FS_BAD_SLOT;
        if (step.node && (step.node[b] < 0 || step.node[b] >= step.nodes)) return FS_BAD_SLOT;
        if (!step.paths) {
            if (step.start[b] < 0 || step.start[b] > slots - step.nodes) return FS_BAD_SLOT;
            continue;
        }
        for (int64_t n = b * step.nodes; n < (b + 1) * step.nodes; n++) {
            if (step.lengths[n] < 1 || step.lengths[n] > step.path_slots) return FS_BAD_SLOT;
            for (int64_t p = 0; p < step.lengths[n]; p++) {
                const int64_t slot = step.paths[n * step.path_slots + p];
                if (slot < 0 || slot >= slots) return FS_BAD_SLOT;
            }
        }
    }
    for (int64_t i = 0; i < step.batch * step.nodes; i++)
        if (step.tokens[i] < 0 || step.tokens[i] >= vocab) return FS_BAD_TOKEN;
    return FS_OK;
}

// Layers of the taps, before anything is written.
inline int32_t check_taps(const fs_step &step, int64_t layers) {
    if (step.tap_count < 0 || (step.tap_count && (!step.tap_layers || !step.taps))) return FS_BAD_SHAPE;
    for (int64_t t = 0; t < step.tap_count; t++)
        if (step.tap_layers[t] < -1 || step.tap_layers[t] >= layers) return FS_BAD_SHAPE;
    return FS_OK;
}

// Copies the states [B N, stride] that enter a layer to its taps, rows `low` to `high`.
inline void tap(const fs_step &step, int64_t layer, const float *x, int64_t stride, int64_t width, int64_t low,
                int64_t high) {
    for (int64_t t = 0; t < step.tap_count; t++) {
        if (step.tap_layers[t] != layer) continue;
        for (int64_t r = low; r < high; r++)
            __builtin_memcpy(step.taps + (r * step.tap_count + t) * width, x + r * stride,
                             sizeof(float) * (size_t)width);
    }
}

// The position of node i: clamped, as slots of a row that is about to end run past the last one.
inline int64_t position_of(const fs_step &step, int64_t b, int64_t i, int64_t positions) {
    const int64_t at = step.paths ? step.lengths[b * step.nodes + i] - 1 : step.start[b] + i;
    return at < positions ? at : positions - 1;
}

// The slots that node i of row b reads, its own last; NULL in a chain.
inline const int64_t *path_of(const fs_step &step, int64_t b, int64_t i) {
    return step.paths ? step.paths + (b * step.nodes + i) * step.path_slots : nullptr;
}

// The slot that node i of row b is written to.
inline int64_t slot_of(const fs_step &step, int64_t b, int64_t i) {
    const int64_t *path = path_of(step, b, i);
    return path ? path[step.lengths[b * step.nodes + i] - 1] : step.start[b] + i;
}

}  // namespace forescribe
