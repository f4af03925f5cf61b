"""Functions in a process of their own: results, errors, deaths, and who ends whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from forescribe.asr.child_process import ChildDied, in_child
from forescribe.asr.errors import AudioError, ForescribeError
from tests.asr.children import die, fail, product, wait


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_result_comes_from_another_process() -> None:
    value, pid = in_child(product, 6, 7)
    assert value == 42 and pid != os.getpid() and not alive(pid)


def test_errors_are_raised_here() -> None:
    with pytest.raises(AudioError, match="too short") as raised:
        in_child(fail, "ours")
    assert raised.value.code == "audio_too_long"
    with pytest.raises(ForescribeError, match="ZeroDivisionError: by nothing"):
        in_child(fail, "another's")


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_death_is_an_exception_that_tells_whether_the_work_had_begun(number, begins) -> None:
    with pytest.raises(ChildDied, match=number.name) as died:
        in_child(die, number, begins)
    assert died.value.begun == begins and died.value.status == -number


def test_the_signal_by_which_a_supervisor_ends_its_processes_does_not_end_it() -> None:
    with pytest.raises(ChildDied, match="exit status 3"):
        in_child(die, signal.SIGTERM, True)


def test_a_check_that_raises_ends_it() -> None:
    with tempfile.TemporaryFile() as file:

        def check() -> None:
            file.seek(0)
            if file.read():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            in_child(wait, file.fileno(), files=[file.fileno()], check=check)
        file.seek(0)
        assert not alive(int(file.read()))


def test_it_does_not_outlive_its_parent() -> None:
    program = (
        f"import os, sys; sys.path[:] = {sys.path!r}; "
        "from forescribe.asr.child_process import in_child; "
        "from tests.asr.children import wait; "
        "output = os.dup(1); in_child(wait, output, files=[output])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    end_s = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not alive(pid)
