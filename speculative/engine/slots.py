"""What the parts of an engine share: device, models, counts, faults, and the slots of the batch with the
requests that wait for one.

`Slots` knows which slot is free, and what the drafter still has to read; an `Inbox`, which results belong to
which caller (`Run` is one call of `Engine.run`). Knows how memory is allocated; nothing of scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from ..device import Device, HostCopy, Stopwatch, upload
from ..errors import OF_THE_DRAFTER, DecodingError, RequestError, SpeculativeError, fault
from ..protocols import Drafter, Model, Needs
from ..requests import Finish, Mode, Request, Result, check_whole
from ..rows import Counters, Rows

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
    widths: int = 0  # drafted tokens of the widest row, over all rounds
    target_forwards: int = 0
    draft_forwards: int = 0


@dataclass(eq=False)
class FaultLog:
    """Counts faults, and keeps the latest."""

    device: Device
    recent: deque[DecodingError] = field(default_factory=partial(deque, maxlen=KEPT))
    count: int = 0
    of_drafts: int = 0

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


class Slots:
    """All slots of an engine. Invariant: no active row is longer than `longest`.

    `observed` says that the drafter observes rounds without drafts, so that it never has to catch up."""

    def __init__(self, rows: Rows, observed: bool = False) -> None:
        self.rows, self.observed, self._room = rows, observed, rows.scratch
        self.occupied: Mapping[
            int, SlotState
        ] = {}  # by row, ascending; a new one after every change
        # What the drafter has not read yet. It reads only when it is about to draft, so a schedule that does
        # not draft costs nothing. It feeds the last two tokens of a row itself, and a round without drafts
        # writes one: no row has more unread tokens after its prompt than there were such rounds since.
        self.unread_prompts: dict[int, Request] = {}  # by row, of occupied slots only
        self.unread_tokens = 0
        self.longest = 1  # an upper bound between polls, exact after each that is not late
        self.grown = 0  # tokens that a row may have gained in all rounds so far
        self.lengths = [1] * rows.batch  # as of the last poll
        # By row: requests that left it in this step. Weak, so that their encoder states are free at once.
        self.left: dict[int, ReferenceType[Request]] = {}

    def free(self) -> list[int]:
        """Rows without a request."""
        return sorted(set(range(self.rows.batch)) - self.occupied.keys())

    def groups(self, gamma: int) -> list[Group]:
        """The groups of a round: all rows, or those whose drafter has failed apart from the others, so that
        the others' drafts stay what they would have been."""
        if gamma == 0 and not self.observed:
            return [Group(list(self.occupied), 0, drafter=False)]
        drafting: list[int] = []
        plain: list[int] = []
        for row, state in self.occupied.items():
            (drafting if state.draft_error is None else plain).append(row)
        groups = [Group(drafting, gamma, drafter=True)] if drafting else []
        return [*groups, Group(plain, 0, drafter=False)] if plain else groups

    @property
    def mode(self) -> Mode:
        """The smallest one that covers all requests that are being decoded."""
        return Mode.of(state.request for state in self.occupied.values())

    def occupy(self, row: int, state: SlotState, *, prefill_pending: bool) -> None:
        """Puts a request into a free slot; `prefill_pending` where a drafter has to read its prompt."""
        self.occupied = dict(sorted({**self.occupied, row: state}.items()))
        self.lengths[row] = len(state.request.prompt)
        # Of a guess it is not known yet how much was kept: at most all of it, and a token after it.
        gained = len(state.request.guess) + 1 if state.request.guess else 0
        self.grown += gained
        self.longest = min(max(self.longest, self.lengths[row] + gained), self._room)
        if prefill_pending:
            self.unread_prompts[row] = state.request

    def vacate(self, row: int) -> None:
        """Makes the slot free. The device row keeps its content until the next request."""
        self.left[row] = ref(self.occupied[row].request)
        self.occupied = {other: state for other, state in self.occupied.items() if other != row}
        self.unread_prompts.pop(row, None)

    def cancel(self, rows: Collection[int]) -> None:
        """Stops decoding these rows; their slots are freed in the next poll."""
        for row in rows:
            self.occupied[row].cancelled = True
        self._deactivate(rows)

    def drop(self, rows: Collection[int]) -> None:
        """Frees these slots without results."""
        for row in rows:
            self.vacate(row)
        self._deactivate(rows)

    def fail_all(self, error: SpeculativeError) -> None:
        """Frees all slots; their requests get a failed result without tokens."""
        for row, state in self.occupied.items():
            self.vacate(row)
            state.inbox.put(failed(state.request, error))

    def _deactivate(self, rows: Collection[int]) -> None:
        for row in rows:
            self.rows.active[row] = False

    def stop_drafting(self, row: int, error: DecodingError) -> None:
        """Decodes the row without drafts from here on."""
        self.occupied[row].draft_error = error

    def count_round(self, gamma: int) -> None:
        """Accounts for a round that is about to run."""
        self.unread_tokens += gamma == 0 and not self.observed
        self.grown += gamma + 1
        self.longest = min(self.longest + gamma + 1, self._room)

    def note_lengths(self, lengths: list[int], before: Mapping[int, SlotState]) -> None:
        """Takes the lengths `[B]` of a snapshot, when `before` were in the slots."""
        for row, state in self.occupied.items():
            if state is before.get(row):
                self.lengths[row] = lengths[row]

    def measure(self, grown: int) -> None:
        """Bounds `longest` by the noted lengths, of a snapshot when rows had `grown` so much. Rounds since
        then, which a late snapshot does not know, may have added to them."""
        known = max(map(self.lengths.__getitem__, self.occupied), default=1)
        self.longest = min(known + self.grown - grown, self._room)

    def reset(self) -> None:
        """Clears every row on the device; all slots are free."""
        assert not self.occupied
        self.unread_tokens, self.longest = 0, 1
        for row in range(self.rows.batch):
            self.rows.clear(row)

    @contextmanager
    def masked_to(self, rows: Collection[int]) -> Iterator[None]:
        """Masks all other rows meanwhile, without a sync."""
        active = self.rows.active
        others = [row not in rows for row in range(self.rows.batch)]
        resting = active & upload(others, torch.bool, active.device)
        active &= ~resting
        try:
            yield
        finally:
            active |= resting


@dataclass(eq=False)
class SlotState:
    """The host's record of an occupied slot, or of a request that waits for one."""

    request: Request
    inbox: Inbox
    probe: HostCopy | None = None  # of the probe's probabilities
    cancelled: bool = False
    error: DecodingError | None = None
    draft_error: DecodingError | None = None  # once set, the row is decoded without drafts


class Group(NamedTuple):
    """Rows that run a round together."""

    rows: list[int]
    gamma: int
    drafter: bool  # whether the drafter takes part: it proposes, or observes a round without drafts


@dataclass(eq=False)
class Inbox:
    """The results of one caller's requests, until the caller takes them."""

    results: deque[Result] = field(default_factory=deque)
    pending: int = 0  # requests without a result

    def put(self, result: Result) -> None:
        self.pending -= 1
        self.results.append(result)

    def take(self) -> list[Result]:
        """Removes and returns the results."""
        results = list(self.results)
        self.results.clear()
        return results


@dataclass(eq=False)
class RequestQueue:
    """Requests that wait for a slot, in order."""

    waiting: deque[SlotState] = field(default_factory=deque)
    own: Inbox = field(default_factory=Inbox)  # of requests outside of runs
    abandoned: deque[Inbox] = field(default_factory=deque)
    _current: Inbox | None = None  # of the next request; None: `own`

    def put(self, request: Request) -> None:
        """Appends a request, which belongs to the current inbox."""
        inbox = self._current or self.own
        self.waiting.append(SlotState(request, inbox))
        inbox.pending += 1

    def take(self, count: int) -> list[SlotState]:
        """Removes and returns the first requests, `count` at most."""
        return [self.waiting.popleft() for _ in range(min(count, len(self.waiting)))]

    def remove(self, matches: Callable[[SlotState], bool]) -> int:
        """Removes the requests that match, without results; returns how many there were."""
        removed = [state for state in self.waiting if matches(state)]
        for state in removed:
            self.waiting.remove(state)
            state.inbox.pending -= 1
        return len(removed)

    def fail_all(self, error: SpeculativeError) -> None:
        """Gives all requests a failed result."""
        for state in self.take(len(self.waiting)):
            state.inbox.put(failed(state.request, error))

    def turn_to(self, inbox: Inbox) -> None:
        """Makes `inbox` the one that the next requests belong to."""
        self._current = inbox

    def abandon(self, inbox: Inbox) -> None:
        """Marks an inbox whose requests are to be dropped in the next step. Safe on any thread."""
        self.abandoned.append(inbox)

    def take_abandoned(self) -> Iterator[Inbox]:
        """Removes and returns the abandoned inboxes."""
        while self.abandoned:
            inbox = self.abandoned.popleft()
            if self._current is inbox:
                self._current = None
            yield inbox


class Run(Iterator[Result]):
    """The results of one call of `Engine.run`, as they end; none of other requests.

    Requests that the caller submits to the engine between two results belong to the run too: one that
    is tried again, or one that follows. Leaving the loop early (`break`, an exception, `close`) cancels
    the remaining requests. A request that the engine refuses yields a failed result. If the iterable of
    requests raises, the requests under way are decoded to their end first, then the exception is raised.
    """

    def __init__(self, engine: Host, queue: RequestQueue, requests: Iterable[Request]) -> None:
        self._inbox = Inbox()
        self._results: deque[Result] = deque()  # to be returned
        self._engine, self._queue = engine, queue
        self._source: Iterator[Request] | None = iter(requests)
        self._error: Exception | None = None
        self._closed = False

    def __next__(self) -> Result:
        if self._closed:
            raise StopIteration
        try:
            self._queue.turn_to(self._inbox)
            self._results.extend(self._inbox.take())
            while not self._results:
                self._pull()
                if self._results:
                    break
                if self._source is None and not self._inbox.pending:
                    raise self._error or StopIteration
                self._results.extend(self._engine.step(self._inbox))
            return self._results.popleft()
        except BaseException:
            self.close()
            raise

    def _pull(self) -> None:
        """Takes requests from the iterable while there are free slots."""
        while self._source is not None and self._engine.free and not self._results:
            try:
                request = next(self._source)
                if not isinstance(request, Request):
                    raise TypeError(f"not a Request, but {type(request).__name__}: {request!r}")
            except StopIteration:
                self._source = None
                return
            except Exception as error:
                self._source, self._error = None, error
                return
            try:
                self._engine.submit(request)
            except RequestError as error:
                self._results.append(failed(request, error))

    def close(self) -> None:
        """Cancels the requests under way; does nothing after the end."""
        if not self._closed:
            self._closed, self._source = True, None
            self._queue.abandon(self._inbox)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):  # not built completely
            self.close()  # perhaps on another thread, in the middle of a round


class Host(Protocol):
    """The methods of an engine that a run uses."""

    @property
    def free(self) -> int: ...

    def submit(self, request: Request) -> None: ...

    def step(self, inbox: Inbox) -> list[Result]: ...


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
