"""What the parts of one engine share: device, models, slots, counts and the log of faults.

Knows how memory is allocated; nothing of scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..device import Device
from ..errors import DecodingError, fault
from ..protocols import Drafter, Model, Needs
from ..requests import check_whole
from ..rows import Counters, Rows
from ..transfers import Stopwatch
from .slots import Slots

ALIGNMENT = 8
"""Slots, and so the reaches of captured rounds, are multiples of it: fused attention kernels read masks in
vectors of 16 bytes and copy those whose rows are not aligned."""

KEPT = 16
"""The latest faults that an engine keeps for inspection."""


@dataclass(eq=False)
class Shared:
    """Shared by admission, draft reader, round runner, periods and results."""

    device: Device
    target: Model
    drafter: Drafter | None
    needs: Needs  # the drafter's
    eos: Tensor  # [E] token ids that end a row
    ends: frozenset[int]  # the same for the host
    rows: Rows
    slots: Slots  # of these rows
    counters: Counters
    counts: HostCounts
    faults: FaultLog
    watch: Stopwatch
    max_tokens: int
    max_gamma: int
    drafting: bool  # whether any round may draft

    @classmethod
    def allocate(
        cls,
        device: Device,
        target: Model,
        drafter: Drafter | None,
        eos: Iterable[int],
        *,
        batch: int,
        max_gamma: int,
        ranks: int,
        max_tokens: int | None,
    ) -> Shared:
        """Allocates all memory; `max_tokens` None: as many of a row as the target has positions. Raises
        `ValueError` for a drafter that does not fit, and `RequestError` for impossible sizes."""
        needs = Needs() if drafter is None else drafter.needs
        check_drafter(drafter, needs, target, max_gamma, device)
        check_whole("batch", batch, 1)
        tokens = target.max_positions
        if max_tokens is not None:
            check_whole("max_tokens", max_tokens, 1)
            tokens = min(max_tokens, tokens)
        check_whole("ranks", ranks, 0, target.vocab_size)
        # A round writes drafts up to max_gamma slots after the last token that a row can hold.
        slots = tokens + max_gamma + 1
        if device.static_shapes:
            slots = -(-slots // ALIGNMENT) * ALIGNMENT
        ends = frozenset(eos)
        with device.guard():
            rows = Rows.empty(batch, slots, device.torch, ranks)
            shared = cls(
                device=device,
                target=target,
                drafter=drafter,
                eos=torch.tensor(sorted(ends), dtype=torch.int64, device=device.torch),
                ends=ends,
                needs=needs,
                rows=rows,
                slots=Slots(rows, needs.always),
                counters=Counters.zeros(max_gamma, device.torch),
                counts=HostCounts(),
                faults=FaultLog(device),
                watch=Stopwatch(device),
                max_tokens=tokens,
                max_gamma=max_gamma,
                drafting=drafter is not None and max_gamma > 0,
            )
            target.tap(needs.taps if max_gamma else ())
            target.allocate(batch, slots)
            if drafter is not None:
                drafter.bind(target)
                drafter.allocate(batch, slots, device.torch)
        return shared


@dataclass
class HostCounts:
    """Counts that the host keeps itself."""

    rounds: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0


class FaultLog:
    """Counts faults, and keeps the latest."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.recent: deque[DecodingError] = deque(maxlen=KEPT)
        self.count = 0

    def record(self, stage: str, error: Exception) -> DecodingError:
        """Logs `error`; returns it with its stage."""
        found = fault(stage, error)
        self.count += 1
        self.recent.append(found)
        return found

    def handle(self, stage: str, error: Exception) -> DecodingError:
        """Logs `error`. Raises what the device raises, if it has failed."""
        found = self.record(stage, error)
        self._device.synchronize()
        return found

    def attempt(self, action: Callable[[], object], stage: str) -> DecodingError | None:
        """Calls `action`; returns the fault if it raises. Raises what the device raises, if it has
        failed."""
        try:
            action()
        except Exception as error:
            return self.handle(stage, error)
        return None


def check_drafter(
    drafter: Drafter | None, needs: Needs, target: Model, gamma: int, device: Device
) -> None:
    """Raises `ValueError` for a drafter that does not fit the target, the schedule or the device."""
    if drafter is None:
        if gamma:
            raise ValueError(f"gamma is {gamma}, but there is no drafter; use gamma 0")
        return
    if needs.vocab not in (None, target.vocab_size):
        raise ValueError(
            f"the draft has {needs.vocab} tokens, the target {target.vocab_size}: "
            "a draft must use the target's vocabulary"
        )
    if needs.ends_early and device.static_shapes:
        raise ValueError(
            "a drafter that ends its drafts early has no static shape, which "
            f"{device.kind} needs; use confidence 0"
        )
