"""A function in a process of its own, so that a crash of its work is an exception here.

    text = in_child(decode, "a.mp3")              # def decode(begin: Begin, name: str) -> str

For recordings over which processes have died: what kills the child ends nothing else, and tells which
recording did it. The child is a new interpreter, because threads and devices do not survive a fork. It ends
when this process ends, and where memory runs out the kernel takes it first. Import is light.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Protocol, TypeVar, cast

from .errors import ForescribeError

POLL_S = 0.1
"""Between two calls of `check`."""

T = TypeVar("T")


class Begin(Protocol):
    """Called by the function in the child when it has loaded what it needs, and its work begins; later calls
    tell more."""

    def __call__(self, told: Any = None, /) -> None: ...


class ChildDied(Exception):
    """The child has ended without a result: `begun` tells whether it had begun its work."""

    def __init__(self, status: int, *, begun: bool) -> None:
        how = f"signal {_signal_name(-status)}" if status < 0 else f"exit status {status}"
        super().__init__(f"it ended with {how}")
        self.status, self.begun = status, begun


def in_child(
    function: Callable[..., T],
    *args: Any,
    files: Sequence[int] = (),
    check: Callable[[], None] = lambda: None,
    heard: Callable[[Any], None] = lambda told: None,
) -> T:
    """What `function(begin, *args)` returns in a new process.

    The function is found there by its name; its arguments, its result and its errors are pickled. `files` are
    descriptors that stay open for it, under the same numbers. `check` is called all the time, and ends the
    child by raising; `heard` with what `begin` was called with.

    Raises what the function raises, as `portable` makes it, and ChildDied.
    """
    ours, theirs = Pipe()
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from forescribe.asr.child_process import _serve; _serve({theirs.fileno()})"
    )
    with ours:
        with theirs:
            child = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *files),
                start_new_session=True,  # an interrupt at the terminal must not reach it
            )
        begun = False
        try:
            ours.send((function, args))
            while True:
                check()
                if ours.poll(POLL_S):
                    kind, value = ours.recv()
                    if kind == "result":
                        return cast(T, value)
                    if kind == "error":
                        raise value
                    begun = True
                    heard(value)
        except (EOFError, ConnectionError) as error:
            raise ChildDied(child.wait(), begun=begun) from error
        finally:
            child.kill()
            child.wait()


def portable(error: Exception) -> Exception:
    """An error as it can be sent to another process: those of libraries, and some of ours, do not survive
    pickling."""
    from forescribe.speculative.errors import SpeculativeError

    if not isinstance(error, ForescribeError | SpeculativeError):
        return ForescribeError(f"a worker failed with {type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        code = error.code if isinstance(error, ForescribeError) else None
        return ForescribeError(str(error), code=code)
    return error


def _serve(descriptor: int) -> None:
    """The child: run the function that comes first, answer, and end. A supervisor's SIGTERM is for its
    parent, whose end it sees."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    connection = Connection(descriptor)
    try:
        function, args = connection.recv()
    except EOFError:  # the parent has ended already
        os._exit(1)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    try:
        begin = lambda told=None: connection.send(("begun", told))  # noqa: E731
        answer = "result", function(begin, *args)
    except Exception as error:
        answer = "error", portable(error)
    with suppress(ConnectionError):  # the parent has ended
        connection.send(answer)
    os._exit(0)  # without a teardown of models, and whatever threads are left


def _end_with_parent(connection: Connection[Any, Any]) -> None:
    with suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
