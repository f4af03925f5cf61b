// Drafts of a greedy draft model: forward, choice, forward, choice, as one call.
#pragma once

#include "steps.h"
#include "table.h"

namespace forescribe {

// All that the draft's steps will check, before anything is written: they follow from the first.
inline int32_t check_draft(const fs_step &first, const fs_draft &draft, int64_t batch, int64_t slots,
                           int64_t vocab) {
    if (!first.node || !first.logits || first.paths || draft.depths < 1) return FS_BAD_SHAPE;
    if (first.tap_count || first.queries || first.embedded) return FS_BAD_SHAPE;  // there is room for those of one forward only
    const int32_t error = check_step(first, batch, slots, vocab);
    if (error) return error;
    for (int64_t b = 0; b < first.batch; b++)  // the last draft is not fed
        if (draft.depths > slots - first.start[b] - first.node[b]) return FS_BAD_SLOT;
    for (int64_t c = 0; draft.ids && c < draft.columns; c++)
        if (draft.ids[c] < 0 || draft.ids[c] >= vocab) return FS_BAD_TOKEN;
    return FS_OK;
}

// `first` is the forward over the tokens that are new to the draft, with one node of each row;
// `forward(step)` checks a step and runs it. A draft ends where no active row believes in it any more.
template <class Forward>
int32_t draft_loop(const Kernels &kernels, const fs_step &first, fs_draft &draft, const Forward &forward) {
    const int64_t batch = first.batch;
    draft.drafted = 0;
    fs_step step = first;
    for (int64_t b = 0; b < batch; b++) draft.belief[b] = 1;
    for (int64_t depth = 0; depth < draft.depths; depth++) {
        if (depth) {
            for (int64_t b = 0; b < batch; b++) draft.start[b] = first.start[b] + first.node[b] + depth;
            step.nodes = 1;
            step.node = nullptr;
            step.start = draft.start;
            step.tokens = draft.tokens + (depth - 1) * batch;
        }
        const int32_t error = forward(step);
        if (error) return error;
        fs_choice choice = {};
        choice.count = batch;
        choice.vocab = draft.columns;
        choice.logits = first.logits;
        choice.tokens = draft.tokens + depth * batch;
        choice.logprobs = draft.logprobs;
        choice.threads = first.threads;
        kernels.choose(choice);
        if (draft.ids)
            for (int64_t b = 0; b < batch; b++) choice.tokens[b] = draft.ids[choice.tokens[b]];
        draft.drafted = depth + 1;
        bool goes_on = draft.confidence <= 0;
        for (int64_t b = 0; b < batch; b++) {
            draft.belief[b] *= (float)__builtin_exp((double)draft.logprobs[b]);
            goes_on |= draft.active[b] && draft.belief[b] >= draft.confidence;
        }
        if (!goes_on) break;
    }
    return FS_OK;
}

}  // namespace forescribe
