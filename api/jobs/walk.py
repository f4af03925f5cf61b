"""The walk of a job, from its audio to its result, and what happens when one of its steps fails.

    walk(run)        # the job has ended when it returns, unless the run was replaced or the process ends

Each step looks in the row for what exists already and stores what it makes as a file that the row names
(`JobFiles`), so a walk that was interrupted goes on from there, in whatever process. An error that may pass
is retried here; one that stays fails the job, with a code. Does not know HTTP or who claims jobs.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forescribe.asr.errors import AudioError, ForescribeError, StorageError
from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError
from ..settings import Settings
from ..speech.decoding import Decoding
from ..speech.serving import NAME, Serving
from ..telemetry import place
from .callbacks import JobMetrics
from .database import Tx
from .running import (
    POLL_S,
    Outages,
    Run,
    RunReplaced,
    Stopping,
    report_fault,
)
from .store import Store
from .submissions import JobForm, transcription
from .tables import Claim, Job

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.segment.cut_plan import Plan
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.known_speakers import KnownSpeaker


PAUSES_S: Sequence[float] = (0.5, 1.0, 2.0)
"""Pauses between the attempts of a step whose error may pass."""

TEMPORARY = frozenset({"internal_error", "overloaded", "unwritable_output", "storage_full"})
"""Codes of errors that may pass."""

T = TypeVar("T")


class Failed(Exception):
    """A step has failed for good."""

    def __init__(self, error: ApiError) -> None:
        self.error = error


class Walk:
    """Does the steps of jobs, each as often as its errors allow."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        files: JobFiles,
        outages: Outages,
        metrics: JobMetrics,
    ) -> None:
        self.settings, self.serving, self.files = settings, serving, files
        self.store, self.outages, self.metrics = files.store, outages, metrics
        self._retrying = threading.Lock()

    def __call__(self, run: Run) -> None:
        """The job from its audio to its result. Raises Stopping, RunReplaced."""
        with self.serving.idle.hold():
            try:
                if run.job.kind == "transcribe":
                    plan = self.attempt("plan", run, self.plan)
                    for k in range(len(plan.groups)):
                        self.attempt("group", run, partial(self.group, k=k), engine=True)
                    self.attempt("assemble", run, self.assemble)
                self.attempt("diarize", run, self.diarize)
                self.attempt("finish", run, self.finish)
            except Failed as failed:
                error = failed.error
                self.outages.insist(lambda: self.fail(run, error))
            finally:
                run.release()

    # -- the steps --------------------------------------------------------------------------------

    def plan(self, run: Run) -> Plan:
        """The plan of the groups of windows."""
        if "plan" not in run.job.files:
            self.samples(run)
            self.enter(run)
            self.save(run, "plan", self.new_plan(run).to_dict())
        return self.files.plan(run.job)

    def group(self, run: Run, k: int) -> None:
        """Store group `k` once it is decoded; if this process decodes nothing of the job yet, decoding goes
        on after the stored ones."""
        if f"group-{k}" in run.job.files:
            return
        group = self.groups(run).wait_for(k)
        done_s = self.files.plan(run.job).until_s(k)

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
        form, anew = self.files.form(run.job), run.job.kind == "diarize"
        if not anew and "result" in run.job.files:
            return
        spoken = self.files.transcript(run.job, "spoken")
        if anew or form.speakers:
            self.samples(run)
            self.enter(run)
            spoken = self.with_speakers(run, spoken, form)
        before = run.job.files.get("result")
        self.save_transcript(run, "result", spoken)
        if before is not None:
            with suppress(StorageError):  # otherwise it leaves with the job
                self.store.files.delete(run.id, before)

    def finish(self, run: Run) -> None:
        with self.store.transaction() as tx:
            job = self.files.held(tx, run.claim)
            self.store.jobs.set_progress(tx, run.id, job.total_s)
            ended = self.store.jobs.end(tx, run.id, "succeeded")
        self.metrics.ended(ended)

    def fail(self, run: Run, error: ApiError) -> None:
        with self.store.transaction() as tx:
            job = self.files.held(tx, run.claim)
            ended = self.store.jobs.fail(tx, job, error.code, error.message)
        self.metrics.ended(ended)

    def enter(self, run: Run) -> None:
        """From here on a death of the process is counted, until the job progresses or is given back: voice
        activity detection, the engine and the diarizer can take it down."""
        self.current(run, risk="alone" if run.alone else "beside")

    def current(self, run: Run, **values: Any) -> Job:
        """The job's row, in which some values are replaced."""
        with self.store.transaction() as tx:
            job = self.files.held(tx, run.claim)
            if values:
                self.store.jobs.update(tx, run.id, **values)
            return job

    def save(
        self,
        run: Run,
        role: str,
        data: Mapping[str, Any],
        also: Callable[[Tx, str], None] = lambda tx, name: None,
    ) -> None:
        """Store data as the file of a role. `also` is done in the same transaction, with its name."""

        def refer(tx: Tx, name: str) -> Job:
            job = self.files.held(tx, run.claim)
            self.store.jobs.update(tx, run.id, files={**job.files, role: name})
            self.store.jobs.forget_deaths(tx, run.id)
            also(tx, name)
            return self.files.held(tx, run.claim)

        run.job = self.files.save(run.id, role, json.dumps(data), refer)
        run.alone = False

    def save_transcript(self, run: Run, role: str, transcript: Transcript) -> None:
        """Its warnings are the job's."""
        data, update = transcript.to_dict(), self.store.jobs.update
        self.save(run, role, data, lambda tx, _: update(tx, run.id, warnings=data["warnings"]))

    # -- what they are made of --------------------------------------------------------------------

    def samples(self, run: Run) -> DecodedFile:
        """The decoded samples of a job, kept until `run.release`. Raises Stopping if there is no session."""
        if run.samples is None:
            run.session()  # decoding while a model is still loading would slow both
            with self.files.audio(run.job) as path, path.open("rb") as file:
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
        from forescribe.asr.decode.planned import planned

        session, phases = run.session(), self.serving.tracing.phases()
        decoding = Decoding(phases=phases)
        submission = planned(
            session.context,
            self.samples(run),
            self.options(run),
            decoding,
            plan=self.files.plan(run.job),
            kept=self.files.groups(run.job),
            grouped=decoding.grouped,
            arrived_s=session.clock(),
            name=NAME,
        )
        submission.time_phases(phases)
        session.enter(submission)
        decoding.queued(session, submission)
        return decoding

    def options(self, run: Run) -> Options:
        return transcription(self.files.form(run.job), self.serving, self.settings)

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
        """What the step returns. `engine`: it waits for the engine that all jobs share. Raises Failed,
        RunReplaced, Stopping."""
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
                if self.outages.caused(error):
                    report_fault(name, error)
                    self.outages.wait(run.check)
                    continue
                failure = _failure(name, error)
            if run.stopping.is_set() or self.serving.life.leaving:
                raise Stopping
            broken = self.serving.life.state in ("broken", "failed")  # the engine, not the job
            pause_s = POLL_S if broken else next(pauses, None)
            if pause_s is None or not (broken or failure.code in TEMPORARY):
                raise Failed(failure)
            run.pause(pause_s)
            retrying = True

    def rest(self, run: Run) -> None:
        """Hold nothing, and be at no risk, between two attempts."""
        run.release()
        with suppress(Exception):  # the database may be away
            self.current(run, risk=None)

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


def _failure(name: str, error: Exception) -> ApiError:
    """What a job says that fails with an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ForescribeError):
        return ApiError.of(error)
    report_fault(name, error)
    failure = ApiError("internal_error", "the server failed")
    failure.__cause__ = error
    return failure


def _checked(blocks: Iterator[Samples], check: Callable[[], None]) -> Iterator[Samples]:
    """The blocks, until `check` raises: hours of silence are read in one go."""
    for block in blocks:
        check()
        yield block


class JobFiles:
    """Reads and writes the files of jobs by their roles. Reading raises FileNotFoundError where there is none
    (any more).

        form = files.form(job)
        files.save(job.id, "plan", text, refer)
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- reading ----------------------------------------------------------------------------------

    def form(self, job: Job) -> JobForm:
        return JobForm.model_validate(self._role(job, "form"))

    @contextmanager
    def audio(self, job: Job) -> Iterator[Path]:
        """A local file with the audio, which exists for the block. Raises AudioError `missing_file` if it is
        not kept any more."""
        if "audio" not in job.files:
            raise AudioError("the job's audio is not kept any more", code="missing_file")
        with self.store.files.held(job.id, job.files["audio"]) as path:
            yield path

    def plan(self, job: Job) -> Plan:
        from forescribe.asr.segment.cut_plan import Plan

        return Plan.from_dict(self._role(job, "plan"))

    def groups(self, job: Job) -> list[Group]:
        """The decoded groups, in order."""
        from forescribe.asr.decode.planned import Group

        roles = takewhile(job.files.__contains__, (f"group-{k}" for k in count()))
        return [Group.from_dict(self._role(job, role)) for role in roles]

    def transcript(self, job: Job, role: str = "result") -> Transcript:
        return Transcript.from_dict(self._role(job, role))

    def json(self, job: str, name: str) -> Any:
        return json.loads(self.store.files.read(job, name))

    def _role(self, job: Job, role: str) -> Any:
        if role not in job.files:
            raise FileNotFoundError(f"the job has no {role}")
        return self.json(job.id, job.files[role])

    # -- writing ----------------------------------------------------------------------------------

    def save(self, id: str, role: str, text: str, refer: Callable[[Tx, str], T]) -> T:
        """Store a file, and have `refer` write its name into the job's row. If that raises, the file is
        deleted: the run may be over because the job is being erased."""
        name = self.store.files.put(id, role, text.encode())
        try:
            with self.store.transaction() as tx:
                return refer(tx, name)
        except BaseException:
            with suppress(Exception):  # the database may be away, and may have the name: it stays
                job = self.store.jobs.get(id)
                if job is None or name not in job.files.values():
                    self.store.files.delete(id, name)
            raise

    def drop(self, id: str, roles: re.Pattern[str]) -> None:
        """Delete the files of some roles, and their names."""
        with self.store.transaction() as tx:
            job = self.store.jobs.locked(tx, id)
            if job is None:
                return
            kept = {role: name for role, name in job.files.items() if not roles.fullmatch(role)}
            self.store.jobs.update(tx, id, files=kept)
        for name in set(job.files.values()) - set(kept.values()):
            self.store.files.delete(id, name)

    def held(self, tx: Tx, claim: Claim) -> Job:
        """The job, locked, which the claim may write to. Raises RunReplaced."""
        job = self.store.jobs.held(tx, claim)
        if job is None:
            raise RunReplaced
        return job
