"""Decoding of untrusted recordings in child processes with limits.

    decoders = Decoders()
    decoded = decoders.decode(file, Bounds(max_s=3600), name="upload")
    with open_audio(decoded) as recording: ...

The child writes the samples to their file directly: nothing is copied through this process, and a
long recording is never in memory as a whole. Of a recording that it cuts, it tells each window as soon as it
is certain. `asr.audio.fork_server` is the other process.

Pools of processes (pebble, concurrent.futures) pass no descriptors to a child that runs, limit neither its
memory nor its CPU time, and unpickle what it answers, which a hostile recording could then choose.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, BinaryIO, cast, get_args

from ..errors import AudioError, CapacityError, Code, clipped, one_line, temporary_errors
from ..formats.transcript_parts import Notice, merged
from ..segment.cut_plan import span_of
from ..segment.windows import WindowSpan
from .fork_server import REPLY_BYTES, REPLY_BYTES_PER_S, Bounds, Cutting
from .inputs import WIDTH, DecodedFile
from .opening import write_all

TRIES = 2
"""A decoder that dies is started once more: the machine may have been short of memory."""

KILLED = -signal.SIGKILL
"""The exit status of a child that was killed from outside; it cannot end like this by itself."""

GRACE_S = 120.0
"""Time for the fork server to load, and to report that a child's time is up."""

CLOSE_S = 0.1
"""Time for the fork server to end by itself."""

UNCOVERED = "the decoder reported windows that do not cover its samples"

REPEATED = "short_audio"
"""A notice that reading the decoded samples produces again."""

Send = Callable[[bytes, list[int]], None]
Ask = Callable[[Send], dict[str, Any]]
Told = Callable[[BinaryIO, WindowSpan], None]
"""Is told of a window whose samples are in this file now."""


class Decoders:
    """Client of the fork server, which starts with the first recording or with `start`.

    `at_once` recordings given to `submit` are decoded at a time. Samples are kept in unnamed files where
    temporary files go. Thread-safe.
    """

    def __init__(self, at_once: int = 2) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="decoder")
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lasting: list[_Lasting] = []  # those that wait for a recording

    @property
    def loaded(self) -> bool:
        """Whether the decoders are loaded, which begins when this is asked."""
        poll = select.poll()
        with self._lock:
            poll.register(self._connected(), select.POLLIN)
        return bool(poll.poll(0))

    def start(self) -> None:
        """Start loading the decoders in the background."""
        with self._lock:
            self._connected()

    def submit(self, source: BinaryIO | bytes, bounds: Bounds, *, name: str) -> Future[DecodedFile]:
        """Queue `decode`. The caller has to close the decoded file."""
        return self._pool.submit(self.decode, source, bounds, name=name)

    def decode(
        self,
        source: BinaryIO | bytes,
        bounds: Bounds,
        *,
        name: str,
        cutting: Cutting | None = None,
        told: Told | None = None,
        trusted: bool = False,
    ) -> DecodedFile:
        """Decode a recording and wait for its samples and, with `cutting`, for its windows. `told` hears of
        these before, and from the first one again where a child has died. The source stays open. What is
        `trusted` shares a child with others, after whose death it has one of its own.

        Raises AudioError: what `open_audio` and reading raise; `invalid_audio` also where the decoder
        crashes, hangs or exceeds its bounds; `internal_error` where it cannot be started. Raises
        OutputError `storage_full`. Raises CapacityError where the decoder was killed from outside, as
        when the machine is short of memory, and once closed.
        """
        if isinstance(source, bytes):
            with ExitStack() as held:
                with temporary_errors():
                    file = cast(BinaryIO, held.enter_context(tempfile.TemporaryFile(buffering=0)))
                    write_all(file, source)
                return self.decode(file, bounds, name=name, cutting=cutting, told=told)
        source.flush()
        ends: list[int | None] = []
        for _ in range(TRIES):
            with temporary_errors():
                samples = cast(BinaryIO, tempfile.TemporaryFile())
            windows = None if cutting is None else _Windows(samples, told)
            try:
                message = bounds.request(name, cutting)
                shared = None if ends or not trusted else bounds.request(None, cutting)
                ask = partial(_ask, (source, samples), message, bounds, windows)
                reply = self._request(ask, shared)
                if "error" in reply:
                    with temporary_errors():
                        raise _error(*reply["error"])
                if "samples" in reply:
                    return _decoded(name, samples, reply, windows)
                late, status = reply["late"], reply["exit"]
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                samples.close()  # a hostile file may have taken the child over
                raise AudioError(f"{name}: its decoder gave no valid answer") from error
            except BaseException:
                samples.close()
                raise
            samples.close()
            if late:
                raise AudioError(f"{name}: not decoded within {bounds.wall_s:g} s")
            ends.append(status)
        if self._closed:
            raise CapacityError("the decoders are stopped")
        if None in ends:  # the fork server has ended, or does not answer
            raise AudioError(f"{name}: the decoders do not answer", code="internal_error")
        if KILLED in ends:
            raise CapacityError(
                f"{name}: its decoder was killed {ends.count(KILLED)} times; try again"
            )
        codes = " and ".join(map(str, ends))
        raise AudioError(f"{name}: no audio that can be decoded (its decoder ended with {codes})")

    def close(self) -> None:
        """End the fork server and all of its children; what waits for one fails."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            self._end()
        self._pool.shutdown()

    def _request(self, ask: Ask, shared: bytes | None) -> dict[str, Any]:
        """What `ask` returns, of a child for one recording or, where there is a request for one, for many."""
        if shared is None:
            return ask(self._send)
        with self._lock:
            child = self._lasting.pop() if self._lasting else None
        child, goes_on = child or _Lasting(partial(self._send, shared)), False
        try:
            result = ask(child.send)
            goes_on = "samples" in result and child.left > 1
            if not result.keys() & {"samples", "error"}:
                for line in _lines(child.end, GRACE_S, REPLY_BYTES):
                    result |= json.loads(line) | {"late": False}  # its time was not one recording's
            return result
        finally:
            child.left -= 1
            with self._lock:
                if goes_on and not self._closed:
                    self._lasting.append(child)
                else:
                    child.close()

    def _send(self, message: bytes, files: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._connected(), [message], files)
            except OSError:  # the server was killed from outside, most likely for lack of memory
                self._end()
                socket.send_fds(self._connected(), [message], files)

    def _end(self) -> None:
        while self._lasting:
            self._lasting.pop().close()
        if self._control is not None and self._process is not None:
            self._control.close()  # makes the server kill its children and end
            try:
                self._process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:  # it is still loading
                self._process.kill()
                self._process.wait()
        self._control = self._process = None

    def _connected(self) -> socket.socket:
        """The socket of the fork server, which is started if necessary."""
        if self._closed:
            raise CapacityError("the decoders are stopped")
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                "from forescribe.asr.audio.fork_server import serve; serve(0)"
            )
            one_thread = {
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
            }
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **one_thread},
                    start_new_session=True,  # an interrupt at the terminal must not reach it
                )
            self._control = ours
        return self._control


def _ask(
    files: Sequence[BinaryIO], message: bytes, bounds: Bounds, windows: _Windows | None, send: Send
) -> dict[str, Any]:
    """Have a recording decoded: its file, and that of the samples. Returns the child's reply and how it
    ended, `exit` None where that is unknown. Raises ValueError for a reply that is too long or not JSON, and
    what `windows` raises."""
    ours, theirs = os.pipe()
    with open(ours, "rb") as reply:
        # Reopened, so that the child can neither write to it nor move our position in it.
        with open(theirs, "wb") as end, open(f"/dev/fd/{files[0].fileno()}", "rb") as own:
            send(message, [own.fileno(), files[1].fileno(), end.fileno()])
        result: dict[str, Any] = {"exit": None, "late": False}
        most_bytes = REPLY_BYTES + round(REPLY_BYTES_PER_S * bounds.max_s)
        for line in _lines(reply, bounds.wall_s + GRACE_S, most_bytes):
            said = json.loads(line)
            if isinstance(said, list) and windows is not None:
                windows.add(said)
            else:
                result |= said
        return result


class _Lasting:
    """A child that takes recordings one after the other, `left` of them. `begin` sends its request; `end`
    tells of its exit, and the child is killed where that is closed."""

    left = 200

    def __init__(self, begin: Callable[[list[int]], None]) -> None:
        self.control, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours, theirs = os.pipe()
        self.end, end = open(ours, "rb"), open(theirs, "wb")
        try:
            with requests, end:
                begin([requests.fileno(), requests.fileno(), end.fileno()])
        except BaseException:
            self.close()
            raise

    def send(self, message: bytes, files: list[int]) -> None:
        with suppress(OSError):  # it has died
            socket.send_fds(self.control, [message], files)

    def close(self) -> None:
        self.control.close()
        self.end.close()


def _decoded(
    name: str, samples: BinaryIO, reply: dict[str, Any], windows: _Windows | None
) -> DecodedFile:
    """What a child has decoded. Raises AudioError, and what a reply of another form raises: a compromised
    child may report anything."""
    notices = tuple(n for n in map(_notice, reply["notices"]) if n.code != REPEATED)
    count = reply["samples"]
    if type(count) is not int or os.stat(samples.fileno()).st_size != count * WIDTH:
        raise AudioError("the decoder wrote a different number of samples than it reported")
    if windows is not None and windows.end != count:
        raise AudioError(UNCOVERED)
    spans = None if windows is None else tuple(windows.spans)
    return DecodedFile(name, samples, count, merged(notices), spans)


def _lines(reply: BinaryIO, wait_s: float, most_bytes: int) -> Iterator[bytes]:
    """The lines of a reply, as they come. Raises ValueError for more than `most_bytes`. The server kills the
    child once the caller closes the reply."""
    poll, rest, end_s = select.poll(), b"", time.monotonic() + wait_s
    poll.register(reply, select.POLLIN)
    while poll.poll(max(0.0, end_s - time.monotonic()) * 1000):
        piece = os.read(reply.fileno(), 1 << 16)
        if not piece:
            break
        most_bytes -= len(piece)
        if most_bytes < 0:
            raise ValueError("a reply that is too long")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _notice(fields: Sequence[Any]) -> Notice:
    code, message, count, places = fields
    if not isinstance(code, str) or not isinstance(message, str) or count < 1:
        raise TypeError("a notice without code, message or count")
    return Notice(
        clipped(one_line(code), 100), one_line(message), int(count), tuple(map(float, places))
    )


class _Windows:
    """The windows of a reply, which must partition the samples."""

    def __init__(self, samples: BinaryIO, told: Told | None) -> None:
        self._samples, self._told = samples, told
        self.end = 0  # samples that they cover
        self.spans: list[WindowSpan] = []

    def add(self, values: Sequence[Any]) -> None:
        """The next window. Raises AudioError where it does not follow the last one."""
        span = span_of(values)
        if span.start != self.end or span.end <= span.start:
            raise AudioError(UNCOVERED)
        self.end = span.end
        self.spans.append(span)
        if self._told is not None:
            self._told(self._samples, span)


def _error(code: Code, message: str) -> AudioError | OSError:
    """What a child has reported; an OSError where its samples could not be written."""
    if code not in get_args(Code):
        raise ValueError("an unknown code")
    if code == "storage_full":
        return OSError(errno.ENOSPC, one_line(message))
    return AudioError(message, code=code)
