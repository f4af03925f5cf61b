// The forward of a Llama-like decoder: RMS norms, rotary positions, grouped queries, a gated feed-forward.
//
// One parallel region per call. Where the heads of keys divide among the threads, a thread computes the
// projections of its own heads and needs no barrier before their attention; otherwise there is one more.
#pragma once

#include "buffers.h"
#include "epilogues.h"
#include "norm.h"
#include "product.h"
#include "rotary.h"
#include "self_attention.h"
#include "team.h"

namespace forescribe {
namespace FS_ISA {

struct CausalBuffers {
    float *x, *normed, *project, *attended, *inner, *scores, *panels;
    int64_t wide, project_stride, attended_stride, inner_stride, scores_size, panels_size;

    static CausalBuffers carve(const fs_causal &m, int64_t rows, int32_t threads, Carver &carver) {
        CausalBuffers b;
        b.wide = padded(m.width);
        b.project_stride = padded((m.heads + 2 * m.key_heads) * m.head);
        b.attended_stride = padded(m.heads * m.head);
        b.inner_stride = padded(m.ffn);
        b.scores_size = padded(m.slots) + SPARE;
        const int64_t widest = m.heads * m.head > m.width ? m.heads * m.head : m.width;
        b.panels_size = widened_floats(m.ffn > widest ? m.ffn : widest);
        b.x = carver.floats(rows * b.wide);
        b.normed = carver.floats(rows * b.wide);
        b.project = carver.floats(rows * b.project_stride);
        b.attended = carver.floats(rows * b.attended_stride);
        b.inner = carver.floats(rows * b.inner_stride);
        b.scores = carver.floats(threads * b.scores_size);
        b.panels = carver.floats(threads * b.panels_size);
        return b;
    }
};

// Storage of matrices, and of caches.
template <class W, class C>
struct Causal {
    const fs_causal &m;
    const fs_step &step;
    const CausalBuffers &buffers;
    const Team &team;
    int64_t rows, asked, kept;  // columns of all queries, and of all keys
    bool owned;

    Causal(const fs_causal &model, const fs_step &s, const CausalBuffers &b, const Team &t)
        : m(model), step(s), buffers(b), team(t), rows(s.batch * s.nodes), asked(m.heads * m.head),
          kept(m.key_heads * m.head) {
        owned = m.key_heads % team.size == 0 && (m.key_heads / team.size * m.head) % PANEL == 0;
    }

    float *panels_in_float32() const { return buffers.panels + team.rank * buffers.panels_size; }

    int64_t low(int64_t outputs) const { return team.low(panels(outputs)); }
    int64_t high(int64_t outputs) const { return team.high(panels(outputs)); }

    template <class E>
    void linear(const float *a, int64_t stride, const fs_linear &l, int64_t inputs, int64_t first,
                int64_t end, const E &epilogue) const {
        product<W>(a, stride, rows, l, inputs, first, end, panels_in_float32(), epilogue);
    }

    void residual(const float *a, int64_t stride, const fs_linear &l, int64_t inputs) const {
        linear(a, stride, l, inputs, low(m.width), high(m.width), Add{buffers.x, buffers.wide, l.bias, m.residual_scale});
        team.wait();
    }

    void norm(const float *weight) const {
        for (int64_t r = team.low(rows); r < team.high(rows); r++)
            rms_norm(buffers.x + r * buffers.wide, weight, m.eps, m.width,
                     buffers.normed + r * buffers.wide);
        team.wait();
    }

    void embed() const {
        for (int64_t r = team.low(rows); r < team.high(rows); r++) {
            float *x = buffers.x + r * buffers.wide;
            const float *given = step.embedded ? step.embedded[r] : nullptr;
            if (given) __builtin_memcpy(x, given, sizeof(float) * (size_t)m.width);
            else output_of(m.embedding, m.width, step.tokens[r], x);
            if (m.embedding_scale != 1) multiply(x, m.embedding_scale, m.width);
            for (int64_t c = m.width; c < buffers.wide; c++) x[c] = 0;
        }
        // norm() shares rows in the same way
    }

    void project(const fs_linear &qkv) const {
        const Write write{buffers.project, buffers.project_stride, qkv.bias};
        if (!owned) {
            linear(buffers.normed, buffers.wide, qkv, m.width, low(asked + 2 * kept),
                   high(asked + 2 * kept), write);
            team.wait();
            return;
        }
        const int64_t begins[] = {0, panels(asked), panels(asked + kept)};
        for (int part = 0; part < 3; part++) {
            const int64_t each = part ? kept : asked;
            linear(buffers.normed, buffers.wide, qkv, m.width, begins[part] + low(each),
                   begins[part] + high(each), write);
        }
    }

    // Norms and rotation, in place, of the queries and keys that belong to one head of keys.
    void prepare(const fs_causal_layer &l, int64_t b, int64_t h) const {
        const int64_t group = m.heads / m.key_heads, half = m.head / 2;
        for (int64_t i = 0; i < step.nodes; i++) {
            float *row = buffers.project + (b * step.nodes + i) * buffers.project_stride;
            const int64_t at = position_of(step, b, i, m.positions) * half;
            const float *cosine = l.rotary ? m.cosine + at : nullptr, *sine = l.rotary ? m.sine + at : nullptr;
            for (int64_t g = h * group; g <= (h + 1) * group; g++) {
                const bool key = g == (h + 1) * group;
                float *x = row + (key ? m.heads + h : g) * m.head;
                const float *weight = key ? l.key_norm : l.query_norm;
                if (weight) rms_norm(x, weight, m.eps, m.head, x);
                if (cosine) rotate(x, cosine, sine, half);
                if (!key) multiply(x, m.scale, m.head);
            }
        }
    }

    void attention_block(const fs_causal_layer &l) const {
        norm(l.input_norm);
        project(l.qkv);
        const SelfAttention<C> attention{(C *)l.keys, (C *)l.values, buffers.project, buffers.attended,
                                         buffers.project_stride, buffers.attended_stride, m.head, m.heads,
                                         m.key_heads, m.slots, l.window};
        float *scores = buffers.scores + team.rank * buffers.scores_size;
        const auto work = [&](int64_t b, int64_t h) {
            prepare(l, b, h);
            attention(step, b, h, scores);
        };
        if (owned) {
            for (int64_t h = team.low(m.key_heads); h < team.high(m.key_heads); h++)
                for (int64_t b = 0; b < step.batch; b++) work(b, h);
        } else {
            const int64_t tasks = step.batch * m.key_heads;
            for (int64_t t = team.low(tasks); t < team.high(tasks); t++)
                work(t / m.key_heads, t % m.key_heads);
        }
        team.wait();
        residual(buffers.attended, buffers.attended_stride, l.out, asked);
    }

    void ffn_block(const fs_causal_layer &l) const {
        norm(l.post_norm);
        // Panels of gate and up alternate, and a pair is never divided.
        linear(buffers.normed, buffers.wide, l.gate_up, m.width, 2 * low(m.ffn), 2 * high(m.ffn),
               Gated{buffers.inner, buffers.inner_stride, l.gate_up.bias, m.activation});
        team.wait();
        residual(buffers.inner, buffers.inner_stride, l.down, m.ffn);
    }

    // The last norm, of the chosen nodes alone where there are some, and the head.
    void logits() const {
        const int64_t count = step.node ? step.batch : rows;
        for (int64_t r = team.low(count); r < team.high(count); r++) {
            const int64_t from = step.node ? r * step.nodes + step.node[r] : r;
            rms_norm(buffers.x + from * buffers.wide, m.norm, m.eps, m.width,
                     buffers.normed + r * buffers.wide);
            if (m.logits_scale != 1) multiply(buffers.normed + r * buffers.wide, m.logits_scale, m.width);
            float *out = step.logits + r * m.columns;
            for (int64_t c = m.outputs; c < m.columns; c++) out[c] = -__builtin_inff();
        }
        team.wait();
        product<W>(buffers.normed, buffers.wide, count, m.projection, m.width, low(m.outputs),
                   high(m.outputs), panels_in_float32(), Cut{step.logits, m.columns, m.outputs, nullptr, m.projection.bias});
    }

    void run() const {
        embed();
        for (int64_t i = 0; i < m.layers; i++) {
            // The norms share rows in the same way, and every later write waits for them.
            tap(step, i, buffers.x, buffers.wide, m.width, team.low(rows), team.high(rows));
            attention_block(m.layer[i]);
            ffn_block(m.layer[i]);
        }
        tap_final();
        if (step.logits) logits();
    }

    // Normalises for the tap alone: the head reads chosen nodes only, and nothing else reads this state.
    void tap_final() const {
        for (int64_t t = 0; t < step.tap_count; t++) {
            if (step.tap_layers[t] != -1) continue;
            for (int64_t r = team.low(rows); r < team.high(rows); r++)
                rms_norm(buffers.x + r * buffers.wide, m.norm, m.eps, m.width,
                         step.taps + (r * step.tap_count + t) * m.width);
        }
    }
};

template <class W, class C>
void causal_forward(const fs_causal &model, const fs_step &step) {
    Carver carver(step.workspace);
    const CausalBuffers buffers =
        CausalBuffers::carve(model, step.batch * step.nodes, step.threads, carver);
    parallel(step.threads, [&](const Team &team) { Causal<W, C>(model, step, buffers, team).run(); });
}

}  // namespace FS_ISA
}  // namespace forescribe
