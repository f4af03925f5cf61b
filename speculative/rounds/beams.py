"""A round of beam search: the next tokens of the most probable texts of every row, by one forward.

The beams of a row are nodes of one forward, so they share its prompt and its encoder states: keys and values
of cross-attention are read once for all of them. Each token has a slot of its own, and a beam is the path of
the slots of its text. Which beams go on therefore changes paths, and no keys or values are copied. The slots
that a beam reads are as many as if it had a row of its own.

The tokens are those of openai/whisper (`decoding.py`, `BeamSearchDecoder.update`): of every beam the best
`size` tokens that go on, and those that end the text; of all of them the best `size` that go on, and the ends
that are more probable than the last of these. Sums are of float32, and equal ones keep the order of their
beams.

With drafts a round takes several steps of this search. A drafter grows a tree behind the beams, at each of
its gamma levels the `width` texts that it holds to be the most probable, and the target scores the beams and
the tree together. The steps are then taken as without drafts, by what the target says. A step needs its
scores of all beams that matter: one that is not in the tree does not matter where it is less probable than
the last of the `size` texts that go on from the others, since no text is more probable than its beginning.
The first step that lacks a beam which does matter is left to the next round. What is drafted changes how many
steps a round takes, and no text.

A row of `BeamRows` is a group of K texts, whose tokens are a tree: `parents` leads from each token to the one
before it. Where its keys and values are, the slots of `paths`, is another matter: slots of texts that have
been given up are used again.

Shapes: B rows, K beams, T tokens of the longest text, S slots, F texts that have ended, C candidates of a
beam, G levels of a tree, W nodes of a level, N = K + G W. Pure tensor code on fixed shapes, as `round`: no
host sync, no branch on a tensor, and state changes in place once the target has scored, so that a round that
fails can be repeated row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..protocols import AllowingProcessor, BeamDrafter, BeamModel, Processor
from ..requests import MOST_PATIENCE, Beams, Request
from ..rows import Counters, RowState
from ..types import Level, Paths, Prefix
from .choice import Allowed, masked
from .round import Parts, StageCallback, is_end

NEVER = float("-inf")

WIDE = 3
"""Nodes of a level of the tree, for each beam: of 16 behind five all of the next five that matter are nodes
in 70 % of the cases, of 8 in 62 %, of 24 in 71 % (tiny.en, its bundled draft; docs/methods/beams.md)."""


@dataclass
class BeamRows(RowState):
    """Rows of K texts each, which share a prompt and a length. The tokens of prompts come first, in order.
    Token and slot S and the text F are for writes that do not count."""

    parents: Tensor  # [B, S + 1] int64, the token before it
    logprobs: Tensor  # [B, S + 1] float32
    written: Tensor  # [B, K, T] int64, the tokens of each beam, prompt first
    paths: Tensor  # [B, K, T] int64, their slots
    sums: Tensor  # [B, K] float32, of log-probabilities, descending; -inf: a beam that there is not
    wanted: Tensor  # [B] int64, texts that have ended, with which the search ends
    ended: Tensor  # [B] int64, how many there are
    ended_at: Tensor  # [B, F + 1] int64, the last token before their end
    ended_tokens: Tensor  # [B, F + 1] int64, which end of text
    ended_sums: Tensor  # [B, F + 1] float32
    ended_logprobs: Tensor  # [B, F + 1] float32, of the end of text alone
    gamma: Tensor  # [B] int64, levels that count at most
    drafted: Tensor  # [B] int64, levels
    accepted: Tensor  # [B] int64, of these
    longest: int  # tokens of a text at most
    spare: int  # slots of a round's new nodes

    computed = frozenset("parents logprobs ended_at ended_tokens ended_sums ended_logprobs".split())

    @staticmethod
    def empty(
        batch: int, size: int, positions: int, longest: int, device: torch.device, spare: int = 0
    ) -> BeamRows:
        """Free rows of `size` beams, of prompts of up to `positions` tokens and texts of `longest`."""
        slots, texts = positions + size * longest + spare, size * MOST_PATIENCE
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return BeamRows(
            **RowState.common(batch, slots, device),
            parents=zeros(batch, slots + 1),
            logprobs=zeros(batch, slots + 1, dtype=torch.float32),
            written=zeros(batch, size, positions + 1),
            paths=zeros(batch, size, positions + 1),
            sums=zeros(batch, size, dtype=torch.float32),
            wanted=zeros(batch),
            ended=zeros(batch),
            ended_at=zeros(batch, texts + 1),
            ended_tokens=zeros(batch, texts + 1),
            ended_sums=zeros(batch, texts + 1, dtype=torch.float32),
            ended_logprobs=zeros(batch, texts + 1, dtype=torch.float32),
            gamma=zeros(batch),
            drafted=zeros(batch),
            accepted=zeros(batch),
            longest=longest,
            spare=spare,
        )

    @property
    def texts(self) -> int:
        return self.paths.shape[1]

    @property
    def width(self) -> int:
        """Nodes of a level of the tree."""
        return WIDE * self.texts

    def free(self, count: int, place: torch.device) -> BeamRows:
        most = self.paths.shape[2] - 1
        return BeamRows.empty(count, self.texts, most, self.longest, place, self.spare)

    def begin_texts(self, requests: Sequence[Request], most: int, gamma: int) -> None:
        """See `RowState`. All beams of a row are one, and the others come with its first token."""
        for i, request in enumerate(requests):
            assert request.beams is not None
            length, room = len(request.prompt), self.paths.shape[2]
            new = self.longest if request.max_new_tokens is None else request.max_new_tokens
            self.tokens[i, :length] = torch.tensor(request.prompt)
            self.written[i, :, :length] = self.tokens[i, :length]
            self.paths[i, :, :length] = torch.arange(length)
            self.sums[i] = NEVER
            self.sums[i, 0] = 0
            self.lengths[i] = self.begin[i] = length
            self.limits[i] = min(length + min(new, self.longest), room)
            self.wanted[i] = request.beams.candidates
            self.gamma[i] = gamma if request.gamma is None else request.gamma

    def beams(self) -> Level:
        """The texts of all rows: the root of a tree."""
        lengths = self.lengths[:, None].expand(-1, self.texts)
        each = torch.arange(self.texts, device=lengths.device).expand_as(lengths)
        return Level(self.written, self.paths, lengths, self.sums, each)

    def new_slots(self, count: int) -> Tensor:
        """The first `count` slots `[B, count]` that no beam reads."""
        known = torch.arange(self.paths.shape[2], device=self.paths.device)
        read = torch.where(known < self.lengths[:, None, None], self.paths, self.scratch)
        unused = torch.ones_like(self.tokens, dtype=torch.bool)
        unused = unused.scatter(1, read.flatten(1), False)
        number = unused.cumsum(1)
        place = torch.where(unused & (number <= count), number - 1, count)
        slots = torch.arange(self.scratch + 1, device=place.device).expand_as(place)
        return torch.zeros_like(place[:, : count + 1]).scatter(1, place, slots)[:, :count]


def beam_round(
    rows: BeamRows,
    parts: Parts,
    gamma: int,
    counters: Counters,
    stage_ended: StageCallback = lambda stage: None,
) -> int:
    """Runs one round of all rows, in place, as `round.run_round` does of single texts: up to `gamma` + 1
    steps of the search. No slot of an active row is at `rows.reach` or behind."""
    size, width = rows.texts, rows.width
    choose = partial(_best, parts.processors, rows.begin, max(size + len(parts.eos), WIDE))
    slots, tree = rows.new_slots(size + gamma * width), [rows.beams()]
    if gamma:
        new = slots[:, size:].unflatten(1, (gamma, width))
        tree += cast(BeamDrafter, parts.drafter).grow(rows, new, parts.eos, choose)
    stage_ended("draft")
    nodes = Level.joined(tree)
    paths = Paths(nodes.paths, nodes.lengths)
    logits = cast(BeamModel, parts.target).score_paths(nodes.last, paths, reach=rows.reach)
    best, chances = choose(nodes, logits)  # [B, N, C]
    stage_ended("score")
    stage_ended("observe")
    began, going, steps = rows.active.clone(), rows.active.clone(), torch.zeros_like(rows.lengths)
    fresh = slots[:, :size]  # of beams that the tree has not, and of the last step's
    node = torch.arange(size, device=slots.device).expand_as(fresh)  # [B, K] where each beam is
    known = torch.ones_like(fresh, dtype=torch.bool)
    for depth in range(gamma + 1):
        index = node[..., None].expand(-1, -1, best.shape[2])
        scored = chances.gather(1, index).masked_fill(~known[..., None], NEVER)
        step = _Step.of(rows, parts.eos, best.gather(1, index), scored)
        # Nothing that goes on from an unknown beam is as probable as the last text that does from others.
        going &= (known | (rows.sums < step.sums[:, -1:]) | (rows.sums == NEVER)).all(1)
        going &= rows.gamma >= depth
        slot = fresh
        if depth < gamma:
            level, before = tree[depth + 1], depth and size + (depth - 1) * width
            parent = node.gather(1, step.parent)[..., None] == (level.parents + before)[:, None]
            same = parent & (step.token[..., None] == level.last[:, None])  # [B, K, W]
            known, which = same.any(2), same.int().argmax(2)
            slot = torch.where(known, level.slots.gather(1, which), fresh)
            node = which + size + depth * width
        step.commit(rows, slot, going)
        steps += going
        going &= rows.active
    accepted = (steps - 1).clamp_min(0)
    drafted = torch.where(rows.active, rows.gamma.clamp_max(gamma), accepted)
    rows.rounds += began
    rows.drafted += drafted
    rows.accepted += accepted
    counters.add(began, drafted, accepted, torch.zeros_like(steps))
    stage_ended("accept")
    return gamma


def behind(level: Level, best: Tensor, chances: Tensor, slots: Tensor, eos: Tensor) -> Level:
    """The most probable texts that go on from those of a level, one for each of `slots [B, W]`; `best
    [B, N, C]` with their log-probabilities are the tokens to choose from."""
    room = level.paths.shape[2]
    sums = (level.sums[..., None] + chances).masked_fill(is_end(best, eos), NEVER)
    sums, order = sums.flatten(1).topk(slots.shape[1])
    parents = order.div(best.shape[2], rounding_mode="floor")
    lengths = (level.lengths.gather(1, parents) + 1).clamp_max(room)
    index, last = parents[..., None].expand(-1, -1, room), lengths[..., None] - 1
    written = level.written.gather(1, index)
    written = written.scatter(2, last, best.flatten(1).gather(1, order)[..., None])
    paths = level.paths.gather(1, index).scatter(2, last, slots[..., None])
    return Level(written, paths, lengths, sums, parents)


@dataclass(frozen=True)
class _Step:
    """A step of the search, before it counts."""

    # [B, K] the beams after it: which one they go on from, by what token, its log-probability, and their sums
    parent: Tensor
    token: Tensor
    chance: Tensor
    sums: Tensor
    # [B, K C] candidates in the order of their scores:
    ended: Tensor  # whether they are texts that end
    source: Tensor  # their beam
    tokens: Tensor
    chances: Tensor
    scores: Tensor

    @classmethod
    def of(cls, rows: BeamRows, eos: Tensor, best: Tensor, chances: Tensor) -> _Step:
        """From the best tokens of each beam `[B, K, C]` and their log-probabilities."""
        size, width = rows.texts, best.shape[2]
        scores, order = (
            (rows.sums[..., None] + chances).flatten(1).sort(dim=1, descending=True, stable=True)
        )
        token, chance = (values.flatten(1).gather(1, order) for values in (best, chances))
        source = order.div(width, rounding_mode="floor")
        ends = is_end(token, eos)
        going = (~ends).cumsum(1)  # candidates that go on, up to each one
        column = torch.arange(size * width, device=token.device).expand_as(order)
        place = torch.where(~ends & (going <= size), going - 1, size)
        chosen = torch.zeros_like(order[:, : size + 1]).scatter(1, place, column)[:, :size]
        return cls(
            parent=source.gather(1, chosen),
            token=token.gather(1, chosen),
            chance=chance.gather(1, chosen),
            sums=scores.gather(1, chosen),
            ended=ends & (going < size) & (scores > NEVER),
            source=source,
            tokens=token,
            chances=chance,
            scores=scores,
        )

    def commit(self, rows: BeamRows, slot: Tensor, going: Tensor) -> None:
        """Takes the step in the rows that are `going [B]`; the new tokens are in `slot [B, K]`."""
        size, room = rows.texts, rows.paths.shape[2]
        beam, written = torch.arange(size, device=slot.device), rows.lengths - rows.begin
        new = (rows.begin + written * size)[:, None] + beam
        # The last token of each beam; that of a prompt is the same one for all.
        at = torch.where(written[:, None] > 0, new - size, rows.lengths[:, None] - 1)
        new = torch.where(going[:, None], new, rows.scratch)

        # Texts that have ended, while more are wanted.
        number = rows.ended[:, None] + self.ended.cumsum(1) - 1
        ended = self.ended & (number < rows.wanted[:, None]) & going[:, None]
        where = torch.where(ended, number, rows.ended_at.shape[1] - 1)
        rows.ended_at.scatter_(1, where, at.gather(1, self.source))
        rows.ended_tokens.scatter_(1, where, self.tokens)
        rows.ended_sums.scatter_(1, where, self.scores)
        rows.ended_logprobs.scatter_(1, where, self.chances)
        rows.ended += ended.sum(1)

        rows.tokens.scatter_(1, new, self.token)
        rows.parents.scatter_(1, new, at.gather(1, self.parent))
        rows.logprobs.scatter_(1, new, self.chance)
        behind = rows.lengths.clamp_max(room - 1)[:, None, None].expand(-1, size, 1)
        index = self.parent[..., None].expand(-1, -1, room)
        for texts, last in ((rows.written, self.token), (rows.paths, slot)):
            longer = texts.gather(1, index).scatter(2, behind, last[..., None])
            texts.copy_(torch.where(going[:, None, None], longer, texts))
        rows.sums.copy_(torch.where(going[:, None], self.sums, rows.sums))
        rows.lengths += going
        alive = (rows.sums > NEVER).any(1)  # False with NaN too
        searching = (rows.ended < rows.wanted) & (rows.lengths < rows.limits) & alive
        rows.active &= searching | ~going


def _best(
    processors: Sequence[Processor], begin: Tensor, width: int, level: Level, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """The `width` most probable tokens `[B, N, C]` behind the texts of a level, by `logits [B, N, V]`, and
    their log-probabilities. The processors see a row for each text."""
    count, nodes, _ = logits.shape
    last = (level.lengths - 1).reshape(-1, 1)
    prefix = Prefix(level.written.flatten(0, 1), last, begin.repeat_interleave(nodes))
    flat = logits.float().flatten(0, 1)[:, None]
    if len(processors) == 1 and hasattr(processors[0], "allowed"):
        allowed = cast(AllowingProcessor, processors[0]).allowed(prefix.chain())
        tokens, logprobs = _best_allowed(flat, allowed, width)
    else:
        for processor in processors:
            flat = processor(flat, prefix)
        tokens, logprobs = _top(flat, width)
        logprobs = logprobs - flat.logsumexp(2, keepdim=True)
    return tokens.view(count, nodes, -1), logprobs.view(count, nodes, -1)


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
    """How many rounds a row took, levels were drafted and were kept, and what `best_text` needs."""
    each = slice(row, row + 1)
    parts = [rows.tokens, rows.parents, rows.logprobs, rows.sums]
    parts += [rows.ended_at, rows.ended_tokens, rows.ended_sums, rows.ended_logprobs]
    counts = (rows.rounds, rows.drafted, rows.accepted, rows.lengths, rows.ended)
    return [*(count[each] for count in counts), *(values[row] for values in parts)]


def best_text(
    group: Sequence[list[Any]], begin: int, beams: Beams
) -> tuple[list[int], list[float]]:
    """The best text of a group with log-probabilities, from what `read_group` has behind the counts: of the
    texts that have ended and, where they are fewer than beams, of the most probable ones that have not
    (openai/whisper, `BeamSearchDecoder.finalize` and `MaximumLikelihoodRanker`)."""
    (length,), (count,), tokens, parents, logprobs, sums, *ended = group
    ended_at, ended_tokens, ended_sums, ended_logprobs = ended
    ends = [
        (ended_sums[i], ended_at[i], [ended_tokens[i]], [ended_logprobs[i]]) for i in range(count)
    ]
    # The most probable first.
    first = begin + (length - begin - 1) * beams.size  # of the last tokens
    last = [first + k if length > begin else length - 1 for k in range(beams.size)]
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
    return text, chances
