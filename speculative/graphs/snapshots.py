"""Transfers between host and device: the state of rows, what goes up, and work beside the rounds.

torch's own copies of ordinary host memory wait until the device has finished everything before them: an
admission would stop the device for the time that the host takes to prepare the next round. So on cuda copies
go through pinned memory, on streams beside the rounds; elsewhere they are direct. Every read of state is one
packed tensor: each copy costs a launch and a wait, whatever its size.

`SideStream` does the same for encoders, which multiply large matrices while rounds wait for memory: on the
stream of the rounds each would wait for the other. Knows rows, counters and streams; nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..device import Device
from ..rows import Counters, Rows

COUNTS = 4

T = TypeVar("T")


class StateReader:
    """Reads the rows of an engine, late where the device has streams."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # One for each kind: a row's read must not wait for snapshots that were taken after it had ended.
        self._states, self._rows, self._others = (HostReader(device) for _ in range(3))

    def take(self, rows: Rows, counters: Counters) -> SnapshotCopy:
        """Takes a snapshot, in the order of the device's work."""
        packed = torch.cat(
            [
                rows.active,
                rows.lengths,
                counters.judged[None],
                counters.row_rounds[None],
                counters.accepted,
            ]
        )  # [2 B + 2 + G] int64
        moment = Moment(self._device)
        return SnapshotCopy(self._states.read(lambda: packed, moment), moment, rows.batch)

    def copy(self, tensor: Tensor) -> HostCopy:
        """Starts to copy a tensor that is not written any more."""
        return self._others.read(lambda: tensor)

    def row(
        self, rows: Rows, row: int, begin: int, end: int, ranks: int, after: Moment | None = None
    ) -> RowRecord:
        """Reads a row from slot `begin` on. The caller knows that nothing is written to the slots below
        `end` after the moment `after`; None waits for everything queued."""
        packed = self._rows.read(lambda: _packed(rows, row, slice(begin, end), ranks), after)
        return _unpacked(packed.tensor(), begin, end, ranks)


@dataclass(frozen=True)
class Snapshot:
    """The state of all rows after a round, and the counters that schedules learn from."""

    active: list[bool]  # [B]
    lengths: list[int]  # [B]
    judged: int
    accepted: int
    row_rounds: int


@dataclass(frozen=True)
class SnapshotCopy:
    """A snapshot on its way to the host; `moment` is when it was taken."""

    copy: HostCopy
    moment: Moment
    batch: int

    def read(self) -> Snapshot:
        """The snapshot; waits for the rounds before it, not for those after it."""
        numbers: list[int] = self.copy.tensor().tolist()
        active, lengths, rest = (
            numbers[: self.batch],
            numbers[self.batch : 2 * self.batch],
            numbers[2 * self.batch :],
        )
        judged, row_rounds, *accepted = rest
        return Snapshot([bool(a) for a in active], lengths, judged, sum(accepted), row_rounds)


@dataclass(frozen=True)
class RowRecord:
    """What a row has written from slot `begin` on, and its counts."""

    length: int
    rounds: int
    drafted: int
    accepted: int
    tokens: list[int]
    logprobs: list[float]
    sources: list[int]
    ranked: list[list[int]]  # R of them per token
    ranked_logprobs: list[list[float]]


def _packed(rows: Rows, row: int, span: slice, ranks: int) -> Tensor:
    """`[4 + (3 + 2 R) M]` int64: counts, then tokens, sources, bits of log-probabilities, ranked ones."""
    each = slice(row, row + 1)
    parts = [
        *(part[each] for part in (rows.lengths, rows.rounds, rows.drafted, rows.accepted)),
        rows.tokens[row, span],
        rows.sources[row, span],
        rows.logprobs[row, span].view(torch.int32),
    ]
    if ranks:
        parts.append(rows.ranked[row, span, :ranks].flatten())
        parts.append(rows.ranked_logprobs[row, span, :ranks].flatten().view(torch.int32))
    return torch.cat(parts)


def _unpacked(packed: Tensor, begin: int, end: int, ranks: int) -> RowRecord:
    length, rounds, drafted, accepted = packed[:COUNTS].tolist()
    room, count = end - begin, max(0, min(length, end) - begin)
    sizes = [room] * 3 + [room * ranks] * 2
    tokens, sources, logprobs, ranked, ranked_logprobs = packed[COUNTS:].split(sizes)
    return RowRecord(
        length=length,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        tokens=tokens[:count].tolist(),
        logprobs=_floats(logprobs[:count]).tolist(),
        sources=sources[:count].tolist(),
        ranked=ranked[: count * ranks].view(count, ranks).tolist(),
        ranked_logprobs=_floats(ranked_logprobs[: count * ranks]).view(count, ranks).tolist(),
    )


def _floats(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)


class HostReader:
    """Reads tensors of the device without waiting for work that was queued later.

    On cuda it copies to pinned memory on a stream of its own. Elsewhere a read is direct. Two kinds of
    reads that wait for different moments need two readers: a stream keeps their order.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Any = None

    def read(self, make: Callable[[], Tensor], after: Moment | None = None) -> HostCopy:
        """Starts to copy the tensor that `make` returns, as it is at the moment `after` (None: now).
        What `make` reads must not be written from that moment on until the copy has been read."""
        if self._device.kind != "cuda":
            return HostCopy(make(), None)
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        moment = Moment(self._device) if after is None else after
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(moment.event)
            tensor = make()
            host = pinned(tensor)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)  # it may have been made on another one
            done = torch.cuda.Event()
            done.record()
        return HostCopy(host, done)


class HostCopy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor, done: Any) -> None:
        self._tensor, self._done = tensor, done

    def tensor(self) -> Tensor:
        """The tensor on the host; waits for the copy alone."""
        if self._done is not None:
            self._done.synchronize()
        return self._tensor.cpu()


class Moment:
    """A point in the device's work. Only cuda has an event for it: elsewhere there is one stream."""

    def __init__(self, device: Device) -> None:
        self.event: Any = None
        if device.events:
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    def seconds_to(self, later: Moment) -> float | None:
        """Seconds of the device's work between two moments that have passed; None without events."""
        return None if self.event is None else float(self.event.elapsed_time(later.event)) / 1000


def upload(values: Sequence[Any] | Tensor, dtype: torch.dtype, place: torch.device) -> Tensor:
    """`values` as a tensor on the device. On cuda through pinned memory, which torch's allocator keeps until
    the copy is done."""
    host = values.to(dtype) if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    if place.type != "cuda":
        return host.to(place)
    return host.pin_memory().to(place, non_blocking=True)


def pinned(tensor: Tensor) -> Tensor:
    """Host memory for a copy of `tensor` that the device writes by itself."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


class SideStream:
    """Runs functions on a stream of its own, one after another, from one thread."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: Any = None

    def run(self, work: Callable[[], T], meanwhile: Callable[[], bool] = lambda: False) -> T:
        """Returns what `work` returns, when the device has computed it. Until then `meanwhile` is called as
        long as it returns True: it may launch rounds. What `work` reads must be complete, or made by it."""
        if self._device.kind != "cuda":
            return work()
        with self._current():
            made = work()
            done = torch.cuda.Event()
            done.record()
        while not done.query() and meanwhile():
            pass
        done.synchronize()
        return made

    def hand_over(self, tensor: Tensor) -> Tensor:
        """A tensor that `run` has made, for the current stream: its memory is not used again for the side
        stream before the current one has done what it does with the tensor."""
        if self._device.kind == "cuda":
            with self._device.guard():
                tensor.record_stream(torch.cuda.current_stream())
        return tensor

    @contextmanager
    def _current(self) -> Iterator[None]:
        with self._device.guard():
            if self._stream is None:
                self._stream = torch.cuda.Stream()
                # The weights were written on the current stream.
                self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                yield
