"""A round of beam search: the next token of the most probable texts of every row, by one forward.

The beams of a row are nodes of one forward, so they share its prompt and its encoder states: keys and values
of cross-attention are read once for all of them. Each token has a slot of its own, and a beam is the path of
the slots of its text. Which beams go on therefore changes paths, and no keys or values are copied. The slots
that a beam reads are as many as if it had a row of its own.

The tokens are those of openai/whisper (`decoding.py`, `BeamSearchDecoder.update`): of every beam the best
`size` tokens that go on, and those that end the text; of all of them the best `size` that go on, and the ends
that are more probable than the last of these. Sums are of float32, and equal ones keep the order of their
beams.

A row of `BeamRows` is a group of K texts, whose slots are a tree: `parents` leads from each token to the one
before it, and `paths` lists the slots of each text.

Shapes: B rows, K beams, T tokens of the longest text, S slots, F texts that have ended, W candidates of a
beam. Pure tensor code on fixed shapes, as `round`: no host sync, no branch on a tensor, and state changes in
place and at the end, so that a round that fails can be repeated row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..protocols import AllowingProcessor, BeamModel, Processor
from ..requests import MOST_PATIENCE, Beams, Request
from ..rows import Counters, RowState
from ..types import Paths, Prefix
from .choice import Allowed, masked
from .round import Parts, StageCallback, is_end

NEVER = float("-inf")


@dataclass
class BeamRows(RowState):
    """Rows of K texts each, which share a prompt and a length. The first slots hold the prompts, in order.
    The slot S and the text F are for writes that do not count."""

    parents: Tensor  # [B, S + 1] int64, the slot of the token before it
    logprobs: Tensor  # [B, S + 1] float32
    paths: Tensor  # [B, K, T] int64, the slots of each beam's text
    sums: Tensor  # [B, K] float32, of log-probabilities, descending; -inf: a beam that there is not
    wanted: Tensor  # [B] int64, texts that have ended, with which the search ends
    ended: Tensor  # [B] int64, how many there are
    ended_at: Tensor  # [B, F + 1] int64, the slot of the last token before their end
    ended_tokens: Tensor  # [B, F + 1] int64, which end of text
    ended_sums: Tensor  # [B, F + 1] float32
    ended_logprobs: Tensor  # [B, F + 1] float32, of the end of text alone

    computed = frozenset("parents logprobs ended_at ended_tokens ended_sums ended_logprobs".split())

    @staticmethod
    def empty(
        batch: int, size: int, positions: int, longest: int, device: torch.device
    ) -> BeamRows:
        """Free rows of `size` beams, of prompts of up to `positions` tokens and texts of `longest`."""
        slots, texts = positions + size * longest, size * MOST_PATIENCE
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return BeamRows(
            **RowState.common(batch, slots, device),
            parents=zeros(batch, slots + 1),
            logprobs=zeros(batch, slots + 1, dtype=torch.float32),
            paths=zeros(batch, size, positions + 1),
            sums=zeros(batch, size, dtype=torch.float32),
            wanted=zeros(batch),
            ended=zeros(batch),
            ended_at=zeros(batch, texts + 1),
            ended_tokens=zeros(batch, texts + 1),
            ended_sums=zeros(batch, texts + 1, dtype=torch.float32),
            ended_logprobs=zeros(batch, texts + 1, dtype=torch.float32),
        )

    @property
    def texts(self) -> int:
        return self.paths.shape[1]

    @property
    def longest(self) -> int:
        """Tokens of a text at most."""
        return (self.scratch - self.paths.shape[2] + 1) // self.texts

    def free(self, count: int, place: torch.device) -> BeamRows:
        return BeamRows.empty(count, self.texts, self.paths.shape[2] - 1, self.longest, place)

    def begin_texts(self, requests: Sequence[Request], most: int, gamma: int) -> None:
        """See `RowState`. All beams of a row are one, and the others come with its first token."""
        for i, request in enumerate(requests):
            assert request.beams is not None
            length, room = len(request.prompt), self.paths.shape[2]
            new = self.longest if request.max_new_tokens is None else request.max_new_tokens
            self.tokens[i, :length] = torch.tensor(request.prompt)
            self.paths[i, :, :length] = torch.arange(length)
            self.sums[i] = NEVER
            self.sums[i, 0] = 0
            self.lengths[i] = self.begin[i] = length
            self.limits[i] = min(length + min(new, self.longest), room)
            self.wanted[i] = request.beams.candidates


def beam_round(
    rows: BeamRows,
    parts: Parts,
    gamma: int,
    counters: Counters,
    stage_ended: StageCallback = lambda stage: None,
) -> int:
    """Runs one round of all rows, in place, as `round.run_round` does of single texts; without drafts, so
    `gamma` and what it returns are 0. No slot of an active row is at `rows.reach` or behind."""
    stage_ended("draft")
    _, size, room = rows.paths.shape
    target, eos = cast(BeamModel, parts.target), parts.eos
    last = rows.lengths - 1
    at = rows.paths.gather(2, last[:, None, None].expand(-1, size, 1))[..., 0]  # [B, K]
    fed = rows.tokens.gather(1, at)
    paths = Paths(rows.paths, rows.lengths)
    logits = target.score_paths(fed, paths, reach=rows.reach)  # [B, K, V]
    best, chances = _best(rows, parts.processors, logits, last, size + len(eos))  # [B, K, W]
    stage_ended("score")
    stage_ended("observe")
    width = best.shape[2]
    scores, order = (
        (rows.sums[..., None] + chances).flatten(1).sort(dim=1, descending=True, stable=True)
    )
    token, chance = (values.flatten(1).gather(1, order) for values in (best, chances))
    source = order.div(width, rounding_mode="floor")
    ends = is_end(token, eos)
    going = (~ends).cumsum(1)  # [B, K W] candidates that go on, up to each one
    ended = ends & (going < size) & (scores > NEVER)

    # The beams of the next round: candidates that go on, in the order of their scores.
    column = torch.arange(size * width, device=token.device).expand_as(order)
    place = torch.where(~ends & (going <= size), going - 1, size)
    chosen = torch.zeros_like(order[:, : size + 1]).scatter(1, place, column)[:, :size]
    parent = source.gather(1, chosen)  # [B, K] beams
    beam = torch.arange(size, device=token.device)
    slot = (rows.begin + (rows.lengths - rows.begin) * size)[:, None] + beam
    slot = torch.where(rows.active[:, None], slot, rows.scratch)
    going_on = rows.paths.gather(1, parent[..., None].expand(-1, -1, room))
    behind = rows.lengths.clamp_max(room - 1)[:, None, None].expand(-1, size, 1)
    going_on = going_on.scatter(2, behind, slot[..., None])

    # Texts that have ended, while more are wanted.
    number = rows.ended[:, None] + ended.cumsum(1) - 1
    ended &= (number < rows.wanted[:, None]) & rows.active[:, None]
    where = torch.where(ended, number, rows.ended_at.shape[1] - 1)

    active = rows.active[:, None]
    rows.ended_at.scatter_(1, where, at.gather(1, source))
    rows.ended_tokens.scatter_(1, where, token)
    rows.ended_sums.scatter_(1, where, scores)
    rows.ended_logprobs.scatter_(1, where, chance)
    rows.ended += ended.sum(1)
    rows.tokens.scatter_(1, slot, token.gather(1, chosen))
    rows.parents.scatter_(1, slot, at.gather(1, parent))
    rows.logprobs.scatter_(1, slot, chance.gather(1, chosen))
    rows.paths.copy_(torch.where(active[..., None], going_on, rows.paths))
    rows.sums.copy_(torch.where(active, scores.gather(1, chosen), rows.sums))
    rows.lengths += rows.active
    rows.rounds += rows.active
    counters.row_rounds.add_(rows.active.sum())
    alive = (rows.sums > NEVER).any(1)  # False with NaN too
    rows.active &= (rows.ended < rows.wanted) & (rows.lengths < rows.limits) & alive
    stage_ended("accept")
    return 0


def _best(
    rows: BeamRows, processors: Sequence[Processor], logits: Tensor, last: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """The `width` most probable tokens `[B, K, W]` of `logits [B, K, V]`, and their log-probabilities. The
    processors see a row for each beam."""
    count, size, _ = rows.paths.shape
    texts = rows.tokens[:, None].expand(-1, size, -1).gather(2, rows.paths).flatten(0, 1)
    begin, ends = rows.begin.repeat_interleave(size), last.repeat_interleave(size)[:, None]
    prefix = Prefix(texts, ends, begin)
    flat = logits.float().flatten(0, 1)[:, None]
    if len(processors) == 1 and hasattr(processors[0], "allowed"):
        allowed = cast(AllowingProcessor, processors[0]).allowed(prefix.chain())
        tokens, logprobs = _best_allowed(flat, allowed, width)
    else:
        for processor in processors:
            flat = processor(flat, prefix)
        tokens, logprobs = _top(flat, width)
        logprobs = logprobs - flat.logsumexp(2, keepdim=True)
    return tokens.view(count, size, -1), logprobs.view(count, size, -1)


def _top(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    best = values.topk(min(width, values.shape[2]))
    return best.indices, best.values


def _best_allowed(logits: Tensor, allowed: Allowed, width: int) -> tuple[Tensor, Tensor]:
    """As `rounds.choice.choose`, of the `width` best tokens: the rules of Whisper one by one took two thirds
    of the time of rounds."""
    kept, split = masked(logits, allowed), allowed.split
    if split in (0, kept.shape[2]):
        tokens, values = _top(kept, width)
        return tokens, values - kept.logsumexp(2, keepdim=True)
    first, second = kept[..., :split], kept[..., split:]
    together = second.logsumexp(2, keepdim=True)
    whole = torch.logaddexp(first.logsumexp(2, keepdim=True), together)
    (tokens, values), (others, beside) = _top(first, width), _top(second, width)
    joint = (second - whole).logsumexp(2, keepdim=True)
    wins = allowed.joint[..., None] & (joint > values[..., :1] - whole)
    values = torch.cat([values.masked_fill(wins, NEVER), beside], 2)
    found, chances = _top(values - torch.where(wins, together, whole), width)
    return torch.cat([tokens, others + split], 2).gather(2, found), chances


def read_group(rows: BeamRows, row: int) -> list[Tensor]:
    """What `best_text` needs of a row."""
    each = slice(row, row + 1)
    last = rows.paths[row].gather(1, (rows.lengths[each] - 1).expand(rows.texts, 1))
    parts = [rows.tokens, rows.parents, rows.logprobs, rows.sums]
    parts += [rows.ended_at, rows.ended_tokens, rows.ended_sums, rows.ended_logprobs]
    return [rows.ended[each], rows.rounds[each], last[:, 0], *(values[row] for values in parts)]


def best_text(
    group: Sequence[list[Any]], begin: int, beams: Beams
) -> tuple[int, list[int], list[float]]:
    """The rounds of a group, and its best text with log-probabilities, from the numbers of `read_group`: of
    the texts that have ended and, where they are fewer than beams, of the most probable ones that have not
    (openai/whisper, `BeamSearchDecoder.finalize` and `MaximumLikelihoodRanker`)."""
    (count,), (rounds,), last, tokens, parents, logprobs, sums, *ended = group
    ended_at, ended_tokens, ended_sums, ended_logprobs = ended
    ends = [
        (ended_sums[i], ended_at[i], [ended_tokens[i]], [ended_logprobs[i]]) for i in range(count)
    ]
    # The most probable first.
    ends += [(total, at, [], []) for total, at in zip(sums, last, strict=True)][
        : max(0, beams.size - count)
    ]
    found = []
    for total, at, end, ending in ends:
        path = list[int]()
        while at >= begin:
            path.append(at)
            at = parents[at]
        path.reverse()
        text = [tokens[slot] for slot in path] + end
        found.append((beams.score(total, len(path)), text, [logprobs[s] for s in path] + ending))
    _, text, chances = max(found, key=lambda each: each[0])
    return rounds, text, chances
