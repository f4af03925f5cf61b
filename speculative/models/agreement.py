"""Checks that an adapter computes the same logits as its model; runs once, when a model is loaded.

An adapter passes its own positions and masks, and writes keys to slots. A model that masks, scales or
counts by other means inside its layers accepts all of that without an error, and writes other tokens. So
a few tokens are read twice: through the adapter as the engine uses it (prompts of different lengths
admitted together, several tokens scored at ragged starts, rejected drafts overwritten), and by the
model's plain forward without a cache. The logits are compared. In 8-bit integers `dependence` compares an
adapter with itself, bit for bit.

The cost is seven forwards of at most 42 tokens, and one or two more in half precision and for a model
with windows: on a CPU about as long as reading the weights eight times. (Windows are made narrow for
the comparison, instead of reading the thousands of tokens that they hold.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .slot_model import SlotModel

ROWS = 3
LENGTH = 14
"""Tokens of each row: enough for a prompt, a round with rejections and the round after it."""
STEP = 4
"""Tokens that a round scores."""

INT8_UNIT = 2.0**-8
"""A row's numbers are rounded to multiples of 1/127 of the largest one: by half of that at most. A number at
the border of two is rounded the other way after a difference in the last bit."""
EXACT = frozenset({torch.float32, torch.float64})
BOUND = 0.01
"""Root mean square of the difference, as a share of the logits' spread. In float32 it must hold at every
position: kernels of another shape differ by 1e-6 to 1e-5, a key more or less under a mask by tenths."""
NOISE = 3.0
"""In float16 and bfloat16 the median of the positions may be this many times what one unit in the last
place of the embeddings does. Fourteen families came to 0.0 to 0.9 (where experts are chosen, single
positions to more), four that compute something else to 8 to 57."""


@dataclass(frozen=True)
class Reading:
    """Tokens for every row; `prompts` is how many of them are prefilled, `kept` how many drafts the
    first round keeps."""

    tokens: Tensor  # [ROWS, L]
    prompts: tuple[int, ...]
    kept: tuple[int, ...] = (3, 0, 1)

    @classmethod
    def of(
        cls, vocab: int, length: int, device: torch.device, avoid: Collection[int] = ()
    ) -> Reading:
        """Arbitrary tokens below `vocab`, the same every time; avoids those in `avoid` where others exist."""
        generator = torch.Generator().manual_seed(0)
        usable = torch.tensor([i for i in range(vocab) if i not in avoid] or list(range(vocab)))
        picks = torch.randint(len(usable), (ROWS, length), generator=generator)
        return cls(usable[picks].to(device), (3, length - 5, length - 8))


@torch.inference_mode()
def difference(
    decoder: SlotModel,
    plain: Tensor,
    reading: Reading,
    close: Closeness,
    encoder_states: Sequence[Any] = (None,) * ROWS,
) -> str | None:
    """Where the adapter first differs from `plain`, the model's logits `[ROWS, L, V]` for the reading's
    tokens; None where it does not. The decoder's cache is released."""
    tokens, device = reading.tokens, reading.tokens.device
    if decoder.listed is not None:  # the only ones whose logits it computes
        plain = plain[..., decoder.listed]
    other = tokens.flip(0, 1)  # as padding and as drafts that are rejected
    prompts, kept = list(reading.prompts), list(reading.kept)
    lengths = torch.tensor(prompts, device=device)
    decoder.allocate(ROWS, tokens.shape[1] + STEP)
    try:
        for rows in ([1], [2, 0]):
            length = max(prompts[row] for row in rows)
            own = torch.arange(length, device=device) < lengths[:, None]
            padded = torch.where(own, tokens[:, :length], other[:, :length])
            logits = decoder.prefill(
                torch.tensor(rows, device=device),
                padded[rows],
                [encoder_states[row] for row in rows],
            ).logits
            logits = _listed(decoder, logits)
            seen = own[rows]
            if logits.shape[1] and close.differ(logits[seen], plain[rows, :length][seen]):
                return "a prompt"
        for drafted, what in ((kept, "several tokens at once"), (None, "a text behind rejections")):
            start = torch.tensor([p - 1 for p in prompts], device=device)
            slots = start[:, None] + torch.arange(STEP, device=device)
            fed = tokens.gather(1, slots)
            valid = torch.full((ROWS,), STEP, device=device)
            if drafted is not None:
                valid = torch.tensor(drafted, device=device) + 1
                right = torch.arange(STEP, device=device) < valid[:, None]
                fed = torch.where(right, fed, other.gather(1, slots))
            logits = decoder.score(fed, start, reach=tokens.shape[1] + STEP).logits
            logits = _listed(decoder, logits)
            read = torch.arange(STEP, device=device) < valid[:, None]
            row = torch.arange(ROWS, device=device)[:, None].expand_as(slots)
            if close.differ(logits[read], plain[row[read], slots[read]]):
                return what
            prompts = [p + n for p, n in zip(prompts, kept, strict=True)]
    finally:
        decoder.release()
    return None


@torch.inference_mode()
def dependence(
    decoder: SlotModel, reading: Reading, encoder_states: Sequence[Any] = (None,) * ROWS
) -> str | None:
    """Where an adapter's logits depend, to the last bit, on what is computed beside a token: all rows and
    several tokens at once against one token of one row. None where they do not. The cache is released.

    A model in 8-bit integers needs that: rounding to int8 turns a last bit into a whole step, so that drafts
    would change tokens. The cost is 24 forwards of at most 27 tokens.
    """
    tokens, device = reading.tokens, reading.tokens.device
    prompts = reading.prompts
    nodes = tokens.shape[1] - max(prompts) + 1
    start = torch.tensor(prompts, device=device) - 1
    fed = tokens.gather(1, start[:, None] + torch.arange(nodes, device=device))
    try:
        decoder.allocate(ROWS, tokens.shape[1] + nodes)
        rows = torch.arange(ROWS, device=device)
        decoder.prefill(rows, tokens[:, : max(prompts)], list(encoder_states))
        together = decoder.score(fed, start, reach=tokens.shape[1] + nodes).logits
        decoder.release()
        for row, prompt in enumerate(prompts):
            decoder.allocate(1, tokens.shape[1] + nodes)
            decoder.prefill(rows[:1], tokens[row : row + 1, :prompt], [encoder_states[row]])
            for node in range(nodes):
                one = fed[row : row + 1, node : node + 1]
                at = start[row : row + 1] + node
                alone = decoder.score(one, at, reach=prompt + node).logits
                if not torch.equal(alone[0, 0], together[row, node]):
                    return "several tokens at once are not to the last bit those of one at a time"
            decoder.release()
    finally:
        decoder.release()
    return None


def _listed(decoder: SlotModel, logits: Tensor) -> Tensor:
    return logits if decoder.listed is None else logits[..., decoder.listed]


@dataclass(frozen=True)
class Closeness:
    """How close two computations of the same logits must be in a dtype; `noise` 0: as in float32."""

    dtype: torch.dtype
    noise: float = 0.0

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        embedding: torch.nn.Module,
        read: Callable[[], Tensor],
        *,
        int8: bool = False,
    ) -> Closeness:
        """Measures rounding in half precision, and in a model of int8 matrices: `read` computes the same
        logits twice, with and without noise in the embeddings."""
        if dtype in EXACT and not int8:
            return cls(dtype)
        unit = max(torch.finfo(dtype).eps, INT8_UNIT if int8 else 0.0)
        generator = torch.Generator().manual_seed(0)

        def shaken(module: torch.nn.Module, args: Any, output: Tensor) -> Tensor:
            signs = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
            return output * (1 + unit * signs.to(output.device, output.dtype))

        quiet = read()
        handle = embedding.register_forward_hook(shaken)
        try:
            loud = read()
        finally:
            handle.remove()
        return cls(dtype, max(unit, float(_share(loud, quiet).median())))

    def differ(self, ours: Tensor, theirs: Tensor) -> bool:
        """Whether logits `[..., V]` differ by more than rounding. One vocabulary may be larger than the
        other."""
        share = _share(ours, theirs)
        if not self.noise:
            return not bool((share <= BOUND).all())  # `not`, so that NaN counts as a difference
        return not bool(share.median() <= NOISE * self.noise)


def _share(ours: Tensor, theirs: Tensor) -> Tensor:
    """The difference at every position as a share of the spread of `theirs`."""
    room = min(ours.shape[-1], theirs.shape[-1])
    # On the host: mps has no float64.
    ours, theirs = (logits[..., :room].cpu().double() for logits in (ours, theirs))
    known = theirs.isfinite()
    gap = torch.where(known, ours - theirs, 0.0).square().mean(-1).sqrt()
    return gap / torch.where(known, theirs, 0.0).std(-1).clamp_min(1e-6)
