// Whisper's encoder: one window of features to its states, in one parallel region.
//
// Everything but attention works on a block of positions at a time: convolutions, or the second half of a layer
// and the first half of the next, run through while the block's activations stay in the caches. Threads take
// blocks from a counter. A position's numbers do not depend on who computes it, nor on the number of threads.
#pragma once

#include "buffers.h"
#include "encoder_attention.h"
#include "norm.h"
#include "team.h"

namespace forescribe {
namespace FS_ISA {

constexpr int64_t POSITIONS = 48;  // positions at a time: a multiple of ROWS and of PANEL

struct EncoderBuffers {
    float *x, *query, *keys, *values;  // of the window
    float *rows, *wide, *attention;    // of this thread
    int64_t *tasks;                    // counters: one for each block-wise and each attention pass
    int64_t stride;

    static int64_t wide_floats(const fs_encoder &m) {
        const int64_t frames = 2 * POSITIONS + 1;
        const int64_t conv = frames * padded(m.width) + (frames + 2) * m.mels;
        const int64_t ffn = POSITIONS * padded(m.ffn), keys = POSITIONS * padded(m.width);
        return (conv > ffn ? conv > keys ? conv : keys : ffn > keys ? ffn : keys) + SPARE;
    }

    static EncoderBuffers carve(const fs_encoder &m, int32_t threads, Carver &carver, int32_t rank) {
        EncoderBuffers b;
        const int64_t head = m.width / m.heads;
        b.stride = padded(m.width);
        b.tasks = (int64_t *)carver.floats(2 * (2 * m.layers + 1));
        b.x = carver.floats(m.sources * b.stride);
        b.query = carver.floats(m.sources * b.stride);
        b.keys = carver.floats(m.heads * all_keys(m.sources, head));
        b.values = carver.floats(m.heads * all_values(m.sources, head));
        for (int32_t i = 0; i < threads; i++) {
            float *rows = carver.floats(POSITIONS * b.stride), *wide = carver.floats(wide_floats(m));
            float *attention = carver.floats(attend_floats(head));
            if (i == rank) b.rows = rows, b.wide = wide, b.attention = attention;
        }
        return b;
    }
};

struct AddPosition {  // gelu and the position's embedding
    float *out;
    const float *position;
    int64_t stride, width;
    const float *bias;
    FS_INLINE void operator()(int64_t row, int64_t column, const F (&v)[PARTS]) const {
        for (int i = 0; i < PARTS; i++) {
            const int64_t at = column + i * LANES;
            const F x = gelu(with_bias(v[i], bias, at));
            store(out + row * stride + at, at + LANES <= width ? x + load(position + row * width + at) : x);
        }
        for (int64_t at = column < width - width % LANES ? width - width % LANES : column;
             at < width && at < column + PANEL; at++)
            out[row * stride + at] += position[row * width + at];
    }
};

// W is the storage of weights, but of those in int8, and of keys and values.
template <class W, class E>
FS_INLINE void whole(const float *a, int64_t stride, int64_t rows, const fs_linear &w, int64_t inputs,
                     int64_t outputs, const E &epilogue) {
    if (w.storage == FS_INT8)
        return product(a, stride, rows, (const int8_t *)w.weight, inputs, 0, panels(outputs), epilogue);
    product(a, stride, rows, (const W *)w.weight, inputs, 0, panels(outputs), epilogue);
}

// Both convolutions for positions [begin, end). A frame's neighbours lie beside it, so three frames are one row
// of a product, and rows overlap.
template <class W>
void convolve(const fs_encoder &m, const float *features, int64_t begin, int64_t end,
                     EncoderBuffers &b) {
    const int64_t frames = 2 * m.sources, first = 2 * begin - 1, count = 2 * (end - begin) + 1;
    float *inner = b.wide, *mel = inner + (2 * POSITIONS + 1) * b.stride;
    for (int64_t t = 0; t < count + 2; t++) {
        const int64_t frame = first - 1 + t;
        for (int64_t k = 0; k < m.mels; k++)
            mel[t * m.mels + k] = frame >= 0 && frame < frames ? features[k * frames + frame] : 0.0f;
    }
    whole<W>(mel, m.mels, count, m.conv1, 3 * m.mels, m.width, Activate{inner, b.stride, m.conv1.bias, FS_GELU});
    if (first < 0)
        for (int64_t i = 0; i < b.stride; i++) inner[i] = 0;
    whole<W>(inner, 2 * b.stride, end - begin, m.conv2, 3 * b.stride, m.width,
          AddPosition{b.x + begin * b.stride, m.position + begin * m.width, b.stride, m.width, m.conv2.bias});
}

inline void normalise(const fs_encoder &m, const fs_norm &norm, const float *x, int64_t count, int64_t stride,
                      float *out, int64_t out_stride) {
    for (int64_t r = 0; r < count; r++)
        layer_norm(x + r * stride, norm, m.eps, m.width, out + r * out_stride);
}

// Queries, keys and values of positions [begin, end).
template <class W>
void project(const fs_encoder &m, const fs_encoder_layer &layer, int64_t begin, int64_t end,
                    EncoderBuffers &b) {
    const int64_t count = end - begin, head = m.width / m.heads;
    normalise(m, layer.attention_norm, b.x + begin * b.stride, count, b.stride, b.rows, b.stride);
    whole<W>(b.rows, b.stride, count, layer.query, m.width, m.width,
          Write{b.query + begin * b.stride, b.stride, layer.query.bias});
    whole<W>(b.rows, b.stride, count, layer.key, m.width, m.width, Write{b.wide, b.stride, layer.key.bias});
    for (int64_t h = 0; h < m.heads; h++)
        store_keys(b.wide + h * head, b.stride, begin, end, m.sources, head,
                   (W *)b.keys + h * all_keys(m.sources, head));
    whole<W>(b.rows, b.stride, count, layer.value, m.width, m.width, Write{b.wide, b.stride, layer.value.bias});
    for (int64_t h = 0; h < m.heads; h++)
        store_values(b.wide + h * head, b.stride, begin, end, m.sources, head,
                     (W *)b.values + h * all_values(m.sources, head));
}

// What follows attention, whose results are in `query`.
template <class W>
void finish(const fs_encoder &m, const fs_encoder_layer &layer, int64_t begin, int64_t end,
                   EncoderBuffers &b) {
    const int64_t count = end - begin;
    float *x = b.x + begin * b.stride;
    whole<W>(b.query + begin * b.stride, b.stride, count, layer.out, m.width, m.width,
          Add{x, b.stride, layer.out.bias});
    normalise(m, layer.ffn_norm, x, count, b.stride, b.rows, b.stride);
    whole<W>(b.rows, b.stride, count, layer.up, m.width, m.ffn,
          Activate{b.wide, padded(m.ffn), layer.up.bias, m.activation});
    whole<W>(b.wide, padded(m.ffn), count, layer.down, m.ffn, m.width, Add{x, b.stride, layer.down.bias});
}

// Whether there is another of `count` tasks, and which.
FS_INLINE bool take(int64_t *counter, int64_t count, int64_t &task) {
    task = __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    return task < count;
}

// states [S, D]
template <class W>
void encode_stored(const fs_encoder &m, const float *features, float *states, void *memory, int32_t threads) {
    Carver first(memory);
    int64_t *tasks = EncoderBuffers::carve(m, threads, first, 0).tasks;
    for (int64_t i = 0; i < 2 * m.layers + 1; i++) tasks[i] = 0;
    parallel(threads, [&](const Team &team) {
        Carver carver(memory);
        EncoderBuffers b = EncoderBuffers::carve(m, threads, carver, team.rank);
        const int64_t head = m.width / m.heads, blocks = (m.sources + POSITIONS - 1) / POSITIONS;
        int64_t task;
        for (int64_t l = 0; l <= m.layers; l++) {
            while (take(b.tasks + 2 * l, blocks, task)) {
                const int64_t begin = task * POSITIONS, end = begin + POSITIONS < m.sources ? begin + POSITIONS : m.sources;
                if (l == 0)
                    convolve<W>(m, features, begin, end, b);
                else
                    finish<W>(m, m.layer[l - 1], begin, end, b);
                if (l < m.layers)
                    project<W>(m, m.layer[l], begin, end, b);
                else
                    normalise(m, m.norm, b.x + begin * b.stride, end - begin, b.stride,
                              states + begin * m.width, m.width);
            }
            if (l == m.layers) break;
            team.wait();
            while (take(b.tasks + 2 * l + 1, blocks * m.heads, task)) {
                const int64_t h = task / blocks, begin = task % blocks * POSITIONS;
                const int64_t left = m.sources - begin;
                attend_all(b.query + begin * b.stride + h * head, b.stride, left < POSITIONS ? left : POSITIONS,
                           (const W *)b.keys + h * all_keys(m.sources, head),
                           (const W *)b.values + h * all_values(m.sources, head),
                           head, m.sources, b.attention);
            }
            team.wait();
        }
    });
}

inline void encode(const fs_encoder &m, const float *features, float *states, void *memory, int32_t threads) {
    if (m.weight_storage == FS_BFLOAT16)
        encode_stored<uint16_t>(m, features, states, memory, threads);
    else
        encode_stored<float>(m, features, states, memory, threads);
}

}  // namespace FS_ISA
}  // namespace forescribe
