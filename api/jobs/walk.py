"""The walk of a job, from its audio to its result, and what happens when one of its steps fails.

Each step looks in the row for what exists already and stores what it makes as a file that the row names
(`Store.save`), so a walk that was interrupted goes on from there, in whatever process. An error that may pass
is retried here; one that stays fails the job, with a code. A database or object storage that is away and a
disk that is full are waited for: no job's fault, and no attempt of it. Does not know HTTP or who claims jobs.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import ForescribeError, StorageError
from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError
from ..settings import Settings
from ..speech.decoding import Decoding
from ..speech.serving import NAME, Serving
from ..telemetry import place, report_fault
from .callbacks import JobMetrics
from .database import Tx
from .store import Store
from .submissions import JobForm, transcription
from .tables import Claim, Job

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.driver import Session
    from forescribe.asr.decode.options import Options
    from forescribe.asr.segment.cut_plan import Plan
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.known_speakers import KnownSpeaker


PAUSES_S: Sequence[float] = (0.5, 1.0, 2.0)
"""Pauses between the attempts of a step whose error may pass."""

POLL_S = 0.1
"""How often a job that waits for the engine looks whether it goes on."""

RELEASE_S = 10.0
"""How long to wait for the engine's round and the reader's block in which a recording is cancelled."""

STORAGE = frozenset({"storage_full", "unwritable_output", "storage_denied"})
"""Codes of a disk that is full or read-only, of credentials that are not accepted, or not for one file."""
TEMPORARY = STORAGE | {"internal_error", "overloaded"}
"""Codes of errors that may pass."""

MIN_FREE_BYTES = 4 << 20
"""With less a disk counts as full, whatever the settings say."""

AWAY_S = 1.0
"""Seconds between checks of a database or a disk that is away."""

T = TypeVar("T")


class Stopping(BaseException):
    """The process is ending: the next one continues the job. No Exception, so that code which handles errors
    lets it pass."""


class RunReplaced(BaseException):
    """The run is not the job's current one, or another process has it: its results are dropped. No Exception
    either."""


class Run:
    """A job that this process works on. Only `abandon` is for other threads than the job's own."""

    def __init__(self, job: Job, claim: Claim, serving: Serving, stopping: threading.Event) -> None:
        self.job, self.claim = job, claim
        self.serving, self.stopping = serving, stopping
        self.alone = False
        """Whether this process has nothing else in hand, until the job progresses."""
        self.samples: DecodedFile | None = None
        self.groups: Decoding | None = None
        self._abandoned = False

    @property
    def id(self) -> str:
        return self.job.id

    def check(self) -> None:
        """Raises Stopping or RunReplaced if the job is not to be continued."""
        if self.stopping.is_set():
            raise Stopping
        if self._abandoned:
            raise RunReplaced

    def pause(self, seconds: float) -> None:
        """Raises as `check` does."""
        self.stopping.wait(seconds)
        self.check()

    def session(self) -> Session:
        """The session, once the model is loaded. If the engine is broken, waits for the end of the process,
        because the next one continues. Raises Stopping if there will be no session."""
        serving, life = self.serving, self.serving.life
        while life.state in ("loading", "broken", "failed") or (
            life.open and serving.session is None and serving.idle.unloaded
        ):
            serving.idle.want()
            self.pause(POLL_S)
        session = serving.session
        if not life.open or session is None:
            raise Stopping
        return session

    def release(self) -> None:
        """Free the job's slots in the session and its samples."""
        groups, self.groups = self.groups, None
        if groups is not None:
            groups.cancel(RunReplaced())
            groups.wait_until_released(RELEASE_S)
        samples, self.samples = self.samples, None
        if samples is not None:
            samples.close()

    def abandon(self, reason: type[BaseException] = RunReplaced) -> None:
        """End the work on the job, and free its slots before the engine's next round."""
        self._abandoned, groups = True, self.groups
        if groups is not None:
            groups.cancel(reason())


class Walk:
    """Does the steps of jobs, each as often as its errors allow."""

    def __init__(
        self, settings: Settings, serving: Serving, store: Store, metrics: JobMetrics
    ) -> None:
        self.settings, self.serving, self.store = settings, serving, store
        self.metrics = metrics
        self._retrying = threading.Lock()

    def __call__(self, run: Run) -> None:
        """Ends the job. Raises RunReplaced, Stopping, and what the database raises if it refuses the end."""
        with self.serving.idle.hold():
            try:
                if run.job.kind == "transcribe":
                    plan = self.attempt("plan", run, self.plan)
                    for k in range(len(plan.groups)):
                        self.attempt("group", run, partial(self.group, k=k), engine=True)
                    self.attempt("assemble", run, self.assemble)
                self.attempt("diarize", run, self.diarize)
                self.attempt("finish", run, self.finish)
            except ApiError as error:
                self.attempt("fail", run, partial(self.fail, error=error))
            finally:
                run.release()

    # -- the steps --------------------------------------------------------------------------------

    def plan(self, run: Run) -> Plan:
        """The plan of the groups of windows."""
        if "plan" not in run.job.files:
            self.samples(run)
            self.enter(run)
            self.save(run, "plan", self.new_plan(run).to_dict())
        return self.stored_plan(run)

    def group(self, run: Run, k: int) -> None:
        """Store group `k` once it is decoded; if this process decodes nothing of the job yet, decoding goes
        on after the stored ones."""
        if f"group-{k}" in run.job.files:
            return
        group = self.groups(run).wait_for(k)
        done_s = self.stored_plan(run).until_s(k)

        def log(tx: Tx, name: str) -> None:
            self.store.jobs.set_progress(tx, run.id, done_s)
            self.store.jobs.update(tx, run.id, risk="beside")  # the next group has begun
            self.store.jobs.add_segments(tx, run.id, k, len(group.segments), name)

        self.save(run, f"group-{k}", group.to_dict(), log)

    def assemble(self, run: Run) -> None:
        """Store the transcript without speakers."""
        if "spoken" in run.job.files:
            return
        groups = self.groups(run)
        outcome = groups.outcome()
        self.serving.tracing.record_phases(groups.phases, place())
        assert outcome.transcript is not None
        self.save_transcript(run, "spoken", outcome.transcript)
        self.serving.metrics.ended(outcome)

    def diarize(self, run: Run) -> None:
        """Store the result: the transcript, with speakers if they were requested."""
        form, anew = self.form(run), run.job.kind == "diarize"
        before = run.job.files.get("result")
        if before is not None and not anew:
            return
        transcript = Transcript.from_dict(self.store.read(run.job, "spoken"))
        if anew or form.speakers:
            self.samples(run)
            self.enter(run)
            transcript = self.with_speakers(run, transcript, form)
        self.save_transcript(run, "result", transcript)
        if before is not None:
            with suppress(StorageError):  # otherwise it leaves with the job
                self.store.files.delete(run.id, before)

    def finish(self, run: Run) -> None:
        with self.store.transaction() as tx:
            self.store.jobs.set_progress(tx, run.id, self.held(tx, run).total_s)
            ended = self.store.jobs.end(tx, run.id, "succeeded")
        self.metrics.ended(ended)

    def fail(self, run: Run, error: ApiError) -> None:
        with self.store.transaction() as tx:
            ended = self.store.jobs.fail(tx, self.held(tx, run), error.code, error.message)
        self.metrics.ended(ended)

    # -- its row and its files --------------------------------------------------------------------

    def held(self, tx: Tx, run: Run) -> Job:
        """The job, locked, which the run may write to. Raises RunReplaced."""
        job = self.store.jobs.held(tx, run.claim)
        if job is None:
            raise RunReplaced
        return job

    def current(self, run: Run, **values: Any) -> Job:
        """The job's row, in which some values are replaced."""
        with self.store.transaction() as tx:
            job = self.held(tx, run)
            if values:
                self.store.jobs.update(tx, run.id, **values)
            return job

    def enter(self, run: Run) -> None:
        """From here on a death of the process is counted, until the job progresses or is given back: voice
        activity detection, the engine and the diarizer can take it down."""
        self.current(run, risk="alone" if run.alone else "beside")

    def save(
        self,
        run: Run,
        role: str,
        data: Mapping[str, Any],
        also: Callable[[Tx, str], None] = lambda tx, name: None,
    ) -> None:
        """Store data as the file of a role. `also` is done in the same transaction, with its name."""

        def refer(tx: Tx, name: str) -> Job:
            job = self.held(tx, run)
            self.store.jobs.update(tx, run.id, files={**job.files, role: name})
            self.store.jobs.forget_deaths(tx, run.id)
            also(tx, name)
            return self.held(tx, run)

        run.job = self.store.save(run.id, role, json.dumps(data), refer)
        run.alone = False

    def save_transcript(self, run: Run, role: str, transcript: Transcript) -> None:
        """Its warnings are the job's."""
        data, update = transcript.to_dict(), self.store.jobs.update
        self.save(run, role, data, lambda tx, _: update(tx, run.id, warnings=data["warnings"]))

    def form(self, run: Run) -> JobForm:
        return JobForm.model_validate(self.store.read(run.job, "form"))

    def stored_plan(self, run: Run) -> Plan:
        from forescribe.asr.segment.cut_plan import Plan

        return Plan.from_dict(self.store.read(run.job, "plan"))

    # -- what the steps are made of ---------------------------------------------------------------

    def samples(self, run: Run) -> DecodedFile:
        """The decoded samples of a job, kept until `run.release`. Raises Stopping if there is no session."""
        if run.samples is None:
            run.session()  # decoding while a model is still loading would slow both
            with self.store.audio(run.job).open("rb") as file:
                run.samples = asyncio.run(self.serving.decoded(file))
        return run.samples

    def new_plan(self, run: Run) -> Plan:
        """Cut the recording."""
        from forescribe.asr.audio.reading import open_audio
        from forescribe.asr.segment.cut_plan import plan_of

        options, detector = self.options(run), run.session().context.voice_detector()
        with open_audio(self.samples(run), name=NAME) as recording:
            blocks = _checked(recording.blocks(), run.check)
            plan = plan_of(blocks, detector, options.windows, skip_silence=options.vad)
            return replace(plan, warnings=recording.warnings)

    def groups(self, run: Run) -> Decoding:
        """The groups as they are decoded."""
        if run.groups is None:
            self.samples(run)
            self.enter(run)
            run.groups = self.submit(run)
            run.check()  # it may have been abandoned before there was anything to cancel
        return run.groups

    def submit(self, run: Run) -> Decoding:
        """Queue the recording by its plan, after the groups that are kept. Raises CapacityError if the
        session is closed."""
        from forescribe.asr.decode.planned import Group, planned

        job, session, phases = run.job, run.session(), self.serving.tracing.phases()
        kept = takewhile(job.files.__contains__, (f"group-{k}" for k in count()))
        decoding = Decoding(phases=phases)
        submission = planned(
            session.context,
            self.samples(run),
            self.options(run),
            decoding,
            plan=self.stored_plan(run),
            kept=[Group.from_dict(self.store.read(job, role)) for role in kept],
            grouped=decoding.grouped,
            arrived_s=session.clock(),
            name=NAME,
        )
        submission.time_phases(phases)
        session.enter(submission)
        decoding.queued(session, submission)
        return decoding

    def options(self, run: Run) -> Options:
        return transcription(self.form(run), self.serving, self.settings)

    def with_speakers(self, run: Run, transcript: Transcript, form: JobForm) -> Transcript:
        from forescribe.asr.audio.reading import open_audio
        from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
        from forescribe.diarize.diarizer import Bounds
        from forescribe.diarize.speaker_finder import add_speakers

        speakers = self.serving.speakers
        known: list[KnownSpeaker] = []
        with open_audio(self.samples(run), name=NAME) as recording:
            diarization = diarize_blocks(
                speakers,
                split_into_blocks(recording.blocks()),
                Bounds(exactly=run.job.options.get("num_speakers")),
                lambda step, done: run.check(),
                sample_count=transcript.sample_count,
            )
        if form.known_speaker_names:
            names, references = form.known_speaker_names, form.known_speaker_references
            known = asyncio.run(speakers.enrol(names, references))
        return add_speakers(transcript, diarization, known)

    # -- when one fails ---------------------------------------------------------------------------

    def attempt(self, name: str, run: Run, step: Callable[[Run], T], *, engine: bool = False) -> T:
        """What the step returns. `engine`: it waits for the engine that all jobs share. Raises ApiError if it
        has failed for good, RunReplaced, Stopping."""
        pauses, retrying, again = iter(PAUSES_S), False, False
        while True:
            run.check()
            span, job = self.serving.tracing.span, run.job
            alone = self._one_at_a_time(run) if retrying and engine else nullcontext()
            try:
                with span(f"job {name}", parent=job.trace, job=job.id, run=job.run), alone:
                    if again:  # a commit whose answer was lost may have happened
                        run.job = self.current(run)
                    return step(run)
            except Exception as error:
                again = True
                self.rest(run)
                if self.outage(error):
                    report_job_fault(name, error)
                    run.pause(AWAY_S)
                    while not self.writable():
                        run.pause(AWAY_S)
                    continue
                failure = _failure(name, error)
            if run.stopping.is_set() or self.serving.life.leaving:
                raise Stopping
            broken = self.serving.life.state in ("broken", "failed")  # the engine, not the job
            pause_s = POLL_S if broken else next(pauses, None)
            if pause_s is None or not (broken or failure.code in TEMPORARY):
                raise failure
            run.pause(pause_s)
            retrying = True

    def rest(self, run: Run) -> None:
        """Hold nothing, and be at no risk, between two attempts."""
        run.release()
        with suppress(Exception):  # the database may be away
            self.current(run, risk=None)

    def outage(self, error: Exception) -> bool:
        """Whether a database or object storage is away or throttles, or a disk is full or read-only."""
        if isinstance(error, DBAPIError):
            return self.store.database.lost(error)
        code = error.code if isinstance(error, (ForescribeError, ApiError)) else None
        full = code in STORAGE and isinstance(error.__cause__, DBAPIError)
        away = full or code == "storage_unavailable"
        return away or (code in STORAGE and not self.writable())

    def writable(self) -> bool:
        minimum = max(self.settings.min_free_bytes, MIN_FREE_BYTES)
        return (
            self.store.files.free >= minimum
            and shutil.disk_usage(tempfile.gettempdir()).free >= MIN_FREE_BYTES
            and self.store.writable()
        )

    @contextmanager
    def _one_at_a_time(self, run: Run) -> Iterator[None]:
        """A fault of the engine ends everything in it. Jobs are retried one at a time, so that a job that
        causes the fault uses up its own attempts and not those of other jobs."""
        while not self._retrying.acquire(timeout=POLL_S):
            run.check()
        try:
            yield
        finally:
            self._retrying.release()


def report_job_fault(where: str, error: Exception) -> None:
    report_fault(error, "job_fault", **{"in": where})


def _failure(name: str, error: Exception) -> ApiError:
    """What a job says that fails with an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ForescribeError):
        return ApiError.of(error)
    report_job_fault(name, error)
    return ApiError("internal_error", "the server failed")


def _checked(blocks: Iterator[Samples], check: Callable[[], None]) -> Iterator[Samples]:
    """The blocks, until `check` raises: hours of silence are read in one go."""
    for block in blocks:
        check()
        yield block
