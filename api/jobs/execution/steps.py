"""The steps of the workflows by name, and what happens when one fails.

    steps("group", job, run, 3)          # the group's hash; None if the run has been replaced

An error that may pass is retried here; one that stays fails the job, with a code. An answer is never text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from forescribe.asr.errors import ForescribeError

from ...errors import ApiError
from ...telemetry.job_traces import JobTraces
from ..engines.workflow_engine import Stopping
from .active_jobs import POLL_S, ActiveJobs
from .completion import Completion
from .diarization_step import DiarizationStep
from .outages import Outages, report_fault
from .step_control import MakeWay, RunReplaced
from .transcription_steps import TranscriptionSteps

PAUSES_S: Sequence[float] = (0.5, 1.0, 2.0)
"""Pauses between the attempts of a step whose error may pass."""

TEMPORARY = frozenset({"internal_error", "overloaded", "unwritable_output", "storage_full"})
"""Codes of errors that may pass."""

USES_ENGINE = frozenset({"group", "assemble"})
"""Steps that wait for the engine that all jobs share."""


class Steps:
    """Executes steps, each as often as its errors allow."""

    def __init__(
        self,
        active: ActiveJobs,
        transcription: TranscriptionSteps,
        diarization: DiarizationStep,
        completion: Completion,
        outages: Outages,
    ) -> None:
        self.active, self.completion, self.outages = active, completion, outages
        self._steps: Mapping[str, Callable[..., Any]] = {
            "prepare": transcription.prepare,
            "group": transcription.group,
            "assemble": transcription.assemble,
            "diarize": diarization.diarize,
            "finish": self._finish,
        }
        self._retrying = threading.Lock()
        self.traces: JobTraces | None = None

    def __call__(self, step: str, job: str, run: int, *args: int) -> Any:
        """The step's answer; None if the run has been replaced or has failed. Raises Stopping."""
        if step == "deliver":
            return self.outages.wait_for_storage(
                None, lambda: self.completion.deliver(job, run, *args)
            )
        pauses, retrying = iter(PAUSES_S), False
        while True:
            try:
                return self._attempt(step, job, run, *args, retrying=retrying)
            except RunReplaced:
                self.active.release(job)
                return None
            except MakeWay:
                self.active.release(job)
                continue
            except Stopping:
                self.active.release(job)
                raise
            except ForescribeError as error:
                if self.outages.caused(error):
                    if not self._wait_for_room(step, job, error):
                        return None
                    continue
                failure, temporary = ApiError.of(error), error.code in TEMPORARY
            except ApiError as error:
                failure, temporary = error, error.code in TEMPORARY
            except Exception as error:
                report_fault(step, error)
                failure, temporary = ApiError("internal_error", "the server failed"), True
                failure.__cause__ = error
            if not self._may_retry(job, pauses, temporary=temporary):
                return self._fail(job, run, failure)
            retrying = True

    def _attempt(self, step: str, job: str, run: int, *args: int, retrying: bool) -> Any:
        tracing = self.active.serving.tracing
        place = None if self.traces is None else self.traces.place(job)
        with tracing.span(f"job {step}", parent=place, job=job, run=run):
            return self._execute(step, job, run, *args, retrying=retrying)

    def _execute(self, step: str, job: str, run: int, *args: int, retrying: bool) -> Any:
        with self._one_at_a_time(job) if retrying and step in USES_ENGINE else nullcontext():
            return self.outages.wait_for_database(job, lambda: self._steps[step](job, run, *args))

    def _may_retry(self, job: str, pauses: Iterator[float], *, temporary: bool) -> bool:
        """Release the job and wait for the next attempt; False if there is none. Raises Stopping."""
        self.active.release(job)
        if self.active.stopping.is_set() or self.active.serving.leaving:
            raise Stopping
        broken = self.active.serving.state in ("broken", "failed")  # the engine, not the job
        pause_s = POLL_S if broken else next(pauses, None)
        if pause_s is None or not (temporary or broken):
            return False
        self.active.pause(pause_s)
        return True

    def _wait_for_room(self, step: str, job: str, error: ForescribeError) -> bool:
        """Wait for room on the disk, without keeping samples on it; False if the run was replaced."""
        report_fault(step, error)
        self.active.release(job)
        try:
            self.outages.wait_for_room(lambda: self.active.check(job))
        except RunReplaced:
            self.active.release(job)
            return False
        return True

    def _fail(self, job: str, run: int, error: ApiError) -> None:
        self.outages.wait_for_storage(job, lambda: self.completion.fail(job, run, error))

    def _finish(self, job: str, run: int) -> bool:
        self.completion.finish(job, run)
        self.active.release(job)
        return True

    @contextmanager
    def _one_at_a_time(self, job: str) -> Iterator[None]:
        """A fault of the engine ends everything in it. Jobs are retried one at a time, so that a job that
        causes the fault uses up its own attempts and not those of other jobs."""
        while not self._retrying.acquire(timeout=POLL_S):
            self.active.check(job)
        try:
            yield
        finally:
            self._retrying.release()
