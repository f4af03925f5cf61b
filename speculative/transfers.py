"""Transfers between host and device, and work beside the rounds.

torch's own copies of ordinary host memory wait until the device has finished everything before them: an
admission would stop the device for the time that the host takes to prepare the next round. So on cuda copies
go through pinned memory, on streams beside the rounds; elsewhere they are direct.

`SideStream` does the same for encoders, which multiply large matrices while rounds wait for memory: on the
stream of the rounds each would wait for the other. Knows tensors and streams; nothing of rows or requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from .device import Device

T = TypeVar("T")


@dataclass(eq=False)
class HostReader:
    """Reads tensors of the device without waiting for work that was queued later.

    On cuda it copies to pinned memory on a stream of its own. Elsewhere a read is direct. Two kinds of
    reads that wait for different moments need two readers: a stream keeps their order.
    """

    device: Device
    _stream: Any = field(default=None, init=False)

    def read(self, make: Callable[[], Tensor], after: Moment | None = None) -> HostCopy:
        """Starts to copy the tensor that `make` returns, as it is at the moment `after` (None: now).
        What `make` reads must not be written from that moment on until the copy has been read."""
        if self.device.kind != "cuda":
            return HostCopy(make(), None)
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        moment = Moment(self.device) if after is None else after
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(moment.event)
            tensor = make()
            host = pinned(tensor)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)  # it may have been made on another one
            done = torch.cuda.Event()
            done.record()
        return HostCopy(host, done)


@dataclass(eq=False)
class HostCopy:
    """A tensor on its way to the host."""

    made: Tensor
    done: Any  # the event of its arrival; None: it is there

    def tensor(self) -> Tensor:
        """The tensor on the host; waits for the copy alone."""
        if self.done is not None:
            self.done.synchronize()
        return self.made.cpu()


class Moment:
    """A point in time: in the device's work where it has events (cuda), on the host's clock elsewhere."""

    def __init__(self, device: Device, clock_s: float = 0.0) -> None:
        self.clock_s = clock_s
        self.event: Any = None
        if device.kind == "cuda":
            with device.guard():
                self.event = torch.cuda.Event(enable_timing=True)
                self.event.record()

    def seconds_to(self, later: Moment) -> float:
        """Seconds between two moments that have passed."""
        if self.event is None:
            return later.clock_s - self.clock_s
        return float(self.event.elapsed_time(later.event)) / 1000


@dataclass(eq=False)
class Stopwatch:
    """Seconds by stage. On cuda it records events, which cost no sync until `seconds` is read."""

    device: Device
    _laps: list[tuple[str, Moment, Moment]] = field(
        default_factory=list
    )  # that may not have passed
    _total: dict[str, float] = field(default_factory=dict)
    _last: Moment | None = None

    def start(self) -> None:
        """Starts a lap; `mark` ends it and starts the next."""
        self._last = Moment(self.device, time.perf_counter())

    def mark(self, stage: str) -> None:
        now, before = Moment(self.device, time.perf_counter()), self._last
        assert before is not None
        if now.event is None:
            self._total[stage] = self._total.get(stage, 0.0) + before.seconds_to(now)
        else:
            self._laps.append((stage, before, now))
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far."""
        if self._laps:
            self.device.synchronize()
            for stage, before, now in self._laps:
                self._total[stage] = self._total.get(stage, 0.0) + before.seconds_to(now)
            self._laps.clear()
        return dict(self._total)


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


@dataclass(eq=False)
class SideStream:
    """Runs functions on a stream of its own, one after another, from one thread."""

    device: Device
    _stream: Any = field(default=None, init=False)

    def run(self, work: Callable[[], T], meanwhile: Callable[[], bool] = lambda: False) -> T:
        """Returns what `work` returns, when the device has computed it. Until then `meanwhile` is called as
        long as it returns True: it may launch rounds. What `work` reads must be complete, or made by it."""
        if self.device.kind != "cuda":
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
        if self.device.kind == "cuda":
            with self.device.guard():
                tensor.record_stream(torch.cuda.current_stream())
        return tensor

    @contextmanager
    def _current(self) -> Iterator[None]:
        with self.device.guard():
            if self._stream is None:
                self._stream = torch.cuda.Stream()
                # The weights were written on the current stream.
                self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                yield
