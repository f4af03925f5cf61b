"""Recordings decoded apart: in a child process with limits, so that a file may be hostile.

    decoders = Decoders()
    spool = decoders.decode(file, Bounds(max_s=3600), name="upload")
    with open_audio(spool) as recording: ...

The child writes the samples to their file directly: nothing is copied through this process, and a
long recording is never in memory whole. `asr.audio.fork_server` is the other side.
"""

from __future__ import annotations

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
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, cast

from ..errors import AudioError, CapacityError, Code, ForescribeError, OutputError
from ..formats.transcript import Notice
from .decoded_file import WIDTH, DecodedFile
from .fork_server import Bounds

TRIES = 2
"""A decoder that dies is tried once more: the machine may have been short of memory."""

KILLED = -signal.SIGKILL
"""How a child ends that somebody has killed: nothing that it does itself ends it so."""

GRACE_S = 120.0
"""For the zygote to load, and to say that a child's time is up; beyond it, it does not answer."""

LAST_S = 3.0
"""For the zygote to end by itself."""

REPEATED = "short_audio"
"""A notice that whoever reads the samples finds again by itself."""


class Decoders:
    """The zygote, as seen from here; started with the first recording, or before by `start`.

    `at_once` recordings of `submit` are decoded at a time. All may be called from any thread.
    """

    def __init__(self, at_once: int = 2) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="decoder")
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Loads the decoders, beside whatever the caller does next."""
        with self._lock:
            self._started()

    def submit(self, source: BinaryIO | bytes, bounds: Bounds, *, name: str) -> Future[DecodedFile]:
        """`decode`, when its turn comes. The spool is the caller's, who may not be there any more."""
        return self._pool.submit(self.decode, source, bounds, name=name)

    def decode(self, source: BinaryIO | bytes, bounds: Bounds, *, name: str) -> DecodedFile:
        """All samples of a recording; waits for them. The source stays open.

        Raises AudioError: what `open_audio` and reading raise; `invalid_audio` too where the decoder
        dies of the recording, hangs or takes more than its bounds; `internal_error` where it cannot be
        started. OutputError `storage_full`. CapacityError where it was killed from outside (the machine is
        short of memory: no fault of the recording's), and once closed.
        """
        if isinstance(source, bytes):
            with tempfile.TemporaryFile() as file:
                file.write(source)
                file.flush()
                return self.decode(cast(BinaryIO, file), bounds, name=name)
        source.flush()
        ends: list[int | None] = []
        for _ in range(TRIES):
            spool = cast(BinaryIO, tempfile.TemporaryFile())
            try:
                words = self._asked(source, spool, bounds, name)
                if "error" in words:
                    raise _error(*words["error"])
                if "samples" in words:
                    notices = tuple(Notice(*n) for n in words["notices"] if n[0] != REPEATED)
                    return DecodedFile(name, spool, _counted(spool, words["samples"]), notices)
            except BaseException:
                spool.close()
                raise
            spool.close()
            if words["late"]:
                raise AudioError(f"{name}: not decoded within {bounds.wall_s:g} s")
            ends.append(words["exit"])
        if self._closed:
            raise CapacityError("the decoders are stopped")
        if None in ends:  # the zygote itself is gone, or does not answer
            raise AudioError(f"{name}: the decoders do not answer", code="internal_error")
        if KILLED in ends:
            raise CapacityError(
                f"{name}: its decoder was killed {ends.count(KILLED)} times; try again"
            )
        told = " and ".join(map(str, ends))
        raise AudioError(f"{name}: no audio that can be decoded (its decoder ended with {told})")

    def close(self) -> None:
        """Ends the zygote and all of its children; what waits for one fails."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            self._end()
        self._pool.shutdown()

    def _asked(
        self, source: BinaryIO, spool: BinaryIO, bounds: Bounds, name: str
    ) -> dict[str, Any]:
        """What the child said, and how it ended."""
        ours, theirs = os.pipe()
        with open(ours, "rb") as reply:
            try:
                # Opened anew, so that the child can neither write to it nor move our place in it.
                readable = os.open(f"/dev/fd/{source.fileno()}", os.O_RDONLY)
                try:
                    self._send(bounds.request(name), [readable, spool.fileno(), theirs])
                finally:
                    os.close(readable)
            finally:
                os.close(theirs)
            return _heard(reply, bounds.wall_s + GRACE_S)

    def _send(self, message: bytes, files: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._started(), [message], files)
            except OSError:  # it is gone: killed from outside, most likely for want of memory
                self._end()
                socket.send_fds(self._started(), [message], files)

    def _end(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()  # tells it to kill its children and end
            try:
                self._process.wait(LAST_S)
            except subprocess.TimeoutExpired:  # it is still loading
                self._process.kill()
                self._process.wait()
        self._control = self._process = None

    def _started(self) -> socket.socket:
        if self._closed:
            raise CapacityError("the decoders are stopped")
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                "from forescribe.asr.audio.fork_server import serve; serve(0)"
            )
            one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **one},
                    start_new_session=True,  # an interrupt at the terminal is for the service
                )
            self._control = ours
        return self._control


def _heard(reply: BinaryIO, wait_s: float) -> dict[str, Any]:
    """The lines of a reply as one. `exit` is None where nobody could say how the child ended."""
    poll, data, end_s = select.poll(), b"", time.monotonic() + wait_s
    poll.register(reply, select.POLLIN)
    while poll.poll(max(0.0, end_s - time.monotonic()) * 1000):
        piece = os.read(reply.fileno(), 1 << 16)
        if not piece:
            break
        data += piece
    words: dict[str, Any] = {"exit": None, "late": False}
    for line in data.splitlines():
        words |= json.loads(line)
    return words


def _counted(spool: BinaryIO, samples: int) -> int:
    """A child that was taken over may say anything; the file is what it is."""
    if os.fstat(spool.fileno()).st_size != samples * WIDTH:
        raise AudioError("the decoder's samples are not as many as it says")
    return samples


def _error(code: Code, message: str) -> ForescribeError:
    kind = OutputError if code == "storage_full" else AudioError
    return kind(message, code=code)
