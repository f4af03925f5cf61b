"""The steps of the workflows by name, and what happens when one fails.

    steps("group", job, run, 3)          # the group's hash; None if the run has been replaced

Prepare, group and assemble turn a job's audio into a transcript without speakers; diarize assigns speakers
to its words and stores the result. Each can be repeated: what it makes is a blob with a reference
(`JobFiles`), stored under its hash, and the rows say what exists already. An error that may pass is retried
here; one that stays fails the job, with a code. An answer is never text. Does not know HTTP.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError
from ..settings import Settings
from ..telemetry import place as current_place
from .active import POLL_S, ActiveJobs, Outages, report_fault
from .completion import Completion
from .database import Tx
from .decoded_groups import DecodedGroups
from .store import Store
from .submissions import JobForm, transcription
from .suspects import (
    SuspectDied,
    find_speakers,
    group_alone,
    plan_alone,
    plan_recording,
    speakers_alone,
)
from .traces import JobTraces
from .workflows import RunReplaced, Stopping

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.planned import Group
    from forescribe.asr.segment.cut_plan import Plan
    from forescribe.diarize.known_speakers import KnownSpeaker


TRANSCRIPTS = frozenset({"spoken", "result"})
"""Roles of blobs that are transcripts: without speakers, and the result."""

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
        traces: JobTraces,
    ) -> None:
        self.active, self.completion, self.outages = active, completion, outages
        self.traces = traces
        self._steps: Mapping[str, Callable[..., Any]] = {
            "prepare": transcription.prepare,
            "group": transcription.group,
            "assemble": transcription.assemble,
            "diarize": diarization.diarize,
            "finish": self._finish,
        }
        self._retrying = threading.Lock()

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
            except SuspectDied as error:
                report_fault(step, error)
                failure, temporary = ApiError("internal_error", str(error)), not error.last
            except Exception as error:
                report_fault(step, error)
                failure, temporary = ApiError("internal_error", "the server failed"), True
                failure.__cause__ = error
            if not self._may_retry(job, pauses, temporary=temporary):
                return self._fail(job, run, failure)
            retrying = True

    def _attempt(self, step: str, job: str, run: int, *args: int, retrying: bool) -> Any:
        tracing, place = self.active.serving.tracing, self.traces.place(job)
        alone = self._one_at_a_time(job) if retrying and step in USES_ENGINE else nullcontext()
        with tracing.span(f"job {step}", parent=place, job=job, run=run), alone:
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


class TranscriptionSteps:
    """Planning, decoding and assembling, over the session that all requests share."""

    def __init__(self, settings: Settings, active: ActiveJobs, files: JobFiles) -> None:
        self.settings, self.active, self.files = settings, active, files
        self.serving, self.store = active.serving, files.store

    def prepare(self, job: str, run: int) -> int:
        """Plan the groups of windows, and return their number."""
        with self.store.transaction() as tx:
            if self.store.jobs.start(tx, job, run) is None:
                raise RunReplaced
        self.active.begin(job)
        if self.store.references.get(job, "plan") is not None:
            return len(self.files.plan(job).groups)
        plan = self._new_plan(job)
        self.files.save(job, run, "plan", plan.to_dict())
        return len(plan.groups)

    def group(self, job: str, run: int, k: int) -> str:
        """Store group `k` once it is decoded, and return its hash."""
        self.files.check_current(job, run)
        name = self.store.references.get(job, "group", k)
        if name is not None:
            return name
        group = self._decoded(job, k)
        done_s = self.files.plan(job).until_s(k)
        with self.files.new_blob(json.dumps(group.to_dict())) as name:
            with self.store.transaction() as tx:
                if self.store.jobs.current(tx, job, run) is None:
                    raise RunReplaced
                before = self.store.references.get_in(tx, job, "group", k)
                if before is None:
                    self.store.references.put(tx, job, "group", name, k)
                    self.store.jobs.set_progress(tx, job, done_s)
                    self._log_group(tx, job, group, name)
        self.active.crashes.progressed(job)
        if before not in (None, name):  # a process that was taken for dead was faster
            self.store.references.delete_unreferenced([name])
        return before or name

    def assemble(self, job: str, run: int) -> str:
        """Store the transcript without speakers, and return its hash."""
        self.files.check_current(job, run)
        name = self.store.references.get(job, "spoken")
        if name is not None:
            return name
        groups = self._groups(job)
        outcome = groups.outcome()
        self.serving.tracing.record_phases(groups.phases, current_place())
        self.active.crashes.withdraw(job)
        assert outcome.transcript is not None
        name = self.files.save(job, run, "spoken", outcome.transcript.to_dict())
        self.serving.metrics.ended(outcome)
        return name

    def _new_plan(self, job: str) -> Plan:
        session, options = self.active.session(), self._options(job)
        samples = self.active.samples(job, self.files.audio)
        check = partial(self.active.check, job)
        with self.active.crashes.exposed(job, check) as suspect:
            if suspect:
                return self.active.crashes.alone(job, check, plan_alone, samples, options)
            return plan_recording(samples, session.context.voice_detector(), options, check)

    def _options(self, job: str) -> Options:
        return transcription(self.files.form(job), self.serving, self.settings)

    def _decoded(self, job: str, k: int) -> Group:
        """Group `k`, which is not stored yet: of a suspect it is decoded in a child."""
        if self.active.groups(job) is None:
            self.active.samples(job, self.files.audio)  # decoded before its turn comes
            if self.active.crashes.expose(job, partial(self.active.check, job)):
                return self._group_alone(job, k)
        return self._groups(job).wait_for(k)

    def _groups(self, job: str) -> DecodedGroups:
        """The groups as they are decoded; if this process has none, decoding continues after the stored
        ones."""
        groups = self.active.groups(job)
        if groups is None:
            groups = self._submit(job)
            self.active.check(job)  # it may have been abandoned before there was anything to cancel
        return groups

    def _group_alone(self, job: str, k: int) -> Group:
        return self.active.crashes.alone(
            job,
            partial(self.active.check, job),
            group_alone,
            self.active.samples(job, self.files.audio),
            self.settings,
            self._options(job),
            self.files.plan(job),
            self.files.groups(job),
        )

    def _submit(self, job: str) -> DecodedGroups:
        groups = DecodedGroups(
            self.active.session(),
            self.active.samples(job, self.files.audio),
            self._options(job),
            self.files.plan(job),
            self.files.groups(job),
            self.serving.tracing.phases(),
        )
        self.active.set_groups(job, groups)
        groups.submit()
        return groups

    def _log_group(self, tx: Tx, job: str, group: Group, name: str) -> None:
        last = self.store.log.last_segment(tx, job) if group.k else None
        first = 0 if last is None else last["first"] + last["count"]
        entry = {"k": group.k, "first": first, "count": len(group.segments), "blob": name}
        self.store.log.append(tx, job, "segment", entry)


class DiarizationStep:
    """Diarization of a whole recording, with the serving's diarizer."""

    def __init__(self, active: ActiveJobs, files: JobFiles) -> None:
        self.active, self.files = active, files
        self.serving, self.store = active.serving, files.store

    def diarize(self, job: str, run: int) -> str:
        """Store the result, with speakers if they were requested, and return its hash."""
        with self.store.transaction() as tx:
            row = self.store.jobs.start(tx, job, run)
        if row is None:
            raise RunReplaced
        self.active.begin(job)
        form, spoken = self.files.form(job), self.files.name(job, "spoken")
        if row.kind == "transcribe" and not form.speakers:
            return self.files.refer(job, run, "result", spoken)
        num_speakers = cast(int | None, row.options.get("num_speakers"))
        transcript = self._with_speakers(job, self.files.transcript(spoken), form, num_speakers)
        before = self.store.references.get(job, "result")
        name = self.files.save(job, run, "result", transcript.to_dict())
        if before is not None and before != name:
            self.store.references.delete_unreferenced([before])
        return name

    def _with_speakers(
        self, job: str, transcript: Transcript, form: JobForm, num_speakers: int | None
    ) -> Transcript:
        from forescribe.diarize.speaker_finder import add_speakers

        samples, count = self.active.samples(job, self.files.audio), transcript.sample_count
        crashes, check = self.active.crashes, partial(self.active.check, job)
        with crashes.exposed(job, check) as suspect:
            if suspect:
                given = self.serving.settings, num_speakers, count
                diarization = crashes.alone(job, check, speakers_alone, samples, *given)
            else:
                speakers = self.serving.speakers
                diarization = find_speakers(samples, speakers, num_speakers, count, check)
        return add_speakers(transcript, diarization, self._known_speakers(form))

    def _known_speakers(self, form: JobForm) -> Sequence[KnownSpeaker]:
        if not form.known_speaker_names:
            return ()
        names, references = form.known_speaker_names, form.known_speaker_references
        return asyncio.run(self.serving.speakers.enrol(names, references))


class JobFiles:
    """Reads and writes the files of jobs: request, audio, plan, groups and transcripts, as blobs with
    references by role. Raises RunReplaced where a file was erased or the run is not current.

        form = files.form(job)
        name = files.save(job, run, "plan", plan.to_dict())
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- reading ----------------------------------------------------------------------------------

    def check_current(self, job: str, run: int) -> None:
        """Raises RunReplaced if the run is not the job's current one."""
        row = self.store.jobs.get(job)
        if row is None or row.run != run or row.ended:
            raise RunReplaced

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

    def save(self, job: str, run: int, role: str, data: Mapping[str, Any]) -> str:
        """Store data as the blob of a role, and return its name."""
        text = json.dumps(data)
        with self.new_blob(text) as name:
            return self.refer(job, run, role, name, data)

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
        self,
        job: str,
        run: int,
        role: str,
        name: str,
        data: Mapping[str, Any] | None = None,
    ) -> str:
        """Refer to a blob. `data` is its content, if it is new: a transcript's warnings go to the
        row."""
        with self.store.transaction() as tx:
            row = self.store.jobs.current(tx, job, run)
            if row is None:
                raise RunReplaced
            self.store.references.put(tx, job, role, name)
            self.store.crashes.clear(tx, job)
            if data is not None and role in TRANSCRIPTS:
                self.store.jobs.set_warnings(tx, job, data["warnings"])
        return name
