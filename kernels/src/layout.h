// Layouts of packed matrices and of cross-attention caches; the same for every instruction set.
//
// A matrix [N outputs, K inputs] is stored in panels of 16 outputs, zero-padded:
//     float32   [N / 16][K][16]
//     bfloat16  [N / 16][K / 2][16][2]   inputs in pairs: one load holds two of them for each column
//     int8      [N / 16]([K / 4][16][4], then 16 scales in float32 and 16 offsets in int32), K zero-padded to a
//               multiple of 4: four inputs of each column in 32 bits. An offset is -128 times the sum of the
//               column's weights.
// Cross keys of one row and head are such a matrix with N = S and K = head size; cross values one with
// N = head size and K = S, rounded up to a multiple of 16.
#pragma once

#include <stdint.h>

namespace forescribe {

constexpr int64_t COLUMNS = 16;
constexpr int64_t WIDEST = 1 << 17;  // inputs of a product: rows of them fit into a fixed buffer (narrowed.h)

constexpr int64_t padded(int64_t count) { return (count + COLUMNS - 1) / COLUMNS * COLUMNS; }

constexpr int64_t panels(int64_t count) { return (count + COLUMNS - 1) / COLUMNS; }

constexpr int64_t quads(int64_t count) { return (count + 3) / 4; }

constexpr int64_t storage_bytes(int32_t storage) { return storage == 0 ? 4 : 2; }

constexpr int64_t PANEL_TAIL = 2 * 4 * COLUMNS;  // bytes behind a panel of int8: scales and offsets
constexpr int64_t int8_panel(int64_t inputs) { return quads(inputs) * 4 * COLUMNS + PANEL_TAIL; }

constexpr int64_t packed_values(int64_t outputs, int64_t inputs) { return padded(outputs) * inputs; }

// Values of the cross keys of one row and head, and of its cross values.
constexpr int64_t cross_key_values(int64_t sources, int64_t head) { return padded(sources) * head; }
constexpr int64_t cross_value_values(int64_t sources, int64_t head) {
    return padded(head) * padded(sources);
}

}  // namespace forescribe
