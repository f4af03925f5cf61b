"""A model's thread: loads, waits for other loads, runs, and reports failures."""

from __future__ import annotations

import threading

import pytest

from forescribe.api.process.lifecycle import Lifecycle
from forescribe.api.process.models import Failure, ModelThread
from forescribe.api.settings import Settings
from forescribe.asr.errors import ModelError
from tests.api.conftest import until


class Model:
    """A model whose load waits for `go` and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go, self.ran, self.error = threading.Event(), threading.Event(), error
        self.failures: list[Failure] = []
        self.thread = ModelThread("a model", "m", self.load, self.run, self.failures.append)

    def load(self) -> str:
        self.go.wait(20)
        if self.error is not None:
            raise self.error
        return "weights"

    def run(self, model: str) -> None:
        assert model == "weights"
        self.ran.set()


def test_a_model_runs_only_after_the_other_load_has_ended() -> None:
    first, second = Model(), Model()
    first.thread.wait_for(second.thread)
    first.thread.start()
    first.go.set()
    assert first.thread.loaded.wait(20) and not first.ran.wait(0.3)
    second.thread.start()
    second.go.set()
    assert first.ran.wait(20) and second.ran.wait(20)
    first.thread.join()


def test_a_failed_load_is_reported_and_does_not_hold_up_the_other_model() -> None:
    first, second = Model(), Model(ModelError("no such model"))
    first.thread.wait_for(second.thread)
    for model in (first, second):
        model.go.set()
        model.thread.start()
    assert first.ran.wait(20)
    until(lambda: len(second.failures) == 1)
    assert "no such model" in second.failures[0].message and not second.ran.is_set()


def test_at_the_end_of_the_process_other_loads_are_not_waited_for() -> None:
    first, second = Model(), Model()
    first.thread.wait_for(second.thread)
    first.go.set()
    first.thread.start()
    assert first.thread.loaded.wait(20)
    first.thread.closed.set()
    assert first.ran.wait(20)


class Service(Lifecycle):
    def __init__(self, **given: float) -> None:
        super().__init__(Settings(**given))
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("state", ["loading", "ready"])
def test_draining_refuses_work_calls_each_callback_once_and_closes(state) -> None:
    service, called = Service(drain_s=0.05), []
    service.state = state
    service.ending.append(lambda: called.append("ending"))
    service.closing.append(lambda: called.append("closing"))
    service.drain()
    service.drain()
    assert not service.open and service.leaving and service.state == "draining"
    assert service.closed.wait(20)
    until(lambda: sorted(called) == ["closing", "ending"])


def test_after_the_announcement_work_is_admitted_until_draining_begins() -> None:
    service = Service(announce_s=0.3, drain_s=0)
    service.state = "ready"
    assert service.announce() == 0.3
    assert service.state == "draining" and service.open and not service.leaving
    until(lambda: service.leaving)
    assert service.closed.wait(20)


def test_an_announcement_before_the_model_is_ready_drains_at_once() -> None:
    service = Service(announce_s=60, drain_s=0)
    assert service.announce() == 0 and service.closed.wait(20)
