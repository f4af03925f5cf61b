"""The steps that turn a job's audio into a transcript without speakers: prepare, group, assemble.

Each can be repeated: results are stored under their hash, and the rows say what exists already. Does not
know HTTP or retries.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...settings import Settings
from ...speech.serving import NAME
from ...telemetry.tracing import PLACE
from ..job_form import transcription
from ..storage.database import Tx
from .active_jobs import ActiveJobs
from .decoded_groups import DecodedGroups
from .job_files import JobFiles
from .step_control import RunReplaced

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options
    from forescribe.asr.segment.cut_plan import Plan
    from forescribe.asr.sessions.planned import Group


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
        group = self._groups(job).wait_for(k)
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
        self.serving.tracing.record_phases(groups.phases, PLACE.get())
        self.active.crashes.withdraw(job)
        assert outcome.transcript is not None
        name = self.files.save(job, run, "spoken", outcome.transcript.to_dict())
        self.serving.metrics.ended(outcome)
        return name

    def _new_plan(self, job: str) -> Plan:
        from forescribe.asr.audio.reading import open_audio
        from forescribe.asr.segment.cut_plan import plan_of

        session, options = self.active.session(), self._options(job)
        samples = self.active.samples(job, self.files.audio)
        with (
            self.active.crashes.exposed(job, lambda: self.active.check(job)),
            open_audio(samples, name=NAME) as recording,
        ):
            # Hours of silence are read in one go: look after each block whether the job goes on.
            recording.tap = lambda samples: self.active.check(job)
            detector = session.context.voice_detector()
            return plan_of(recording, detector, options.windows, skip_silence=options.vad)

    def _options(self, job: str) -> Options:
        return transcription(self.files.form(job), self.serving, self.settings)

    def _groups(self, job: str) -> DecodedGroups:
        """The groups as they are decoded; if this process has none, decoding continues after the stored
        ones."""
        groups = self.active.groups(job)
        if groups is None:
            self.active.samples(job, self.files.audio)  # decoded before its turn comes
            self.active.crashes.expose(job, lambda: self.active.check(job))
            groups = self._submit(job)
            self.active.check(job)  # it may have been abandoned before there was anything to cancel
        return groups

    def _submit(self, job: str) -> DecodedGroups:
        from forescribe.asr.sessions.planned import planned

        session, groups = self.active.session(), DecodedGroups()
        submission = planned(
            session.context,
            self.active.samples(job, self.files.audio),
            self._options(job),
            groups,
            plan=self.files.plan(job),
            kept=self.files.groups(job),
            grouped=groups.grouped,
            arrived_s=session.clock(),
            name=NAME,
        )
        groups.phases = self.serving.tracing.phases()
        self.active.set_groups(job, groups)
        groups.submit(session, submission)
        return groups

    def _log_group(self, tx: Tx, job: str, group: Group, name: str) -> None:
        last = self.store.log.last_segment(tx, job) if group.k else None
        first = 0 if last is None else last["first"] + last["count"]
        entry = {"k": group.k, "first": first, "count": len(group.segments), "blob": name}
        self.store.log.append(tx, job, "segment", entry)
