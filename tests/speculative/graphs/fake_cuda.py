"""A double of `torch.cuda` on CPU tensors: streams, events, graphs, pinned memory, and who waits for whom.

Captures are recorded and every replay is run again and compared (`recorder`). Tensors of the device are
marked, and so is everything computed from them; reading a number of one outside of a copy to pinned memory
raises, because it would stop the device. Copies to pinned memory happen when the host waits for their event,
not before: what is read too early is poison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from forescribe.speculative import Engine, device
from forescribe.speculative.device import Device
from forescribe.speculative.engine import engine
from forescribe.speculative.engine.captures import Capture, CudaCapture
from forescribe.speculative.engine.table import Table
from forescribe.speculative.models import lean
from tests.speculative.graphs.recorder import Forbidden, Recorder, compare, tensors

READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy")
POISON = -77


@dataclass(frozen=True)
class CudaOnCpu(Device):
    """A device of kind cuda whose tensors are on the CPU."""

    @property
    def torch(self) -> torch.device:
        return torch.device("cpu")


class Knowledge(dict[Any, int]):
    """How many operators of each stream are known to be done: a vector clock."""

    def learn(self, other: dict[Any, int]) -> None:
        for stream, count in other.items():
            self[stream] = max(count, self.get(stream, 0))


@dataclass(eq=False)
class Stream:
    """Copies that have been queued and not done yet, and what is done before its next operator."""

    cuda: FakeCuda
    queue: list[Callable[[], None]] = field(default_factory=list)
    done: Knowledge = field(default_factory=Knowledge)

    def wait_stream(self, other: Stream) -> None:
        self.cuda.note("wait")
        self.cuda.outside_captures("wait_stream")
        self.done.learn(other.done)

    def wait_event(self, event: Event) -> None:
        self.cuda.note("wait for event")
        assert event.recorded, "a stream waits for an event that was never recorded"
        self.done.learn(event.done)


@dataclass(eq=False)
class Event:
    """A point in a stream."""

    cuda: FakeCuda
    recorded: bool = False
    stream: Stream | None = None
    place: int = 0
    done: Knowledge = field(default_factory=Knowledge)
    queries: int = 0

    def __post_init__(self) -> None:
        self.cuda.note("event")

    def record(self) -> None:
        self.cuda.note("record")
        self.recorded, self.stream = True, self.cuda.current
        self.place = len(self.stream.queue)
        self.done = Knowledge(self.stream.done)

    def query(self) -> bool:
        """Whether the device has come so far: not before the fifth question."""
        self.queries += 1
        return self.queries > 4

    def synchronize(self) -> None:
        self.cuda.note("synchronize event")
        self.cuda.outside_captures("Event.synchronize")
        assert self.recorded and self.stream is not None
        for n in range(self.place):
            self.stream.queue[n]()
            self.stream.queue[n] = _nothing
        self.cuda.waits += 1
        self.cuda.host.learn(self.done)

    def elapsed_time(self, end: Event) -> float:
        assert self.recorded and end.recorded
        return 2.0


def _nothing() -> None:
    pass


def _quietly(func: Any, *args: Any) -> None:
    with _disable_current_modes():
        func(*args)


@dataclass(eq=False)
class Graph:
    """A function that was recorded when it was captured."""

    cuda: FakeCuda
    fn: Callable[[], None] = _nothing
    recorded: Recorder | None = None
    pool: object = None
    replays: int = 0

    def replay(self) -> None:
        self.cuda.note("replay")
        self.cuda.outside_captures("replay")
        assert self.recorded is not None
        now = Recorder(self)
        self.cuda.recording = now
        try:
            with now:
                self.fn()
        finally:
            self.cuda.recording = None
        compare(self.recorded, now)
        self.replays += 1
        self.cuda.replays += 1


class FakeCuda(TorchDispatchMode):
    """The double. Active as a dispatch mode around the engine's work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.card = 0  # the current one
        self.log: list[tuple[str, int]] = []  # what was done on which card
        self.streams: list[Stream] = []
        self.default, self.pool = self._stream(), object()
        self.current = self.default
        self.recording: Recorder | None = None
        self.capturing = False
        self.host = Knowledge()  # what has been waited for
        self.written: dict[int, tuple[Stream, int]] = {}  # who wrote a memory last, by address
        self.handed_over: list[tuple[Tensor, Stream]] = []
        self.graphs: list[Graph] = []
        self.waits = self.replays = self.synchronized = 0
        self._next: Callable[[], None] = _nothing
        self._quiet = False  # reads are allowed
        self.names = self._names()
        for name, value in self.names.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(device, "pinned", self._pin)
        handed_over = self.handed_over
        monkeypatch.setattr(Tensor, "record_stream", lambda *given: handed_over.append(given))
        monkeypatch.setattr(engine, "capture_for", self._capture_for)
        # The layout of a card, whose admission reads nothing.
        monkeypatch.setattr(lean, "EXACT", frozenset())
        for name in READS:
            monkeypatch.setattr(Tensor, name, self._guarded(name, getattr(Tensor, name)))

    def _names(self) -> dict[str, Any]:
        return dict(
            Stream=self._stream,
            Event=lambda enable_timing=False: Event(self),
            CUDAGraph=self._graph,
            graph=self._capturing,
            graph_pool_handle=lambda: (self.note("pool"), self.pool)[1],
            current_stream=lambda: (self.note("current stream"), self.current)[1],
            stream=self._on,
            synchronize=self._synchronize,
            current_device=lambda: self.card,
            set_device=self._set_device,
            is_available=lambda: True,
            device_count=lambda: 2,
            is_current_stream_capturing=lambda: self.recording is not None,
        )

    # Streams and graphs

    def outside_captures(self, what: str) -> None:
        if self.recording is not None:
            raise Forbidden(f"{what} inside a capture")

    def note(self, what: str) -> None:
        self.log.append((what, self.card))

    def _set_device(self, index: int) -> None:
        self.card = index

    def _synchronize(self) -> None:
        self.note("synchronize")
        self.outside_captures("synchronize")
        self.synchronized += 1
        for stream in self.streams:
            self.host.learn(stream.done)

    def _stream(self) -> Stream:
        self.note("stream")
        self.streams.append(Stream(self))
        return self.streams[-1]

    @contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def _graph(self) -> Graph:
        self.graphs.append(Graph(self, self._next))
        return self.graphs[-1]

    @contextmanager
    def _capturing(
        self, graph: Graph, pool: object, stream: Stream, capture_error_mode: str = "thread_local"
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "another thread may allocate meanwhile"
        self.note("capture")
        self.outside_captures("a capture")
        assert pool is self.pool, "every graph belongs to the one pool"
        graph.pool, graph.recorded = pool, Recorder(graph)
        self.recording, self.capturing = graph.recorded, True
        try:
            with self._on(stream), graph.recorded:
                yield
        finally:
            self.recording, self.capturing = None, False

    def _capture_for(self, device: Device) -> Capture | None:
        if device.kind != "cuda":  # an engine whose results are compared with
            return None
        inner = CudaCapture(device)

        def capture(fn: Callable[[], None]) -> Callable[[], None]:
            self._next = fn
            return inner(fn)

        return capture

    # Memory

    def _pin(self, tensor: Tensor) -> Tensor:
        host = torch.full_like(tensor, POISON)
        host.on_device, host.is_pinned_host = False, True  # type: ignore[attr-defined]
        return host

    def mark(self, *owners: object) -> None:
        """Marks all tensors of these objects as the device's."""
        for owner in owners:
            for tensor in found(owner):
                tensor.on_device = True  # type: ignore[attr-defined]

    @contextmanager
    def reads_allowed(self) -> Iterator[None]:
        """Lets a test read numbers of the device."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def _guarded(self, name: str, real: Any) -> Any:
        def read(tensor: Tensor, *args: Any, **options: Any) -> Any:
            if self.recording is not None:
                raise Forbidden(f"Tensor.{name} inside a capture")
            if getattr(tensor, "on_device", False) and not self._quiet:
                raise Forbidden(f"Tensor.{name} of the device's memory stops it")
            return real(tensor, *args, **options)

        return read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(tensors((args, kwargs)))
        self._check_order(func, given)
        if func.overloadpacket is torch.ops.aten.copy_ and getattr(given[0], "is_pinned_host", 0):
            assert self.current is not self.default, "a copy to the host on the device's stream"
            target, source = given
            self.current.queue.append(lambda: _quietly(func, target, source))
            return target
        if self.recording is None and any(getattr(t, "graph_owner", None) for t in given):
            raise Forbidden(f"{func} reads what a graph allocated")
        result = func(*args, **kwargs)
        if any(getattr(t, "on_device", False) for t in given):
            for made in tensors(result):
                made.on_device = True  # type: ignore[attr-defined]
        self._note_order(result)
        return result

    # Order between streams

    def _check_order(self, func: Any, given: list[Tensor]) -> None:
        """Raises where an operator reads what another stream than that of the rounds may not have written
        yet. A capture runs nothing, and starts by waiting for the device. Rows are read while rounds write
        other slots of them, so what the rounds write is not checked."""
        if self.capturing:
            return
        here = self.current
        here.done.learn(self.host)  # it is launched after what the host has waited for
        for tensor in given:
            writer, count = self.written.get(_address(tensor), (here, 0))
            if writer is self.default or not getattr(tensor, "on_device", False):
                continue
            if here.done.get(writer, 0) < count:
                raise Forbidden(f"{func} reads what another stream may not have written yet")

    def _note_order(self, result: Any) -> None:
        if self.capturing:
            return
        here = self.current
        here.done[here] = here.done.get(here, 0) + 1
        for made in tensors(result):
            self.written[_address(made)] = here, here.done[here]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def found(owner: object, depth: int = 4) -> Iterator[Tensor]:
    """All tensors that an object holds."""
    if isinstance(owner, Tensor):
        yield owner
    elif isinstance(owner, torch.nn.Module):
        yield from owner.state_dict(keep_vars=True).values()
    elif isinstance(owner, (list, tuple)):
        for each in owner:
            yield from found(each, depth)
    elif depth and hasattr(owner, "__dict__"):
        for value in vars(owner).values():
            yield from found(value, depth - 1)


@contextmanager
def running(cuda: FakeCuda, busy: Engine) -> Iterator[None]:
    """The engine's work under the double."""
    cuda.mark(busy._shared.eos)
    allocated = Table.__init__

    def marked(self: Table, *given: Any, **named: Any) -> None:
        allocated(self, *given, **named)
        if self.shared is busy._shared:
            cuda.mark(self.rows, self.counters, self.target)

    for lane in busy._lanes:
        cuda.mark(lane.table.rows, lane.table.counters, lane.table.target)
    if busy.drafter is not None:
        cuda.mark(busy.drafter)
    # A lane of beams comes with its first request.
    with cuda, patch.object(Table, "__init__", marked):
        yield
