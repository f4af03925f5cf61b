"""Devices: cpu, cuda, hpu (Intel Gaudi) and mps. No other module of the core tells them apart.

A `Device` gives the rest of the core its dtype and round borders; captures are in `engine.captures`. Gaudi's
packages are imported only when an hpu is requested or detected.

torch's own copies of ordinary host memory wait until the device has finished everything before them: an
admission would stop the device for the time that the host takes to prepare the next round. So on cuda copies
go through pinned memory, on streams beside the rounds (`HostReader`, `upload`); elsewhere they are direct.
`SideStream` does the same for encoders, which multiply large matrices while rounds wait for memory: on the
stream of the rounds each would wait for the other.

Of a CPU also the number of threads that tensor operators of the calling thread use (`at_most`).
`torch.set_num_threads` changes it for MKL in all threads, and for all threads that run their first operator
later. The functions here change the calling thread alone, in less than a microsecond: OpenMP keeps the number
for each thread, and MKL has one for each thread besides.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from .errors import DeviceError

KINDS = ("cuda", "hpu", "mps", "cpu")  # in order of preference
QUANTIZATIONS = ("none", "int8")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_HABANA = "habana_frameworks"

T = TypeVar("T")


@dataclass(frozen=True)
class Device:
    """A device and the dtype that models use on it.

    `weights` is the dtype that weights are rounded to where that is not the dtype of the arithmetic: on
    a CPU without bfloat16 units they are rounded to bfloat16 and computed with in float32. With `int8` the
    matrices of layers are 8-bit integers (`models.quantized`), and the rest is as without.
    """

    kind: str
    dtype: torch.dtype
    index: int | None = None
    weights: torch.dtype | None = None
    int8: bool = False

    @property
    def stored(self) -> torch.dtype:
        """The dtype that weights are rounded to."""
        return self.dtype if self.weights is None else self.weights

    def placed(self, model: Any) -> Any:
        """A model with weights in `stored`, on the device and in the dtype of the arithmetic."""
        model = model.eval().to(self.torch)
        return model if self.weights is None else model.to(self.dtype)

    @property
    def torch(self) -> torch.device:
        return torch.device(self.kind if self.index is None else f"{self.kind}:{self.index}")

    @property
    def name(self) -> str:
        return str(self.torch)

    @property
    def static_shapes(self) -> bool:
        """True where every new shape costs a compilation, so that admissions are padded to buckets."""
        return self.kind in ("cuda", "hpu")

    @property
    def synchronous(self) -> bool:
        """Whether the host can read a number without waiting."""
        return self.kind == "cpu"

    @property
    def products(self) -> bool:
        """Whether attention of few queries is faster as products of matrices (`models.modules.attend`)."""
        return self.kind == "cpu"

    @property
    def rows_together(self) -> bool:
        """Whether an encoder is faster with many rows at a time. On a CPU one row of 30 s occupies all
        cores, and more rows exceed the caches: 139 ms per row alone, 187 ms in a batch of eight."""
        return self.kind != "cpu"

    @property
    def rounds_per_poll(self) -> int:
        """Rounds between two polls of the rows' state by the host."""
        return {"cpu": 1, "mps": 2, "cuda": 2, "hpu": 4}[self.kind]

    @property
    def captures_at_once(self) -> bool:
        """Whether a capture takes tenths of a second, so that a shape can be captured when it comes. A Gaudi
        card compiles for minutes."""
        return self.kind == "cuda"

    @property
    def late_reads(self) -> bool:
        """Whether a poll reads the state of the poll before, so that the device always has rounds to run
        while the host decides. Rows that have ended meanwhile play a few empty rounds."""
        return self.kind in ("cuda", "hpu")

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Makes this the thread's current device for a block: streams, events, captures and kernels that
        are not torch's own go to the current one, which is the first by default."""
        if self.index is None or self.kind not in ("cuda", "hpu"):
            yield
            return
        # The backend's own context manager is missing in some versions of Gaudi's package.
        before = self.backend.current_device()
        if before != self.index:
            self.backend.set_device(self.index)
        try:
            yield
        finally:
            if before != self.index:
                self.backend.set_device(before)

    @property
    def backend(self) -> Any:
        """`torch.cuda`, or what habana_frameworks adds as `torch.hpu`."""
        return getattr(torch, self.kind)

    def synchronize(self) -> None:
        """Waits until the device has finished all its work."""
        if self.kind in ("cuda", "hpu"):
            with self.guard():
                self.backend.synchronize()
        elif self.kind == "mps":
            torch.mps.synchronize()

    def free_memory(self) -> int | None:
        """Bytes that are free for tensors; None where that is not known. Of a CPU what the system can give,
        and a container's limit leaves."""
        if self.kind == "cuda":
            with self.guard():
                return int(torch.cuda.mem_get_info()[0])
        return _free_host_memory() if self.kind == "cpu" else None


def choose(
    name: str | None = None, dtype: str | None = None, quantize: str | None = None
) -> Device:
    """The device of a name as `cuda`, `cuda:1` or `cpu`; None or `auto` takes the best available one.
    `quantize` is one of `QUANTIZATIONS`, None the first.

    Raises `DeviceError` for an unknown name, a device that is not available or cannot do that, and an unknown
    dtype or quantization.
    """
    kind, colon, index = (name or "auto").strip().lower().partition(":")
    if kind == "auto":
        kind = next(filter(available, KINDS))
    if kind not in KINDS:
        raise DeviceError(f"unknown device {name!r}; known: auto, {', '.join(KINDS)}, cuda:N")
    if not available(kind):
        hint = " (needs Intel's habana_frameworks package)" if kind == "hpu" else ""
        raise DeviceError(f"this machine has no usable {kind} device{hint}; try --device cpu")
    number = _index(kind, index) if colon else None
    asked = {"cuda": torch.float16, "hpu": torch.bfloat16}.get(kind, torch.float32)
    if dtype not in (None, "auto"):
        if dtype not in DTYPES:
            raise DeviceError(f"unknown dtype {dtype!r}; known: auto, {', '.join(DTYPES)}")
        asked = DTYPES[dtype]
    if quantize not in (None, *QUANTIZATIONS):
        raise DeviceError(f"unknown quantization {quantize!r}; known: {', '.join(QUANTIZATIONS)}")
    int8 = quantize == "int8"
    if int8 and kind != "cpu":
        raise DeviceError(
            f"int8 is computed on CPUs, not on {kind}; leave it out, or try --device cpu"
        )
    if kind == "cpu" and asked is torch.bfloat16 and not bfloat16_units():
        return Device(kind, torch.float32, number, torch.bfloat16, int8)
    return Device(kind, asked, number, int8=int8)


def available(kind: str) -> bool:
    """Whether this machine has a device of `kind`."""
    if kind == "cuda":
        return torch.cuda.is_available()
    if kind == "mps":
        return torch.backends.mps.is_available()
    if kind == "hpu" and importlib.util.find_spec(_HABANA) is not None:
        return bool(_hpu().is_available())
    return kind == "cpu"


def _hpu() -> Any:
    return importlib.import_module(f"{_HABANA}.torch").hpu


def device_count(kind: str) -> int:
    """The number of devices of a kind; 1 for the CPU."""
    if not available(kind):
        return 0
    if kind == "cuda":
        return torch.cuda.device_count()
    return int(_hpu().device_count()) if kind == "hpu" else 1


def bfloat16_units() -> bool:
    """Whether the processor, as the operating system shows it, multiplies bfloat16 numbers. Elsewhere
    torch emulates it: a large product takes 3.6 times as long as in float32, an encoder 2.4 times."""
    able = torch.cpu.get_capabilities()
    return any(map(able.get, ("avx512_bf16", "amx_bf16", "avx10_2", "bf16")))


def _index(kind: str, text: str) -> int:
    """The index of one of several devices. Raises DeviceError for one that does not exist."""
    count = device_count(kind)
    if not (text.isascii() and text.isdigit()) or int(text) >= count:
        known = ", ".join([kind, *(f"{kind}:{i}" for i in range(count))])
        raise DeviceError(f"this machine has no device {kind}:{text}; it has {known}")
    return int(text)


def _free_host_memory(root: Path = Path("/")) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        free = int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):  # not Linux
        return None
    group = root / "sys/fs/cgroup"
    try:
        limit = int((group / "memory.max").read_text())
        usage = int((group / "memory.current").read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Pages of files that nobody has used lately are given up before the limit is reached.
        return max(0, min(free, limit - usage + int(counts["inactive_file"])))
    except (OSError, KeyError, ValueError):  # no control group, or "max": no limit
        return free


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

    def read_all(
        self, make: Callable[[], Sequence[Tensor]], after: Moment | None = None
    ) -> list[list[Any]]:
        """The numbers of several tensors `[N]` of integers or float32, by one copy, for which it waits."""
        kinds: list[tuple[int, bool]] = []

        def packed() -> Tensor:
            """As integers: of the others their bits."""
            parts = make()
            kinds.extend((len(part), part.is_floating_point()) for part in parts)
            return torch.cat([p.view(torch.int32) if p.is_floating_point() else p for p in parts])

        numbers = self.read(packed, after).tensor().split([size for size, _ in kinds])
        return [
            (part.to(torch.int32).view(torch.float32) if real else part).tolist()
            for part, (_, real) in zip(numbers, kinds, strict=True)
        ]


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

    def __init__(self, device: Device) -> None:
        self.clock_s = time.perf_counter()
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
    # Those that may not have passed.
    _laps: list[tuple[str, Moment, Moment]] = field(default_factory=list)
    _total: dict[str, float] = field(default_factory=dict)
    _last: Moment | None = None

    def start(self) -> None:
        """Starts a lap; `mark` ends it and starts the next."""
        self._last = Moment(self.device)

    def mark(self, stage: str) -> None:
        now, before = Moment(self.device), self._last
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
    """Runs functions on a stream of its own, one after another."""

    device: Device
    _stream: Any = field(default=None, init=False)

    def run(self, work: Callable[[], T], meanwhile: Callable[[], bool] = lambda: False) -> T:
        """Returns what `work` returns, when the device has computed it. Until then `meanwhile` is called as
        long as it returns True: it may launch rounds. What `work` reads must be complete, or made by it."""
        if self.device.kind != "cuda":
            return work()
        with self.current():
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
    def current(self) -> Iterator[None]:
        """What the calling thread launches in a block runs on the stream of its own."""
        if self.device.kind != "cuda":
            yield
            return
        with self.device.guard():
            if self._stream is None:
                self._stream = torch.cuda.Stream()
                # The weights were written on the current stream.
                self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                yield


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Lets operators of the calling thread use at most `count` threads in a block. Does nothing where
    they use fewer, or where the number cannot be set."""
    before = torch.get_num_threads()
    if before <= count:
        yield
        return
    own = _set_threads(count, count)
    try:
        yield
    finally:
        _set_threads(before, own)


def keep_to_one_core() -> None:
    """Runs tensor operators of this thread on one core from here on.

    For threads other than an engine's. Each thread that runs operators in parallel keeps a team of
    OpenMP threads for its lifetime. Where the teams together outnumber the cores, libgomp threads of all
    teams sleep instead of spinning: an engine on two cores lost a sixth of its speed to waking them up.
    """
    _set_threads(1, 1)


def _set_threads(count: int, mkl: int) -> int:
    """Lets operators of the calling thread use `count` threads from here on, and those of MKL `mkl`, 0 for
    the same; returns what MKL's own setting was. Does nothing where the number cannot be set."""
    library = _library()
    if library is None:
        return 0
    torch.get_num_threads()  # torch sets the number at the thread's first operator: before, not after
    library.omp_set_num_threads(count)
    set_mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
    return 0 if set_mkl is None else int(set_mkl(mkl))


def trim() -> None:
    """Returns freed memory to the system, where the C library is glibc: it keeps what it has for small
    tensors, 90 MB after whisper-base was loaded."""
    give = getattr(_library(), "malloc_trim", None)
    if give is not None:
        give(0)


def release_memory() -> None:
    """Returns what models have held, and nothing refers to any more, to the system and the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim()


@cache
def _library() -> ctypes.CDLL | None:
    """torch's library of CPU operators, through which the OpenMP runtime that it uses is found; None
    where it has no such functions."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            library.omp_set_num_threads.argtypes = [ctypes.c_int]
            library.omp_set_num_threads.restype = None
            return library
    return None
