// Whisper decoders in float32 of random shapes against a naive float64 reference.
#include "inputs.h"

namespace fuzz {
namespace {

typedef std::vector<double> Row;
float *floats(int64_t count, int64_t size, double deviation) { return normal(count, size, deviation); }

struct Matrix {  // the plain form beside the packed one
    float *weight, *bias;
    int64_t out, in;
    fs_linear packed;
    Row operator()(const Row &x) const {
        Row y(out);
        for (int64_t i = 0; i < out; i++) {
            y[i] = bias ? bias[i] : 0;
            for (int64_t k = 0; k < in; k++) y[i] += (double)weight[i * in + k] * x[k];
        }
        return y;
    }
};

Matrix matrix(int64_t out, int64_t in, bool biased) {
    Matrix m{floats(out * in, out * in, 1 / std::sqrt((double)in)), nullptr, out, in, {}};
    if (biased) m.bias = floats(out, (out + 15) / 16 * 16, 0.1);
    float *packed = floats(0, fs_packed_bytes(out, in, FS_FLOAT32) / 4, 0);
    if (fs_pack(m.weight, out, in, FS_FLOAT32, packed, 1)) abort();
    m.packed = {packed, m.bias, FS_FLOAT32};
    return m;
}

struct Layer {
    fs_norm norms[3];
    Matrix qkv, out, query, cross_out, up, down, key, value;
    std::vector<std::vector<Row>> keys, values;  // [row][slot]
};

Row normed(const Row &x, const fs_norm &n, double eps) {
    double mean = 0, spread = 0;
    for (double v : x) mean += v / (double)x.size();
    for (double v : x) spread += (v - mean) * (v - mean) / (double)x.size();
    Row y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = (x[i] - mean) / std::sqrt(spread + eps) * n.scale[i] + n.shift[i];
    return y;
}

Row attention(const Row &q, const std::vector<Row> &keys, const std::vector<Row> &values, int64_t count,
                     int64_t heads) {
    const int64_t head = (int64_t)q.size() / heads;
    Row y(q.size());
    for (int64_t h = 0; h < heads; h++) {
        Row score(count);
        double top = -1e300, total = 0;
        for (int64_t t = 0; t < count; t++) {
            for (int64_t c = h * head; c < (h + 1) * head; c++) score[t] += q[c] * keys[t][c];
            top = std::fmax(top, score[t]);
        }
        for (double &s : score) total += s = std::exp(s - top);
        for (int64_t t = 0; t < count; t++)
            for (int64_t c = h * head; c < (h + 1) * head; c++) y[c] += score[t] / total * values[t][c];
    }
    return y;
}

void add(Row &x, const Row &y) {
    for (size_t i = 0; i < x.size(); i++) x[i] += y[i];
}

double one_case() {
    kept.clear();
    static const int64_t sizes[] = {8, 16, 24, 32, 64, 80};
    const int64_t head = sizes[pick(0, 5)], heads = pick(1, 3), D = head * heads, ffn = 8 * pick(1, 5);
    const int64_t vocab = pick(1, 60), sources = pick(1, 40), batch = pick(1, 4), positions = pick(1, 30);
    const int64_t first = pick(1, 9), nodes = pick(1, 13), slots = first + nodes + pick(0, 3), layers = pick(1, 2);
    fs_whisper m = {};
    m.width = D, m.heads = heads, m.layers = layers, m.ffn = ffn, m.vocab = vocab, m.positions = positions;
    const int64_t outputs = pick(1, vocab);
    m.sources = sources, m.outputs = outputs, m.batch = batch, m.slots = slots, m.eps = 1e-5f;
    const Matrix words = matrix(vocab, D, false);
    m.embedding = words.packed, m.position = floats(positions * D, positions * D, 1);
    auto norm = [&] { return fs_norm{floats(D, D, 1), floats(D, D, 0.1)}; };
    m.norm = norm();
    const Matrix top = matrix(outputs, D, false);
    m.head = top.packed;
    std::vector<Layer> plain;
    std::vector<fs_whisper_layer> packed;
    for (int64_t i = 0; i < layers; i++) {
        Layer l{{norm(), norm(), norm()}, matrix(3 * D, D, true), matrix(D, D, true), matrix(D, D, true),
                matrix(D, D, true), matrix(ffn, D, true), matrix(D, ffn, true), matrix(D, D, true),
                matrix(D, D, true), {}, {}};
        l.keys.assign(batch, std::vector<Row>(slots)), l.values = l.keys;
        const int64_t each = fs_packed_bytes(head, D, FS_FLOAT32) / 4, wide = (head + 15) / 16 * 16;
        float *value = floats(0, each * heads, 0), *bias = floats(0, wide * heads, 0);
        for (int64_t h = 0; h < heads; h++) {
            if (fs_pack(l.value.weight + h * head * D, head, D, FS_FLOAT32, value + h * each, 1)) abort();
            for (int64_t c = 0; c < head; c++) bias[h * wide + c] = l.value.bias[h * head + c];
        }
        const int64_t own = batch * slots * D, strip = fs_cross_bytes(sources, head, FS_FLOAT32) / 4 * batch * heads;
        packed.push_back({l.norms[0], l.qkv.packed, l.out.packed, l.norms[1], l.query.packed, l.cross_out.packed,
                          l.norms[2], l.up.packed, l.down.packed, l.key.weight, l.key.bias, {value, bias},
                          floats(own, own, 1e30), floats(own, own, 1e30), floats(0, strip, 0), floats(0, strip, 0)});
        plain.push_back(l);
    }
    m.layer = packed.data();
    std::vector<const float *> states;
    std::vector<int64_t> rows;
    for (int64_t b = 0; b < batch; b++) states.push_back(floats(sources * D, sources * D, 1)), rows.push_back(b);
    double worst = 0;
    for (int round = 0; round < 2; round++) {
        const int64_t N = round ? nodes : first;
        std::vector<int64_t> tokens, start;
        for (int64_t i = 0; i < batch * N; i++) tokens.push_back(pick(0, vocab - 1));
        for (int64_t b = 0; b < batch; b++) start.push_back(round ? pick(0, first) : 0);
        const int64_t bytes = fs_whisper_workspace(&m, batch * N, 1);
        float *work = floats(0, bytes / 4, 0), *logits = floats(0, batch * N * outputs, 0);
        if (!round && fs_whisper_cross(&m, states.data(), rows.data(), batch, work, bytes, 1)) abort();
        fs_step step = {};
        step.batch = batch, step.nodes = N, step.reach = slots, step.tokens = tokens.data(), step.start = start.data();
        step.logits = logits, step.hidden = floats(0, batch * N * D, 0), step.workspace = work;
        step.workspace_bytes = bytes, step.threads = 1;
        if (fs_whisper_forward(&m, &step)) abort();
        for (int64_t b = 0; b < batch; b++) {
            std::vector<std::vector<Row>> cross_keys, cross_values;
            for (Layer &l : plain) {
                cross_keys.emplace_back(), cross_values.emplace_back();
                for (int64_t s = 0; s < sources; s++) {
                    const Row at(states[b] + s * D, states[b] + (s + 1) * D);
                    cross_keys.back().push_back(l.key(at)), cross_values.back().push_back(l.value(at));
                }
            }
            for (int64_t i = 0; i < N; i++) {
                const int64_t slot = start[b] + i, place = slot < positions ? slot : positions - 1;
                Row x(D);
                for (int64_t c = 0; c < D; c++)
                    x[c] = (double)words.weight[tokens[b * N + i] * D + c] + m.position[place * D + c];
                for (int64_t n = 0; n < layers; n++) {
                    Layer &l = plain[n];
                    const Row p = l.qkv(normed(x, l.norms[0], m.eps)), q(p.begin(), p.begin() + D);
                    l.keys[b][slot] = Row(p.begin() + D, p.begin() + 2 * D);
                    l.values[b][slot] = Row(p.begin() + 2 * D, p.end());
                    add(x, l.out(attention(q, l.keys[b], l.values[b], slot + 1, heads)));
                    const Row asked = l.query(normed(x, l.norms[1], m.eps));
                    add(x, l.cross_out(attention(asked, cross_keys[n], cross_values[n], sources, heads)));
                    Row inner = l.up(normed(x, l.norms[2], m.eps));
                    for (double &v : inner) v *= 0.5 * (1 + std::erf(v / std::sqrt(2.0)));
                    add(x, l.down(inner));
                }
                const Row expected = top(normed(x, m.norm, m.eps));
                for (int64_t v = 0; v < outputs; v++) {
                    const double error = std::fabs(logits[(b * N + i) * outputs + v] - expected[v]);
                    if (!(error <= worst)) worst = error;  // NaN counts
                }
            }
        }
    }
    return worst;
}

}  // namespace

int whisper(int cases) {
    int failed = 0;
    for (const std::string &set : usable_sets()) {
        require(fs_choose_isa(set.c_str()) == FS_OK, "instruction set");
        double worst = 0;
        for (int i = 0; i < cases; i++) {
            const double error = one_case();
            if (!(error <= worst)) worst = error;  // NaN counts
        }
        printf("whisper against float64: %d cases on %s; largest error %.1e\n", cases, fs_isa(), worst);
        failed |= !(worst < 2e-2);
    }
    return failed;
}

}  // namespace fuzz
