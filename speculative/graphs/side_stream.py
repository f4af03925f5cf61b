"""Work beside the rounds: on cuda on a stream of its own, elsewhere at once.

Knows streams and tensors; nothing of what is computed. An encoder multiplies large matrices while rounds wait
for memory, so a device may do both; on the stream of the rounds the encoder would wait for those that are
queued, and the next ones for the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..device import Device

T = TypeVar("T")


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
