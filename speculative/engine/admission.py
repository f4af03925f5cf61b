"""Admission: whether a request fits an engine, and how it enters a free slot.

Knows prompts, slots and the target's prefill; nothing of rounds or results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .. import checks
from ..device import Device
from ..errors import RequestError
from ..graphs.shapes import ShapeSet
from ..graphs.transfers import upload
from ..requests import Guarantee, Mode, Request
from ..rounds.rule_choice import RuleChoice
from ..rows import Rows
from . import faults
from .context import EngineContext
from .inbox import failed
from .slots import SlotState

PROMPT_BUCKETS = (4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def check(request: Request, *, vocab: int, max_tokens: int, max_gamma: int, ranks: int) -> None:
    """Raises `RequestError` for more than the model and the engine have."""
    if len(request.prompt) > max_tokens:
        raise RequestError(
            f"the prompt has {len(request.prompt)} tokens; the model holds {max_tokens}"
        )
    checks.in_vocabulary("the prompt", request.prompt, vocab)
    checks.in_vocabulary("the hint", request.hint, vocab)
    if request.probe is not None:
        checks.in_vocabulary("the probe", request.probe.tokens, vocab)
    if request.ranks > ranks:
        raise RequestError(f"{request.ranks} ranked tokens; this engine keeps {ranks}")
    if request.gamma is not None and request.gamma > max_gamma:
        raise RequestError(f"gamma is {request.gamma}; this engine drafts {max_gamma} at most")


def prompts(
    rows: Sequence[int], requests: Sequence[Request], device: Device, max_tokens: int
) -> tuple[Tensor, Tensor, list[Request]]:
    """Rows `[K]`, right-padded prompts `[K, P]` and their requests. K and P are one of a few sizes on a
    device with static shapes."""
    rows, requests = list(rows), list(requests)
    if device.static_shapes:
        # Repeats the last row, which is then written twice with the same values.
        padding = (1 << (len(rows) - 1).bit_length()) - len(rows)
        rows, requests = rows + rows[-1:] * padding, requests + requests[-1:] * padding
    length = max(len(r.prompt) for r in requests)
    if device.static_shapes:
        bucket = next((b for b in PROMPT_BUCKETS if b >= length), max_tokens)
        length = min(bucket, max_tokens)
    padded = [[*r.prompt, *[0] * (length - len(r.prompt))] for r in requests]
    place = device.torch
    return upload(rows, torch.int64, place), upload(padded, torch.int64, place), requests


COMPUTED = ("logprobs", "sources", "ranked", "ranked_logprobs")
"""State of a row that rounds write before it is read; an admission sets the rest."""


def write(
    state: Rows, rows: Sequence[int], requests: Sequence[Request], limits: Sequence[int], gamma: int
) -> None:
    """Writes the requests into their rows, which stay inactive: a fault before their prompts have been
    read must not leave active rows without a request."""
    staged = Rows.empty(len(rows), state.scratch, torch.device("cpu"), state.ranks)
    for i, request in enumerate(requests):
        staged.tokens[i, : len(request.prompt)] = torch.tensor(request.prompt)
    lengths = torch.tensor([len(r.prompt) for r in requests])
    staged.lengths[:], staged.begin[:] = lengths, lengths
    staged.limits[:] = torch.tensor(limits)
    staged.gamma[:] = torch.tensor([gamma if r.gamma is None else r.gamma for r in requests])
    staged.sampling.write(torch.arange(len(rows)), requests)
    values, place = staged.tensors(), state.tokens.device
    index = upload(rows, torch.int64, place)
    for name, target in state.tensors().items():
        if name not in COMPUTED:
            target[index] = upload(values[name], target.dtype, place)


def probabilities(logits: Tensor, request: Request) -> Tensor | None:
    """The probabilities of a request's probe `[tokens]`, from its prompt's logits `[P, V]`."""
    probe = request.probe
    if probe is None:
        return None
    if probe.slot >= len(logits):
        raise RequestError("this model returns no logits of its prompt, so it cannot be probed")
    chances = logits[probe.slot].float().softmax(-1)
    return chances[upload(probe.tokens, torch.int64, logits.device)]


class Admission:
    """Puts requests into free slots: their state on the device, and their prompt in the target."""

    def __init__(self, context: EngineContext, rules: RuleChoice, shapes: ShapeSet) -> None:
        self._context, self._rules, self._shapes = context, rules, shapes

    def check(self, request: Request) -> None:
        """Raises `RequestError` for a request that this engine cannot decode."""
        context, need = self._context, Mode.of([request])
        check(
            request,
            vocab=context.target.vocab_size,
            max_tokens=context.max_tokens,
            max_gamma=context.max_gamma,
            ranks=context.rows.ranks,
        )
        if context.device.static_shapes and not self._shapes.covers(need):
            raise RequestError(f"no mode of this engine covers {need}; give it one that does")
        if self._rules.guarantee(sampling=need.sampling) is Guarantee.GREEDY_ONLY:
            name = self._rules.pick(sampling=True).name
            raise RequestError(f"rule {name!r} cannot decode at temperature {request.temperature}")

    def admit(self, chosen: list[tuple[int, SlotState]]) -> None:
        """Admits requests into their rows together; one by one if that fails. Those that fail alone get
        a failed result."""
        watch, log = self._context.watch, self._context.faults
        watch.start()
        error = log.attempt(partial(self._prefill, chosen), faults.PREFILL)
        if error is not None:
            for row, state in chosen:
                if len(chosen) > 1:
                    error = log.attempt(partial(self._prefill, [(row, state)]), faults.PREFILL)
                if error is not None:
                    state.inbox.put(failed(state.request, error))
        watch.mark("prefill")

    def _prefill(self, chosen: list[tuple[int, SlotState]]) -> None:
        """Admits all of these, or none if it raises."""
        context, state = self._context, self._context.rows
        rows, requests = [row for row, _ in chosen], [slot.request for _, slot in chosen]
        limits = [self._limit(request) for request in requests]
        write(state, rows, requests, limits, context.max_gamma)
        index, tokens, padded = prompts(rows, requests, context.device, context.max_tokens)
        logits = context.target.prefill(index, tokens, [r.encoder_states for r in padded])
        probes = [probabilities(logits[i], r) for i, r in enumerate(requests)]
        begun = [len(r.prompt) < limit for r, limit in zip(requests, limits, strict=True)]
        state.active[index[: len(rows)]] = upload(begun, torch.bool, context.device.torch)
        context.device.mark_step()
        for (row, slot), probe in zip(chosen, probes, strict=True):
            slot.probe = None if probe is None else context.reader.copy(probe)
            context.slots.occupy(row, slot, prefill_pending=context.drafter is not None)
        context.counts.target_forwards += 1

    def _limit(self, request: Request) -> int:
        """The most tokens of the row, prompt included."""
        limit = self._context.max_tokens
        if request.max_new_tokens is None:
            return limit
        return min(limit, len(request.prompt) + request.max_new_tokens)
