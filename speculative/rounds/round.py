"""One round: draft -> score -> accept -> commit, the same for every row whatever it accepted.

Pure tensor code on fixed shapes: no host sync, no data-dependent shape, no branch on a tensor. What
differs between rows is data (`lengths`, `valid`, `num_accepted`), so one graph serves every state.
With gamma = 0 there is no draft and the round is plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafts import Draft, Prefix, Scores, Verdict
from ..engine.stats import Counters
from ..protocols import Drafter, Model, Processor, Rule
from ..requests import Source
from ..rows import Rows
from .sampling import penalise

Mark = Callable[[str], None]  # called with the name of the stage that just ended


@dataclass(frozen=True)
class Parts:
    """What a round is made of."""

    target: Model
    drafter: Drafter | None
    rule: Rule
    processors: tuple[Processor, ...]
    eos: Tensor  # [E] token ids that end a row


def run_round(
    rows: Rows, parts: Parts, gamma: int, counters: Counters, mark: Mark = lambda stage: None
) -> int:
    """Plays one round on all rows, in place. `gamma` is a static number of drafts, 0 or more. Returns
    how many were drafted: fewer where the drafter ended early."""
    draft = propose(rows, parts, gamma)
    mark("draft")
    scores, logits = score(rows, parts, draft)
    mark("score")
    verdict = parts.rule(rows, draft, logits)
    mark("rule")
    if parts.drafter is not None and gamma:
        parts.drafter.observe(rows, draft, scores, verdict)
    mark("observe")
    commit(rows, parts, draft, logits, verdict, counters)
    mark("accept")
    return draft.tokens.shape[1]


def propose(rows: Rows, parts: Parts, gamma: int) -> Draft:
    """A draft whose `valid` counts no token that could not be committed."""
    if gamma == 0:
        none = torch.zeros_like(rows.lengths)
        return Draft(tokens=none[:, None][:, :0], valid=none)
    if parts.drafter is None:
        raise ValueError(f"gamma is {gamma}, but there is no drafter")
    draft = parts.drafter.propose(rows, gamma)
    tokens, width = draft.tokens, draft.tokens.shape[1]
    if width > gamma or tokens.shape[0] != rows.batch:
        raise ValueError(
            f"drafts of shape {tuple(tokens.shape)}; need [{rows.batch}, up to {gamma}]"
        )
    valid = torch.minimum(draft.valid, rows.gamma)
    valid = torch.minimum(valid, rows.limits - rows.lengths - 1)  # the last token is the target's
    last = parts.target.vocab_size - 1
    if draft.topology is None:
        # Behind an end-of-text nothing can count; in a tree it ends only its own branch. From a token that
        # the target does not have on, nothing counts either.
        column = torch.arange(width, device=valid.device)
        ends = is_end(tokens, parts.eos)
        unknown = (tokens < 0) | (tokens > last)
        count = torch.where(unknown, column, torch.where(ends, column + 1, width))
        valid = torch.minimum(valid, count.amin(1))
    valid = torch.where(rows.active, valid, 0).clamp_min(0)
    # A target that is asked about a token it does not have fails, on a GPU for good.
    return Draft(tokens.clamp(0, last), valid, draft.probs, draft.topology)


def score(rows: Rows, parts: Parts, draft: Draft) -> tuple[Scores, Tensor]:
    """The target over the pending token and the drafts: raw scores and processed logits `[B, N, V]`."""
    tokens = torch.cat([rows.pending(), draft.tokens], dim=1)  # [B, N]
    start = rows.lengths - 1
    scores = parts.target.score(tokens, start, reach=rows.reach, topology=draft.topology)
    logits = scores.logits
    if not (parts.processors or rows.mode.penalised):
        return scores, logits
    if draft.topology is None:
        prefix = _chain_prefix(rows, tokens, start)
    else:
        # Siblings share a depth but not a prefix: every node becomes a row of its own.
        prefix = _node_prefixes(rows, draft)
        logits = logits.flatten(0, 1)[:, None]
    for processor in parts.processors:
        logits = processor(logits, prefix)
    if rows.mode.penalised:
        logits = penalise(rows, logits, prefix)
    return scores, logits.reshape_as(scores.logits)


def _chain_prefix(rows: Rows, tokens: Tensor, start: Tensor) -> Prefix:
    slots = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    return Prefix(rows.tokens.scatter(1, slots, tokens), slots, rows.begin)


def _node_prefixes(rows: Rows, draft: Draft) -> Prefix:
    """Prefixes of all B * N nodes: the committed tokens, then the drafts on the way from the root."""
    assert draft.topology is not None
    parents, depths = draft.topology.parents, draft.topology.depths
    strips = [rows.tokens]
    for node, parent in enumerate(parents, start=1):
        slot = rows.lengths - 1 + depths[node]
        strips.append(strips[parent].scatter(1, slot[:, None], draft.tokens[:, node - 1 : node]))
    last = torch.stack([rows.lengths - 1 + depth for depth in depths], dim=1)  # [B, N]
    return Prefix(
        tokens=torch.stack(strips, dim=1).flatten(0, 1),
        last=last.reshape(-1, 1),
        begin=rows.begin.repeat_interleave(len(depths), output_size=last.numel()),
    )


def commit(
    rows: Rows, parts: Parts, draft: Draft, logits: Tensor, verdict: Verdict, counters: Counters
) -> None:
    """Appends what was accepted, cut at end-of-text and at each row's limit, and counts it."""
    nodes = logits.shape[1]
    column = torch.arange(nodes, device=logits.device)
    accepted = verdict.num_accepted
    count = torch.minimum(accepted + 1, rows.limits - rows.lengths)
    ends = is_end(verdict.tokens, parts.eos) & (column < count[:, None])
    count = torch.minimum(count, torch.where(ends, column + 1, nodes).amin(1))
    count = torch.where(rows.active, count, 0)  # [B] tokens to append
    accepted = torch.minimum(accepted, count)

    if verdict.path is not None:
        parts.target.commit(rows.lengths - 1, verdict.path)
        logits = logits.gather(1, verdict.path[..., None].expand_as(logits))
    chosen = logits.gather(-1, verdict.tokens[..., None])[..., 0]
    slot = torch.where(column < count[:, None], rows.lengths[:, None] + column, rows.scratch)
    whole = logits.logsumexp(-1)
    sources = _sources(draft, verdict, column).to(rows.sources.dtype)
    ended = (ends & (column < count[:, None])).any(1)
    if rows.mode.ranked:
        best = logits.topk(rows.ranked.shape[2])
        index = slot[..., None].expand_as(best.indices)
        rows.ranked.scatter_(1, index, best.indices)
        rows.ranked_logprobs.scatter_(1, index, best.values - whole[..., None])
    rows.tokens.scatter_(1, slot, verdict.tokens)
    rows.logprobs.scatter_(1, slot, chosen - whole)
    rows.sources.scatter_(1, slot, sources)

    # Behind the lengths so far nothing counts: up to here a round that fails can be repeated.
    rows.rounds += rows.active
    rows.drafted += draft.valid
    rows.accepted += accepted
    counters.add(rows.active, draft.valid, accepted, count)
    rows.lengths += count
    rows.active &= ~ended & (rows.lengths < rows.limits)


def _sources(draft: Draft, verdict: Verdict, column: Tensor) -> Tensor:
    extra = torch.where(verdict.num_accepted < draft.valid, Source.CORRECTION, Source.BONUS)
    extra = torch.where(draft.valid == 0, Source.PLAIN, extra)
    return torch.where(column < verdict.num_accepted[:, None], Source.ACCEPTED, extra[:, None])


def is_end(tokens: Tensor, eos: Tensor) -> Tensor:
    """True where a token of `tokens [B, M]` is one of `eos [E]`."""
    return (tokens[..., None] == eos).any(-1)
