// Random Whisper and causal decoders, behind one record of what a test does with either.
#pragma once

#include <algorithm>
#include <functional>

#include "inputs.h"

namespace fuzz {

struct Decoder {
    bool whisper;
    Form form;
    int64_t layers, width, vocab, columns, batch, slots, first, nodes, depths;
    Integers ids;  // of a cut head; empty: column i is token i
    std::function<void()> reset;  // caches to NaN
    std::function<void(const Integers &rows, int threads)> admit;
    std::function<int64_t(int64_t rows, int threads)> workspace;
    std::function<int32_t(const fs_step &)> forward;
    std::function<int32_t(const fs_step &, fs_draft &)> draft;
    std::function<void()> widen;  // all matrices in float32 that are in an exact storage
};

struct Caches {
    std::vector<std::pair<void *, int64_t>> all;
    void *add(int64_t bytes) {
        all.emplace_back(room<char>(bytes), bytes);
        return all.back().first;
    }
    void fill() const {
        for (const auto &cache : all) memset(cache.first, 0xff, cache.second);
    }
};

struct Sizes {
    int64_t first = pick(1, 9), nodes = pick(1, 13), depths = pick(1, 4);
    int64_t slots = first + 2 * nodes + depths + pick(0, 3), batch = pick(1, 4);
};

inline int64_t head_size() {
    static const int64_t sizes[] = {8, 16, 24, 32, 64, 80, 136};
    return sizes[pick(0, 6)];
}

struct WhisperModel {
    Sizes sizes;
    fs_whisper m = {};
    std::vector<fs_whisper_layer> layers;
    Caches caches;
    std::vector<const float *> states;  // of each row of the caches
    Integers ids;

    WhisperModel() {
        const int64_t head = head_size(), D = head * (m.heads = pick(1, 4));
        // float32, cross caches in bfloat16, all in bfloat16; matrices in int8 beside float32 and bfloat16
        const int kind = (int)pick(0, 4);
        m.cache_storage = kind == 2 || kind == 4, m.cross_storage = kind > 0 && kind != 3;
        m.weight_storage = kind > 2 ? (int32_t)FS_INT8 : m.cache_storage;
        m.activation = (int32_t)pick(0, 2);
        m.width = D, m.layers = pick(1, 2), m.ffn = 8 * pick(1, 12), m.vocab = pick(1, 60);
        m.outputs = pick(0, 1) ? m.vocab : pick(1, m.vocab), m.positions = pick(1, 30);
        m.sources = pick(0, 3) ? pick(1, 40) : pick(90, 120);
        m.batch = sizes.batch, m.slots = sizes.slots, m.eps = 1e-5f;
        m.embedding = linear(m.vocab, D, m.cache_storage, false);
        m.position = normal(m.positions * D, m.positions * D, 1);
        m.norm = norm(), m.head = matrix(m.outputs, D, false);
        const int64_t bytes = m.cache_storage ? 2 : 4, own = m.batch * m.slots * D * bytes;
        const int64_t cross = m.batch * m.heads * fs_cross_bytes(m.sources, head, m.cross_storage);
        for (int64_t i = 0; i < m.layers; i++) {
            const fs_norm self = norm(), between = norm(), last = norm();
            const int64_t each = fs_packed_bytes(head, D, m.cache_storage), wide = padded(head);
            char *value = room<char>(each * m.heads);
            const float *plain = normal(D * D, D * D, 1 / std::sqrt((double)D), m.cache_storage);
            float *bias = normal(0, wide * m.heads, 0), *some = normal(D, D, 0.1);
            for (int64_t h = 0; h < m.heads; h++) {
                require(fs_pack(plain + h * head * D, head, D, m.cache_storage, value + h * each, 1) == FS_OK, "pack");
                memcpy(bias + h * wide, some + h * head, head * 4);
            }
            const float *key = normal(D * D, D * D, 1 / std::sqrt((double)D), m.cache_storage);
            layers.push_back({self, matrix(3 * D, D, true), matrix(D, D, true), between, matrix(D, D, true),
                              matrix(D, D, true), last, matrix(m.ffn, D, true), matrix(D, m.ffn, true), key,
                              pick(0, 1) ? normal(D, D, 0.1) : nullptr, {value, pick(0, 1) ? bias : nullptr, m.cache_storage},
                              caches.add(own), caches.add(own), caches.add(cross), caches.add(cross)});
        }
        m.layer = layers.data();
        for (int64_t b = 0; b < m.batch; b++) states.push_back(normal(m.sources * D, m.sources * D, 1));
        if (m.outputs < m.vocab)
            for (int64_t c = 0; c < m.outputs; c++) ids.push_back(pick(0, m.vocab - 1));
    }

    fs_norm norm() const { return {normal(m.width, m.width, 1), normal(m.width, m.width, 0.1)}; }
    fs_linear matrix(int64_t out, int64_t in, bool biased) const {
        return linear(out, in, m.weight_storage, biased && pick(0, 3));
    }

    Decoder decoder() {
        Decoder d = {};
        d.whisper = true;
        d.form = m.weight_storage == FS_INT8 ? INTEGERS : m.cross_storage == FS_BFLOAT16 ? HALF : PLAIN;
        d.layers = m.layers, d.width = m.width, d.vocab = m.vocab, d.columns = m.outputs, d.batch = m.batch, d.slots = m.slots;
        d.first = sizes.first, d.nodes = sizes.nodes, d.depths = sizes.depths, d.ids = ids;
        d.reset = [this] { caches.fill(); };
        d.admit = [this](const Integers &rows, int threads) {
            std::vector<const float *> chosen;
            for (int64_t row : rows) chosen.push_back(states[row]);
            const int64_t bytes = fs_whisper_workspace(&m, 1, threads);
            std::unique_ptr<char[]> work(new char[bytes]);
            require(fs_whisper_cross(&m, chosen.data(), rows.data(), (int64_t)rows.size(), work.get(), bytes,
                                     threads) == FS_OK, "cross");
        };
        d.workspace = [this](int64_t rows, int threads) { return fs_whisper_workspace(&m, rows, threads); };
        d.forward = [this](const fs_step &step) { return fs_whisper_forward(&m, &step); };
        d.draft = [this](const fs_step &step, fs_draft &draft) { return fs_whisper_draft(&m, &step, &draft); };
        d.widen = [this] {
            fuzz::widen(m.embedding), fuzz::widen(m.head);
            for (fs_whisper_layer &l : layers)
                for (fs_linear *each : {&l.qkv, &l.self_out, &l.cross_query, &l.cross_out, &l.up, &l.down})
                    fuzz::widen(*each);
        };
        return d;
    }
};

struct CausalModel {
    Sizes sizes;
    fs_causal m = {};
    std::vector<fs_causal_layer> layers;
    Caches caches;

    CausalModel() {
        m.head = head_size(), m.key_heads = pick(1, 3), m.heads = m.key_heads * pick(1, 3);
        m.width = 2 * pick(4, 50), m.ffn = 2 * pick(1, 45), m.layers = pick(1, 3);
        m.vocab = pick(1, 60), m.outputs = pick(0, 1) ? m.vocab : pick(1, m.vocab);
        m.columns = pick(0, 1) ? m.outputs : pick(m.outputs, m.vocab + 5), m.positions = pick(1, 30);
        m.batch = sizes.batch, m.slots = sizes.slots;
        m.cache_storage = (int32_t)pick(0, 1), m.activation = (int32_t)pick(0, 2);
        m.weight_storage = pick(0, 2) ? m.cache_storage : (int32_t)FS_INT8;
        m.eps = 1e-5f, m.scale = 1 / std::sqrt((float)m.head);
        m.embedding_scale = pick(0, 1) ? 1 : 3, m.residual_scale = pick(0, 1) ? 1 : 0.3f;
        m.logits_scale = pick(0, 1) ? 1 : 0.125f;
        const int32_t storage = m.cache_storage;
        m.embedding = linear(m.vocab, m.width, storage, false);
        const int rotary = (int)pick(0, 2);  // none, all, some layers
        if (rotary) {
            float *cosine = room<float>(m.positions * m.head / 2), *sine = room<float>(m.positions * m.head / 2);
            for (int64_t i = 0; i < m.positions * m.head / 2; i++)
                cosine[i] = std::cos(0.37f * (float)i), sine[i] = std::sin(0.37f * (float)i);
            m.cosine = cosine, m.sine = sine;
        }
        m.norm = normal(m.width, m.width, 1);
        m.projection = matrix(m.outputs, m.width);
        const int64_t F = padded(m.ffn), own = m.batch * m.key_heads * m.slots * m.head * (storage ? 2 : 4);
        for (int64_t i = 0; i < m.layers; i++) {
            fs_causal_layer l = {};
            l.input_norm = normal(m.width, m.width, 1), l.post_norm = normal(m.width, m.width, 1);
            l.qkv = matrix((m.heads + 2 * m.key_heads) * m.head, m.width), l.out = matrix(m.width, m.heads * m.head);
            if (pick(0, 1)) l.query_norm = normal(m.head, m.head, 1), l.key_norm = normal(m.head, m.head, 1);
            float *gate_up = normal(2 * F * m.width, 2 * F * m.width, 1 / std::sqrt((double)m.width), storage);
            for (int64_t r = 0; r < 2 * F; r++)  // rows behind F are zeros
                if (r / 32 * 16 + r % 16 >= m.ffn) memset(gate_up + r * m.width, 0, m.width * 4);
            l.gate_up = linear(gate_up, 2 * F, m.width, m.weight_storage, false), l.down = matrix(m.width, m.ffn);
            l.keys = caches.add(own), l.values = caches.add(own);
            l.window = pick(0, 1) ? sizes.nodes + pick(0, 3) : 0;
            l.rotary = rotary == 1 || (rotary == 2 && pick(0, 1));
            layers.push_back(l);
        }
        m.layer = layers.data();
    }

    fs_linear matrix(int64_t out, int64_t in) const { return linear(out, in, m.weight_storage, pick(0, 1)); }

    Decoder decoder() {
        Decoder d = {};
        d.whisper = false;
        d.form = m.weight_storage == FS_INT8 ? INTEGERS : m.cache_storage == FS_BFLOAT16 ? HALF : PLAIN;
        d.layers = m.layers, d.width = m.width, d.vocab = m.vocab, d.columns = m.columns, d.batch = m.batch, d.slots = m.slots;
        d.first = sizes.first, d.nodes = sizes.nodes, d.depths = sizes.depths;
        d.reset = [this] { caches.fill(); };
        d.admit = [](const Integers &, int) {};
        d.workspace = [this](int64_t rows, int threads) { return fs_causal_workspace(&m, rows, threads); };
        d.forward = [this](const fs_step &step) { return fs_causal_forward(&m, &step); };
        d.draft = [this](const fs_step &step, fs_draft &draft) { return fs_causal_draft(&m, &step, &draft); };
        d.widen = [this] {
            fuzz::widen(m.embedding), fuzz::widen(m.projection);
            for (fs_causal_layer &l : layers)
                for (fs_linear *each : {&l.qkv, &l.out, &l.gate_up, &l.down}) fuzz::widen(*each);
        };
        return d;
    }
};

}  // namespace fuzz
