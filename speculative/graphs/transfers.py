"""Copies between host and device that stop neither of them.

Knows tensors, streams and pinned memory; nothing of what the numbers mean. torch's own copies of ordinary
host memory wait until the device has finished everything before them: an admission would stop the device for
the time that the host takes to prepare the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..device import Device


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
