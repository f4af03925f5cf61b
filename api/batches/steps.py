"""What is done with a batch in each of its states: validate, submit lines, settle them, write the output.

Every step can be repeated: it reads from the rows what is left to do, and commits what it did. Does not know
threads or HTTP, nor which process works on which batch.

The input file has one JSON object per line, and is checked as a whole before anything is done:

    {"custom_id": "call-1", "method": "POST", "url": "/v1/audio/transcriptions",
     "body": {"model": "whisper-1", "file": "file-...", "response_format": "verbose_json"}}

What is wrong with a line's form fails the whole batch, as at OpenAI: a file that was cut off or made for
another endpoint is a mistake that concerns all of it. What is wrong with its body (a field, the
recording) fails that line alone, later.

A line about audio becomes a job, one about text is answered by the text model (`text_lines`).

The output is one line of JSON for each request, in OpenAI's format:

    {"id": "batch_req_...", "custom_id": "call-1", "error": null,
     "response": {"status_code": 200, "request_id": "req_...", "body": {"text": "..."}}}

Requests that succeeded are in one file, the others in another. A request that was refused has the answer
that its route would have given; one that was never finished has only an `error`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, BinaryIO

from sqlalchemy.exc import IntegrityError

from forescribe.asr.formats.transcript import Transcript

from ..errors import STATUS, ApiError
from ..files import Files, StoredFile, derived_id
from ..http.bodies import loads
from ..jobs.blobs import BlobDraft
from ..jobs.service import Jobs
from ..jobs.submissions import Audio, shown
from ..jobs.tables import NewJob
from ..speech.answers import body_of, token_usage
from ..speech.diarization import letter, relabelled
from ..speech.forms import TranscriptionForm
from .lines import LineAudio, LineRequest, job_form, parse_line
from .table import Batch, BatchError, BatchState, BatchTable, LineError, LineRow, LineState
from .text_lines import FORMS, Answer, TextLines, passes

MAX_ERRORS = 100
"""Errors that are told of one file."""

MAX_LINE_BYTES = 16 << 20
"""Four voices of 10 s fit in, as base64."""

MAX_ID_LENGTH = 512

INPUT = "input"
"""The role of the reference from a batch to the blob of its input, which outlives the client's file."""

ANSWER = "answer"
"""The role of the reference from a batch to the answer of its line `k`, a text, until the batch is erased."""

FAULT = LineError("internal_error", "the server failed")

PAGE = 1000
"""Lines that are read from the database at a time."""

UNDONE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "expired": (
            "batch_expired",
            "This request could not be executed before the completion window expired.",
        ),
        "cancelled": (
            "batch_cancelled",
            "This request was not finished before the batch was cancelled.",
        ),
    }
)
"""Code and message of lines that were never finished, by state."""


class BatchSteps:
    """The steps, over the jobs and files of one database. `leave` raises if the process is to end."""

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        table: BatchTable,
        audio: LineAudio,
        texts: TextLines,
        leave: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self.jobs, self.files, self.table, self.audio = jobs, files, table, audio
        self.texts, self.leave, self.wake = texts, leave, wake
        self.settings, self.serving, self.store = jobs.settings, jobs.serving, jobs.store
        self._ended = self.serving.metrics.counter(
            "batch_lines", "Lines of batches by result.", "state"
        )

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
        """Record the lines whose jobs have ended. Texts that nobody writes any more, as their process has
        ended, are begun again."""
        if batch.endpoint in FORMS:
            for line in self.table.lines(batch.id, "submitted"):
                if not self.texts.has(line):
                    with self.store.transaction() as tx:
                        self.table.set_line(tx, line, "pending")
            return
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
        """Create the line's job or begin its text, or record why there is none. Raises ApiError if it has
        to wait: the server is full, or the key has reached a limit that passes."""
        try:
            if batch.endpoint in FORMS:
                self._begin_text(batch, line)
            elif self.store.jobs.get(line.job) is None:
                self._create(batch, line)
        except ApiError as error:
            if passes(error):
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
        self._cancel_work(batch)
        self.settle(batch)
        with self.store.transaction() as tx:
            if self.table.enter(tx, batch.id, "finalizing", ("in_progress",)):
                self.table.end_lines(tx, batch.id, "expired")

    def cancel(self, batch: Batch) -> None:
        """The client has cancelled: end what is left, and keep what was finished."""
        self._cancel_work(batch)
        with self.store.transaction() as tx:
            self.table.end_lines(tx, batch.id, "cancelled")
        self.finish(batch)

    def finish(self, batch: Batch) -> None:
        """Write the output of a batch whose lines have all ended, and end it. If the process dies before
        the rows are committed, the next one writes it again."""
        drafts = {"output": self.store.blobs.draft(), "errors": self.store.blobs.draft()}
        try:
            usage = self._write(batch, **drafts)
            for draft in drafts.values():
                draft.flush()
            counts = self.table.counts([batch.id])[batch.id]
            state: BatchState = "cancelled" if batch.state == "cancelling" else "completed"
            state = "expired" if counts.get("expired") else state
            # Another process that does the same may have been faster.
            with suppress(IntegrityError), self.store.blobs.shared_lock():
                blobs = {role: draft.commit() for role, draft in drafts.items() if draft.size}
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
                    for role, blob in blobs.items() if ended else ():
                        file = self._file(batch, ids[role], role, drafts[role].size)
                        self.files.insert(tx, file, blob)
        finally:
            for draft in drafts.values():
                draft.discard()

    # -- parts ------------------------------------------------------------------------------------

    def _begin_text(self, batch: Batch, line: LineRow) -> None:
        with self._input(batch) as file:
            body = read(file, line).body
        with self.store.transaction() as tx:  # before its end can be recorded
            self.table.set_line(tx, line, "submitted")
        try:
            self.texts.begin(batch, line, body, self._text_ended)
        except ApiError as error:
            if passes(error):
                with self.store.transaction() as tx:
                    self.table.set_line(tx, line, "pending")
            raise

    def _text_ended(self, line: LineRow, answer: Answer | ApiError) -> None:
        """Keep the answer of a line, unless the line has ended. Called on another thread."""
        if isinstance(answer, ApiError):
            self._end(line, LineError(answer.code, answer.message, answer.param))
            return self.wake()
        draft = self.store.blobs.draft()
        try:
            draft.write(answer.body)
            draft.flush()
            with self.store.blobs.shared_lock():
                blob = draft.commit()
                with self.store.transaction() as tx:
                    if ended := self.table.set_line(tx, line, "succeeded"):
                        self.store.references.put(tx, line.batch, ANSWER, blob, line.k)
        finally:
            draft.discard()
        if ended:
            self._ended.labels("succeeded").inc()
        self.wake()

    def _create(self, batch: Batch, line: LineRow) -> None:
        with self._input(batch) as file:
            request = parse_line(batch.endpoint, read(file, line).body)
        form = job_form(request, self.serving, self.settings)
        self.jobs.submissions.check_capacity(batch.owner, keyed=bool(batch.owner))
        with self.audio.of(request, batch.owner, self.leave) as recording:
            total_s = self._length_s(recording.audio)
            options = {**shown(form), "batch": batch.id}
            fields = form.model_dump(mode="json")
            new = NewJob(line.job, batch.owner, recording.label, total_s, fields, options)
            try:
                self.jobs.submissions.submit(new, recording.audio)
            except IntegrityError:  # another process was faster
                if self.store.jobs.get(line.job) is None:
                    raise

    def _length_s(self, audio: Audio) -> float:
        """Raises ApiError for audio that cannot be decoded or is too long."""
        audio.flush()
        try:
            return asyncio.run(self.jobs.submissions.length_s(audio))
        except FileNotFoundError as error:
            text = "the file has been deleted"
            raise ApiError("file_not_found", text, param="file") from error

    def _write(self, batch: Batch, output: BlobDraft, errors: BlobDraft) -> tuple[int, int]:
        """Write all lines, and return the tokens read and written."""
        read_tokens = written_tokens = 0
        after = -1
        with self._input(batch) as file:
            while lines := self.table.lines(batch.id, limit=PAGE, after=after):
                for line in lines:
                    self.leave()
                    given = read(file, line)
                    result = self._result(batch, line, given)
                    if isinstance(result, LineRow):
                        errors.write(failed(result, given.custom_id))
                        continue
                    body, (read_by_it, written_by_it) = result
                    read_tokens += read_by_it
                    written_tokens += written_by_it
                    output.write(_line(line, given.custom_id, _response(line, 200, body), None))
                after = lines[-1].k
        return read_tokens, written_tokens

    def _result(
        self, batch: Batch, line: LineRow, given: InputLine
    ) -> tuple[Any, tuple[int, int]] | LineRow:
        """The body of a line's answer, with the tokens read and written; or the line itself if it has none,
        with the reason."""
        if line.state != "succeeded":
            return line
        if batch.endpoint in FORMS:
            name = self.store.references.get(batch.id, ANSWER, line.k)
            assert name is not None
            body = json.loads(self.store.blobs.read(name))
            usage = body["usage"]
            return body, (usage["prompt_tokens"], usage["completion_tokens"])
        transcript = self._transcript(batch, line)
        if isinstance(transcript, LineRow):
            return transcript
        counted = token_usage(transcript)
        tokens = int(str(counted["input_tokens"])), int(str(counted["output_tokens"]))
        return body_of_line(parse_line(batch.endpoint, given.body), transcript), tokens

    def _transcript(self, batch: Batch, line: LineRow) -> Transcript | LineRow:
        """The line's transcript; or the line itself if it has none any more, with the reason."""
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
            self._ended.labels(state).inc()

    def _cancel_work(self, batch: Batch) -> None:
        self.texts.cancel(batch.id)
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


@dataclass(frozen=True)
class InputLine:
    """One request."""

    custom_id: str
    body: dict[str, Any]


def check(
    file: BinaryIO, endpoint: str, max_lines: int
) -> tuple[list[tuple[int, int]], list[BatchError]]:
    """The places of all requests of a file, and what is wrong with it; with errors it cannot be used."""
    places: list[tuple[int, int]] = []
    errors: list[BatchError] = []
    first_uses: dict[str, int] = {}
    for number, at, data in _numbered(file):
        try:
            line = _parsed(data, endpoint)
            first = first_uses.setdefault(line.custom_id, number)
            if first != number:
                text = f"the custom_id of line {first} is used again"
                raise _Refused("duplicate_custom_id", text, "custom_id")
            places.append((at, len(data)))
        except _Refused as error:
            errors.append(
                BatchError(code=error.code, message=error.message, param=error.param, line=number)
            )
        if len(places) > max_lines:
            text = f"the file has more than {max_lines} requests"
            return [], [BatchError(code="too_many_requests", message=text)]
        if len(errors) >= MAX_ERRORS:
            break
    if not places and not errors:
        errors.append(BatchError(code="empty_file", message="the file has no requests"))
    return places, errors


def read(file: BinaryIO, line: LineRow) -> InputLine:
    """A line of a file that was checked."""
    file.seek(line.at)
    data = loads(file.read(line.length), "line")
    return InputLine(data["custom_id"], data["body"])


def body_of_line(request: LineRequest, transcript: Transcript) -> Any:
    """What the route of a line about audio would have sent."""
    form = request.form
    if isinstance(form, TranscriptionForm) and form.diarized:
        transcript = relabelled(transcript, form.known_speaker_names, letter)
    return body_of(form.response_format, transcript, granularities=request.granularities)


def failed(line: LineRow, custom_id: str) -> bytes:
    """The line of the error file."""
    if line.state in UNDONE:
        code, message = UNDONE[line.state]
        return _line(line, custom_id, None, {"code": code, "message": message})
    told = line.error or LineError("internal_error", "the server failed")
    code = told.code if told.code in STATUS else "internal_error"
    error = ApiError(code, told.message, param=told.param)
    return _line(line, custom_id, _response(line, error.status, error.body()), None)


class _Refused(Exception):
    """What is wrong with a line of an input file."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def _numbered(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """The lines that are not blank, with their numbers from 1 and the bytes before them. A line that is
    too long comes cut off, and is the last one."""
    at = number = 0
    while data := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if data.strip():
            yield number, at, data
        if len(data) > MAX_LINE_BYTES:
            return
        at += len(data)


def _parsed(data: bytes, endpoint: str) -> InputLine:
    if len(data) > MAX_LINE_BYTES:
        raise _Refused("invalid_json_line", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        value = loads(data, "line")
    except ApiError as error:
        raise _Refused("invalid_json_line", error.message) from error
    if not isinstance(value, dict):
        raise _Refused("invalid_json_line", "the line is not a JSON object")
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if name not in value:
            raise _Refused("missing_required_parameter", f"{name} is missing", name)
        if not isinstance(value[name], kind):
            what = "an object" if kind is dict else "a string"
            raise _Refused("invalid_value", f"{name} is not {what}", name)
    if not 0 < len(value["custom_id"]) <= MAX_ID_LENGTH:
        text = f"custom_id has 1 to {MAX_ID_LENGTH} characters"
        raise _Refused("invalid_value", text, "custom_id")
    if value["method"] != "POST":
        raise _Refused("invalid_method", "method is not POST", "method")
    if value["url"] != endpoint:
        raise _Refused("invalid_url", f"url is not the batch's endpoint, {endpoint}", "url")
    unknown = sorted(value.keys() - {"custom_id", "method", "url", "body"})
    if unknown:
        raise _Refused("unknown_parameter", f"unknown field {unknown[0][:100]!r}", unknown[0][:100])
    return InputLine(value["custom_id"], value["body"])


def _response(line: LineRow, status: int, body: Any) -> dict[str, Any]:
    return {
        "status_code": status,
        "request_id": f"req_{line.job.removeprefix('job_')}",
        "body": body,
    }


def _line(
    line: LineRow, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None
) -> bytes:
    value = {"id": line.request, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
