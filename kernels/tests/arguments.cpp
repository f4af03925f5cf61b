// Bad arguments: each error code, returned before anything is written.
#include "models.h"

namespace fuzz {
namespace {

int64_t checks = 0;

// Outputs and caches that must stay as they are.
struct Untouched {
    std::vector<std::pair<const void *, std::vector<char>>> all;
    void add(const void *at, int64_t bytes) {
        all.emplace_back(at, std::vector<char>((const char *)at, (const char *)at + bytes));
    }
    bool holds() const {
        for (const auto &one : all)
            if (memcmp(one.first, one.second.data(), one.second.size())) return false;
        return true;
    }
};

template <class Record, class Call, class Change>
void expect(const Record &good, int32_t code, const char *what, const Untouched &untouched, const Call &call,
            const Change &change) {
    Record bad = good;
    change(bad);
    const int32_t found = call(bad);
    if (found != code) printf("%s: %d instead of %d\n", what, (int)found, (int)code);
    require(found == code, what);
    require(untouched.holds(), what);
    checks++;
}

// Steps and drafts of any decoder.
void steps(const Decoder &d, const Caches &caches) {
    caches.fill();
    const int64_t batch = d.batch, nodes = 2;
    Integers tokens(batch * nodes, 0), start(batch, 0), node(batch, 0), bad(batch * nodes, 0);
    Integers low(batch * nodes, -1), high(batch * nodes, d.vocab);
    Integers far(batch, INT64_MAX), rows(batch, d.batch), end(batch, d.slots - nodes + 1), last(batch, nodes);
    const Integers paths(batch * nodes * 2, 1), behind(batch * nodes * 2, d.slots), before(batch * nodes * 2, -1);
    const Integers two(batch * nodes, 2), none(batch * nodes, 0), three(batch * nodes, 3);
    fs_step s = {};
    s.batch = batch, s.nodes = nodes, s.reach = d.slots, s.threads = 1;
    s.tokens = tokens.data(), s.start = start.data(), s.node = node.data();
    s.logits = room<float>(batch * d.columns), s.hidden = room<float>(batch * nodes * d.width);
    s.workspace_bytes = d.workspace(batch * nodes, 1), s.workspace = room<char>(s.workspace_bytes);
    fs_draft draft = {};
    const int64_t K = 2;
    draft.depths = K, draft.columns = d.columns, draft.active = room<uint8_t>(batch);
    draft.tokens = room<int64_t>(K * batch), draft.start = room<int64_t>(batch);
    draft.logprobs = room<float>(batch), draft.belief = room<float>(batch);
    Untouched untouched;
    for (const auto &cache : caches.all) untouched.add(cache.first, cache.second);
    untouched.add(s.logits, batch * d.columns * 4), untouched.add(s.hidden, batch * nodes * d.width * 4);
    untouched.add(s.workspace, s.workspace_bytes), untouched.add(draft.tokens, K * batch * 8);
    untouched.add(draft.start, batch * 8), untouched.add(draft.logprobs, batch * 4);
    untouched.add(draft.belief, batch * 4);
    const auto whole = [&](int32_t code, const char *what, const std::function<void(fs_step &)> &change) {
        expect(s, code, what, untouched, [&](fs_step &bad_step) { return d.forward(bad_step); }, change);
        if (what[0] == '*') return;  // not a step of a draft
        expect(s, code, what, untouched, [&](fs_step &bad_step) { return d.draft(bad_step, draft); }, change);
    };
    whole(FS_BAD_SHAPE, "batch", [](fs_step &x) { x.batch = 0; });
    whole(FS_BAD_SHAPE, "nodes", [](fs_step &x) { x.nodes = 0; });
    whole(FS_BAD_SHAPE, "more nodes than slots", [&](fs_step &x) { x.nodes = INT64_MAX / 8; });
    whole(FS_BAD_SHAPE, "reach", [](fs_step &x) { x.reach = 0; });
    whole(FS_BAD_SHAPE, "reach behind the slots", [&](fs_step &x) { x.reach = d.slots + 1; });
    whole(FS_BAD_SHAPE, "threads", [](fs_step &x) { x.threads = 0; });
    const auto along = [&](int32_t code, const char *what, const Integers &slots, const Integers &lengths, int64_t room) {
        whole(code, what, [&](fs_step &x) { x.paths = slots.data(), x.lengths = lengths.data(), x.path_slots = room; });
    };
    along(FS_BAD_SHAPE, "*paths without room", paths, two, 0);
    along(FS_BAD_SHAPE, "*paths of more slots than there are", paths, two, d.slots + 1);
    along(FS_BAD_SLOT, "*an empty path", paths, none, 2);
    along(FS_BAD_SLOT, "*a path longer than its room", paths, three, 2);
    along(FS_BAD_SLOT, "*a path behind the slots", behind, two, 2);
    along(FS_BAD_SLOT, "*a path before the slots", before, two, 2);
    whole(FS_BAD_SHAPE, "paths without lengths", [&](fs_step &x) { x.paths = paths.data(), x.path_slots = 2; });
    const Integers tapped = {0, -1}, no_layer = {d.layers, 0}, below = {0, -2};
    float *taps = room<float>(batch * nodes * 2 * d.width);
    untouched.add(taps, batch * nodes * 2 * d.width * 4);
    const auto tap = [&](const char *what, const int64_t *layers, int64_t count, float *to) {
        whole(FS_BAD_SHAPE, what, [=](fs_step &x) { x.tap_layers = layers, x.tap_count = count, x.taps = to; });
    };
    tap("*taps of a layer that there is not", no_layer.data(), 2, taps);
    tap("*taps of a layer below -1", below.data(), 2, taps);
    tap("*taps below 0", tapped.data(), -1, taps);
    tap("*taps without layers", nullptr, 2, taps);
    tap("*taps without room", tapped.data(), 2, nullptr);
    float *queries = room<float>(d.layers * batch * nodes * d.width);
    untouched.add(queries, d.layers * batch * nodes * d.width * 4);
    const auto keep = [&](fs_step &x) { x.queries = queries; };
    const auto draft_of = [&](fs_step &x) { return d.draft(x, draft); };
    expect(s, FS_BAD_SHAPE, "queries of a draft", untouched, draft_of, keep);
    const std::vector<const float *> none_given(batch * nodes, nullptr);
    const auto give = [&](fs_step &x) { x.embedded = none_given.data(); };
    expect(s, FS_BAD_SHAPE, "embeddings of a draft", untouched, draft_of, give);
    if (d.whisper) expect(s, FS_BAD_SHAPE, "embeddings of a Whisper", untouched, d.forward, give);
    if (!d.whisper) expect(s, FS_BAD_SHAPE, "queries of a causal model", untouched, d.forward, keep);
    whole(FS_BAD_SLOT, "row", [&](fs_step &x) { x.rows = rows.data(); });
    whole(FS_BAD_SLOT, "row below 0", [&](fs_step &x) { x.rows = low.data(); });
    whole(FS_BAD_SLOT, "start", [&](fs_step &x) { x.start = end.data(); });
    whole(FS_BAD_SLOT, "start below 0", [&](fs_step &x) { x.start = low.data(); });
    whole(FS_BAD_SLOT, "start far behind", [&](fs_step &x) { x.start = far.data(); });
    whole(FS_BAD_SLOT, "node", [&](fs_step &x) { x.node = last.data(); });
    whole(FS_BAD_SLOT, "node below 0", [&](fs_step &x) { x.node = low.data(); });
    whole(FS_BAD_TOKEN, "token", [&](fs_step &x) { x.tokens = high.data(); });
    whole(FS_BAD_TOKEN, "token below 0", [&](fs_step &x) { x.tokens = low.data(); });
    whole(FS_NO_MEMORY, "workspace", [](fs_step &x) { x.workspace_bytes--; });
    const auto drafted = [&](int32_t code, const char *what, const std::function<void(fs_draft &)> &change,
                             const std::function<void(fs_step &)> &step = [](fs_step &) {}) {
        fs_step first = s;
        step(first);
        expect(draft, code, what, untouched, [&](fs_draft &x) { return d.draft(first, x); }, change);
    };
    const Integers ids(d.columns, d.vocab), late(batch, d.slots - nodes);
    drafted(FS_BAD_SHAPE, "no depths", [](fs_draft &x) { x.depths = 0; });
    drafted(FS_BAD_SHAPE, "columns", [](fs_draft &x) { x.columns++; });
    drafted(FS_BAD_TOKEN, "ids", [&](fs_draft &x) { x.ids = ids.data(); });
    drafted(FS_BAD_SLOT, "depths behind the slots", [&](fs_draft &x) { x.depths = d.slots + 1; });
    drafted(FS_BAD_SLOT, "too many depths", [&](fs_draft &x) { x.depths = nodes + 1; },
            [&](fs_step &x) { x.start = late.data(); });
    drafted(FS_BAD_SHAPE, "a draft of all nodes", [](fs_draft &) {}, [](fs_step &x) { x.node = nullptr; });
    drafted(FS_BAD_SHAPE, "a draft without logits", [](fs_draft &) {}, [](fs_step &x) { x.logits = nullptr; });
    drafted(FS_BAD_SHAPE, "a draft of paths", [](fs_draft &) {},
            [&](fs_step &x) { x.paths = paths.data(), x.lengths = two.data(), x.path_slots = 2; });
    require(d.forward(s) == FS_OK && d.draft(s, draft) == FS_OK, "good arguments");
}

// A step of one token that is good for the model, so that only what is changed can be refused.
struct OneToken {
    Integers token = {0}, start = {0};
    fs_step step = {};
    explicit OneToken(const Decoder &d) {
        step.batch = step.nodes = step.threads = 1, step.reach = d.slots;
        step.tokens = token.data(), step.start = start.data();
        step.logits = room<float>(d.columns), step.hidden = room<float>(d.width);
        step.workspace_bytes = d.workspace(1, 1), step.workspace = room<char>(step.workspace_bytes);
        require(d.forward(step) == FS_OK, "a good step");
    }
};

template <class M, class Call>
void model(const M &good, const Call &call,
           const std::vector<std::pair<const char *, std::function<void(M &)>>> &changes) {
    for (const auto &change : changes)
        expect(good, FS_BAD_SHAPE, change.first, Untouched{}, call, change.second);
}

#define SET(T, field, value) \
    { #field " = " #value, [](T &x) { x.field = value; } }

void whisper_models() {
    WhisperModel one;
    steps(one.decoder(), one.caches);
    const Integers zero = {0}, row = {one.m.batch}, low = {-1};
    const float *states[] = {one.states[0]};
    const int64_t bytes = fs_whisper_workspace(&one.m, 1, 1);
    char *work = room<char>(bytes);
    one.caches.fill();
    Untouched untouched;
    for (const auto &cache : one.caches.all) untouched.add(cache.first, cache.second);
    const auto cross = [&](const int64_t *rows, int64_t count, int64_t size, int32_t threads) {
        checks++;
        return fs_whisper_cross(&one.m, states, rows, count, work, size, threads);
    };
    require(cross(row.data(), 1, bytes, 1) == FS_BAD_SLOT, "cross: row");
    require(cross(low.data(), 1, bytes, 1) == FS_BAD_SLOT, "cross: row below 0");
    require(cross(zero.data(), -1, bytes, 1) == FS_BAD_SHAPE, "cross: count");
    require(cross(zero.data(), 1, bytes, 0) == FS_BAD_SHAPE, "cross: threads");
    require(cross(zero.data(), 1, bytes - 1, 1) == FS_NO_MEMORY, "cross: workspace");
    require(untouched.holds(), "cross: caches");
    const OneToken given(one.decoder());
    const fs_step &step = given.step;
    typedef fs_whisper W;
    model<W>(one.m, [&](W &m) { return fs_whisper_forward(&m, &step); },
          {SET(W, width, 4), SET(W, width, x.heads * 8 + 1), SET(W, width, x.heads * 12), SET(W, heads, 0),
           SET(W, layers, 0), SET(W, ffn, 4), SET(W, ffn, 12), SET(W, ffn, 1 << 18), SET(W, vocab, 0),
           SET(W, positions, 0), SET(W, sources, 0), SET(W, sources, 1 << 18), SET(W, outputs, 0),
           SET(W, outputs, x.vocab + 1), SET(W, batch, 0), SET(W, slots, 0), SET(W, weight_storage, 3),
           SET(W, cache_storage, 2), SET(W, cross_storage, -1), SET(W, activation, 3),
           SET(W, cache_storage, 1 - x.weight_storage), SET(W, embedding.storage, FS_INT8),
           SET(W, head.storage, FS_EXACT_BFLOAT16 + 1)});
}

void causal_models() {
    CausalModel one;
    steps(one.decoder(), one.caches);
    const OneToken given(one.decoder());
    const fs_step &step = given.step;
    typedef fs_causal C;
    model<C>(one.m, [&](C &m) { return fs_causal_forward(&m, &step); },
          {SET(C, width, 6), SET(C, width, 9), SET(C, heads, 0), SET(C, key_heads, x.heads + 1),
           SET(C, key_heads, 0), SET(C, head, 4), SET(C, head, 12), SET(C, head, 1 << 18), SET(C, layers, 0),
           SET(C, ffn, 0), SET(C, ffn, 3), SET(C, vocab, 0), SET(C, outputs, 0), SET(C, outputs, x.vocab + 1),
           SET(C, columns, x.outputs - 1), SET(C, positions, 0), SET(C, batch, 0), SET(C, slots, 0),
           SET(C, weight_storage, 3), SET(C, cache_storage, 2), SET(C, activation, -1),
           SET(C, embedding.storage, -1), SET(C, projection.storage, FS_EXACT_BFLOAT16 + 1)});
    std::vector<fs_causal_layer> layers = one.layers;
    layers[0].window = -1;
    model<C>(one.m, [&](C &m) { return fs_causal_forward(&m, &step); },
          {{"a window below 0", [&](C &m) { m.layer = layers.data(); }}});
}

void encoder_models() {
    fs_encoder good = {};
    const fs_encoder_layer layer = {};
    good.width = 16, good.heads = 2, good.layers = 1, good.ffn = 16, good.mels = 4, good.sources = 3;
    good.layer = &layer;
    float nothing = 0;
    const auto call = [&](fs_encoder &m) { return fs_encode(&m, &nothing, &nothing, &nothing, INT64_MAX, 1); };
    typedef fs_encoder E;
    model<E>(good, call,
          {SET(E, width, 4), SET(E, width, 12), SET(E, width, 1 << 17), SET(E, heads, 0), SET(E, heads, 4),
           SET(E, layers, 0), SET(E, ffn, 4), SET(E, ffn, 12), SET(E, ffn, 1 << 18), SET(E, mels, 0),
           SET(E, mels, 3), SET(E, mels, 1 << 17), SET(E, sources, 0), SET(E, weight_storage, 2),
           SET(E, activation, 3), SET(E, conv1.storage, FS_BFLOAT16), SET(E, conv2.storage, FS_INT8)});
    const int64_t bytes = fs_encoder_workspace(&good, 1);
    require(fs_encode(&good, &nothing, &nothing, &nothing, bytes - 1, 1) == FS_NO_MEMORY, "encoder: workspace");
    require(fs_encode(&good, &nothing, &nothing, &nothing, bytes, 0) == FS_BAD_SHAPE, "encoder: threads");
    checks += 2;
}

void choice() {
    const float logits[] = {1, 2}, bias[] = {0, 0};
    const int64_t zero[] = {0}, one[] = {1}, two[] = {2}, low[] = {-1};
    const uint8_t joint[] = {0};
    int64_t token = -7;
    float logprob = -7;
    fs_choice c = {};
    c.count = 1, c.vocab = 2, c.split = 1, c.kinds = 1, c.logits = logits, c.bias = bias, c.kind = zero;
    c.low = zero, c.high = two, c.joint = joint, c.tokens = &token, c.logprobs = &logprob, c.threads = 1;
    Untouched untouched;
    untouched.add(&token, 8), untouched.add(&logprob, 4);
    const auto call = [](fs_choice &x) { return fs_choose(&x); };
    const auto bad = [&](const char *what, const std::function<void(fs_choice &)> &change) {
        expect(c, FS_BAD_SHAPE, what, untouched, call, change);
    };
    bad("count", [](fs_choice &x) { x.count = -1; });
    bad("vocab", [](fs_choice &x) { x.vocab = 0; });
    bad("threads", [](fs_choice &x) { x.threads = 0; });
    bad("split", [](fs_choice &x) { x.split = 3; });
    bad("split below 0", [](fs_choice &x) { x.split = -1; });
    bad("kind", [&](fs_choice &x) { x.kind = one; });
    bad("kind below 0", [&](fs_choice &x) { x.kind = low; });
    float packed = 0;
    require(fs_pack(logits, 0, 2, FS_FLOAT32, &packed, 1) == FS_BAD_SHAPE, "pack: outputs");
    require(fs_pack(logits, 1, 1, FS_FLOAT32, &packed, 1) == FS_BAD_SHAPE, "pack: inputs");
    require(fs_pack(logits, 1, 3, FS_FLOAT32, &packed, 1) == FS_BAD_SHAPE, "pack: odd inputs");
    require(fs_pack(logits, 1, 2, FS_INT8, &packed, 1) == FS_BAD_SHAPE, "pack: storage");
    require(fs_pack(logits, 1, 2, FS_EXACT_BFLOAT16 + 1, &packed, 1) == FS_BAD_SHAPE, "pack: an unknown storage");
    require(fs_pack(logits, 1, 2, FS_FLOAT32, &packed, 0) == FS_BAD_SHAPE, "pack: threads");
    const float third[] = {1.0f, 1.0f / 3}, large[] = {1.0f, 1e6f}, tiny[] = {1e-9f, 1e30f};
    char room[256];
    for (int32_t storage : {FS_EXACT_INT8, FS_EXACT_FLOAT16, FS_EXACT_BFLOAT16})
        require(fs_pack(third, 1, 2, storage, room, 1) == FS_INEXACT, "pack: a number that does not fit");
    require(fs_pack(large, 1, 2, FS_EXACT_FLOAT16, room, 1) == FS_INEXACT, "pack: beyond float16");
    require(fs_pack(tiny, 1, 2, FS_EXACT_INT8, room, 1) == FS_INEXACT, "pack: far apart");
    require(fs_pack(logits, 1, 2, FS_EXACT_BFLOAT16, room, 1) == FS_OK, "pack: small integers");
    require(fs_choose_isa("none") == FS_BAD_ISA && !fs_isa_usable("none"), "an unknown instruction set");
    require(fs_choose(&c) == FS_OK && token == 1 && fs_abi() == FS_ABI, "good arguments");
    checks += 12;
}

void alignment() {
    const float weights[8] = {};
    float maps[8] = {};
    int64_t starts[2] = {-7, -7};
    const int64_t bytes = fs_alignment_workspace(2, 4), far = INT64_MAX / 2;
    void *const space = room<char>(bytes);
    Untouched untouched;
    untouched.add(maps, sizeof maps), untouched.add(starts, sizeof starts), untouched.add(space, bytes);
    const auto sharpen = [&](int32_t code, const char *what, int64_t heads, int64_t rows, int64_t frames, int64_t first,
                             int64_t count, int64_t room) {
        require(fs_sharpen(weights, heads, rows, frames, first, count, maps, space, room) == code, what);
        require(untouched.holds(), what), checks++;
    };
    const auto path = [&](int32_t code, const char *what, int64_t rows, int64_t frames, int64_t room) {
        require(fs_path(weights, rows, frames, starts, space, room) == code, what);
        require(untouched.holds(), what), checks++;
    };
    sharpen(FS_BAD_SHAPE, "sharpen: heads", 0, 2, 4, 0, 2, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: rows", 1, 0, 4, 0, 0, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: few frames", 1, 2, 3, 0, 2, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: frames", 1, 2, far, 0, 2, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: a row below 0", 1, 2, 4, -1, 1, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: a row behind all", 1, 2, 4, far, 0, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: more rows than there are", 1, 2, 4, 1, 2, bytes);
    sharpen(FS_BAD_SHAPE, "sharpen: fewer rows than none", 1, 2, 4, 1, -1, bytes);
    sharpen(FS_NO_MEMORY, "sharpen: workspace", 1, 2, 4, 0, 2, fs_alignment_workspace(0, 4) - 1);
    path(FS_BAD_SHAPE, "path: rows", 0, 4, bytes);
    path(FS_BAD_SHAPE, "path: many rows", far, 4, bytes);
    path(FS_BAD_SHAPE, "path: frames", 2, 0, bytes);
    path(FS_BAD_SHAPE, "path: many frames", 2, far, bytes);
    path(FS_NO_MEMORY, "path: workspace", 2, 4, bytes - 1);
}

}  // namespace

int arguments() {
    for (int i = 0; i < 8; i++) {
        kept.clear();
        whisper_models();
        causal_models();
    }
    encoder_models();
    choice();
    alignment();
    printf("arguments: %lld bad ones, each with its code and nothing written\n", (long long)checks);
    return 0;
}

}  // namespace fuzz
