"""The walk of a job, from its audio to its result, and what happens when one of its steps fails.

    walk(run)        # the job has ended when it returns, unless the run was replaced or the process ends

Each step looks in the rows for what exists already and stores what it makes as a blob with a reference
(`JobFiles`), so a walk that was interrupted goes on from there, in whatever process. An error that may pass
is retried here; one that stays fails the job, with a code. Does not know HTTP or who claims jobs.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
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


TRANSCRIPTS = frozenset({"spoken", "result"})
"""Roles of blobs that are transcripts: without speakers, and the result."""

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
        if self.store.references.get(run.id, "plan") is None:
            self.samples(run)
            self.enter(run)
            plan = self.new_plan(run)
            self.files.save(run.claim, "plan", plan.to_dict())
            run.alone = run.entered = False
        return self.files.plan(run.id)

    def group(self, run: Run, k: int) -> None:
        """Store group `k` once it is decoded; if this process decodes nothing of the job yet, decoding goes
        on after the stored ones."""
        if self.store.references.get(run.id, "group", k) is not None:
            return
        group = self.groups(run).wait_for(k)
        done_s = self.files.plan(run.id).until_s(k)
        with self.files.new_blob(json.dumps(group.to_dict())) as name:
            with self.store.transaction() as tx:
                self.files.held(tx, run.claim)
                self.store.references.put(tx, run.id, "group", name, k)
                self.store.jobs.set_progress(tx, run.id, done_s)
                last = self.store.log.last_segment(tx, run.id) if k else None
                first = 0 if last is None else last["first"] + last["count"]
                entry = {"k": k, "first": first, "count": len(group.segments), "blob": name}
                self.store.log.append(tx, run.id, "segment", entry)
        run.alone = run.entered = False

    def assemble(self, run: Run) -> None:
        """Store the transcript without speakers."""
        if self.store.references.get(run.id, "spoken") is not None:
            return
        groups = self.groups(run)
        outcome = groups.outcome()
        self.serving.tracing.record_phases(groups.phases, place())
        assert outcome.transcript is not None
        self.files.save(run.claim, "spoken", outcome.transcript.to_dict())
        self.serving.metrics.ended(outcome)

    def diarize(self, run: Run) -> None:
        """Store the result: the transcript, with speakers if they were requested."""
        form, spoken = self.files.form(run.id), self.files.name(run.id, "spoken")
        if run.job.kind == "transcribe" and not form.speakers:
            self.files.refer(run.claim, "result", spoken)
            return
        if run.job.kind == "transcribe" and self.store.references.get(run.id, "result") is not None:
            return
        self.samples(run)
        self.enter(run)
        transcript = self.with_speakers(run, self.files.transcript(spoken), form)
        before = self.store.references.get(run.id, "result")
        name = self.files.save(run.claim, "result", transcript.to_dict())
        if before is not None and before != name:
            self.store.references.delete_unreferenced([before])

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
        """From here on a death of the process is charged to the job, until it progresses: voice activity
        detection, the engine and the diarizer can take it down."""
        if not run.entered:
            with self.store.transaction() as tx:
                self.files.held(tx, run.claim)
                self.store.jobs.enter(tx, run.id)
            run.entered = True

    # -- what they are made of --------------------------------------------------------------------

    def samples(self, run: Run) -> DecodedFile:
        """The decoded samples of a job, kept until `run.release`. Raises Stopping if there is no session."""
        if run.samples is None:
            run.session()  # decoding while a model is still loading would slow both
            with self.files.audio(run.id) as path, path.open("rb") as file:
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
            self.files.plan(run.id),
            self.files.groups(run.id),
            self.serving.tracing.phases(),
        )

    def options(self, run: Run) -> Options:
        return transcription(self.files.form(run.id), self.serving, self.settings)

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
                    run.release()
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
    """Reads and writes the files of jobs: request, audio, plan, groups and transcripts, as blobs with
    references by role. Raises RunReplaced where a file was erased or the claim does not hold any more.

        form = files.form(job)
        name = files.save(claim, "plan", plan.to_dict())
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- reading ----------------------------------------------------------------------------------

    def name(self, job: str, role: str) -> str:
        """The blob of a role that must exist."""
        name = self.store.references.get(job, role)
        if name is None:
            raise RunReplaced  # the job has been erased
        return name

    def form(self, job: str) -> JobForm:
        return JobForm.model_validate_json(self.store.blobs.read(self.name(job, "form")))

    @contextmanager
    def audio(self, job: str) -> Iterator[Path]:
        """A local file with the audio, which exists for the block. Raises AudioError `missing_file` if it is
        not kept any more."""
        name = self.store.references.get(job, "audio")
        if name is None:
            raise AudioError("the job's audio is not kept any more", code="missing_file")
        with self.store.blobs.held(name) as path:
            yield path

    def plan(self, job: str) -> Plan:
        from forescribe.asr.segment.cut_plan import Plan

        return Plan.from_dict(self._json(self.name(job, "plan")))

    def groups(self, job: str) -> list[Group]:
        """The decoded groups, in order."""
        from forescribe.asr.decode.planned import Group

        names = self.store.references.get_all(job, "group")
        return [Group.from_dict(self._json(name)) for name in names]

    def transcript(self, name: str) -> Transcript:
        return Transcript.from_dict(self._json(name))

    def _json(self, name: str) -> Any:
        return json.loads(self.store.blobs.read(name))

    # -- writing ----------------------------------------------------------------------------------

    def save(self, claim: Claim, role: str, data: Mapping[str, Any]) -> str:
        """Store data as the blob of a role, and return its name."""
        with self.new_blob(json.dumps(data)) as name:
            return self.refer(claim, role, name, data)

    @contextmanager
    def new_blob(self, text: str) -> Iterator[str]:
        """Store a blob, and have the block refer to it.

        If the block raises, the blob is deleted: the run may be over because the job is being erased.
        """
        name = None
        try:
            with self.store.blobs.shared_lock():
                name = self.store.blobs.put(text.encode())
                yield name
        except BaseException:
            if name is not None:
                self.store.references.delete_unreferenced([name])
            raise

    def refer(
        self, claim: Claim, role: str, name: str, data: Mapping[str, Any] | None = None
    ) -> str:
        """Refer to a blob. `data` is its content, if it is new: a transcript's warnings go to the row."""
        with self.store.transaction() as tx:
            self.held(tx, claim)
            self.store.references.put(tx, claim.job, role, name)
            self.store.jobs.progressed(tx, claim.job)
            if data is not None and role in TRANSCRIPTS:
                self.store.jobs.set_warnings(tx, claim.job, data["warnings"])
        return name

    def held(self, tx: Tx, claim: Claim) -> Job:
        """The job, locked, which the claim may write to."""
        job = self.store.jobs.held(tx, claim)
        if job is None:
            raise RunReplaced
        return job
