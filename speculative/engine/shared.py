"""What the parts of one engine share: device, models, slots, counts and the log of faults.

Knows how memory is allocated; nothing of scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..device import Device
from ..protocols import Drafter, Model, Needs
from ..requests import check_whole
from ..rows import Counters, Rows
from ..stats import HostCounts, Stats
from ..transfers import Stopwatch
from .faults import FaultLog
from .shapes import aligned
from .slots import Slots


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
    last_stats: Stats = field(default_factory=Stats)

    @classmethod
    def allocate(
        cls,
        device: Device,
        target: Model,
        drafter: Drafter | None,
        sizes: Sizes,
        eos: Iterable[int],
    ) -> Shared:
        """Allocates all memory. Raises `ValueError` for a drafter that does not fit, and `RequestError`
        for impossible sizes."""
        needs = Needs() if drafter is None else drafter.needs
        check_drafter(drafter, needs, target, sizes.max_gamma, device)
        sizes.check(target)
        limit = target.max_positions
        tokens = limit if sizes.max_tokens is None else min(sizes.max_tokens, limit)
        # A round writes drafts up to max_gamma slots after the last token that a row can hold.
        slots = aligned(tokens + sizes.max_gamma + 1, device)
        ends = frozenset(eos)
        with device.guard():
            rows = Rows.empty(sizes.batch, slots, device.torch, sizes.ranks)
            shared = cls(
                device=device,
                target=target,
                drafter=drafter,
                eos=torch.tensor(sorted(ends), dtype=torch.int64, device=device.torch),
                ends=ends,
                needs=needs,
                rows=rows,
                slots=Slots(rows, needs.always),
                counters=Counters.zeros(sizes.max_gamma, device.torch),
                counts=HostCounts(),
                faults=FaultLog(device),
                watch=Stopwatch(device),
                max_tokens=tokens,
                max_gamma=sizes.max_gamma,
            )
            target.tap(needs.taps if sizes.max_gamma else ())
            target.allocate(sizes.batch, slots)
            if drafter is not None:
                drafter.bind(target)
                drafter.allocate(sizes.batch, slots, device.torch)
        return shared

    @property
    def active_drafter(self) -> Drafter | None:
        """The drafter where any round may draft."""
        return self.drafter if self.drafting else None

    @property
    def drafting(self) -> bool:
        """Whether any round may draft."""
        return self.drafter is not None and self.max_gamma > 0

    def stats(self, *, lost: bool) -> Stats:
        """Everything counted so far; waits for the device. What was read last where it is `lost`."""
        if not lost:
            with self.device.guard():
                self.last_stats = self._read_stats()
        return replace(self.last_stats, faults=self.faults.count)

    def _read_stats(self) -> Stats:
        return Stats(
            rounds=self.counts.rounds,
            row_rounds=int(self.counters.row_rounds),
            emitted=int(self.counters.emitted),
            drafted_at_depth=tuple(self.counters.drafted.tolist()),
            accepted_at_depth=tuple(self.counters.accepted.tolist()),
            target_forwards=self.counts.target_forwards,
            draft_forwards=self.counts.draft_forwards,
            seconds=self.watch.seconds,
        )


@dataclass(frozen=True)
class Sizes:
    """How much an engine holds."""

    batch: int
    max_gamma: int
    ranks: int
    max_tokens: int | None  # of a row; None: the target's positions

    def check(self, target: Model) -> None:
        """Raises `RequestError` for impossible sizes."""
        check_whole("batch", self.batch, 1)
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens, 1)
        check_whole("ranks", self.ranks, 0, target.vocab_size)


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
