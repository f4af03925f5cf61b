"""How a device runs a function as one launch: CUDA graphs, and what Gaudi has instead; prefills among them.

A captured function reads and writes tensors that stay where they are, and what it allocates belongs to its
graph: CUDA graphs in one memory pool.

Of a model that reads encoder states, a prefill whose shape comes again is one launch (`PrefillRunner`).
Operator by operator, a prefill of large-v3's 32 layers costs the host 10 ms, in which the device idles: on an
H100 as long as two rounds of eight rows. Knows functions, devices and models; nothing of rounds, requests or
rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..device import Device
from ..protocols import StackedModel
from ..types import Prefilled, States

log = logging.getLogger(__name__)

WARM_UP = 3
"""Runs before a capture: libraries choose their kernels and allocate workspaces, which a capture forbids."""

Function = Callable[[], None]
Key = TypeVar("Key")
Captured = TypeVar("Captured")


Capture = Callable[[Function], Function]
"""Makes a function that the device runs as one launch. Capturing runs the function a few times, so no row may
be active meanwhile."""


def capture_for(device: Device) -> Capture | None:
    """How rounds are captured on this device; None where they are not.

    cuda: CUDA graphs. hpu: `torch.compile`. Elsewhere nothing: measured on CPUs, inductor's code for these
    shapes was slower than eager.
    """
    if device.kind == "cuda":
        return CudaCapture(device)
    return compiled_for_hpu if device.kind == "hpu" else None


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
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UP):
                    fn()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate meanwhile: a diarizer on the same card.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                fn()

        def replay() -> None:
            with self._device.guard():
                graph.replay()

        return replay


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


class Graphs(Generic[Key, Captured]):
    """What has been captured of some kind, by shape. A shape whose capture fails, for lack of memory, say,
    runs operator by operator from then on."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.captured: dict[Key, Captured] = {}
        self._refused: set[Key] = set()

    def get(self, shape: Key, capture: Callable[[], Captured]) -> Captured | None:
        """The captured form of a shape, by `capture` the first time; None where it cannot be captured."""
        if shape not in self.captured and shape not in self._refused:
            try:
                self.captured[shape] = capture()
            except RuntimeError as error:
                self._refused.add(shape)
                log.warning("%s of %s are not captured, and slower: %s", self._kind, shape, error)
        return self.captured.get(shape)


Shape = tuple[int, int, int | None]
"""Rows, tokens of a prompt, and positions with logits (None: the model's choice)."""

MOST_BYTES = 64 << 20
"""Of the logits of a captured prefill, which keep their memory: those of one position of 16 rows of Whisper
take 3 MB. Larger ones are rare, and long enough to hide the launches."""

MOST_GRAPHS = 32
"""Captured prefills of an engine."""


class PrefillRunner:
    """The prefill of a model in an engine of `batch` rows, as `Model.prefill`.

    The second prefill of a shape captures it: shapes that come once are never captured. What a captured
    prefill returns is overwritten by the next one of its shape.
    """

    def __init__(self, model: StackedModel, batch: int, capture: Capture) -> None:
        self._model, self._batch, self._capture = model, batch, capture
        self._seen: set[Shape] = set()
        self.graphs = Graphs[Shape, Replay]("prefills")
        self._states: Tensor | None = None  # [batch, S, D], which all graphs read

    def __call__(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None
    ) -> Prefilled:
        model = self._model
        states = model.stacked(encoder_states)
        shape = (*tokens.shape, None if nodes is None else nodes.shape[1])
        given = (rows, tokens, states, nodes)

        def capture() -> Replay:
            if self._states is None:
                self._states = states.new_empty((self._batch, *states.shape[1:]))
            return captured(model, self._capture, given, self._states)

        replay = self.graphs.get(shape, capture) if self._wanted(shape) else None
        self._seen.add(shape)
        return replay(*given) if replay else model.prefill_stacked(*given)

    def _wanted(self, shape: Shape) -> bool:
        """Whether the captured form of a shape is to be used."""
        rows, tokens, positions = shape
        bytes_ = 4 * rows * (tokens if positions is None else positions) * self._model.vocab_size
        known = self.graphs.captured
        room = shape in known or len(known) < MOST_GRAPHS
        return shape in self._seen and rows <= self._batch and bytes_ <= MOST_BYTES and room


Replay = Callable[[Tensor, Tensor, Tensor, Tensor | None], Prefilled]


@torch.inference_mode()
def captured(
    model: StackedModel,
    capture: Capture,
    given: tuple[Tensor, Tensor, Tensor, Tensor | None],
    buffer: Tensor,
) -> Replay:
    """A captured prefill of what is shaped as `given`, on tensors that stay where they are: the first rows of
    `buffer` for the states. Capturing runs it on `given`."""
    rows, tokens, states, nodes = given
    fixed = (rows.clone(), tokens.clone(), buffer[: len(states)])
    positions = None if nodes is None else nodes.clone()
    fixed[2].copy_(states)
    first = model.prefill_stacked(*fixed, positions)
    logits = torch.empty_like(first.logits)
    taps = None if first.taps is None else torch.empty_like(first.taps)

    def run() -> None:
        made = model.prefill_stacked(*fixed, positions)
        logits.copy_(made.logits)
        if taps is not None and made.taps is not None:
            taps.copy_(made.taps)

    graph = capture(run)

    @torch.inference_mode()
    def replay(rows: Tensor, tokens: Tensor, states: Tensor, nodes: Tensor | None) -> Prefilled:
        for mine, theirs in zip(fixed, (rows, tokens, states), strict=True):
            mine.copy_(theirs)
        if positions is not None and nodes is not None:
            positions.copy_(nodes)
        graph()
        return Prefilled(logits, taps)

    return replay
