"""A process that dies at any point of a batch is followed by one that ends it: each line once, the same text.

A death is simulated where it matters: before or after each commit of the batch's threads, of rows and of
blobs. From then on these threads do nothing more, and another application goes on with the folder.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from forescribe.api.batches import service
from forescribe.api.batches.service import BatchRunner
from forescribe.api.files import FILES as FILE_ROWS
from forescribe.api.jobs.blobs import Draft
from forescribe.api.jobs.tables import JOBS as JOB_ROWS
from forescribe.api.jobs.tables import REFERENCES
from tests.api.batches.calls import BATCHES, begin, ended, jsonl, line, lines_of, upload
from tests.api.conftest import sound, until
from tests.api.jobs.application import application, ready

LINES = 3


class Killed(BaseException):
    """Not an Exception: nothing that handles errors sees it."""


class Death:
    """Kills the threads of batches at their n-th event, before or after a commit; never if n is 0."""

    def __init__(self, n: int) -> None:
        self.n, self.events, self.dead = n, 0, False
        self.lock = threading.Lock()

    def check(self) -> None:
        if not threading.current_thread().name.startswith("batch"):
            return
        with self.lock:
            self.events += not self.dead
            self.dead = self.dead or self.events == self.n
            if self.dead:
                raise Killed

    def install(self, client, monkeypatch) -> None:
        database = client.app.state.jobs.store.database
        transaction, commit = database.transaction, Draft.commit

        @contextmanager
        def counted():
            with transaction() as tx:
                yield tx
                self.check()
            self.check()

        def committed(draft: Draft) -> str:
            self.check()
            name = commit(draft)
            self.check()
            return name

        monkeypatch.setattr(database, "transaction", counted)
        monkeypatch.setattr(Draft, "commit", committed)


@pytest.fixture
def lifetimes(tmp_path, transcriber, decoders, monkeypatch):
    """`lifetimes(name, death)` runs a batch in an application that dies, and returns what the next says."""
    run = BatchRunner._run

    def dying(runner: BatchRunner) -> None:
        try:
            run(runner)
        except Killed:
            runner._stopping.set()

    monkeypatch.setattr(BatchRunner, "_run", dying)
    monkeypatch.setattr(service, "TICK_S", 0.5)  # each look has events

    def live(name: str, death: Death):
        folder = tmp_path / name
        with (
            application(folder, transcriber, decoders) as client,
            pytest.MonkeyPatch.context() as m,
        ):
            death.install(ready(client), m)
            files = [upload(client, sound(1 + k, k)).json()["id"] for k in range(LINES)]
            lines = [line(str(k), file=file) for k, file in enumerate(files)]
            lines.append(line("bad", file="file-" + "0" * 32))
            made = begin(client, jsonl(lines)).json()["id"]
            until(lambda: death.dead or client.get(f"{BATCHES}/{made}").json()["completed_at"])
        with application(folder, transcriber, decoders) as client:
            batch = ended(ready(client), made)
            good = lines_of(client, batch["output_file_id"])
            bad = lines_of(client, batch["error_file_id"])
            store = client.app.state.jobs.store
            with store.database.engine.connect() as tx:
                jobs = tx.execute(sa.select(sa.func.count()).select_from(JOB_ROWS)).scalar_one()
                outputs = sa.select(sa.func.count()).where(FILE_ROWS.c.purpose == "batch_output")
                written = tx.execute(outputs).scalar_one()
                blobs = set(tx.execute(sa.select(REFERENCES.c.blob)).scalars())
            store.references.sweep()
            assert set(store.blobs.names()) == blobs
        texts = {id: row["response"]["body"]["text"] for id, row in good.items()}
        return batch, texts, bad, jobs, written

    return live


def check(told, texts: dict[str, str]) -> None:
    batch, found, bad, jobs, written = told
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": LINES + 1, "completed": LINES, "failed": 1}
    assert found == texts and set(bad) == {"bad"}
    assert jobs == LINES and written == 2


def test_a_batch_survives_a_death_at_some_points(lifetimes) -> None:
    undisturbed = Death(0)
    first = lifetimes("undisturbed", undisturbed)
    check(first, first[1])
    assert len(set(first[1].values())) == LINES and not undisturbed.dead
    for n in (2, 5, undisturbed.events - 2):
        death = Death(n)
        check(lifetimes(str(n), death), first[1])
        assert death.dead, n


@pytest.mark.nightly
def test_a_batch_survives_a_death_at_every_point(lifetimes) -> None:
    undisturbed, died = Death(0), Counter()
    texts = lifetimes("undisturbed", undisturbed)[1]
    for n in range(undisturbed.events):
        death = Death(n + 1)
        check(lifetimes(str(n), death), texts)
        died[death.dead] += 1
    assert died[True] > undisturbed.events // 2
