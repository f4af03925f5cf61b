// Whisper and causal decoders of random shapes and storages: chains, paths, chosen nodes, rows and drafts.
//
// Every instruction set is compared with `generic`. Within one, threads, the rows beside a row, the slots
// of a path and matrices in an exact storage must not change a bit.
#include "models.h"

namespace fuzz {
namespace {

struct Plan {  // two chains and what follows them
    int64_t batch, first, nodes, depths;
    Integers rows, first_tokens, tokens, start, node;
    bool chosen;
    float confidence;
    std::vector<const float *> given;  // of the first tokens: embeddings in place of some
};

Plan plan_of(const Decoder &d) {
    Plan p;
    p.first = d.first, p.nodes = d.nodes, p.depths = d.depths;
    for (int64_t r = 0; r < d.batch; r++) p.rows.push_back(r);
    std::shuffle(p.rows.begin(), p.rows.end(), bits);
    p.rows.resize(pick(1, d.batch));
    p.batch = (int64_t)p.rows.size();
    for (int64_t i = 0; i < p.batch * p.first; i++) p.first_tokens.push_back(pick(0, d.vocab - 1));
    for (int64_t i = 0; i < p.batch * p.nodes; i++) p.tokens.push_back(pick(0, d.vocab - 1));
    for (int64_t b = 0; b < p.batch; b++)
        p.start.push_back(pick(0, p.first)), p.node.push_back(pick(0, p.nodes - 1));
    p.chosen = pick(0, 1);
    p.confidence = pick(0, 1) ? 0.2f : 0.0f;
    for (int64_t i = 0; !d.whisper && i < p.batch * p.first; i++)
        p.given.push_back(pick(0, 2) ? nullptr : normal(d.width, d.width, 1));
    return p;
}

Integers some(const Integers &all, int64_t each, int64_t only) {
    return only < 0 ? all : Integers(all.begin() + only * each, all.begin() + (only + 1) * each);
}

const int64_t TAPS = 3;

// Logits, hidden states, taps and queries of one forward: [rows, columns], [rows, width], [rows, TAPS, width] and
// [layers, rows, width].
Floats forward(const Decoder &d, const Plan &p, const Integers &tokens, const Integers &start, int64_t nodes,
               bool chosen, int threads, int64_t only, const Integers *paths = nullptr, bool prompt = false) {
    const Integers rows = some(p.rows, 1, only), node = some(p.node, 1, only);
    const int64_t batch = (int64_t)rows.size(), outs = batch * (chosen ? 1 : nodes);
    fs_step s = {};
    s.batch = batch, s.nodes = nodes, s.reach = d.slots, s.threads = threads;
    s.tokens = tokens.data(), s.start = start.data(), s.rows = rows.data();
    if (prompt && !d.whisper) s.embedded = p.given.data() + (only < 0 ? 0 : only * nodes);
    const Integers lengths(batch * nodes, paths ? (int64_t)paths->size() / (batch * nodes) : 0);
    if (paths) s.paths = paths->data(), s.lengths = lengths.data(), s.path_slots = lengths[0];
    if (chosen) s.node = node.data();
    std::unique_ptr<float[]> logits(new float[outs * d.columns]), hidden(new float[batch * nodes * d.width]());
    s.logits = logits.get(), s.hidden = d.whisper ? hidden.get() : nullptr;
    const Integers layers = {-1, d.layers - 1, 0};
    const int64_t tapped = batch * nodes * TAPS * d.width;
    std::unique_ptr<float[]> taps(new float[tapped]);
    s.tap_layers = layers.data(), s.tap_count = TAPS, s.taps = taps.get();
    const int64_t kept = d.whisper ? d.layers * batch * nodes * d.width : 0;
    std::unique_ptr<float[]> queries(new float[kept]);
    s.queries = d.whisper ? queries.get() : nullptr;
    s.workspace_bytes = d.workspace(batch * nodes, threads);
    std::unique_ptr<char[]> work(new char[s.workspace_bytes]);
    memset(work.get(), 0xff, s.workspace_bytes);  // NaN: nothing may be read before it is written
    s.workspace = work.get();
    require(d.forward(s) == FS_OK, "forward");
    Floats found(logits.get(), logits.get() + outs * d.columns);
    if (d.whisper) {
        found.insert(found.end(), hidden.get(), hidden.get() + batch * nodes * d.width);
        for (int64_t r = 0; r < batch * nodes; r++)
            require(!memcmp(hidden.get() + r * d.width, taps.get() + r * TAPS * d.width, d.width * 4),
                    "the tap of the last state");
    }
    found.insert(found.end(), taps.get(), taps.get() + tapped);
    found.insert(found.end(), queries.get(), queries.get() + kept);
    return found;
}

struct Results {
    Floats first, second;  // of the two forwards
};

Results run(const Decoder &d, const Plan &p, int threads, int64_t only = -1) {
    d.reset();
    const Integers rows = some(p.rows, 1, only), zeros(rows.size(), 0);
    d.admit(rows, threads);
    Results r;
    r.first = forward(d, p, some(p.first_tokens, p.first, only), zeros, p.first, false, threads, only, nullptr, true);
    r.second = forward(d, p, some(p.tokens, p.nodes, only), some(p.start, 1, only), p.nodes, p.chosen, threads,
                       only);
    return r;
}

// A draft in one call, beside the same forwards and choices one by one.
void drafts(const Decoder &d, const Plan &p, int threads) {
    d.reset();
    const Integers zeros(p.batch, 0);
    d.admit(p.rows, threads);
    forward(d, p, p.first_tokens, zeros, p.first, false, threads, -1);
    fs_step s = {};
    s.batch = p.batch, s.nodes = p.nodes, s.reach = d.slots, s.threads = threads;
    s.tokens = p.tokens.data(), s.start = p.start.data(), s.rows = p.rows.data(), s.node = p.node.data();
    std::unique_ptr<float[]> logits(new float[p.batch * d.columns]), hidden(new float[p.batch * p.nodes * d.width]);
    s.logits = logits.get(), s.hidden = d.whisper ? hidden.get() : nullptr;
    s.workspace_bytes = d.workspace(p.batch * p.nodes, threads);
    std::unique_ptr<char[]> work(new char[s.workspace_bytes]);
    s.workspace = work.get();
    std::unique_ptr<int64_t[]> tokens(new int64_t[p.depths * p.batch]), start(new int64_t[p.batch]);
    std::unique_ptr<float[]> logprobs(new float[p.batch]), belief(new float[p.batch]);
    std::unique_ptr<uint8_t[]> active(new uint8_t[p.batch]());
    active[0] = 1;
    fs_draft draft = {};
    draft.depths = p.depths, draft.columns = d.columns, draft.active = active.get();
    draft.ids = d.ids.empty() ? nullptr : d.ids.data();
    draft.tokens = tokens.get(), draft.start = start.get(), draft.logprobs = logprobs.get();
    draft.belief = belief.get(), draft.confidence = p.confidence;
    require(d.draft(s, draft) == FS_OK, "draft");
    require(draft.drafted >= 1 && draft.drafted <= p.depths, "drafted");

    d.reset();
    d.admit(p.rows, threads);
    forward(d, p, p.first_tokens, zeros, p.first, false, threads, -1);
    Integers fed = p.tokens, at = p.start;
    Floats expected(p.batch, 1);
    for (int64_t depth = 0; depth < draft.drafted; depth++) {
        require(!depth || p.confidence <= 0 || expected[0] >= p.confidence, "a draft goes on without belief");
        Floats found = forward(d, p, fed, at, depth ? 1 : p.nodes, !depth, threads, -1);
        fs_choice c = {};
        Integers best(p.batch);
        Floats sure(p.batch);
        c.count = p.batch, c.vocab = d.columns, c.logits = found.data(), c.tokens = best.data();
        c.logprobs = sure.data(), c.threads = threads;
        require(fs_choose(&c) == FS_OK, "choose");
        for (int64_t b = 0; b < p.batch; b++) {
            at[b] = p.start[b] + p.node[b] + depth + 1;
            if (!d.ids.empty()) best[b] = d.ids[best[b]];
            require(best[b] == tokens[depth * p.batch + b], "a draft's token");
            expected[b] *= (float)std::exp((double)sure[b]);
        }
        fed = best;
    }
    require(same(expected, Floats(belief.get(), belief.get() + p.batch)), "a draft's belief");
    require(draft.drafted == p.depths || (p.confidence > 0 && expected[0] < p.confidence), "a draft ends early");
}

// Each row's part of results, which end with hidden states where there are some, taps, and queries likewise.
Floats part(const Decoder &d, const Floats &all, int64_t batch, int64_t outs, int64_t nodes, int64_t b) {
    const int64_t each = outs * d.columns, rest = d.whisper ? nodes * d.width : 0;
    Floats found(all.begin() + b * each, all.begin() + (b + 1) * each);
    const auto hidden = all.begin() + batch * each + b * rest;
    found.insert(found.end(), hidden, hidden + rest);
    const int64_t tapped = nodes * TAPS * d.width;
    const auto taps = all.begin() + batch * (each + rest) + b * tapped;
    found.insert(found.end(), taps, taps + tapped);
    for (int64_t l = 0; d.whisper && l < d.layers; l++) {
        const auto queries = all.begin() + batch * (each + rest + tapped) + (l * batch + b) * nodes * d.width;
        found.insert(found.end(), queries, queries + nodes * d.width);
    }
    return found;
}

// A text of one row as a chain, and as the path of a beam beside another one, each in slots of its own: the same
// logits.
void path(const Decoder &d, const Plan &p) {
    const int64_t b = pick(0, p.batch - 1);
    const Integers start = some(p.start, 1, b), tokens = some(p.tokens, p.nodes, b);
    const auto begin = [&] {
        d.reset();
        d.admit(some(p.rows, 1, b), 1);
        forward(d, p, some(p.first_tokens, p.first, b), {0}, p.first, false, 1, b);
    };
    begin();
    const Floats chain = forward(d, p, tokens, start, p.nodes, false, 1, b);
    begin();
    Integers mine, other;
    for (int64_t slot = 0; slot < start[0]; slot++) mine.push_back(slot), other.push_back(slot);
    for (int64_t i = 0; i < p.nodes; i++) {
        const int64_t swapped = pick(0, 1);
        mine.push_back(p.first + 2 * i + swapped), other.push_back(p.first + 2 * i + 1 - swapped);
        Integers both = mine;
        both.insert(both.end(), other.begin(), other.end());
        const Floats found = forward(d, p, {tokens[i], pick(0, d.vocab - 1)}, start, 2, false, (int)pick(1, 3), b, &both);
        require(same(Floats(found.begin(), found.begin() + d.columns),
                     Floats(chain.begin() + i * d.columns, chain.begin() + (i + 1) * d.columns)),
                "a path and the same chain");
    }
}

void one_case(const Decoder &d, Differences &differences) {
    const Plan p = plan_of(d);
    Results expected;
    std::vector<Results> all;
    for (const std::string &set : usable_sets()) {
        require(fs_choose_isa(set.c_str()) == FS_OK, "instruction set");
        const Results found = run(d, p, 1);
        if (set == "generic") expected = found;
        differences.add(difference(found.first, expected.first), d.form);
        differences.add(difference(found.second, expected.second), d.form);
        const int threads = (int)pick(2, 5);
        const Results shared = run(d, p, threads);
        require(same(found.first, shared.first) && same(found.second, shared.second), "threads");
        const int64_t b = pick(0, p.batch - 1), outs = p.chosen ? 1 : p.nodes;
        const Results alone = run(d, p, 1, b);
        require(same(alone.first, part(d, found.first, p.batch, p.first, p.first, b)), "a row alone");
        require(same(alone.second, part(d, found.second, p.batch, outs, p.nodes, b)), "a row alone, second step");
        path(d, p);
        drafts(d, p, (int)pick(1, 3));
        all.push_back(found);
    }
    d.widen();
    for (size_t i = 0; i < all.size(); i++) {
        require(fs_choose_isa(usable_sets()[i].c_str()) == FS_OK, "instruction set");
        const Results found = run(d, p, 1);
        require(same(found.first, all[i].first) && same(found.second, all[i].second), "matrices in an exact storage");
    }
}

}  // namespace

int decoders(int cases) {
    Differences whisper, causal;
    for (int i = 0; i < cases; i++) {
        kept.clear();
        WhisperModel model;
        one_case(model.decoder(), whisper);
        kept.clear();
        CausalModel text;
        one_case(text.decoder(), causal);
    }
    const int failed = whisper.report("whisper decoders", cases);
    return causal.report("causal decoders", cases) | failed;
}

}  // namespace fuzz
