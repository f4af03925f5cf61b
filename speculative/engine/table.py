"""The table of an engine's rows: their state on the device, and what the host knows of them.

A `Table` knows who is in which row, how far each row may reach, and what the drafter still has to read. An
engine has one of single texts, and one for each number of beams, where a row is a group of texts; what they
have in common is `Shared`. Knows how memory is allocated; nothing of scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from ..device import Device, HostCopy, Stopwatch, upload
from ..errors import OF_THE_DRAFTER, DecodingError, SpeculativeError, fault
from ..protocols import Drafter, Model, Needs, Processor
from ..requests import Finish, Mode, Request, Result, check_whole
from ..rounds.beams import WIDE, BeamRows
from ..rows import Counters, Rows, RowState

ALIGNMENT = 8
"""Slots, and so the reaches of captured rounds, are multiples of it: fused attention kernels read masks in
vectors of 16 bytes and copy those whose rows are not aligned."""

KEPT = 16
"""The latest faults that an engine keeps for inspection."""


class FaultLog:
    """Counts faults, and keeps the latest."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recent: deque[DecodingError] = deque(maxlen=KEPT)
        self.count = self.of_drafts = 0

    def record(self, stage: str, error: Exception) -> DecodingError:
        """Logs `error`; returns it with its stage."""
        found = fault(stage, error)
        self.count += 1
        self.of_drafts += stage in OF_THE_DRAFTER
        self.recent.append(found)
        return found

    def handle(self, stage: str, error: Exception) -> DecodingError:
        """Logs `error`. Raises what the device raises, if it has failed."""
        found = self.record(stage, error)
        self.device.synchronize()
        return found


class Shared:
    """What is one for the whole engine."""

    def __init__(self, device: Device, eos: Iterable[int], processors: Iterable[Processor]) -> None:
        self.device, self.processors = device, tuple(processors)
        self.ends = frozenset(eos)
        self.faults, self.watch = FaultLog(device), Stopwatch(device)
        self.ended: list[Result] = []  # that nobody has taken yet

    @cached_property
    def eos(self) -> Tensor:
        """The token ids `[E]` that end a text, for rounds."""
        with self.device.guard():
            return torch.tensor(sorted(self.ends), dtype=torch.int64, device=self.device.torch)


@dataclass
class HostCounts:
    """Counts that the host keeps itself."""

    rounds: int = 0
    widths: int = 0  # drafted tokens of the widest row, over all rounds
    emitted: int = 0  # of groups: a round does not know which of its tokens will be in the text
    target_forwards: int = 0
    draft_forwards: int = 0


@dataclass(eq=False)
class Entry:
    """A request on its way through an engine: it waits, or is in a row."""

    request: Request
    probe: HostCopy | None = None  # of the probe's probabilities
    error: DecodingError | None = None
    draft_error: DecodingError | None = None  # once set, the row is decoded without drafts


class Table:
    """The rows that share rounds. Invariant: no active row uses slots from `longest` + `spare` on."""

    def __init__(
        self, shared: Shared, target: Model, rows: RowState, *, most: int, max_gamma: int
    ) -> None:
        self.shared, self.target, self.rows = shared, target, rows
        self.device, self.faults, self.watch = shared.device, shared.faults, shared.watch
        self.most, self.max_gamma = most, max_gamma  # tokens of a text, and drafts of a round
        self.batch, self.slots, self.texts = rows.batch, rows.scratch, rows.texts
        self.drafter: Drafter | None = None
        self.needs = Needs()  # the drafter's
        self.counts = HostCounts()
        with self.device.guard():
            self.counters = Counters.zeros(max_gamma, self.device.torch)
        self.occupied: Mapping[int, Entry] = {}  # by row, ascending; a new one after every change
        self.cancelled: set[int] = set()  # of these rows
        self.mode = Mode()  # the smallest one that covers all requests that are being decoded
        # The drafter's debt. It is settled before a round with drafts, so that a schedule that does not draft
        # pays nothing. Prompts are owed by row; of texts it is enough to know how many rounds ran without the
        # drafter: each wrote one token a row, and the last two tokens are fed with every draft anyway.
        self.unread_prompts: dict[int, Request] = {}
        self.unread_tokens = 0
        # Of groups: a round's new nodes lie behind its texts, and the kept ones stay there.
        self.spare = rows.spare if isinstance(rows, BeamRows) else 0
        self.longest = 1  # an upper bound between polls, exact after each that is not late
        self.grown = 0  # slots that a row may have gained in all rounds so far
        self.used = [1] * self.batch  # slots of each row, as of the last poll
        # By row: requests that left it in this step. Weak, so that their encoder states are free at once.
        self.left: dict[int, ReferenceType[Request]] = {}

    @classmethod
    def of_texts(
        cls,
        shared: Shared,
        target: Model,
        drafter: Drafter | None,
        *,
        batch: int,
        max_gamma: int,
        ranks: int,
    ) -> Table:
        """Allocates rows of one text each. Raises `ValueError` for a drafter that does not fit target,
        schedule or device, and `RequestError` for an impossible batch."""
        device, needs = shared.device, fitting(drafter, target, max_gamma)
        if needs.ends_early and device.static_shapes:
            raise ValueError(
                "a drafter that ends its drafts early has no static shape, which "
                f"{device.kind} needs; use confidence 0"
            )
        check_whole("batch", batch, 1)
        # A round writes drafts up to max_gamma slots after the last token that a row can hold.
        slots = target.max_positions + max_gamma + 1
        if device.static_shapes:
            slots = -(-slots // ALIGNMENT) * ALIGNMENT
        with device.guard():
            rows = Rows.empty(batch, slots, device.torch, ranks)
            made = cls(shared, target, rows, most=target.max_positions, max_gamma=max_gamma)
            made.drafter, made.needs = drafter, needs
            target.tap(needs.taps if max_gamma else ())
            target.allocate(batch, slots)
            if drafter is not None:
                drafter.bind(target)
                drafter.allocate(batch, slots, device.torch)
        return made

    @classmethod
    def of_groups(
        cls,
        shared: Shared,
        target: Model,
        drafter: Drafter | None = None,
        *,
        batch: int,
        size: int,
        max_gamma: int = 0,
    ) -> Table:
        """Allocates rows of `size` beams each, whose texts have half of the target's positions at most, as
        openai/whisper's. Raises `ValueError` for a drafter that does not fit."""
        device, most = shared.device, target.max_positions
        needs = fitting(drafter, target, max_gamma)
        spare = max_gamma * WIDE * size
        with device.guard():
            rows = BeamRows.empty(batch, size, most, most // 2, device.torch, spare)
            made = cls(shared, target, rows, most=most, max_gamma=max_gamma)
            made.drafter, made.needs = drafter, needs
            target.tap(())
            target.allocate(batch, rows.scratch + 1)
            if drafter is not None:
                drafter.allocate(batch, rows.scratch + 1, device.torch)
        return made

    @property
    def drafting(self) -> bool:
        """Whether any round may draft."""
        return self.drafter is not None and self.max_gamma > 0

    @property
    def takes_guesses(self) -> bool:
        """Whether requests may have a guess: a drafter that reads the target's states of prompts has none."""
        return not (self.drafting and self.needs.prompt)

    def free(self) -> list[int]:
        """Rows without a request."""
        return sorted(set(range(self.batch)) - self.occupied.keys())

    def occupy(self, row: int, entry: Entry, *, prefill_pending: bool) -> None:
        """Puts a request into a free row; `prefill_pending` where a drafter has to read its prompt."""
        self._set({**self.occupied, row: entry})
        self.used[row] = len(entry.request.prompt)
        # Of a guess it is not known yet how much was kept: at most all of it, and a token after it.
        gained = len(entry.request.guess) + 1 if entry.request.guess else 0
        self.grown += gained
        self.longest = min(max(self.longest, self.used[row] + gained), self.slots)
        if prefill_pending:
            self.unread_prompts[row] = entry.request

    def vacate(self, row: int) -> None:
        """Makes the row free. The device keeps its content until the next request."""
        self.left[row] = ref(self.occupied[row].request)
        self._set({other: entry for other, entry in self.occupied.items() if other != row})
        self.unread_prompts.pop(row, None)
        self.cancelled.discard(row)

    def _set(self, occupied: Mapping[int, Entry]) -> None:
        self.occupied = dict(sorted(occupied.items()))
        self.mode = Mode.of(entry.request for entry in self.occupied.values())

    def stop(self, row: int) -> None:
        """Stops decoding a row, which is freed in the next step."""
        self.cancelled.add(row)
        self.rows.active[row] = False

    def fail_all(self, error: SpeculativeError) -> None:
        """Frees all rows; their requests get a failed result without tokens."""
        for row, entry in self.occupied.items():
            self.vacate(row)
            self.shared.ended.append(failed(entry.request, error))

    def count_round(self, gamma: int) -> None:
        """Accounts for a round that is about to run."""
        self.unread_tokens += gamma == 0 and not self.needs.always
        gained = (gamma + 1) * self.texts
        self.grown += gained
        self.longest = min(self.longest + gained, self.slots)

    def note(
        self, active: list[int], used: list[int], before: Mapping[int, Entry], grown: int
    ) -> list[int]:
        """Takes a snapshot: whether rows `[B]` were active, and the slots that they used, when `before` were
        in them and rows had `grown` so much. Returns the rows that have ended in it, and bounds `longest` by
        the others; rounds since then, which a late snapshot does not know, may have added to them."""
        ended, known = [], 1
        for row, entry in self.occupied.items():
            own = entry is before.get(row)
            if own:
                self.used[row] = used[row]
            if own and not active[row]:
                ended.append(row)
            else:
                known = max(known, self.used[row])
        self.longest = min(known + self.grown - grown, self.slots)
        return ended

    def reset(self) -> None:
        """Clears every row on the device; all are free."""
        assert not self.occupied
        self.unread_tokens, self.longest = 0, 1
        for row in range(self.batch):
            self.rows.clear(row)

    @contextmanager
    def masked_to(self, rows: Collection[int]) -> Iterator[None]:
        """Masks all other rows meanwhile, without a sync."""
        active = self.rows.active
        others = [row not in rows for row in range(self.batch)]
        resting = active & upload(others, torch.bool, active.device)
        active &= ~resting
        try:
            yield
        finally:
            active |= resting


def fitting(drafter: Drafter | None, target: Model, max_gamma: int) -> Needs:
    """What a drafter needs. Raises `ValueError` where it does not fit the target and the schedule."""
    needs = Needs() if drafter is None else drafter.needs
    if drafter is None and max_gamma:
        raise ValueError(f"gamma is {max_gamma}, but there is no drafter; use gamma 0")
    if needs.vocab not in (None, target.vocab_size):
        raise ValueError(
            f"the draft has {needs.vocab} tokens, the target {target.vocab_size}: "
            "a draft must use the target's vocabulary"
        )
    return needs


def failed(request: Request, error: SpeculativeError) -> Result:
    """A failed result without tokens."""
    return Result(
        request=request,
        tokens=(),
        logprobs=(),
        sources=(),
        finish=Finish.FAILED,
        rounds=0,
        drafted=0,
        accepted=0,
        error=error,
    )
