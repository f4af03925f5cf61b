"""What is done with a batch in each of its states: validate, submit lines, settle them, write the output.

Every step can be repeated: it reads from the rows what is left to do, and commits what it did. Does not know
threads or HTTP, nor which process works on which batch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO

from sqlalchemy.exc import IntegrityError

from forescribe.asr.formats.transcript import Transcript

from ..errors import ApiError
from ..files.file_store import Files
from ..files.stored_file import StoredFile, derived_id
from ..jobs.blob_storage.blob_store import BlobDraft
from ..jobs.job_form import shown
from ..jobs.service import Jobs
from ..jobs.storage.records import NewJob
from ..speech.answers import token_usage
from . import batch_output, line_form
from .batch_input import check, read
from .batch_metrics import BatchMetrics
from .batch_records import Batch, BatchState, LineError, LineRow, LineState
from .batch_table import BatchTable
from .line_audio import LineAudio, StoredAudio

INPUT = "input"
"""The role of the reference from a batch to the blob of its input, which outlives the client's file."""

FAULT = LineError("internal_error", "the server failed")

PAGE = 1000
"""Lines that are read from the database at a time."""


class BatchSteps:
    """The steps, over the jobs and files of one database. `leave` raises if the process is to end."""

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        table: BatchTable,
        audio: LineAudio,
        metrics: BatchMetrics,
        leave: Callable[[], None],
    ) -> None:
        self.jobs, self.files, self.table, self.audio = jobs, files, table, audio
        self.metrics, self.leave = metrics, leave
        self.settings, self.serving, self.store = jobs.settings, jobs.serving, jobs.store

    def validate(self, batch: Batch) -> None:
        """Read the input once: insert all its lines, or fail the batch with what is wrong."""
        with self._input(batch) as file:
            places, errors = check(file, batch.endpoint, self.settings.max_batch_lines)
        with self.store.transaction() as tx:
            if errors:
                self.table.fail(tx, batch.id, errors)
            elif self.table.enter(tx, batch.id, "in_progress", ("validating",)):
                lines = [LineRow(batch.id, k, at, length) for k, (at, length) in enumerate(places)]
                self.table.insert_lines(tx, lines)

    def settle(self, batch: Batch) -> None:
        """Record the lines whose jobs have ended."""
        for line, state, error in self.table.ended_jobs(batch.id):
            if state == "succeeded":
                self._end(line, None)
            elif state is None:
                self._end(line, LineError("job_not_found", "the job was deleted"))
            elif state == "cancelled":
                self._end(line, LineError("conflict", "the job was cancelled"))
            else:
                self._end(line, error or FAULT)

    def submit(self, batch: Batch, line: LineRow) -> None:
        """Create the line's job, or record why there is none. Raises ApiError if it has to wait: the
        server is full, or the key has reached a limit that passes."""
        try:
            if self.store.jobs.get(line.job) is None:
                self._create(batch, line)
        except ApiError as error:
            if error.status in (429, 503, 507) and error.code != "insufficient_quota":
                raise
            self._end(line, LineError(error.code, error.message, error.param))
            return
        with self.store.transaction() as tx:
            self.table.set_line(tx, line, "submitted")

    def drop(self, line: LineRow) -> None:
        """Give up on a line that fails for reasons that are not its client's."""
        self._end(line, FAULT)

    def expire(self, batch: Batch) -> None:
        """The completion window is over: end what is left."""
        self._cancel_jobs(batch)
        self.settle(batch)
        with self.store.transaction() as tx:
            if self.table.enter(tx, batch.id, "finalizing", ("in_progress",)):
                self.table.end_lines(tx, batch.id, "expired")

    def cancel(self, batch: Batch) -> None:
        """The client has cancelled: end what is left, and keep what was finished."""
        self._cancel_jobs(batch)
        with self.store.transaction() as tx:
            self.table.end_lines(tx, batch.id, "cancelled")
        self.finish(batch)

    def finish(self, batch: Batch) -> None:
        """Write the output of a batch whose lines have all ended, and end it. If the process dies before
        the rows are committed, the next one writes it again."""
        output, errors = self.store.blobs.draft(), self.store.blobs.draft()
        try:
            usage = self._write(batch, output, errors)
            for draft in (output, errors):
                draft.flush()
            counts = self.table.counts([batch.id])[batch.id]
            state: BatchState = "cancelled" if batch.state == "cancelling" else "completed"
            state = "expired" if counts.get("expired") else state
            # Another process that does the same may have been faster.
            with suppress(IntegrityError), self.store.blobs.shared_lock():
                blobs = {
                    role: draft.commit()
                    for role, draft in (("output", output), ("errors", errors))
                    if draft.size
                }
                with self.store.transaction() as tx:
                    ids = {role: derived_id(batch.id, role) for role in blobs}
                    ended = self.table.enter(
                        tx,
                        batch.id,
                        state,
                        (batch.state,),
                        output_file=ids.get("output"),
                        error_file=ids.get("errors"),
                        usage=json.dumps(usage),
                    )
                    if ended:
                        for role, draft in (("output", output), ("errors", errors)):
                            if role in blobs:
                                file = self._file(batch, ids[role], role, draft.size)
                                self.files.insert(tx, file, blobs[role])
        finally:
            output.discard()
            errors.discard()

    # -- parts ------------------------------------------------------------------------------------

    def _create(self, batch: Batch, line: LineRow) -> None:
        with self._input(batch) as file:
            request = line_form.parse(batch.endpoint, read(file, line.at, line.length).body)
        form = line_form.job_form(request, self.serving, self.settings)
        self.jobs.submissions.check_capacity(batch.owner, keyed=bool(batch.owner))
        with self.audio.of(request, batch.owner, self.leave) as recording:
            total_s = self._length_s(recording.audio)
            self.serving.admission.charge(batch.owner, total_s)
            options = {**shown(form), "batch": batch.id}
            fields = form.model_dump(mode="json")
            new = NewJob(line.job, batch.owner, recording.label, total_s, fields, options)
            try:
                self.jobs.submissions.submit(new, recording.audio)
            except Exception as error:
                self.serving.admission.give_back(batch.owner, total_s)
                faster = isinstance(error, IntegrityError)  # another process was
                if not faster or self.store.jobs.get(line.job) is None:
                    raise

    def _length_s(self, audio: StoredAudio) -> float:
        """Raises ApiError for audio that cannot be decoded or is too long."""
        audio.flush()
        try:
            with audio.path.open("rb") as file:
                samples = asyncio.run(self.serving.decoded(file))
        except FileNotFoundError as error:
            text = "the file has been deleted"
            raise ApiError("file_not_found", text, param="file") from error
        samples.close()
        return samples.duration_s

    def _write(self, batch: Batch, output: BlobDraft, errors: BlobDraft) -> tuple[int, int]:
        """Write all lines, and return the tokens read and written."""
        read_tokens = written_tokens = 0
        after = -1
        with self._input(batch) as file:
            while lines := self.table.lines(batch.id, limit=PAGE, after=after):
                for line in lines:
                    self.leave()
                    given = read(file, line.at, line.length)
                    transcript = self._transcript(batch, line)
                    if isinstance(transcript, LineRow):
                        errors.write(batch_output.failed(transcript, given.custom_id))
                        continue
                    request = line_form.parse(batch.endpoint, given.body)
                    usage = token_usage(transcript)
                    read_tokens += int(str(usage["input_tokens"]))
                    written_tokens += int(str(usage["output_tokens"]))
                    output.write(batch_output.succeeded(line, given.custom_id, request, transcript))
                after = lines[-1].k
        return read_tokens, written_tokens

    def _transcript(self, batch: Batch, line: LineRow) -> Transcript | LineRow:
        """The line's transcript; or the line itself if it has none, with the reason."""
        if line.state != "succeeded":
            return line
        try:
            return self.jobs.operations.transcript(line.job, batch.owner)
        except (ApiError, FileNotFoundError):  # the client has deleted the job in the meantime
            error = LineError("job_not_found", "the job was deleted")
            self.table.lose_line(line, error)
            return replace(line, state="failed", error=error)

    def _end(self, line: LineRow, error: LineError | None) -> None:
        state: LineState = "succeeded" if error is None else "failed"
        with self.store.transaction() as tx:
            ended = self.table.set_line(tx, line, state, error)
        if ended:
            self.metrics.ended(state)

    def _cancel_jobs(self, batch: Batch) -> None:
        for job in self.table.open_jobs(batch.id):
            self.leave()
            with suppress(ApiError):  # the client has deleted it
                self.jobs.operations.cancel(job, batch.owner)

    def _input(self, batch: Batch) -> BinaryIO:
        name = self.store.references.get(batch.id, INPUT)
        assert name is not None
        return self.store.blobs.local(name).open("rb")

    def _file(self, batch: Batch, id: str, role: str, size: int) -> StoredFile:
        kept_s = batch.output_kept_s or self.settings.file_retention_s
        now = max(self.store.now(), batch.created_at)  # the clock may have been set back
        name = f"{batch.id}_{'output' if role == 'output' else 'error'}.jsonl"
        return StoredFile(id, batch.owner, "batch_output", name, size, now, now + kept_s)
