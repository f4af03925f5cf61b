"""What tests run in children, which find it by name. Imports little: each child does so again."""

from __future__ import annotations

import os
import signal
import time

from forescribe.asr.child_process import Begin
from forescribe.asr.errors import AudioError


def product(begin: Begin, left: int, right: int) -> tuple[int, int]:
    begin()
    return left * right, os.getpid()


def fail(begin: Begin, kind: str) -> None:
    if kind == "ours":
        raise AudioError("a.mp3: too short", code="audio_too_long")
    raise ZeroDivisionError("by nothing")


def die(begin: Begin, number: int, begins: bool) -> None:
    if begins:
        begin()
    os.kill(os.getpid(), number)
    os._exit(3)


def write(begin: Begin, descriptor: int) -> int:
    return os.write(descriptor, b"written")


def wait(begin: Begin, descriptor: int) -> None:
    os.write(descriptor, f"{os.getpid()}\n".encode())
    time.sleep(600)


def ends(begin: Begin, given: object, how: str) -> str:
    if how == "before it begins":
        os.kill(os.getpid(), signal.SIGKILL)
    begin()
    if how == "over its work":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "never":
        time.sleep(600)
    return how


def dies(begin: Begin, *given: object) -> None:
    ends(begin, None, "over its work")


def tells(begin: Begin, *told: str) -> None:
    """Says each, and dies of `death`."""
    for each in told:
        begin(each)
        if each == "death":
            os.kill(os.getpid(), signal.SIGKILL)
