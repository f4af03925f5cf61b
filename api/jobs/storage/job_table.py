"""The rows of jobs: inserting, reading, and the transitions between their states.

Every write of a run is bound to its number, so that a run that was cancelled or replaced writes nothing.
Does not know blobs or workflows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from .crash_records import CrashRecords
from .database import Database, Tx, not_before
from .event_log import EventLog
from .records import (
    ENDED,
    UNFINISHED,
    Callback,
    CallbackState,
    Job,
    Kind,
    NewJob,
    State,
    bounded,
    bounded_options,
    bounded_warnings,
    item_prefix,
)
from .tables import JOBS, REFERENCES


class JobTable:
    """The jobs of one database; `now` gives the time in Unix seconds."""

    def __init__(
        self, database: Database, log: EventLog, crashes: CrashRecords, now: Callable[[], float]
    ) -> None:
        self._database, self._log, self._crashes, self._now = database, log, crashes, now

    # -- reading ----------------------------------------------------------------------------------

    def get(self, id: str, owner: str | None = None) -> Job | None:
        """The job; None if it does not exist or belongs to another owner."""
        with self._database.engine.connect() as tx:
            return self._select(tx, id, owner)

    def page(
        self, owner: str, limit: int, after: str | None = None, state: str | None = None
    ) -> tuple[list[Job], bool]:
        """Up to `limit` jobs, the latest first, following job `after`; and whether there are more."""
        query = sa.select(JOBS).where(JOBS.c.tenant == owner)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        with self._database.engine.connect() as tx:
            if after is not None:
                last = self._select(tx, after, owner)
                if last is None:
                    return [], False
                query = query.where(
                    sa.tuple_(JOBS.c.created_at, JOBS.c.id) < sa.tuple_(last.created_at, last.id)
                )
            query = query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc()).limit(limit + 1)
            jobs = [_job(row) for row in tx.execute(query)]
        return jobs[:limit], len(jobs) > limit

    def unfinished_runs(self) -> sa.Select[str]:
        """The query of the work ids (`records.run_item`) of queued and running jobs of all owners."""
        id = JOBS.c.id + item_prefix("") + sa.cast(JOBS.c.run, sa.String)
        return sa.select(id.label("id")).where(JOBS.c.state.in_(UNFINISHED))

    def oldest(self) -> float | None:
        """When the oldest unfinished job was created; None without one."""
        query = sa.select(sa.func.min(JOBS.c.created_at)).where(JOBS.c.state.in_(UNFINISHED))
        with self._database.engine.connect() as tx:
            created_at: float | None = tx.execute(query).scalar_one()
        return created_at

    def backlog(self, owner: str | None = None) -> tuple[int, float]:
        """The number of unfinished jobs, and their remaining seconds of audio."""
        left_s = JOBS.c.total_s - JOBS.c.done_s
        query = sa.select(
            sa.func.count(), sa.func.sum(sa.case((left_s > 0.0, left_s), else_=0.0))
        ).where(JOBS.c.state.in_(UNFINISHED))
        if owner is not None:
            query = query.where(JOBS.c.tenant == owner)
        with self._database.engine.connect() as tx:
            count, seconds = tx.execute(query).one()
        return count, seconds or 0.0

    def ended_before(self, when: float) -> list[str]:
        query = sa.select(JOBS.c.id).where(JOBS.c.state.in_(ENDED), JOBS.c.finished_at < when)
        with self._database.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    def with_audio_succeeded_before(self, when: float) -> list[str]:
        """Jobs that succeeded before `when` and still have their audio."""
        query = (
            sa.select(JOBS.c.id)
            .join(REFERENCES, (REFERENCES.c.job == JOBS.c.id) & (REFERENCES.c.role == "audio"))
            .where(JOBS.c.state == "succeeded", JOBS.c.finished_at < when)
        )
        with self._database.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    # -- transitions ------------------------------------------------------------------------------

    def insert(self, tx: Tx, new: NewJob) -> Job:
        callback = new.callback
        tx.execute(
            sa.insert(JOBS).values(
                id=new.id,
                tenant=new.owner,
                state="queued",
                run=1,
                kind="transcribe",
                label=new.label,
                created_at=self._now(),
                total_s=new.total_s,
                done_s=0.0,
                options=json.dumps(bounded_options(new.options)),
                hook_url=callback and callback.url,
                hook_secret=callback and callback.secret,
                hook_state=callback and callback.state,
                hook_tries=0,
                crashes=0,
            )
        )
        return self._enter(tx, new.id, "queued")

    def current(self, tx: Tx, id: str, run: int) -> Job | None:
        """The job, locked, if this run may still write; else None."""
        query = sa.select(JOBS).where(JOBS.c.id == id, JOBS.c.run == run).with_for_update()
        row = tx.execute(query).one_or_none()
        job = None if row is None else _job(row)
        return None if job is None or job.ended else job

    def start(self, tx: Tx, id: str, run: int) -> Job | None:
        """Mark the job as running and return it as it was before; None if the run is not current."""
        job = self.current(tx, id, run)
        if job is not None and job.state == "queued":
            started_at = not_before(tx, self._now(), JOBS.c.created_at)
            self._enter(tx, id, "running", started_at=started_at)
        return job

    def end(self, tx: Tx, id: str, state: State, error: tuple[str, str] | None = None) -> Job:
        """End the job. Only a new run opens it again."""
        code, message = error or (None, None)
        message = message and bounded(message)
        finished_at = not_before(tx, self._now(), JOBS.c.created_at, JOBS.c.started_at)
        return self._enter(
            tx, id, state, finished_at=finished_at, error_code=code, error_message=message
        )

    def new_run(self, tx: Tx, id: str, kind: Kind) -> Job:
        """Queue an ended job again."""
        job = self._required(tx, id)
        assert job.ended
        self._crashes.clear(tx, id)
        values: dict[str, Any] = {"run": job.run + 1, "kind": kind}
        if job.callback is not None:
            values |= {"hook_state": "pending", "hook_tries": 0}
        cleared = dict.fromkeys(("started_at", "finished_at", "error_code", "error_message"))
        return self._enter(tx, id, "queued", **values, **cleared)

    def restart(self, tx: Tx, id: str) -> Job:
        """Queue an unfinished job as a new run. Counts as a crash, so that a job cannot restart forever
        without progress."""
        return self._enter(tx, id, "queued", run=JOBS.c.run + 1, crashes=JOBS.c.crashes + 1)

    # -- single values ----------------------------------------------------------------------------

    def set_progress(self, tx: Tx, id: str, done_s: float) -> None:
        """Record how many seconds of audio are done."""
        self._update(tx, id, done_s=done_s)
        self._log.append(tx, id, "progress", {"done_s": round(done_s, 3)})
        self._crashes.clear(tx, id)

    def set_warnings(self, tx: Tx, id: str, warnings: Sequence[Mapping[str, Any]]) -> None:
        """Replace the warnings: the first of those of the transcript."""
        text = json.dumps(bounded_warnings(warnings)) if warnings else None
        self._update(tx, id, warnings=text)

    def set_callback(self, tx: Tx, id: str, state: CallbackState, tries: int) -> None:
        """Record the result of a delivery attempt."""
        self._update(tx, id, hook_state=state, hook_tries=tries)

    def set_options(self, tx: Tx, id: str, options: Mapping[str, Any]) -> None:
        """Replace the options for the next run."""
        self._update(tx, id, options=json.dumps(dict(options)))

    def _enter(self, tx: Tx, id: str, state: State, **values: Any) -> Job:
        """Set the state and log the transition."""
        self._update(tx, id, state=state, **values)
        self._log.append(tx, id, "state", {"state": state})
        return self._required(tx, id)

    def _update(self, tx: Tx, id: str, **values: Any) -> None:
        tx.execute(sa.update(JOBS).where(JOBS.c.id == id).values(**values))

    def _select(self, tx: Tx, id: str, owner: str | None = None) -> Job | None:
        query = sa.select(JOBS).where(JOBS.c.id == id)
        if owner is not None:
            query = query.where(JOBS.c.tenant == owner)
        row = tx.execute(query).one_or_none()
        return None if row is None else _job(row)

    def _required(self, tx: Tx, id: str) -> Job:
        job = self._select(tx, id)
        assert job is not None
        return job


def _job(row: Any) -> Job:
    error = (row.error_code, row.error_message) if row.error_code else None
    callback = None
    if row.hook_url:
        callback = Callback(row.hook_url, row.hook_secret, row.hook_state, row.hook_tries)
    return Job(
        id=row.id,
        owner=row.tenant,
        state=row.state,
        run=row.run,
        kind=row.kind,
        label=row.label and bounded(row.label),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        total_s=row.total_s,
        done_s=row.done_s,
        options=bounded_options(json.loads(row.options)),
        error=error,
        callback=callback,
        crashes=row.crashes,
        # Rows of earlier versions have no bound.
        warnings=tuple(bounded_warnings(json.loads(row.warnings))) if row.warnings else (),
    )
