"""A model's thread: loads, waits for other loads, runs, and reports failures."""

from __future__ import annotations

import threading

from forescribe.api.process import Failure, ModelThread
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
