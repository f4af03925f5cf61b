// The forward of a Whisper decoder, and the cross-attention keys and values of new rows.
//
// One parallel region per call. Where the heads divide among the threads, a thread computes the projections
// of its own heads and needs no barrier before their attention; otherwise there is one more.
#pragma once

#include "buffers.h"
#include "cross.h"
#include "norm.h"
#include "self_attention.h"
#include "team.h"

namespace forescribe {
namespace FS_ISA {

struct WhisperBuffers {
    float *x, *normed, *project, *attended, *inner, *scores, *panels;
    int64_t wide, project_stride, inner_stride, scores_size, panels_size;

    static WhisperBuffers carve(const fs_whisper &m, int64_t rows, int32_t threads, Carver &carver) {
        WhisperBuffers b;
        b.wide = padded(m.width);
        b.project_stride = padded(3 * m.width);
        b.inner_stride = padded(m.ffn);
        const int64_t cross = QUERIES * padded(m.sources) + QUERIES;
        b.scores_size = padded(cross > m.slots ? cross : m.slots) + SPARE;
        b.panels_size = widened_floats(m.ffn > m.width ? m.ffn : m.width);
        b.x = carver.floats(rows * b.wide);
        b.normed = carver.floats(rows * b.wide);
        b.project = carver.floats(rows * b.project_stride);
        b.attended = carver.floats(rows * b.wide);
        b.inner = carver.floats(rows * b.inner_stride);
        b.scores = carver.floats(threads * b.scores_size);
        b.panels = carver.floats(threads * b.panels_size);
        return b;
    }
};

template <class W, class C, class X>
struct Whisper {
    const fs_whisper &m;
    const fs_step &step;
    const WhisperBuffers &buffers;
    const Team &team;
    int64_t rows, head;
    bool owned;

    Whisper(const fs_whisper &model, const fs_step &s, const WhisperBuffers &b, const Team &t)
        : m(model), step(s), buffers(b), team(t), rows(s.batch * s.nodes), head(m.width / m.heads) {
        owned = m.heads % team.size == 0 && (m.heads / team.size * head) % PANEL == 0;
    }

    float *scores() const { return buffers.scores + team.rank * buffers.scores_size; }
    float *panels_in_float32() const { return buffers.panels + team.rank * buffers.panels_size; }

    template <class E>
    void linear(const float *a, int64_t stride, const fs_linear &l, int64_t inputs, int64_t low,
                int64_t high, const E &epilogue) const {
        product<W>(a, stride, rows, l, inputs, low, high, panels_in_float32(), epilogue);
    }

    void norm(const fs_norm &norm, float *out, int64_t stride) const {
        for (int64_t r = team.low(rows); r < team.high(rows); r++)
            layer_norm(buffers.x + r * buffers.wide, norm, m.eps, m.width, out + r * stride);
        team.wait();
    }

    // A share of the panels of `outputs` columns, beginning at a panel; `owned` shares follow the heads.
    int64_t low(int64_t outputs) const { return team.low(panels(outputs)); }
    int64_t high(int64_t outputs) const { return team.high(panels(outputs)); }

    void residual(const float *a, int64_t stride, const fs_linear &l, int64_t inputs) const {
        linear(a, stride, l, inputs, low(m.width), high(m.width), Add{buffers.x, buffers.wide, l.bias});
        team.wait();
    }

    template <class Work>
    void for_heads(const Work &work) const {
        if (owned) {
            for (int64_t h = team.low(m.heads); h < team.high(m.heads); h++)
                for (int64_t b = 0; b < step.batch; b++) work(b, h);
        } else {
            const int64_t tasks = step.batch * m.heads;
            for (int64_t t = team.low(tasks); t < team.high(tasks); t++) work(t / m.heads, t % m.heads);
        }
    }

    void embed() const {
        for (int64_t r = team.low(rows); r < team.high(rows); r++) {
            const int64_t at = position_of(step, r / step.nodes, r % step.nodes, m.positions);
            const float *place = m.position + at * m.width;
            float *x = buffers.x + r * buffers.wide;
            output_of(m.embedding, m.width, step.tokens[r], x);
            for (int64_t c = 0; c < m.width; c++) x[c] += place[c];
            for (int64_t c = m.width; c < buffers.wide; c++) x[c] = 0;
        }
        // norm() shares rows in the same way
    }

    void self_block(const fs_whisper_layer &l) const {
        norm(l.self_norm, buffers.normed, buffers.wide);
        const Write write{buffers.project, buffers.project_stride, l.qkv.bias};
        if (owned) {
            const int64_t each = panels(m.width);
            for (int64_t part = 0; part < 3; part++)
                linear(buffers.normed, buffers.wide, l.qkv, m.width, part * each + team.low(each),
                       part * each + team.high(each), write);
        } else {
            linear(buffers.normed, buffers.wide, l.qkv, m.width, low(3 * m.width), high(3 * m.width), write);
            team.wait();
        }
        const SelfAttention<C> attention{(C *)l.keys, (C *)l.values, buffers.project, buffers.attended,
                                         buffers.project_stride, buffers.wide, head, m.heads, m.heads,
                                         m.slots, 0};
        for_heads([&](int64_t b, int64_t h) { attention(step, b, h, scores()); });
        team.wait();
        residual(buffers.attended, buffers.wide, l.self_out, m.width);
    }

    void cross_block(int64_t layer) const {
        const fs_whisper_layer &l = m.layer[layer];
        norm(l.cross_norm, buffers.normed, buffers.wide);
        linear(buffers.normed, buffers.wide, l.cross_query, m.width, low(m.width), high(m.width),
               Write{buffers.project, buffers.wide, l.cross_query.bias});
        if (!owned) team.wait();
        const int64_t key_size = cross_key_values(m.sources, head);
        const int64_t value_size = cross_value_values(m.sources, head);
        for_heads([&](int64_t b, int64_t h) {
            const int64_t row = step.rows ? step.rows[b] : b, at = b * step.nodes * buffers.wide + h * head;
            if (step.queries) keep_queries(layer, b, h);
            cross_attend(buffers.project + at, buffers.wide, step.nodes,
                         (const X *)l.cross_keys + (row * m.heads + h) * key_size,
                         (const X *)l.cross_values + (row * m.heads + h) * value_size, head, m.sources,
                         scores(), buffers.attended + at);
        });
        team.wait();
        residual(buffers.attended, buffers.wide, l.cross_out, m.width);
    }

    void keep_queries(int64_t layer, int64_t b, int64_t h) const {
        for (int64_t r = b * step.nodes; r < (b + 1) * step.nodes; r++)
            __builtin_memcpy(step.queries + (layer * rows + r) * m.width + h * head,
                             buffers.project + r * buffers.wide + h * head, sizeof(float) * (size_t)head);
    }

    void ffn_block(const fs_whisper_layer &l) const {
        norm(l.ffn_norm, buffers.normed, buffers.wide);
        linear(buffers.normed, buffers.wide, l.up, m.width, low(m.ffn), high(m.ffn),
               Activate{buffers.inner, buffers.inner_stride, l.up.bias, m.activation});
        team.wait();
        residual(buffers.inner, buffers.inner_stride, l.down, m.ffn);
    }

    void run() const {
        embed();
        for (int64_t i = 0; i < m.layers; i++) {
            // The norms share rows in the same way, and every later write waits for them.
            tap(step, i, buffers.x, buffers.wide, m.width, team.low(rows), team.high(rows));
            self_block(m.layer[i]);
            cross_block(i);
            ffn_block(m.layer[i]);
        }
        norm(m.norm, step.hidden, m.width);
        tap(step, -1, step.hidden, m.width, m.width, team.low(rows), team.high(rows));
        if (step.logits) head_product();
    }

    void head_product() const {
        // The chosen nodes lie apart from each other: a row of `normed` for each.
        const float *from = step.hidden;
        if (step.node) {
            for (int64_t b = team.low(step.batch); b < team.high(step.batch); b++)
                __builtin_memcpy(buffers.normed + b * m.width,
                                 step.hidden + (b * step.nodes + step.node[b]) * m.width,
                                 sizeof(float) * (size_t)m.width);
            team.wait();
            from = buffers.normed;
        }
        product<W>(from, m.width, step.node ? step.batch : rows, m.head, m.width, low(m.outputs),
                   high(m.outputs), panels_in_float32(), Cut{step.logits, m.outputs, m.outputs, nullptr});
    }
};

template <class W, class C, class X>
void whisper_forward(const fs_whisper &model, const fs_step &step) {
    Carver carver(step.workspace);
    const WhisperBuffers buffers =
        WhisperBuffers::carve(model, step.batch * step.nodes, step.threads, carver);
    parallel(step.threads,
             [&](const Team &team) { Whisper<W, C, X>(model, step, buffers, team).run(); });
}

// States are multiplied in bfloat16 where the weights are.
template <class W, class X>
void whisper_cross(const fs_whisper &m, const float *const *states, const int64_t *rows, int64_t count,
                   float *workspace, int32_t threads) {
    using S = typename Chosen<FS_BFLOAT16_PRODUCTS && sizeof(W) == 2, uint16_t, float>::type;
    S *packed = (S *)workspace;
    const int64_t head = m.width / m.heads, blocks = panels(m.sources), tasks = m.layers * m.heads;
    const int64_t weights = packed_values(head, m.width);
    parallel(threads, [&](const Team &team) {
        for (int64_t i = 0; i < count; i++) {
            for (int64_t p = team.low(blocks); p < team.high(blocks); p++)
                pack_states(states[i], m.sources, m.width, p, packed);
            team.wait();
            for (int64_t t = team.low(tasks); t < team.high(tasks); t++) {
                const fs_whisper_layer &l = m.layer[t / m.heads];
                const int64_t h = t % m.heads, at = rows[i] * m.heads + h;
                cross_keys(l.cross_key + h * head * m.width,
                           l.cross_key_bias ? l.cross_key_bias + h * head : nullptr, head, packed,
                           m.sources, m.width, (X *)l.cross_keys + at * cross_key_values(m.sources, head));
                cross_values(states[i], (const W *)l.cross_value.weight + h * weights,
                             l.cross_value.bias ? l.cross_value.bias + h * padded(head) : nullptr, head, m.sources,
                             m.width, (X *)l.cross_values + at * cross_value_values(m.sources, head));
            }
            team.wait();
        }
    });
}

}  // namespace FS_ISA
}  // namespace forescribe
