"""Batches in a process: what the routes do with them, and the thread that moves them on.

    batches = Batches(jobs, Files(settings, jobs.store), text_serving)
    batches.start()
    batch = batches.create(owner, form)
    batches.stop()

A batch of another owner is reported as unknown. The thread passes over all batches that have not ended, again
and again. Nothing of a batch is kept in memory, so any process can go on with it. On a shared database one
process at a time works on a batch; when it dies, another one takes it. A batch that fails for the server's
reasons is tried again at the next pass and delays no other. Does not know HTTP or what the steps do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.exc import DBAPIError, IntegrityError

from forescribe.asr.errors import OutputError, StorageError

from ..access import outbound
from ..errors import ApiError
from ..files import FILES, Files
from ..jobs.active import report_fault
from ..jobs.service import Jobs
from ..jobs.submissions import IdempotencyKey
from ..jobs.workflows import Stopping
from ..metrics import WHOLE_DATABASE
from ..text.serving import TextServing
from .lines import BatchForm, LineAudio
from .steps import INPUT, BatchSteps
from .table import (
    BATCHES,
    ID,
    LINES,
    UNFINISHED,
    WINDOW_S,
    Batch,
    BatchObject,
    BatchTable,
    LineRow,
    new_id,
)
from .text_lines import FORMS, TextLines

TICK_S = 0.5
"""Seconds between passes while nothing happens."""

RETENTION_TICK_S = 60.0
"""Between two looks at what has expired."""

SUBMITTERS = 4
"""Lines that are fetched and decoded at a time; the decoders themselves are limited by `readers`."""

REST_S = 10.0
"""Longest pause of a batch after a line had to wait: each attempt fetches and decodes its recording again."""

MAX_FAULTS = 3
"""Exceptions that are nobody's mistake, until a line is given up."""


class Batches:
    """The batches of one job database."""

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        text: TextServing,
        resolve: outbound.Resolve = outbound.resolve_name,
    ) -> None:
        self.jobs, self.files, self.store = jobs, files, jobs.store
        self.texts = TextLines(jobs.serving, text)
        self.settings = jobs.settings
        self.table = BatchTable(self.store.database, self.store.now)
        jobs.serving.metrics.watch(
            "batches_open",
            f"Batches that have not ended, {WHOLE_DATABASE}.",
            self.table.count_unfinished,
        )
        audio = LineAudio(self.settings, files, resolve)
        self.runner = BatchRunner(jobs, files, self.table, audio, self.texts, self._erase_expired)
        self._erased_at = -RETENTION_TICK_S

    def start(self) -> None:
        """Go on with batches that have not ended, once the jobs have been started."""
        self.store.database.create(FILES, BATCHES, LINES)
        self.runner.start()

    def stop(self) -> None:
        """Leave all batches to the next process. Does nothing the second time."""
        self.runner.stop()
        self.texts.stop()

    def create(self, owner: str, form: BatchForm, key: IdempotencyKey | None = None) -> Batch:
        """Create a batch, or return the earlier one of the same key. Its input is read later.

        Raises ApiError: `file_not_found`, `invalid_value` for a file of another purpose, `model_not_found`
        for texts where there is no text model, `rate_limited` if the owner has too many unfinished batches,
        `idempotency_key_reused`.
        """
        before = None if key is None else self._created_by(owner, key)
        if before is not None:
            return before
        try:
            file = self.files.get(form.input_file_id, owner)
        except ApiError as error:
            raise ApiError(error.code, error.message, param="input_file_id") from error
        self._check_input(file.purpose, file.size)
        if form.endpoint in FORMS:
            self.texts.check()
        if owner and self.table.count_unfinished(owner) >= self.settings.max_batches_per_key:
            text = (
                f"this key has {self.settings.max_batches_per_key} unfinished batches, its maximum"
            )
            raise ApiError("rate_limited", text, retry_after=60)
        now, expiry = self.store.now(), form.output_expires_after
        batch = Batch(
            id=new_id(),
            owner=owner,
            endpoint=form.endpoint,
            input_file=file.id,
            state="validating",
            created_at=now,
            expires_at=now + WINDOW_S,
            model=self._model_name(form.endpoint),
            metadata=form.metadata,
            output_kept_s=None if expiry is None else float(expiry.seconds),
        )
        try:
            with self.store.blobs.shared_lock():
                blob = self.files.blob(file.id, owner)
                with self.store.transaction() as tx:
                    if key is not None:
                        self.store.keys.insert(tx, owner, key.text, key.fingerprint, batch.id)
                    self.table.insert(tx, batch)
                    self.jobs.traces.keep(tx, batch.id, now)
                    self.store.references.put(tx, batch.id, INPUT, blob)
        except IntegrityError:
            before = None if key is None else self._created_by(owner, key)
            if before is None:
                raise
            return before
        self.runner.wake()
        return batch

    def get(self, id: str, owner: str) -> Batch:
        """Raises ApiError `batch_not_found`."""
        batch = self.table.get(id, owner) if ID.fullmatch(id) else None
        if batch is None:
            raise ApiError("batch_not_found", "there is no such batch")
        return batch

    def views(self, batches: list[Batch]) -> list[BatchObject]:
        """The JSON of batches, with the counts of their lines."""
        counts = self.table.counts([batch.id for batch in batches])
        return [batch.view(counts[batch.id]) for batch in batches]

    def cancel(self, id: str, owner: str) -> Batch:
        """Begin to cancel a batch. Raises ApiError: `batch_not_found`, `conflict` if it has ended."""
        self.get(id, owner)
        with self.store.transaction() as tx:
            self.table.enter(tx, id, "cancelling", ("validating", "in_progress"))
        self.runner.wake()
        batch = self.get(id, owner)
        if batch.state not in (*UNFINISHED, "cancelled"):
            raise ApiError("conflict", f"the batch is {batch.state}: it cannot be cancelled")
        return batch

    def _model_name(self, endpoint: str) -> str:
        return str(self.settings.text_name if endpoint in FORMS else self.settings.model_name)

    def _check_input(self, purpose: str, size: int) -> None:
        if purpose != "batch":
            text = f"input_file_id: the file's purpose is {purpose}, not batch"
            raise ApiError("invalid_value", text, param="input_file_id")
        if size > self.settings.max_batch_bytes:
            text = f"the input file is larger than {self.settings.max_batch_bytes} bytes"
            raise ApiError("file_too_large", text, param="input_file_id")

    def _created_by(self, owner: str, key: IdempotencyKey) -> Batch | None:
        id = self.store.keys.get(owner, key.text, key.fingerprint)
        return None if id is None else self.table.get(id, owner)

    def _erase_expired(self) -> None:
        """Erase files whose time is over, and batches as jobs are erased; once a minute."""
        if time.monotonic() - self._erased_at < RETENTION_TICK_S:
            return
        self.files.erase_expired()
        oldest = self.store.now() - self.settings.result_retention_s
        self.jobs.traces.delete_before(oldest)
        for id in self.table.ended_before(oldest):
            self.store.references.drop_all(id, *self.table.deletions(id))
        self._erased_at = time.monotonic()


class BatchRunner:
    """Moves the batches of one database on, in one thread and a few helpers. `also` is called at each
    pass."""

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        table: BatchTable,
        audio: LineAudio,
        texts: TextLines,
        also: Callable[[], None],
    ) -> None:
        self.jobs, self.table, self.also = jobs, table, also
        self.steps = BatchSteps(jobs, files, table, audio, texts, self.leave, self.wake)
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._pool = ThreadPoolExecutor(SUBMITTERS, thread_name_prefix="batch-line")
        self._faults: Counter[tuple[str, int]] = Counter()
        self.clock: Callable[[], float] = time.monotonic
        self._resting: dict[str, float] = {}  # until when, by batch
        self._reported = ""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """End after the step in progress; the next process goes on. Does nothing the second time."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._pool.shutdown()

    def leave(self) -> None:
        """Raises Stopping if the process is to end."""
        if self._stopping.is_set():
            raise Stopping

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                self.also()
                self.advance_all()
                self._reported = ""
            except Stopping:
                return
            except Exception as error:  # the database is away
                self._report(error)
            self._woken.wait(TICK_S)

    def advance_all(self) -> None:
        """One pass over all batches that have not ended."""
        for batch in self.table.unfinished():
            self.leave()
            own = self.jobs.engine.executor
            exclusive = self.jobs.recovery.exclusive
            if batch.executor != own and not self.table.claim(batch.id, own, exclusive=exclusive):
                continue
            try:
                self.advance(batch)
            except Exception as error:  # the disk is full, the database went away: tried again
                self._report(error)

    def advance(self, batch: Batch) -> None:
        """Do what the batch's state asks for."""
        steps = self.steps
        if batch.state == "validating":
            steps.validate(batch)
        elif batch.state == "cancelling":
            steps.cancel(batch)
        elif batch.state == "finalizing":
            steps.finish(batch)
        elif self.jobs.store.now() >= batch.expires_at:
            steps.expire(batch)
        else:
            self._progress(batch)

    def _progress(self, batch: Batch) -> None:
        """Settle lines, submit further ones, and finalize once all have ended."""
        self.steps.settle(batch)
        counts = self.table.counts([batch.id])[batch.id]
        settings = self.jobs.settings
        most = settings.batch_size if batch.endpoint in FORMS else settings.batch_open_jobs
        room = most - counts.get("submitted", 0)
        room = 0 if self._rests(batch) else room
        pending = self.table.lines(batch.id, "pending", room) if room > 0 else []
        submitted = [self._pool.submit(self._submit, batch, line) for line in pending]
        if any([waited.result() for waited in submitted]):
            self.wake()
        if not (counts.get("pending") or counts.get("submitted")):
            with self.jobs.store.transaction() as tx:
                self.table.enter(tx, batch.id, "finalizing", ("in_progress",))
            self._resting.pop(batch.id, None)
            self.wake()

    def _rests(self, batch: Batch) -> bool:
        return self.clock() < self._resting.get(batch.id, 0.0)

    def _submit(self, batch: Batch, line: LineRow) -> bool:
        """Submit a line; False if it has to wait."""
        self.leave()
        if self._rests(batch):
            return False
        try:
            place = self.jobs.traces.place(batch.id)
            with self.jobs.serving.tracing.span("batch line", parent=place, batch=batch.id):
                self.steps.submit(batch, line)
            return True
        except ApiError as error:  # the server or the key is at a limit
            self._resting[batch.id] = self.clock() + min(error.retry_after or 1, REST_S)
            return False
        except (DBAPIError, OutputError, StorageError):  # the database or the storage, not the line
            raise
        except Exception as error:
            report_fault("batch", error)
            self._faults[batch.id, line.k] += 1
            if self._faults[batch.id, line.k] >= MAX_FAULTS:
                self.steps.drop(line)
            return False

    def _report(self, error: Exception) -> None:
        if self._reported != type(error).__name__:  # log it once
            self._reported = type(error).__name__
            report_fault("batches", error)
