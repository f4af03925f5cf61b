// The best allowed token of every position of logits, with its log-probability: the reference is
// speculative/rounds/choice.py.
#pragma once

#include "functions.h"
#include "table.h"
#include "team.h"

namespace forescribe {
namespace FS_ISA {

constexpr int64_t BLOCK = 8 * LANES;
constexpr int64_t ALONE = 1 << 17;  // numbers of logits up to which one thread is faster than a team

// Columns [from, to) of a position; `sum` is of exp(value - best).
struct Part {
    float best = -__builtin_inff();
    double sum = 0;
    int64_t at = 0;
};

// A value of the logits, or of logits and bias.
struct Values {
    const float *x, *bias;  // bias: NULL for none

    FS_INLINE float one(int64_t i) const { return bias ? x[i] + bias[i] : x[i]; }
    FS_INLINE F many(int64_t i) const { return bias ? load(x + i) + load(bias + i) : load(x + i); }
};

// The first column with a NaN, as torch's argmax has it; `to` where there is none.
FS_INLINE int64_t first_nan(const Values &v, int64_t from, int64_t to) {
    while (from < to && v.one(from) == v.one(from)) from++;
    return from;
}

FS_INLINE float largest(const Values &v, int64_t from, int64_t to) {
    F top = all(-__builtin_inff());
    int64_t i = from;
    for (; i + LANES <= to; i += LANES) {
        const F value = v.many(i);
        top = value > top ? value : top;
    }
    float lanes[LANES];
    store(lanes, top);
    float best = lanes[0];
    for (int lane = 1; lane < LANES; lane++)
        if (lanes[lane] > best) best = lanes[lane];
    for (; i < to; i++)
        if (v.one(i) > best) best = v.one(i);
    return best;
}

FS_INLINE int64_t first_of(const Values &v, float best, int64_t from, int64_t to) {
    int64_t i = from;
    for (; i + BLOCK <= to; i += BLOCK) {
        I found = I{};
        for (int64_t j = 0; j < BLOCK; j += LANES) found |= v.many(i + j) == all(best);
        int32_t any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= found[lane];
        if (any) break;
    }
    while (i < to && v.one(i) != best) i++;
    return i;
}

FS_INLINE Part part(const Values &v, int64_t from, int64_t to) {
    Part p;
    p.at = from;
    if (from >= to) return p;
    p.best = largest(v, from, to);
    F sums[PARTS] = {};
    int64_t i = from;
    for (; i + PANEL <= to; i += PANEL)
        for (int k = 0; k < PARTS; k++) sums[k] += exp(v.many(i + k * LANES) - all(p.best));
    float lanes[PANEL] = {};
    for (int64_t j = i; j < to; j++) lanes[j - i] = v.one(j) - p.best;
    for (int k = 0; k < PARTS; k++) store(lanes + k * LANES, exp(load(lanes + k * LANES)));
    p.sum = sum(sums);
    for (int64_t j = i; j < to; j++) p.sum += lanes[j - i];
    if (p.sum != p.sum) {  // a NaN, an infinity, or nothing is allowed
        const int64_t nan = first_nan(v, from, to);
        if (nan < to) {
            p.best = v.one(nan);
            p.at = nan;
            return p;
        }
        if (p.best == -__builtin_inff()) p.sum = 0;
    }
    p.at = first_of(v, p.best, from, to);
    return p;
}

FS_INLINE void choose_one(const fs_choice &c, int64_t n) {
    const Values v{c.logits + n * c.vocab, c.bias ? c.bias + c.kind[n] * c.vocab : nullptr};
    const int64_t split = c.bias ? c.split : c.vocab;
    const Part first = part(v, 0, split);
    Part second;
    if (split < c.vocab) {
        const int64_t low = c.low[n] > split ? c.low[n] : split, high = c.high[n];
        second = part(v, low, high < c.vocab ? high : c.vocab);
    }
    // A comparison with NaN is false: a NaN of the first part stays, one of the second shows in the sum.
    const float top = second.best > first.best ? second.best : first.best;
    const double whole = (first.sum ? first.sum * __builtin_exp((double)(first.best - top)) : first.sum) +
                         (second.sum ? second.sum * __builtin_exp((double)(second.best - top)) : second.sum);
    const float share = (float)__builtin_log(whole);
    const float text = first.best - top - share;
    const float together = second.best - top - share + (float)__builtin_log(second.sum);
    const bool wins = split < c.vocab && c.joint[n] && together > text;
    // Without a first part even a NaN is the second's; where nothing is allowed, the token is 0.
    const bool after = wins || second.best > first.best || (!split && second.best != second.best);
    c.tokens[n] = after ? second.at : first.at;
    const float chosen = after ? second.best - top - share : text;
    c.logprobs[n] = whole > 0 ? chosen - (wins ? together : 0.0f) : __builtin_nanf("");
}

static void choose(const fs_choice &c) {
    const auto work = [&](const Team &team) {
        for (int64_t n = team.low(c.count); n < team.high(c.count); n++) choose_one(c, n);
    };
    parallel(c.count > 1 && c.count * c.vocab > ALONE ? c.threads : 1, work);
}

}  // namespace FS_ISA
}  // namespace forescribe
