"""Compiling while a command runs, for the next one, and what its user is told of it.

Compiling takes 140 s of one core (g++ 12, all instruction sets): longer than most commands, so none waits. A
process of its own, with the lowest priority, goes on when the command has ended. Knows processes; nothing of
models.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from ...errors import LoadError
from .. import kernel_build
from ..kernel_build import HOW, compiling, failure_file, usable_folders
from ..library import missing
from .compiler import CompilerError, compiler

VARIABLE = "FORESCRIBE_COMPILE"
"""Environment variable: "never" starts no compiler, here and when a wheel is built."""
SLOWER = "the native kernels, several times faster on CPUs, are not used"


def advice(used: str, *, asked: str | None, device: str) -> str | None:
    """What to tell the user of a command that decodes with the engine `used`, where it is not the native one
    because this machine lacks the kernels; None where another engine was `asked` for, or the `device` is no
    CPU. Where there is a compiler, it is started."""
    if used == "native" or asked not in (None, "auto") or device != "cpu":
        return None
    problem = missing()
    if problem is None:  # the model has no native form
        return None
    if os.environ.get(VARIABLE) == "never":
        return f"{SLOWER}: {problem}"
    try:
        compiler()
        folder = next(usable_folders())
        failed = failure_file(folder)
        if failed.exists():
            reason = failed.read_text(errors="replace").strip()
            return f"{SLOWER}: {reason}. To try again: {HOW} --force"
        with compiling(folder, wait=False) as alone:
            pass
        if alone:
            _start()
    except CompilerError:
        return (
            f"{SLOWER}: there is no C++ compiler here. Install one (Debian, Ubuntu: apt-get install g++), or "
            "forescribe's wheel for this platform, which contains them"
        )
    except (LoadError, OSError) as error:
        return f"{SLOWER}: {error}"
    return (
        f"{SLOWER}: they are being compiled in the background, a few minutes, for the next command"
    )


def _start() -> None:
    process = subprocess.Popen(
        # -P, and another folder: nothing beside the user's recordings is imported.
        [sys.executable, "-P", "-m", kernel_build.__name__, "--background"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # an interrupt in the terminal is for the command
    )
    threading.Thread(
        target=process.wait, daemon=True
    ).start()  # no zombie in a process that lives long
