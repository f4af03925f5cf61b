"""One round: draft -> score -> accept -> commit, the same for every row whatever it accepted.

Pure tensor code on fixed shapes: no host sync, no data-dependent shape, no branch on a tensor. What differs
between rows is data (`lengths`, `valid`, `num_accepted`), so one graph serves every state. With gamma = 0
there is no draft and the round is plain decoding.

Drafts count as long as they are the tokens that the target chooses: the best ones, or those that its noise
makes the best (`sampling`). A greedy round reads the best token of each position only; where the processors
can say what they allow, it is found without processed logits (`choice`). All other rounds process the logits.
`verify` judges a guess, how an answer may begin, with the logits of its prompt, as a round does, in place of
the rounds that would have written the same tokens. Knows rows, models and processors; nothing of requests or
slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from ..protocols import AllowingProcessor, Drafter, Model, Processor
from ..requests import Mode, Source
from ..rows import Counters, Rows, selected
from ..types import Chain, Draft, Verdict
from .choice import Allowed, Choice, argmax, choose
from .sampling import penalise, perturbed

StageCallback = Callable[[str], None]
"""Called with the name of the stage that has just ended."""

KEPT = ("tokens", "lengths", "active", "logprobs", "sources", "ranked", "ranked_logprobs")
"""State of a row that a guess changes. Rounds and drafts are not counted: there were none."""


@dataclass(frozen=True)
class Parts:
    """The parts of a round besides the rows."""

    target: Model
    drafter: Drafter | None
    processors: tuple[Processor, ...]
    eos: Tensor  # [E] token ids that end a row
    choose: Callable[[Tensor, Allowed | None], Choice] | None = field(init=False)
    """The pass over the logits, the model's own where it has one, of greedy rounds that need the best tokens
    only: with no processor, or one that can say what it allows. None where no round does."""

    def __post_init__(self) -> None:
        count = len(self.processors)
        able = count == 0 or (count == 1 and hasattr(self.processors[0], "allowed"))
        best = getattr(self.target, "choose", choose)
        object.__setattr__(self, "choose", best if able else None)


def run_round(
    rows: Rows,
    parts: Parts,
    gamma: int,
    counters: Counters,
    stage_ended: StageCallback = lambda stage: None,
) -> int:
    """Runs one round of all rows, in place. `gamma` is a static number of drafts, 0 or more. Returns
    how many tokens were drafted: fewer where the drafter ended early."""
    if gamma == 0:
        draft = no_draft(rows)
    elif parts.drafter is None:
        raise ValueError(f"gamma is {gamma}, but there is no drafter")
    else:
        draft = checked(rows, parts, parts.drafter.propose(rows, gamma), gamma)
    stage_ended("draft")
    tokens = torch.cat([rows.pending(), draft.tokens], dim=1)  # [B, N]
    start = rows.lengths - 1
    scores = parts.target.score(tokens, start, reach=rows.reach)
    judged, verdict = judge(rows, parts, draft, tokens, scores.logits)
    stage_ended("score")
    if parts.drafter is not None and (gamma or parts.drafter.needs.always):
        parts.drafter.observe(rows, draft, scores, verdict)
    stage_ended("observe")
    commit(rows, parts, draft, judged, verdict, counters)
    stage_ended("accept")
    return draft.tokens.shape[1]


def judge(
    rows: Rows, parts: Parts, draft: Draft, tokens: Tensor, logits: Tensor
) -> tuple[Choice | Tensor, Verdict]:
    """The verdict on a draft, from `logits [B, N, V]` of `tokens [B, N]`, and what it is about: processed
    logits, or the choice of a greedy round."""
    mode = rows.mode
    if parts.choose is not None and not (mode.sampling or mode.penalised or mode.ranked):
        allowed = None
        if parts.processors:
            processor = cast(AllowingProcessor, parts.processors[0])
            allowed = processor.allowed(_chain(rows, tokens))
        best = parts.choose(logits, allowed)
        return best, match(draft, best.tokens)
    processed = process(rows, parts, tokens, logits)  # [B, N, V]
    slots = rows.lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    drawn = perturbed(rows, processed, slots) if mode.sampling else processed
    return processed, match(draft, argmax(drawn))


def match(draft: Draft, choice: Tensor) -> Verdict:
    """Keeps drafts as long as they are the target's `choice [B, N]`, whose tokens are emitted."""
    usable = torch.arange(draft.tokens.shape[1], device=choice.device) < draft.valid[:, None]
    kept = (draft.tokens == choice[:, :-1]) & usable
    return Verdict(choice, kept.long().cumprod(-1).sum(-1))


def commit(
    rows: Rows,
    parts: Parts,
    draft: Draft,
    judged: Choice | Tensor,
    verdict: Verdict,
    counters: Counters,
) -> None:
    """Appends the accepted tokens, cut at end-of-text, and counts them. `judged` is what the verdict is
    about: processed logits `[B, N, V]`, or the choice of a greedy round. The limits of rows are kept by
    `checked`: a verdict accepts fewer tokens than an active row has room for."""
    nodes = verdict.tokens.shape[1]
    column = torch.arange(nodes, device=verdict.tokens.device)
    accepted = verdict.num_accepted
    count = accepted + 1
    ends = is_end(verdict.tokens, parts.eos) & (column < count[:, None])
    count = torch.minimum(count, torch.where(ends, column + 1, nodes).amin(1))
    count = torch.where(rows.active, count, 0)  # [B] tokens to append
    accepted = torch.minimum(accepted, count)

    used = column < count[:, None]
    slot = torch.where(used, rows.lengths[:, None] + column, rows.scratch)
    _write_logprobs(rows, judged, verdict, slot)
    drafted = draft.valid
    extra = torch.where(verdict.num_accepted < drafted, Source.CORRECTION, Source.BONUS)
    extra = torch.where(drafted == 0, Source.PLAIN, extra)
    kept = column < verdict.num_accepted[:, None]
    sources = torch.where(kept, Source.ACCEPTED, extra[:, None]).to(rows.sources.dtype)
    ended = (ends & used).any(1)
    rows.tokens.scatter_(1, slot, verdict.tokens)
    rows.sources.scatter_(1, slot, sources)

    # Tokens after the lengths do not count: up to here a round that fails can be repeated.
    rows.rounds += rows.active
    rows.drafted += drafted
    rows.accepted += accepted
    counters.add(rows.active, drafted, accepted, count)
    rows.lengths += count
    rows.active &= ~ended & (rows.lengths < rows.limits)


def checked(rows: Rows, parts: Parts, draft: Draft, gamma: int) -> Draft:
    """The draft, with `valid` cut to the tokens that can be committed: this is where a row's limit is kept,
    as no rule accepts more, and where tokens that the target does not have are left out. Raises `ValueError`
    for a wrong shape."""
    tokens, width = draft.tokens, draft.tokens.shape[1]
    if width > gamma or len(tokens) != len(rows.lengths):
        raise ValueError(
            f"drafts of shape {tuple(tokens.shape)}; need [{rows.batch}, up to {gamma}]"
        )
    if width == 0:  # a drafter that proposes nothing for any row
        return no_draft(rows)
    valid, known = draft.valid, (tokens >= 0) & (tokens < parts.target.vocab_size)
    room = rows.limits - rows.lengths - 1  # the last token is the target's
    valid = torch.minimum(valid, torch.minimum(rows.gamma, room))
    # Nothing after an end-of-text can be committed, nor from a token on that the target does not have.
    column = torch.arange(width, device=valid.device)
    ends = is_end(tokens, parts.eos)
    count = torch.where(known, torch.where(ends, column + 1, width), column)
    valid = torch.minimum(valid, count.amin(1))
    valid = torch.where(rows.active, valid, 0).clamp_min(0)
    # The target reads drafts that do not count too, and an unknown token makes it fail; on a GPU the process
    # cannot recover from that.
    return Draft(torch.where(known, tokens, 0), valid)


def no_draft(rows: Rows) -> Draft:
    """A draft of no tokens: the round is plain decoding."""
    none = torch.zeros_like(rows.lengths)
    return Draft(tokens=none[:, None][:, :0], valid=none)


def is_end(tokens: Tensor, eos: Tensor) -> Tensor:
    """True where a token of `tokens [B, M]` is one of `eos [E]`."""
    return (tokens[..., None] == eos).any(-1)


def verify(
    rows: Rows,
    index: Tensor,
    parts: Parts,
    guess: Tensor,
    count: Tensor,
    logits: Tensor,
    mode: Mode,
) -> None:
    """Appends to the rows `index [K]` the longest beginning of `guess [K, G]` that the target writes too, and
    the token that it writes next. The rows are at temperature 0 and hold their prompts. `count [K]` tokens of
    a guess are meant; a row with none is left alone, and the others become active. `logits [K, G + 1, V]`
    follow the prompt's last token and each one of the guess."""
    some = selected(rows, index, mode)
    some.active = (count > 0) & (some.lengths < some.limits)
    some.gamma = torch.full_like(some.gamma, guess.shape[1])
    draft = checked(some, parts, Draft(guess, count), guess.shape[1])
    tokens = torch.cat([some.pending(), draft.tokens], dim=1)
    judged, verdict = judge(some, parts, draft, tokens, logits)
    commit(some, parts, draft, judged, verdict, Counters.zeros(guess.shape[1], index.device))
    some.sources = _guess_sources(some, rows.lengths[index])
    meant = count > 0
    for name in KEPT:
        old, new = getattr(rows, name), getattr(some, name)
        shown = meant.view(-1, *[1] * (new.dim() - 1))
        old[index] = torch.where(shown, new, old[index])


def process(rows: Rows, parts: Parts, tokens: Tensor, logits: Tensor) -> Tensor:
    """Applies the logits processors, then the penalties, to `logits [B, N, V]` of `tokens [B, N]`."""
    if not (parts.processors or rows.mode.penalised):
        return logits
    prefix = _chain(rows, tokens).prefix()
    for processor in parts.processors:
        logits = processor(logits, prefix)
    if rows.mode.penalised:
        logits = penalise(rows, logits, prefix)
    return logits


def _chain(rows: Rows, tokens: Tensor) -> Chain:
    slots = (rows.lengths - 1)[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    return Chain(rows.tokens, tokens, slots, rows.begin)


def _write_logprobs(rows: Rows, judged: Choice | Tensor, verdict: Verdict, slot: Tensor) -> None:
    """Writes the tokens' log-probabilities, and the likeliest tokens beside them, to `slot [B, N]`."""
    if isinstance(judged, Choice):
        logprobs = judged.logprobs
    else:
        whole = judged.logsumexp(-1)
        logprobs = judged.gather(-1, verdict.tokens[..., None])[..., 0] - whole
        if rows.mode.ranked:
            best = judged.topk(rows.ranked.shape[2])
            index = slot[..., None].expand_as(best.indices)
            rows.ranked.scatter_(1, index, best.indices)
            rows.ranked_logprobs.scatter_(1, index, best.values - whole[..., None])
    rows.logprobs.scatter_(1, slot, logprobs)


def _guess_sources(rows: Rows, begin: Tensor) -> Tensor:
    """Sources `[K, T]` of tokens written from slot `begin [K]` on: the last one is the target's own."""
    slots = torch.arange(rows.sources.shape[1], device=begin.device)
    last = (rows.lengths - 1)[:, None]
    guessed = (slots >= begin[:, None]) & (slots <= last) & (rows.sources == Source.ACCEPTED)
    own = (slots == last) & (last >= begin[:, None]) & ~guessed
    sources = torch.where(guessed, int(Source.GUESSED), rows.sources)
    return torch.where(own, int(Source.PLAIN), sources).to(rows.sources.dtype)
