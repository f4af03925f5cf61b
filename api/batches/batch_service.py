"""Batches in a process: composition of the parts, and what the routes do with them.

    batches = Batches(jobs, Files(settings, jobs.store))
    batches.start()
    batch = batches.create(owner, "/v1/audio/transcriptions", file_id)
    batches.stop()

A batch of another owner is reported as unknown. Does not know HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy.exc import IntegrityError

from ..access import outbound
from ..errors import ApiError
from ..files.file_store import Files
from ..files.file_table import FILES
from ..jobs.service import Jobs
from ..jobs.submissions import IdempotencyKey
from .batch_metrics import BatchMetrics
from .batch_records import ID, UNFINISHED, WINDOW_S, Batch, BatchObject, Endpoint, new_id
from .batch_runner import BatchRunner
from .batch_steps import INPUT, BatchSteps
from .batch_table import BATCHES, LINES, BatchTable
from .line_audio import LineAudio

RETENTION_TICK_S = 60.0


class Batches:
    """The batches of one job database."""

    def __init__(
        self, jobs: Jobs, files: Files, resolve: outbound.Resolve = outbound.resolve_name
    ) -> None:
        self.jobs, self.files, self.store = jobs, files, jobs.store
        self.settings = jobs.settings
        self.table = BatchTable(self.store.database, self.store.now)
        metrics = BatchMetrics(jobs.serving.metrics.registry, self.table.count_unfinished)
        self.runner = BatchRunner(jobs, self.table)
        audio = LineAudio(self.settings, files, resolve)
        self.runner.steps = BatchSteps(jobs, files, self.table, audio, metrics, self.runner.leave)
        self.runner.also = self._erase_expired
        self._erased_at = -RETENTION_TICK_S

    def start(self) -> None:
        """Go on with batches that have not ended, once the jobs have been started."""
        self.store.database.create(FILES, BATCHES, LINES)
        self.runner.start()

    def stop(self) -> None:
        """Leave all batches to the next process. Does nothing the second time."""
        self.runner.stop()

    def create(
        self,
        owner: str,
        endpoint: Endpoint,
        input_file: str,
        metadata: Mapping[str, str] | None = None,
        output_kept_s: float | None = None,
        key: IdempotencyKey | None = None,
    ) -> Batch:
        """Create a batch, or return the earlier one of the same key. Its input is read later.

        Raises ApiError: `file_not_found`, `invalid_value` for a file of another purpose, `rate_limited`
        if the owner has too many unfinished batches, `idempotency_key_reused`.
        """
        before = None if key is None else self._created_by(owner, key)
        if before is not None:
            return before
        try:
            file = self.files.get(input_file, owner)
        except ApiError as error:
            raise ApiError(error.code, error.message, param="input_file_id") from error
        self._check_input(file.purpose, file.size)
        if owner and self.table.count_unfinished(owner) >= self.settings.max_batches_per_key:
            text = (
                f"this key has {self.settings.max_batches_per_key} unfinished batches, its maximum"
            )
            raise ApiError("rate_limited", text, retry_after=60)
        now = self.store.now()
        batch = Batch(
            id=new_id(),
            owner=owner,
            endpoint=endpoint,
            input_file=file.id,
            state="validating",
            created_at=now,
            expires_at=now + WINDOW_S,
            model=self.settings.model_name,
            metadata=metadata,
            output_kept_s=output_kept_s,
        )
        try:
            with self.store.blobs.shared_lock():
                blob = self.files.blob(file.id, owner)
                with self.store.transaction() as tx:
                    if key is not None:
                        self.store.keys.insert(tx, owner, key.text, key.fingerprint, batch.id)
                    self.table.insert(tx, batch)
                    self.jobs.traces.keep(tx, batch.id, now)
                    self.store.references.put(
                        tx, batch.id, INPUT, blob, owner=owner, size=file.size
                    )
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

    def page(self, owner: str, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """The owner's batches, the latest first, and whether there are more."""
        return self.table.page(owner, limit, after)

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

    def _check_input(self, purpose: str, size: int) -> None:
        if purpose != "batch":
            text = f"input_file_id: the file's purpose is {purpose}, not batch"
            raise ApiError("invalid_value", text, param="input_file_id")
        if size > self.settings.max_batch_bytes:
            text = f"the input file is larger than {self.settings.max_batch_bytes} bytes"
            raise ApiError("file_too_large", text, param="input_file_id")

    def _created_by(self, owner: str, key: IdempotencyKey) -> Batch | None:
        row = self.store.keys.get(owner, key.text)
        if row is None:
            return None
        fingerprint, id = row
        if fingerprint != key.fingerprint:
            text = "this Idempotency-Key was used for another request before"
            raise ApiError("idempotency_key_reused", text)
        return self.table.get(id, owner)

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
