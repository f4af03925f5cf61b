"""The end of a command's process: nothing that was written or registered is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import atexit, sys, threading, types
from forescribe.__main__ import leave
sys.modules["torch"] = types.ModuleType("torch")
atexit.register(print, "registered")
print("written")
"""


@pytest.mark.parametrize(
    ("end", "status", "lines"),
    [
        ("leave(3); print('later')", 3, ["written", "registered"]),
        (
            "t = threading.Timer(0.2, print, ['thread']); t.start(); leave(3); print('later')",
            0,
            ["written", "later", "thread", "registered"],
        ),
        (
            "del sys.modules['torch']; leave(3); print('later')",
            0,
            ["written", "later", "registered"],
        ),
    ],
    ids=["at once", "a thread at work", "without torch"],
)
def test_what_was_written_and_registered_is_there(end, status, lines) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + end], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (status, lines, "")
