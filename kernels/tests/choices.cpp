// Choices of tokens against a float64 reference of what `Allowed` in speculative/rounds/choice.py documents, on
// every instruction set, with infinities, NaN, ties, empty parts and bounds outside the vocabulary.
#include "inputs.h"

namespace fuzz {
namespace {

struct Expected {
    int64_t token;
    double logprob;
    bool close;  // `joint` decides between sides that are equal to rounding: either token is right
};

Expected reference(const fs_choice &c, int64_t n) {
    const float *x = c.logits + n * c.vocab, none = -INFINITY;
    const int64_t split = c.bias ? c.split : c.vocab;
    Floats masked(c.vocab);
    for (int64_t i = 0; i < c.vocab; i++) {
        masked[i] = c.bias ? x[i] + c.bias[c.kind[n] * c.vocab + i] : x[i];
        if (i >= split && (i < c.low[n] || i >= c.high[n])) masked[i] = none;
    }
    const auto best = [&](int64_t from, int64_t to) {  // as torch: the first NaN, else the first largest
        for (int64_t i = from; i < to; i++)
            if (masked[i] != masked[i]) return i;
        int64_t at = from;
        for (int64_t i = from; i < to; i++)
            if (masked[i] > masked[at]) at = i;
        return at;
    };
    const auto total = [&](int64_t from, int64_t to, float top) {
        double sum = 0;
        for (int64_t i = from; i < to; i++)
            if (masked[i] != none) sum += std::exp((double)masked[i] - top);
        return sum;
    };
    const int64_t all = best(0, c.vocab);
    const float top = masked[all];
    if (top == none) return {0, NAN, false};
    if (top != top || std::isinf(top)) return {split && split < c.vocab && top != top ? -1 : all, NAN, false};
    const double whole = total(0, c.vocab, top);
    if (split == 0 || split == c.vocab || !c.joint[n]) return {all, -std::log(whole), false};
    const int64_t first = best(0, split), second = best(split, c.vocab);
    const double together = total(split, c.vocab, top), text = std::exp((double)masked[first] - top);
    const bool wins = together > text;
    const bool close = std::fabs(together - text) <= 1e-5 * text;
    if (wins) return {second, (double)masked[second] - top - std::log(together), close};
    return {all, -std::log(whole), close};
}

}  // namespace

int choices(int cases) {
    int64_t positions = 0, strange = 0;
    for (int i = 0; i < cases; i++) {
        kept.clear();
        static const int64_t sizes[] = {1, 2, 7, 16, 17, 64, 127, 128, 129, 255, 300, 2051};
        fs_choice c = {};
        const bool ruled = pick(0, 3) != 0, large = pick(0, 30) == 0;  // several threads share many logits only
        c.count = large ? 70 : pick(0, 6), c.vocab = large ? 2051 : sizes[pick(0, 11)], c.kinds = pick(1, 3);
        const int64_t V = c.vocab, count = c.count;
        c.threads = (int32_t)pick(1, 4), c.split = pick(0, 2) ? pick(0, V) : pick(0, 1) ? 0 : V;
        float *logits = normal(count * V, count * V, 3), *bias = normal(0, c.kinds * V, 0);
        if (pick(0, 2) == 0)
            for (int64_t k = 0; k < count * V; k++) logits[k] = std::round(logits[k]);  // ties
        static const float odd[] = {-INFINITY, NAN, INFINITY};
        const int64_t kind = pick(0, 5);
        if (kind < 3)
            for (int64_t k = pick(0, 40); k < count * V; k += pick(1, 80)) logits[k] = odd[kind];
        if (pick(0, 9) == 0)
            for (int64_t k = 0; k < count * V; k++) logits[k] = -INFINITY;
        // Forbidden logits must be neither NaN nor +inf.
        for (int64_t k = 0; k < c.kinds * V; k++)
            if (kind != 1 && kind != 2 && pick(0, 3) == 0) bias[k] = -INFINITY;
        int64_t *kinds = room<int64_t>(count), *low = room<int64_t>(count), *high = room<int64_t>(count);
        uint8_t *joint = room<uint8_t>(count);
        for (int64_t n = 0; n < count; n++) {
            kinds[n] = pick(0, c.kinds - 1), joint[n] = pick(0, 1);
            low[n] = kind == 1 || kind == 2 ? pick(-3, 0) : pick(-3, V + 3);
            high[n] = kind == 1 || kind == 2 ? pick(V, V + 3) : pick(-3, V + 3);
        }
        c.logits = logits, c.tokens = room<int64_t>(count), c.logprobs = room<float>(count);
        if (ruled) c.bias = bias, c.kind = kinds, c.low = low, c.high = high, c.joint = joint;
        else c.split = 0;  // not read
        for (const std::string &set : usable_sets()) {
            require(fs_choose_isa(set.c_str()) == FS_OK, "instruction set");
            memset(c.tokens, 0xff, count * 8);
            require(fs_choose(&c) == FS_OK, "choose");
            for (int64_t n = 0; n < count; n++) {
                if (!ruled) c.split = V;
                const Expected e = reference(c, n);
                const float found = c.logprobs[n];
                require(c.tokens[n] >= 0 && c.tokens[n] < V, "a token outside the vocabulary");
                positions++, strange += e.logprob != e.logprob;
                if (e.close) continue;
                require(e.token < 0 || c.tokens[n] == e.token, "a token");
                if (e.logprob != e.logprob)
                    require(found != found, "a log-probability where there is none");
                else
                    require(std::fabs(found - e.logprob) <= 2e-5 * (1 + std::fabs(e.logprob)), "a log-probability");
            }
            if (!ruled) c.split = 0;
        }
    }
    printf("choices: %d cases on", cases);
    for (const std::string &set : usable_sets()) printf(" %s", set.c_str());
    printf("; %lld positions as in float64, %lld of them without a probability\n", (long long)positions,
           (long long)strange);
    return 0;
}

}  // namespace fuzz
