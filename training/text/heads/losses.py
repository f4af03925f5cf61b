"""What heads are trained for: the target's distribution, at every depth of a draft.

Chain heads by training-time test (EAGLE-3, 2503.01840): a step reads the true next token, but the head's own
state of the step before. Block heads on blocks behind random anchors (DFlash). The forwards are those of the
records that decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, kl_div, linear
from transformers import LlamaForCausalLM

from forescribe.speculative.models.heads.records import BlockHead, ChainHead, Output, Run
from training.text.packing import Pack

DECAY = 0.8  # weight of each depth, relative to the one before
HARD = 0.5  # weight of the target's choice beside its distribution


@dataclass(frozen=True)
class Lesson:
    """A batch with what the target computes of it. `states [R, T, L + 1, D]` are HF's hidden states."""

    pack: Pack
    states: Tensor
    logits: Tensor  # [R, T, V]
    table: Tensor  # [V, D] embeddings, which are the output layer too

    @staticmethod
    @torch.no_grad()
    def of(target: LlamaForCausalLM, pack: Pack) -> Lesson:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = target.model(
                input_ids=pack.tokens,
                position_ids=pack.positions,
                attention_mask=pack.mask,
                use_cache=False,
                output_hidden_states=True,
            )
            logits = target.lm_head(found.last_hidden_state).float()
        states = torch.stack([*found.hidden_states], 2).float()
        return Lesson(pack, states, logits, target.model.embed_tokens.weight.detach())

    def taps(self, layers: tuple[int, ...]) -> Tensor:
        return self.states[:, :, list(layers)]


class Growing:
    """A cache that appends: keys and values `[R, heads, T, d]` of every step of a draft."""

    def __init__(self, kept: list[tuple[Tensor, Tensor]] | None = None) -> None:
        self.kept = dict(enumerate(kept or []))

    def update(self, keys: Tensor, values: Tensor, index: int) -> tuple[Tensor, Tensor]:
        if index in self.kept:
            before = self.kept[index]
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        self.kept[index] = keys, values
        return keys, values


def chain_states(
    head: ChainHead, lesson: Lesson, depths: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each step, which positions have a next token `[R, T]`, the head's states `[R, T, D]` there and the
    target's logits `[R, T, V]` of the token that is drafted; position t is where a draft begins."""
    pack, cache = lesson.pack, Growing()
    own = torch.eye(pack.tokens.shape[1], dtype=torch.bool).expand_as(pack.mask)
    feature = head.taps.feature(lesson.taps(head.taps.layers))
    known, reads = pack.known, pack.mask
    for depth in range(depths):
        shift = 1 + depth
        embedded = embedding(pack.tokens.roll(-shift, 1), lesson.table)
        mask = torch.where(reads, 0.0, torch.finfo(torch.float32).min)
        states = head.step(embedded, feature, Run(pack.positions + depth, mask, cache))
        yield known, states, lesson.logits.roll(-shift, 1)
        feature = head.next_feature(states)
        known = known & pack.known.roll(-shift, 1)
        reads = torch.cat([reads, own], -1)


def chain_loss(head: ChainHead, lesson: Lesson, depths: int) -> tuple[Tensor, list[float]]:
    """The loss of `depths` steps, and the share of equal choices at each."""
    total, equal = torch.zeros(()), []
    for depth, (known, states, wanted) in enumerate(chain_states(head, lesson, depths)):
        loss, same = _loss(head.output, states[known], wanted[known], lesson.table)
        total = total + DECAY**depth * loss.mean()
        equal.append(float(same.float().mean()))
    return total, equal


def block_loss(
    head: BlockHead, lesson: Lesson, anchors: int, generator: torch.Generator
) -> tuple[Tensor, list[float]]:
    """The loss of blocks behind `anchors` random places of each row, and the share of equal choices at
    each place of a block."""
    pack, block = lesson.pack, head.block
    rows, length = pack.tokens.shape
    places = torch.rand(rows, length - block, generator=generator).argsort(1)[:, :anchors]
    at = places[..., None] + torch.arange(block)  # [R, A, N]
    flat, row = at.flatten(1), torch.arange(rows)[:, None]
    inside = pack.known[row, flat].view_as(at)[..., :-1].long().cumprod(-1).bool()  # [R, A, G]
    tokens = torch.full_like(at, head.mask_token)
    tokens[..., 0] = pack.tokens[row, places]
    positions = pack.positions[row, places][..., None] + torch.arange(block)
    before = pack.mask[row, 0, places] & (torch.arange(length) < places[..., None])  # [R, A, T]
    before = before[:, :, None].expand(-1, -1, block, -1).flatten(1, 2)
    number = torch.arange(anchors).repeat_interleave(block)
    within = (number[:, None] == number).expand(rows, -1, -1)
    mask = torch.where(torch.cat([before, within], -1)[:, None], 0.0, torch.finfo().min)
    context = head.taps.feature(lesson.taps(head.taps.layers))
    angles = head.body.angles(pack.positions, context.dtype)
    kept = [head.body.keys_values(layer, context, angles) for layer in head.body.layers]
    embedded = embedding(tokens, lesson.table).flatten(1, 2)
    states = head.body(embedded, embedded, Run(positions.flatten(1), mask, Growing(kept)))
    guessed = states.view(rows, anchors, block, -1)[:, :, 1:]
    wanted = lesson.logits[row, flat].view(rows, anchors, block, -1)[:, :, :-1]
    loss, same = _loss(head.output, guessed[inside], wanted[inside], lesson.table)
    depth = torch.arange(block - 1).expand_as(inside)[inside]
    weight = (-depth / 4).exp()
    counts = [(depth == d).sum().clamp_min(1) for d in range(block - 1)]
    equal = [float((same & (depth == d)).sum() / n) for d, n in enumerate(counts)]
    return 3 * (weight * loss).sum() / weight.sum(), equal


def _loss(output: Output, states: Tensor, wanted: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each position `[K]`, and whether the choice is the target's."""
    normed = output.normed(states)
    choice = wanted.argmax(-1)
    if output.head is None or output.ids is None:
        guess = linear(normed, table)
        hard, same = cross_entropy(guess, choice, reduction="none"), guess.argmax(-1) == choice
    else:
        guess = linear(normed, output.head.weight, output.head.bias)
        wanted = wanted[:, output.ids]
        same = output.ids[guess.argmax(-1)] == choice
        inside = output.ids[wanted.argmax(-1)] == choice  # where the target's choice is proposed
        hard = cross_entropy(guess, wanted.argmax(-1), reduction="none") * inside
    log_q, log_p = guess.log_softmax(-1), wanted.log_softmax(-1)
    return kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1) + HARD * hard, same
