"""Fork server: a process that has the audio decoders loaded and forks one child per recording.

    python -c "from forescribe.asr.audio.fork_server import serve; serve(0)"

Descriptor 0 is a socket, see `asr.audio.sandbox`.

A decoder that a hostile file crashes or takes over runs in a child: in a process session of its own,
with limits on memory, CPU time, files and the size of what it writes, and with nothing open but the
recording, the file for its samples, and the pipe for its reply. Two recordings share nothing. Loading
takes seconds, a fork milliseconds; this process has one thread, so that forking it is safe. It ends when
its client ends, and the kernel kills its children when it ends, so no decoder outlives its client.

A request is one message with three files attached: recording, samples, reply. The reply consists of
lines of JSON: where the recording is to be cut, a list for each window, once its samples are in the file;
then the child's (`samples` and `notices`, or `error`) and the server's (`exit`). When a client closes a
reply, that child is killed; when it closes the socket, all of them are.

A person's own recordings may share a child, as a fork and the first use of each library cost what ten seconds
of audio do: a request without a name has a socket in place of the recording, over which requests come up to
the first that fails. Once the server is loaded, it closes its direction of its socket.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from queue import Queue
from threading import Thread
from typing import BinaryIO

from ..errors import AudioError, ForescribeError, OutputError, clipped
from ..formats.transcript_parts import SAMPLE_RATE
from ..segment.cutter import cut
from ..segment.vad import Detector, SileroDetector
from ..segment.windows import WindowOptions
from .inputs import WIDTH
from .opening import write_all
from .reading import Samples, open_audio

MESSAGE = 1 << 16
"""The maximum size of a request in bytes."""

NAME_LENGTH = 1000
"""The most characters of a recording's name in a request; it is for messages."""

REPLY_BYTES = 1 << 20
REPLY_BYTES_PER_S = 500
"""The most bytes of a reply: for 32 notices of 1000 characters, and for each second of audio, for windows of
at least 0.1 s, which take 30 bytes each."""

FILES = 64
"""The maximum number of descriptors of a child; it needs six, and one for each module loaded late."""

BLOCKS_AHEAD = 4
"""Blocks of 30 s that wait in a child, 8 MB."""

CPU_GRACE_S = 5
"""Time for a child that has used up its CPU time to end by itself."""

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

DEMUXERS = "wav,w64,aiff,au,caf,flac,ogg,mp3,aac,mov,mp4,m4a,3gp,matroska,webm,amr,amrnb,amrwb,mpeg,asf,avi"
"""Fewer than the command reads, because each is code that untrusted bytes reach. No playlists, concat
scripts or transport streams."""


@dataclass(frozen=True)
class Bounds:
    """Limits for decoding one recording."""

    max_s: float = 4 * 3600.0  # of decoded audio
    wall_s: float = 600.0
    cpu_s: int = 600
    memory_bytes: int = 1 << 30  # in addition to that of the loaded decoders
    demuxers: str = DEMUXERS

    def request(self, name: str | None, cutting: Cutting | None = None) -> bytes:
        cut_by = None if cutting is None else asdict(cutting)
        short = name and clipped(name, NAME_LENGTH)  # a message cut off would end the server
        return json.dumps({"name": short, "cutting": cut_by, **asdict(self)}).encode()


@dataclass(frozen=True)
class Cutting:
    """How to cut a recording into windows while it is decoded: as `asr.segment.windows.cut` does."""

    vad: bool = True
    options: WindowOptions = field(default_factory=WindowOptions)


@dataclass(frozen=True)
class _Child:
    pid: int
    end_s: float


class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, _Child] = {}  # by the reply's descriptor
        self.detector: SileroDetector | None = None  # loaded with the first recording to be cut
        self.poll = select.poll()
        self.woken, waker = os.pipe()
        for end in (self.woken, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.poll.register(control.fileno(), select.POLLIN)
        self.poll.register(self.woken, select.POLLIN)

    def run(self) -> None:
        self.control.shutdown(socket.SHUT_WR)  # all is loaded
        while True:
            ends = [child.end_s for child in self.children.values()]
            wait_ms = max(0.0, min(ends) - time.monotonic()) * 1000 + 1 if ends else None
            for descriptor, _ in self.poll.poll(wait_ms):
                if descriptor == self.woken:
                    with suppress(BlockingIOError):
                        os.read(self.woken, 4096)
                elif descriptor == self.control.fileno():
                    if not self._accept():
                        return
                elif descriptor in self.children:  # the client has closed the reply
                    self._kill(descriptor)
            for descriptor, child in list(self.children.items()):
                if time.monotonic() > child.end_s:
                    self._kill(descriptor)
            self._reap()

    def _accept(self) -> bool:
        """Fork a child for the next request; False once the client has closed the socket."""
        message, files, _, _ = socket.recv_fds(self.control, MESSAGE, 3)
        if not message:
            for descriptor in list(self.children):
                self._kill(descriptor)
            return False
        name, bounds, _ = self._understood(message)
        source, samples, reply = files
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _die_with(parent)
            self._become_child(None if name is None else message, bounds, files)
        os.close(source)
        os.close(samples)
        self.children[reply] = _Child(pid, time.monotonic() + bounds.wall_s)
        self.poll.register(reply, 0)  # reports only that its reader has closed it
        return True

    def _understood(self, message: bytes) -> tuple[str | None, Bounds, Cutting | None]:
        request = json.loads(message)
        name, cut_by = request.pop("name"), request.pop("cutting")
        cutting = cut_by and Cutting(cut_by["vad"], WindowOptions(**cut_by["options"]))
        if cutting is not None and self.detector is None:
            self.detector = SileroDetector()  # once, for all children
        return name, Bounds(**request), cutting

    def _become_child(self, message: bytes | None, bounds: Bounds, files: list[int]) -> None:
        """Decode the recording, or those that are asked for in its place, and exit."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2 and descriptor not in files:
                    with suppress(OSError):
                        os.close(descriptor)
            _bound(bounds)
            if message is not None:
                self._answer(message, files)
                return
            requests = socket.socket(fileno=files[0])
            while (received := socket.recv_fds(requests, MESSAGE, 3))[0]:
                if not self._answer(*received[:2]):
                    return
                for descriptor in received[1]:
                    os.close(descriptor)
        finally:
            os._exit(0)

    def _answer(self, message: bytes, files: list[int]) -> bool:
        """Decode a recording. False where that fails: a thread may still decode, so nothing is closed."""
        name, bounds, cutting = self._understood(message)
        source, samples, reply = files
        pipe = open(reply, "w", buffering=1, closefd=False)  # each window is told at once
        file = open(source, "rb", closefd=False)
        output = open(samples, "wb", buffering=0, closefd=False)
        line: object = None
        for line in _decode(str(name), bounds, cutting, self.detector, file, output):
            print(json.dumps(line), file=pipe)
        return isinstance(line, dict) and "samples" in line

    def _kill(self, descriptor: int) -> None:
        """Kill a child, which has not been reaped yet, so that no other process has its id."""
        pid = self.children[descriptor].pid
        with suppress(ProcessLookupError, PermissionError):  # it may not have its own session yet
            os.killpg(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for descriptor, child in list(self.children.items()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            late = time.monotonic() > child.end_s
            status_line = {"exit": os.waitstatus_to_exitcode(status), "late": late}
            with suppress(OSError):  # the client has closed the reply
                os.write(descriptor, json.dumps(status_line).encode() + b"\n")
            self.poll.unregister(descriptor)
            del self.children[descriptor]
            os.close(descriptor)


def _die_with(parent: int) -> None:
    """End this process when its parent ends. The kernel sends the signal when the parent's *thread*
    ends; the server has only one."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it had ended before
        os._exit(0)


def _bound(bounds: Bounds) -> None:
    with open("/proc/self/statm") as file:
        loaded = int(file.read().split()[0]) * resource.getpagesize()
    written = round((bounds.max_s + 60) * SAMPLE_RATE) * WIDTH
    for kind, value in (
        (resource.RLIMIT_AS, loaded + bounds.memory_bytes),
        (resource.RLIMIT_FSIZE, written),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    # The soft limit sends SIGXCPU. The hard one sends SIGKILL, as the machine does when memory is short.
    resource.setrlimit(resource.RLIMIT_CPU, (bounds.cpu_s, bounds.cpu_s + CPU_GRACE_S))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, this process is killed first


def _decode(
    name: str,
    bounds: Bounds,
    cutting: Cutting | None,
    detector: Detector | None,
    file: BinaryIO,
    output: BinaryIO,
) -> Iterator[object]:
    """Write the samples and yield the lines of the child's reply. Whatever a decoder raises is an error of
    the recording; lack of room for its samples is not."""

    def written(blocks: Iterator[Samples]) -> Iterator[Samples]:
        for block in blocks:
            try:
                write_all(output, block)
            except OSError as error:
                raise OutputError(str(error.strerror), code="storage_full") from error
            yield block

    try:
        recording = open_audio(file, max_s=bounds.max_s, name=name, demuxers=bounds.demuxers)
        blocks = written(_ahead(recording.blocks()))
        if cutting is None:
            for _ in blocks:
                pass
        else:
            assert detector is not None
            for window in cut(blocks, detector, cutting.options, skip_silence=cutting.vad):
                yield window.span
        notices = [astuple(notice) for notice in recording.warnings]
        yield {"samples": recording.sample_count, "notices": notices}
    except Exception as error:
        refused = _refusal(name, bounds, error)
        yield {"error": [refused.code, refused.message]}


def _ahead(blocks: Iterator[Samples]) -> Iterator[Samples]:
    """The blocks, decoded and resampled in a thread beside what is done with them: voice activity takes as
    long, and neither holds Python's lock for much of it."""
    queue: Queue[Samples | BaseException | None] = Queue(BLOCKS_AHEAD)

    def read() -> None:
        try:
            for block in blocks:
                queue.put(block)
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    Thread(target=read, daemon=True).start()
    while (block := queue.get()) is not None:
        if isinstance(block, BaseException):
            raise block
        yield block


def _refusal(name: str, bounds: Bounds, error: Exception) -> ForescribeError:
    causes = (error, error.__cause__)  # the system says so too, as an OSError
    if any(isinstance(e, MemoryError) or getattr(e, "errno", 0) == errno.ENOMEM for e in causes):
        return AudioError(f"{name}: needs more than {bounds.memory_bytes >> 20} MiB to decode")
    if isinstance(error, ForescribeError):
        return error
    return AudioError(f"{name}: cannot be cut into windows ({type(error).__name__}: {error})")


def serve(descriptor: int) -> None:
    """Serve requests until the other end of the socket is closed."""
    import av
    import soundfile  # noqa: F401  # loaded once, here, for all children
    import soxr  # noqa: F401
    import torch

    av.logging.set_level(av.logging.PANIC)
    torch.set_num_threads(1)  # other threads would not survive a fork
    _ForkServer(socket.socket(fileno=descriptor)).run()
    os._exit(0)  # there is nothing to clean up, and torch takes seconds for it
