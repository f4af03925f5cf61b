// Whisper encoders of random shapes, around the sizes of blocks of positions and of keys: every instruction set
// against `generic`, and several threads against one.
#include "inputs.h"

namespace fuzz {
namespace {

struct Encoder {
    fs_encoder m = {};
    std::vector<fs_encoder_layer> layers;
    const float *features;

    Encoder() {
        static const int64_t around[] = {1, 2, 15, 16, 17, 47, 48, 49, 95, 96, 97, 511, 512, 513, 530};
        static const int64_t heads[] = {8, 16, 24, 32, 64};
        m.sources = around[pick(0, 14)];
        const int64_t head = heads[pick(0, m.sources > 100 ? 1 : 4)];
        m.heads = pick(1, 3), m.width = head * m.heads, m.ffn = 8 * pick(1, 10), m.mels = 2 * pick(1, 20);
        m.layers = pick(1, m.sources > 100 ? 1 : 2), m.weight_storage = (int32_t)pick(0, 1);
        m.activation = (int32_t)pick(0, 2), m.eps = 1e-5f;
        m.conv1 = matrix(m.width, 3 * m.mels);
        const int64_t D = m.width, wide = padded(D);
        float *conv2 = normal(D * 3 * wide, D * 3 * wide, 1 / std::sqrt(3.0 * (double)D), m.weight_storage);
        for (int64_t i = 0; i < D * 3; i++) memset(conv2 + i * wide + D, 0, (wide - D) * 4);
        m.conv2 = linear(conv2, D, 3 * wide, m.weight_storage, true, false);
        m.position = normal(m.sources * D, m.sources * D, 1), m.norm = norm();
        for (int64_t i = 0; i < m.layers; i++) {
            const fs_norm first = norm(), last = norm();
            layers.push_back({first, matrix(D, D), matrix(D, D), matrix(D, D), matrix(D, D), last, matrix(m.ffn, D),
                              matrix(D, m.ffn)});
        }
        m.layer = layers.data();
        features = normal(m.mels * 2 * m.sources, m.mels * 2 * m.sources, 1);
    }

    fs_norm norm() const { return {normal(m.width, m.width, 1), normal(m.width, m.width, 0.1)}; }
    fs_linear matrix(int64_t out, int64_t in) const { return linear(out, in, m.weight_storage, pick(0, 3), false); }

    Floats states(int threads) const {
        const int64_t bytes = fs_encoder_workspace(&m, threads), count = m.sources * m.width;
        std::unique_ptr<char[]> work(new char[bytes]);
        memset(work.get(), 0xff, bytes);
        std::unique_ptr<float[]> out(new float[count]);
        require(fs_encode(&m, features, out.get(), work.get(), bytes, threads) == FS_OK, "encode");
        return Floats(out.get(), out.get() + count);
    }
};

}  // namespace

int encoders(int cases) {
    Differences differences;
    for (int i = 0; i < cases; i++) {
        kept.clear();
        const Encoder encoder;
        Floats expected;
        for (const std::string &set : usable_sets()) {
            require(fs_choose_isa(set.c_str()) == FS_OK, "instruction set");
            const Floats found = encoder.states(1);
            if (set == "generic") expected = found;
            differences.add(difference(found, expected), encoder.m.weight_storage == FS_BFLOAT16 ? HALF : PLAIN);
            require(same(found, encoder.states((int)pick(2, 5))), "threads");
        }
    }
    return differences.report("encoders", cases);
}

}  // namespace fuzz
