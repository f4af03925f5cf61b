"""The job store in any order of calls: two workers that claim, renew, write, die and come back as ghosts, and
a client who cancels, retries, corrects and deletes meanwhile.

A model of who holds which job says whether each write is taken; the rest is looked up in the rows before and
after. The database's clock is the test's.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forescribe.api.errors import ApiError
from forescribe.api.jobs import store as store_module
from forescribe.api.jobs.corrections import CorrectedJobs, Corrections, latest_version
from forescribe.api.jobs.service import Operations
from forescribe.api.jobs.store import ALONE_AFTER_S, BESIDE, LEASE_S, Store
from forescribe.api.jobs.tables import ENTRIES, FOLDERS, JOBS, UNFINISHED, Claim, Job
from tests.asr.formats.test_report import spoken

OWNER = "team"
WORKERS = st.sampled_from(["one", "two"])


class Machine(RuleBasedStateMachine):
    """Bundles hold ids and claims, also those of jobs that are gone."""

    folder = None
    clock = SimpleNamespace(now=0.0)

    jobs, claims = Bundle("jobs"), Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.folder.mkdir()
        self.clock.now = 1e6
        self.store = Store.open(self.folder)
        self.store.clock = lambda: self.clock.now
        worker = Mock(running=frozenset)
        self.client = Operations(self.store, worker, Mock())
        self.corrected = CorrectedJobs(self.store, self.client.get, self.client.transcript)
        self.numbers = count(1)
        self.there = set[str]()  # jobs that were submitted and not deleted
        self.current: dict[str, Claim] = {}  # who may write
        self.own: dict[str, set[str]] = {"one": set(), "two": set()}  # what a worker thinks it has

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def rows(self) -> dict[str, Job]:
        with self.store.database.engine.connect() as tx:
            return {row.id: Job(**row._mapping) for row in tx.execute(sa.select(JOBS))}

    def holds(self, claim: Claim) -> bool:
        return self.current.get(claim.job) == claim

    # -- workers ------------------------------------------------------------------------------------------

    @rule(target=claims, worker=WORKERS)
    def claim(self, worker: str):
        before, own = self.rows(), self.own[worker]
        free = [
            job
            for job in before.values()
            if job.state in UNFINISHED and job.id not in own
            if job.claimed_until is None or job.claimed_until < self.clock.now
        ]
        free.sort(key=lambda job: (job.created_at, job.id))
        found = self.store.jobs.claim(worker, beside=own, alone=not own)
        if found is None:
            assert not free
            return multiple()
        first = free[0]
        died = first.deaths_beside + (first.risk == "beside")
        died_alone = first.deaths_alone + (first.risk == "alone")
        if found == "lonely":
            assert own and died >= BESIDE
            return multiple()
        job, taken_over = found
        assert job.id == first.id and taken_over == (first.claimed_by is not None)
        assert (job.deaths_beside, job.deaths_alone) == (
            (died, died_alone) if not job.ended else (first.deaths_beside, first.deaths_alone)
        )
        assert job.ended == (died_alone >= len(ALONE_AFTER_S))
        made = Claim(job.id, job.run, worker)
        self.current.pop(job.id, None)
        if not job.ended:
            self.current[job.id] = made
            own.add(job.id)
        return made

    @rule(
        claim=claims,
        act=st.sampled_from(["renew", "risk", "progress", "finish", "fail", "release"]),
    )
    def use(self, claim: Claim, act: str) -> None:
        """By who has it, or by the ghost of who had it."""
        getattr(self, act)(claim)

    def renew(self, claim: Claim) -> None:
        assert self.store.jobs.renew(claim) == self.holds(claim)

    def risk(self, claim: Claim) -> None:
        """Begin what may kill the process."""
        risk = "alone" if self.own[claim.worker] <= {claim.job} else "beside"
        self._written(claim, lambda tx: self.store.jobs.update(tx, claim.job, risk=risk))

    def progress(self, claim: Claim) -> None:
        def write(tx) -> None:
            self.store.jobs.forget_deaths(tx, claim.job)
            self.store.jobs.set_progress(tx, claim.job, 1.0)

        self._written(claim, write)

    def fail(self, claim: Claim) -> None:
        self.finish(claim, "failed")

    def finish(self, claim: Claim, state: str = "succeeded") -> None:
        text = spoken("Good morning", "bye").to_json()

        def refer(tx, name: str) -> None:
            job = self.store.jobs.held(tx, claim)
            if job is None:
                raise ApiError("conflict", "the claim is over")
            files = {**job.files, **({"result": name} if state == "succeeded" else {})}
            self.store.jobs.update(tx, job.id, files=files)
            self.store.jobs.end(tx, job.id, state, None)

        taken = False
        with suppress(ApiError):
            self.store.save(claim.job, "result", text, refer)
            taken = True
        assert taken == self.holds(claim)
        if taken:
            del self.current[claim.job]
        self.own[claim.worker].discard(claim.job)

    def _written(self, claim: Claim, write) -> None:
        with self.store.transaction() as tx:
            held = self.store.jobs.held(tx, claim)
            assert (held is not None) == self.holds(claim)
            if held is not None:
                write(tx)

    def release(self, claim: Claim) -> None:
        before = self.rows()
        self.store.jobs.release(claim)
        if self.holds(claim):
            del self.current[claim.job]
        else:
            assert self.rows() == before
        self.own[claim.worker].discard(claim.job)

    @rule(target=claims, worker=WORKERS)
    def die(self, worker: str):
        """Its claims stay until their leases are over, and a ghost may still use them."""
        self.own[worker].clear()
        self.clock.now += LEASE_S + 1
        return self.claim("two" if worker == "one" else "one")

    @rule(target=claims, claim=claims)
    def retry_at_once(self, claim: Claim):
        """The same worker has the next run, and may come back to the one before."""
        self.fail(claim)
        if claim.job in self.there:
            self.retry(claim.job)
        return self.claim(claim.worker)

    @rule()
    def time_passes(self) -> None:
        self.clock.now += LEASE_S - 1

    # -- clients ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.there) < 3)
    @rule(target=jobs)
    def submit(self) -> str:
        id = f"job_{next(self.numbers):032x}"
        self.store.reserve(id)
        audio = self.store.files.put(id, "audio", b"sound")
        with self.store.transaction() as tx:
            self.store.accept(tx, Job(id=id, owner=OWNER, total_s=60.0, files={"audio": audio}))
        self.there.add(id)
        self.clock.now += 0.001
        return id

    @rule(
        id=jobs,
        act=st.sampled_from(
            ["cancel", "retry", "new_speakers", "correct", "late", "original", "delete"]
        ),
    )
    def ask(self, id: str, act: str) -> None:
        getattr(self, act)(id)

    def _asked(self, id: str, act, *given) -> bool:
        """Whether it was done; nothing changes else."""
        before = self.rows()
        try:
            act(id, OWNER, *given)
        except ApiError as error:
            assert error.code == "job_not_found" or id in self.there
            assert self.rows() == before
            return False
        assert id in self.there
        return True

    def cancel(self, id: str) -> None:
        was = self.rows().get(id)
        if self._asked(id, self.client.cancel) and was is not None and not was.ended:
            self.current.pop(id, None)

    def retry(self, id: str) -> None:
        was = self.rows().get(id)
        done = self._asked(id, self.client.retry)
        assert done == (was is not None and was.state in ("failed", "cancelled"))

    def new_speakers(self, id: str) -> None:
        was = self.rows().get(id)
        done = self._asked(id, self.client.diarize, None)
        free = was is not None and was.state == "succeeded" and not latest_version(was)
        assert done == free

    def late(self, id: str) -> None:
        """A correction of another version."""
        self.correct(id, stale=True)

    def correct(self, id: str, stale: bool = False) -> None:
        was = self.rows().get(id)
        etag = '"stale"'
        if was is not None and not stale:
            with suppress(ApiError):
                etag = self.corrected.get(id, OWNER).etag
        done = self._asked(id, self.corrected.put, Corrections(segments=[1, 0]), etag)
        right = was is not None and was.state == "succeeded" and "result" in was.files
        assert done == (right and not stale)
        if done:
            now = self.rows()[id]
            assert latest_version(now) == latest_version(was) + 1

    def original(self, id: str) -> None:
        if self._asked(id, self.corrected.delete):
            assert not latest_version(self.rows()[id])

    def delete(self, id: str) -> None:
        if self._asked(id, self.client.delete):
            self.there.discard(id)
            self.current.pop(id, None)

    # -- always -------------------------------------------------------------------------------------------

    @invariant()
    def rows_and_files_agree(self) -> None:
        rows = self.rows()
        assert rows.keys() == self.there
        for id, job in rows.items():
            held = self.current.get(id)
            assert (job.claimed_by if job.state == "running" else None) == (held and held.worker)
            assert job.ended <= (job.claimed_by is None and job.risk is None)
            for name in job.files.values():
                assert self.store.files.read(id, name)
        assert self.store.files.jobs() == self.there
        with self.store.database.engine.connect() as tx:
            assert set(tx.execute(sa.select(FOLDERS.c.job)).scalars()) == self.there
            logged = tx.execute(sa.select(ENTRIES.c.job, ENTRIES.c.n).order_by(ENTRIES.c.n)).all()
        for id in {job for job, _ in logged}:
            assert id in self.there
            numbers = [n for job, n in logged if job == id]
            assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("examples", [30, pytest.param(800, marks=pytest.mark.nightly)])
def test_any_order_of_two_workers_and_a_client(tmp_path, monkeypatch, examples) -> None:
    monkeypatch.setattr(store_module, "database_time", lambda tx: Machine.clock.now)
    Machine.folder = tmp_path / "x"
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            database=None,
            derandomize=examples == 30,  # CI's are always the same
            suppress_health_check=list(HealthCheck),
        ),
    )
