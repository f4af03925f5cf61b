"""How a device runs a function as one launch: CUDA graphs, and what Gaudi has instead.

A captured function reads and writes tensors that stay where they are, and what it allocates belongs to its
graph: CUDA graphs in one memory pool. Knows functions and devices; nothing of what is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import FunctionType
from typing import Any, Protocol

import torch

from ..device import Device, hpu_is_lazy

WARM_UP = 3
"""Runs before a capture: libraries choose their kernels and allocate workspaces, which a capture forbids."""

Function = Callable[[], None]


class Capture(Protocol):
    """Makes a function that the device runs as one launch."""

    def __call__(self, fn: Function) -> Function:
        """A captured form of `fn`. Capturing runs `fn` a few times, so no row may be active meanwhile."""


def capture_for(device: Device) -> Capture | None:
    """How rounds are captured on this device; None where they are not.

    cuda: CUDA graphs. hpu: `torch.compile` in eager mode; lazy mode accumulates a round by itself until
    `mark_step`. Elsewhere nothing: measured on CPUs, inductor's code for these shapes was slower than eager.
    """
    if device.kind == "cuda":
        return CudaCapture(device)
    if device.kind == "hpu" and not hpu_is_lazy():
        return compiled_for_hpu
    return None


class CudaCapture:
    """CUDA graphs that share one memory pool.

    Sharing is safe because the graphs run one after another on one stream, and nothing that a graph
    allocates is read after it: a round leaves its results in the rows, which were allocated before.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None

    def __call__(self, fn: Function) -> Function:
        with self._device.guard():
            if self._pool is None:
                self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
            self._warm_up(fn)
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate meanwhile: a diarizer on the same card.
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                fn()

        def replay() -> None:
            with self._device.guard():
                graph.replay()

        return replay

    def _warm_up(self, fn: Function) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP):
                fn()
        torch.cuda.current_stream().wait_stream(self._stream)


def compiled_for_hpu(fn: Function) -> Function:
    """One recipe for the whole function, which runs once before: what it makes at its first call must not
    be a part of the recipe."""
    fn()
    compiled: Function = torch.compile(
        function_of_its_own(fn), backend="hpu_backend", fullgraph=True, dynamic=False
    )
    return compiled


def function_of_its_own(fn: Function) -> Function:
    """`fn` with a code object that no other function has: dynamo counts recompilations for each code
    object, and refuses the ninth."""
    assert isinstance(fn, FunctionType)
    code = fn.__code__.replace(co_name=f"{fn.__code__.co_name}{next(_count)}")
    return FunctionType(code, fn.__globals__, code.co_name, fn.__defaults__, fn.__closure__)


_count = count()
