"""Ending: announced before anything is refused; a model that cannot be loaded ends the process."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn

from forescribe.api.process import LASTING, PASSING, Failure
from forescribe.api.server import Server
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.errors import CapacityError, ModelError, UsageError
from forescribe.speculative.errors import BrokenError, DeviceError
from tests.api.conftest import FORM, TRANSCRIBE, Halves, sound, until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def server(decoders, announce_s: float) -> tuple[Server, Serving, Clock, list[int]]:
    """Not started; its serving seems ready."""
    clock, died = Clock(), list[int]()
    settings = Settings(announce_s=announce_s, drain_s=0.0)
    serving = Serving(settings, Halves, Halves, decoders)
    serving.life.state = "ready"
    made = Server(uvicorn.Config(app=lambda: None), serving, clock, died.append)
    return made, serving, clock, died


def tick(made: Server) -> bool:
    """Whether the loop is to end."""
    return asyncio.run(made.on_tick(1))


# -- signals ---------------------------------------------------------------------------------------


def test_a_signal_is_announced_first_and_obeyed_when_the_announcement_is_over(decoders) -> None:
    made, serving, clock, died = server(decoders, announce_s=30.0)
    made.handle_exit(signal.SIGTERM, None)
    assert serving.life.state == "draining" and serving.life.open and not serving.life.leaving
    clock.now = 29.9
    assert not tick(made)
    clock.now = 30.0
    assert tick(made) and not died
    assert made._captured_signals == [signal.SIGTERM]  # its status, at the end, is the signal's


def test_a_second_signal_ends_the_process_at_once(decoders) -> None:
    made, _, _, died = server(decoders, announce_s=30.0)
    made.handle_exit(signal.SIGTERM, None)
    made.handle_exit(signal.SIGTERM, None)
    assert died == [signal.SIGTERM]


def test_work_is_let_in_while_the_end_is_announced_and_then_refused(service) -> None:
    client = service(announce_s=60.0, drain_s=20.0)
    serving, told = client.app.state.serving, []
    serving.life.closing.append(lambda: told.append("closing"))
    assert serving.life.announce() == 60.0
    refused = client.get("/ready")
    assert refused.status_code == 503 and "draining" in refused.json()["error"]["message"]
    answer = client.post(TRANSCRIBE, files={"file": sound(1)}, data=FORM)
    assert answer.status_code == 200
    assert not told
    serving.life.drain()  # as the announcement's timer does
    until(lambda: told == ["closing"])
    refused = client.post(TRANSCRIBE, files={"file": sound(1)}, data=FORM)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "not_ready"


# -- loads -----------------------------------------------------------------------------------------


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def hub(name: str) -> Exception:
    import huggingface_hub.errors as errors

    made: Exception = getattr(errors, name).__new__(getattr(errors, name))
    return made


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (ModelError("no such folder"), True),
        (UsageError("language tlh is none"), True),
        (DeviceError("there is no cuda here"), True),
        (caused(ModelError("damaged"), ValueError("its weights lack x")), True),
        (caused(ModelError("not there"), OSError("no file named config.json")), True),
        (caused(ModelError("private"), hub("RepositoryNotFoundError")), True),
        (CapacityError("no room for the weights"), False),
        (caused(ModelError("not loaded"), MemoryError()), False),
        (caused(ModelError("no hub"), hub("LocalEntryNotFoundError")), False),
        (caused(ModelError("cut off"), ConnectionError()), False),
        (caused(ModelError("full"), OSError(errno.ENOSPC, "No space left")), False),
        (RuntimeError("CUDA error: unspecified launch failure"), False),
        (caused(BrokenError("the device cuda has failed"), RuntimeError("a launch")), False),
    ],
)
def test_whether_another_start_can_help(error, lasting) -> None:
    failure = Failure.of("the speech model", error)
    assert failure.lasting == lasting and failure.status == (LASTING if lasting else PASSING)
    assert failure.line.count("\n") == 0 and ("will not help" in failure.line) == lasting


def test_a_failed_load_ends_a_real_process_with_its_status_and_one_line() -> None:
    code = """
from forescribe.asr.errors import CapacityError
from forescribe.api.speech.serving import Serving
from forescribe.api.settings import Settings
from forescribe.api.workers import bound, run
class Decoders:
    def start(self): pass
    def close(self): pass
def load(): raise CapacityError('no room for it')
Serving.of = lambda settings: Serving(settings, load, load, Decoders())
settings = Settings(port=0, jobs=False)
run(settings, bound(settings))
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == PASSING, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("forescribe: ")]
    assert len(lines) == 1 and "the speech model" in lines[0], done.stderr
    assert "Traceback" not in done.stderr
