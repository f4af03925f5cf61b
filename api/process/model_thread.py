"""A thread that loads one model and then runs it.

    thread = ModelThread("the speech model", "large", load, run, fail)
    thread.wait_for(other)             # does not run while another model is loading
    thread.start()

Does not know what the model does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .model_loads import Failure, Load, log_unexpected

POLL_S = 0.1

M = TypeVar("M")


class ModelThread(Generic[M]):
    """`run` is called with the loaded model and returns when it is stopped; `fail` is called with the
    reason if either raises. Both are called on the thread."""

    def __init__(
        self,
        what: str,
        name: str,
        load: Callable[[], M],
        run: Callable[[M], None],
        fail: Callable[[Failure], None],
    ) -> None:
        self.what, self.name = what, name
        self._load, self._run, self._fail = load, run, fail
        self.loaded = threading.Event()
        """Set once the load has ended, successfully or not."""
        self.closed = threading.Event()
        """Set when the process ends: other loads are not waited for any more."""
        self.others: list[threading.Event] = []
        self._thread = threading.Thread(target=self._main, name=what, daemon=True)

    def wait_for(self, other: ModelThread[Any]) -> None:
        """Begin to run only after another model's load has ended.

        transformers changes torch's default dtype for the whole process during a load.
        """
        self.others.append(other.loaded)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _main(self) -> None:
        try:
            model = Load(self.what, self.name).run(self._load)
            self.loaded.set()
            self._wait_for_others()
            self._run(model)
        except Exception as error:
            log_unexpected(error)
            self._fail(Failure.of(self.what, error))
        finally:
            self.loaded.set()

    def _wait_for_others(self) -> None:
        for other in self.others:
            while not (other.wait(POLL_S) or self.closed.is_set()):
                pass
