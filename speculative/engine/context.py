"""What the parts of one engine share: device, models, slots, counts and the log of faults.

Faults are exceptions in models, drafters, processors, rules and schedules; each is logged with its stage. A
round changes committed state in its last stage only, so one that failed can be repeated row by row, with the
others masked, until the row that causes the fault is known. Knows how memory is allocated; nothing of
scheduling.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from ..device import Device, Stopwatch
from ..errors import BrokenError, DecodingError
from ..graphs.shapes import aligned
from ..graphs.snapshots import StateReader
from ..protocols import Drafter, Model, Needs, Processor
from ..requests import check_whole
from ..rows import Counters, Rows
from ..stats import HostCounts, Stats
from ..types import Prefix
from .slots import Slots

PREFILL: Final = "prefill"
PROMPT: Final = "the drafter's reading of the prompt"
CATCH_UP: Final = "the drafter's reading of the text"
DRAFT: Final = "drafting"
SCORE: Final = "scoring"
RULE: Final = "the acceptance rule"
OBSERVE: Final = "the drafter's learning"
COMMIT: Final = "committing"
RESULT: Final = "collecting the result"
SCHEDULE: Final = "the schedule"
WRITING: Final = "making text of the tokens"
ENGINE: Final = "the engine's step"

OF_THE_DRAFTER: Final = frozenset({PROMPT, CATCH_UP, DRAFT, OBSERVE})
"""After a fault in one of these stages, a row can be decoded without drafts."""

KEPT = 16
"""The latest faults that an engine keeps for inspection."""

_AFTER = {None: DRAFT, "draft": SCORE, "score": RULE, "rule": OBSERVE, "observe": COMMIT}


@dataclass(eq=False)
class EngineContext:
    """Shared by admission, draft reader, graph runner, collector and scheduler."""

    device: Device
    target: Model
    drafter: Drafter | None
    needs: Needs  # the drafter's
    eos: Tensor  # [E] token ids that end a row
    ends: frozenset[int]  # the same for the host
    slots: Slots
    counters: Counters
    counts: HostCounts
    faults: FaultLog
    watch: Stopwatch
    reader: StateReader
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
    ) -> EngineContext:
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
            context = cls(
                device=device,
                target=target,
                drafter=drafter,
                eos=torch.tensor(sorted(ends), dtype=torch.int64, device=device.torch),
                ends=ends,
                needs=needs,
                slots=Slots(
                    Rows.empty(sizes.batch, slots, device.torch, sizes.ranks), needs.always
                ),
                counters=Counters.zeros(sizes.max_gamma, device.torch),
                counts=HostCounts(),
                faults=FaultLog(device),
                watch=device.stopwatch(),
                reader=StateReader(device),
                max_tokens=tokens,
                max_gamma=sizes.max_gamma,
            )
            target.tap(needs.taps if sizes.max_gamma else ())
            target.allocate(sizes.batch, slots)
            if drafter is not None:
                drafter.bind(target)
                drafter.allocate(sizes.batch, slots, device.torch)
        return context

    @property
    def rows(self) -> Rows:
        return self.slots.rows

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


class FaultBoundary:
    """The last line of defence: what raises inside of it has failed for all requests in the slots.

    `fail_all` ends them; where the device has failed too it returns the error that later requests get.
    """

    def __init__(self, device: Device, fail_all: Callable[[Exception], BrokenError | None]) -> None:
        self._device, self._fail_all = device, fail_all
        self.broken: BrokenError | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Runs its block on the device; does not raise."""
        try:
            with self._device.guard():
                yield
        except Exception as error:
            self.broken = self._fail_all(error)

    def check(self) -> None:
        """Raises `BrokenError` once the device has failed."""
        if self.broken is not None:
            raise BrokenError(str(self.broken)) from self.broken.__cause__


@dataclass(frozen=True)
class SingleRowProcessor:
    """Applies a logits processor to one row; the logits of the others stay as they are.

    Processors are given no mask, so one that fails on a row would fail in every round of the others.
    """

    processor: Processor
    row: int
    batch: int

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        span = slice(self.row, self.row + 1)
        own = Prefix(prefix.tokens[span], prefix.last[span], prefix.begin[span])
        out = logits.clone()
        out[span] = self.processor(logits[span], own)
        return out


def stage_after(ended: str | None) -> str:
    """The stage of a round that follows the one that `ended` (see `rounds.round.run_round`)."""
    return _AFTER.get(ended, ENGINE)


def fault(stage: str, error: Exception) -> DecodingError:
    """`error` with its stage, and with its traceback as text."""
    release(error)
    return DecodingError(stage, error)


def release(error: BaseException | None) -> None:
    """Replaces the tracebacks of an exception, and of those it arose from, by text notes. A traceback's
    frames, and the frames that called them, keep the tensors of a batch alive as long as the
    exception exists."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            error.__traceback__ = None
        if error.__cause__ is not None and error.__context__ is not error.__cause__:
            release(error.__context__)
        error = error.__cause__ or error.__context__
