"""The step that assigns speakers to a job's words and stores the result.

Does not know how words were decoded, nor retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from forescribe.asr.formats.transcript import Transcript

from ...speech.serving import NAME
from ..job_form import JobForm
from .active_jobs import ActiveJobs
from .job_files import JobFiles
from .step_control import RunReplaced

if TYPE_CHECKING:
    from forescribe.diarize.speakers.known_speakers import KnownSpeaker


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
        from forescribe.asr.audio.reading import open_audio
        from forescribe.diarize.blocks import diarize_blocks, split_into_blocks
        from forescribe.diarize.diarizer import Bounds
        from forescribe.diarize.transcripts.diarizing_transcriber import add_speakers

        def check(step: str, done: float) -> None:
            self.active.check(job)

        samples = self.active.samples(job, self.files.audio)
        with (
            self.active.crashes.exposed(job, lambda: self.active.check(job)),
            open_audio(samples, name=NAME) as recording,
        ):
            diarization = diarize_blocks(
                self.serving.speakers,
                split_into_blocks(recording.blocks()),
                Bounds(exactly=num_speakers),
                check,
                sample_count=transcript.sample_count,
            )
        return add_speakers(transcript, diarization, self._known_speakers(form))

    def _known_speakers(self, form: JobForm) -> Sequence[KnownSpeaker]:
        if not form.known_speaker_names:
            return ()
        names, references = form.known_speaker_names, form.known_speaker_references
        return asyncio.run(self.serving.speakers.enrol(names, references))
