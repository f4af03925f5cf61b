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

from forescribe.asr.errors import AudioError, ForescribeError
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
    decode_groups,
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
    from forescribe.asr.segment.vad import Detector
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.diarizer import Diarization, Diarizer
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
                self.outages.wait_for_storage(run, lambda: self.fail(run, error))
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
            self.store.jobs.set_risk(tx, run.id, "beside")  # the next group has begun
            last = self.store.log.last_segment(tx, run.id) if k else None
            first = 0 if last is None else last["first"] + last["count"]
            entry = {"k": k, "first": first, "count": len(group.segments), "file": name}
            self.store.log.append(tx, run.id, "segment", entry)

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
            self.store.files.delete(run.id, before)

    def finish(self, run: Run) -> None:
        with self.store.transaction() as tx:
            job = self.files.held(tx, run.claim)
            self.store.jobs.set_progress(tx, run.id, job.total_s)
            ended = self.store.jobs.end(tx, run.id, "succeeded")
        self.metrics.ended(ended)

    def fail(self, run: Run, error: ApiError) -> None:
        with self.store.transaction() as tx:
            job = self.store.jobs.held(tx, run.claim)
            ended = (
                None if job is None else self.store.jobs.fail(tx, job, error.code, error.message)
            )
        if ended is not None:
            self.metrics.ended(ended)

    def enter(self, run: Run) -> None:
        """From here on a death of the process is counted, until the job progresses or is given back: voice
        activity detection, the engine and the diarizer can take it down."""
        with self.store.transaction() as tx:
            self.files.held(tx, run.claim)
            self.store.jobs.set_risk(tx, run.id, "alone" if run.alone else "beside")

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
            self.store.jobs.set_files(tx, run.id, {**job.files, role: name})
            self.store.jobs.forget_deaths(tx, run.id)
            also(tx, name)
            return self.files.held(tx, run.claim)

        run.job = self.files.save(run.id, role, json.dumps(data), refer)
        run.alone = False

    def save_transcript(self, run: Run, role: str, transcript: Transcript) -> None:
        """Its warnings are the job's."""
        data = transcript.to_dict()
        warnings: Any = data["warnings"]
        self.save(run, role, data, lambda tx, _: self.store.jobs.set_warnings(tx, run.id, warnings))

    def rest(self, run: Run) -> None:
        """Hold nothing, and be at no risk, while storage is away."""
        run.release()
        with suppress(Exception):  # the database may be on the same disk
            with self.store.transaction() as tx:
                self.files.held(tx, run.claim)
                self.store.jobs.set_risk(tx, run.id, None)

    # -- what they are made of --------------------------------------------------------------------

    def samples(self, run: Run) -> DecodedFile:
        """The decoded samples of a job, kept until `run.release`. Raises Stopping if there is no session."""
        if run.samples is None:
            run.session()  # decoding while a model is still loading would slow both
            with self.files.audio(run.job) as path, path.open("rb") as file:
                run.samples = asyncio.run(self.serving.decoded(file))
        return run.samples

    def new_plan(self, run: Run) -> Plan:
        samples, session = self.samples(run), run.session()
        detector = session.context.voice_detector()
        return plan_recording(samples, detector, self.options(run), run.check)

    def groups(self, run: Run) -> Decoding:
        """The groups as they are decoded."""
        if run.groups is None:
            self.samples(run)
            self.enter(run)
            run.groups = self.submit(run)
            run.check()  # it may have been abandoned before there was anything to cancel
        return run.groups

    def submit(self, run: Run) -> Decoding:
        return decode_groups(
            run.session(),
            self.samples(run),
            self.options(run),
            self.files.plan(run.job),
            self.files.groups(run.job),
            self.serving.tracing.phases(),
        )

    def options(self, run: Run) -> Options:
        return transcription(self.files.form(run.job), self.serving, self.settings)

    def with_speakers(self, run: Run, transcript: Transcript, form: JobForm) -> Transcript:
        from forescribe.diarize.speaker_finder import add_speakers

        diarization = find_speakers(
            self.samples(run),
            self.serving.speakers,
            run.job.options.get("num_speakers"),
            transcript.sample_count,
            run.check,
        )
        return add_speakers(transcript, diarization, self._known_speakers(form))

    def _known_speakers(self, form: JobForm) -> Sequence[KnownSpeaker]:
        if not form.known_speaker_names:
            return ()
        names, references = form.known_speaker_names, form.known_speaker_references
        return asyncio.run(self.serving.speakers.enrol(names, references))

    # -- when one fails ---------------------------------------------------------------------------

    def attempt(self, name: str, run: Run, step: Callable[[Run], T], *, engine: bool = False) -> T:
        """What the step returns. `engine`: it waits for the engine that all jobs share. Raises Failed,
        RunReplaced, Stopping."""
        pauses, retrying = iter(PAUSES_S), False
        while True:
            run.check()
            tracing = self.serving.tracing
            alone = self._one_at_a_time(run) if retrying and engine else nullcontext()
            try:
                with (
                    tracing.span(f"job {name}", parent=run.job.trace, job=run.id, run=run.job.run),
                    alone,
                ):
                    return self.outages.wait_for_database(run, lambda: step(run))
            except ForescribeError as error:
                if self.outages.caused(error):
                    report_fault(name, error)
                    self.rest(run)
                    self.outages.wait_for_room(run.check)
                    continue
                failure, temporary = ApiError.of(error), error.code in TEMPORARY
            except ApiError as error:
                failure, temporary = error, error.code in TEMPORARY
            except Exception as error:
                report_fault(name, error)
                failure, temporary = ApiError("internal_error", "the server failed"), True
                failure.__cause__ = error
            if not self._may_retry(run, pauses, temporary=temporary):
                raise Failed(failure)
            retrying = True

    def _may_retry(self, run: Run, pauses: Iterator[float], *, temporary: bool) -> bool:
        """Release the job and wait for the next attempt; False if there is none. Raises Stopping."""
        run.release()
        if run.stopping.is_set() or self.serving.life.leaving:
            raise Stopping
        broken = self.serving.life.state in ("broken", "failed")  # the engine, not the job
        pause_s = POLL_S if broken else next(pauses, None)
        if pause_s is None or not (temporary or broken):
            return False
        run.pause(pause_s)
        return True

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


def plan_recording(
    samples: DecodedFile, detector: Detector, options: Options, check: Callable[[], None]
) -> Plan:
    """Cut a recording. `check` may end it by raising."""
    from forescribe.asr.audio.reading import open_audio
    from forescribe.asr.segment.cut_plan import plan_of

    def checked(blocks: Iterator[Samples]) -> Iterator[Samples]:
        for block in blocks:
            check()  # hours of silence are read in one go
            yield block

    with open_audio(samples, name=NAME) as recording:
        blocks = checked(recording.blocks())
        plan = plan_of(blocks, detector, options.windows, skip_silence=options.vad)
        return replace(plan, warnings=recording.warnings)


def find_speakers(
    samples: DecodedFile,
    diarizer: Diarizer,
    num_speakers: int | None,
    sample_count: int,
    check: Callable[[], None],
) -> Diarization:
    """Find the speakers of a recording, of which `sample_count` samples have a transcript."""
    from forescribe.asr.audio.reading import open_audio
    from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
    from forescribe.diarize.diarizer import Bounds

    with open_audio(samples, name=NAME) as recording:
        return diarize_blocks(
            diarizer,
            split_into_blocks(recording.blocks()),
            Bounds(exactly=num_speakers),
            lambda step, done: check(),
            sample_count=sample_count,
        )


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
            self.store.jobs.set_files(tx, id, kept)
        for name in set(job.files.values()) - set(kept.values()):
            self.store.files.delete(id, name)

    def held(self, tx: Tx, claim: Claim) -> Job:
        """The job, locked, which the claim may write to. Raises RunReplaced."""
        job = self.store.jobs.held(tx, claim)
        if job is None:
            raise RunReplaced
        return job
