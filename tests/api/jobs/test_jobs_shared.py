"""What jobs share can fail: the engine's memory, the engine, the database. None of it is a job's fault, and
a job whose fault it is takes no other with it."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import JOBS as JOB_ROWS
from forescribe.asr.formats.transcript import notice_to_dict
from forescribe.asr.formats.transcript_parts import Notice, merged
from forescribe.asr.segment import cut_plan
from tests.api.conftest import memo, sound, until
from tests.api.jobs.application import JOBS, application, ended, events, ready, submit

GREEDY = "0.9"
"""The temperature of a job that takes all memory there is."""


@pytest.fixture
def memory(transcriber, monkeypatch):
    """The engine runs out of memory with every window of a greedy job; how often it did."""
    faults, enter = [], transcriber.engine.submit

    def submit(request) -> None:
        if request.temperature == float(GREEDY):
            faults.append(request)
            raise MemoryError("secret")
        enter(request)

    monkeypatch.setattr(transcriber.engine, "submit", submit)
    return faults


def text(client, job: str) -> str:
    return client.get(f"{JOBS}/{job}/result?response_format=text").text


def test_a_job_that_takes_all_memory_fails_alone(client, held, memory, transcriber) -> None:
    sounds = [sound(3, seed) for seed in (1, 2)]
    jobs = [submit(client, one).json()["id"] for one in sounds]
    until(lambda: transcriber.engine.free == 2)  # both are in it
    greedy = submit(client, sound(2), temperature=GREEDY).json()["id"]
    until(lambda: memory)  # and all are thrown out
    held.set()
    over = ended(client, greedy)
    assert over["state"] == "failed" and over["error"]["code"] == "overloaded"
    assert len(memory) == 4 and "secret" not in str(over)
    for job, one in zip(jobs, sounds, strict=True):
        assert ended(client, job)["state"] == "succeeded"
        again = submit(client, one).json()["id"]  # the service is back in work
        assert ended(client, again)["state"] == "succeeded"
        assert text(client, job) == text(client, again)


def test_who_waits_for_his_turn_after_a_fault_can_be_cancelled(client, held, memory) -> None:
    job = submit(client, sound(2)).json()["id"]
    walk = client.app.state.jobs.worker.walk
    with walk._retrying:  # held by another caller
        greedy = submit(client, sound(2), temperature=GREEDY).json()["id"]
        until(lambda: len(memory) == 1)
        for id in (job, greedy):
            assert client.post(f"{JOBS}/{id}/cancel").json()["state"] == "cancelled"
        until(lambda: not client.app.state.jobs.worker.running())
    assert len(memory) == 1
    held.set()
    third = submit(client, memo(2)).json()["id"]
    assert ended(client, third)["state"] == "succeeded"


def test_an_engine_that_is_broken_fails_no_job(client, held, transcriber, monkeypatch) -> None:
    """Every job would end in seconds, one after the other, for a fault that is none of them."""
    serving, step = client.app.state.serving, transcriber.engine.step
    looks = []
    monkeypatch.setattr("forescribe.api.jobs.worker.RENEW_S", 0.02)

    def broken():
        looks.append(1)
        raise RuntimeError("the device is gone")

    jobs = [submit(client, memo(2)).json()["id"] for _ in range(5)]  # one waits in line
    until(lambda: not transcriber.engine.idle)
    monkeypatch.setattr(transcriber.engine, "step", broken)
    serving.life.state = "broken"
    until(lambda: len(looks) > 0 and serving.session.idle)
    renewed = []
    with monkeypatch.context() as patch:
        patch.setattr(client.app.state.jobs.store.jobs, "renew", renewed.append)
        time.sleep(0.1)  # five renewals
    assert renewed == []
    states = [client.get(f"{JOBS}/{id}").json()["state"] for id in jobs]
    assert states == ["running"] * 4 + ["queued"]
    monkeypatch.setattr(transcriber.engine, "step", step)
    held.set()
    serving.life.state = "ready"  # as the next process finds it
    assert {ended(client, id)["state"] for id in jobs} == {"succeeded"}


def test_a_database_that_goes_away_is_waited_for(client, held, monkeypatch) -> None:
    """However long: a step's own tries are over in seconds, and then its job would have failed."""
    store = client.app.state.jobs.store
    transaction, away, looks = store.database.transaction, threading.Event(), []

    @contextmanager
    def cut_off():
        if away.is_set():
            looks.append(1)
            raise OperationalError("select", {}, Exception("gone"), connection_invalidated=True)
        with transaction() as tx:
            yield tx

    job = submit(client, memo(3)).json()["id"]
    until(lambda: client.get(f"{JOBS}/{job}").json()["state"] == "running")
    monkeypatch.setattr(store.database, "transaction", cut_off)
    away.set()
    held.set()
    until(lambda: len(looks) > 20)
    assert client.get(f"{JOBS}/{job}").json()["state"] == "running"
    away.clear()
    assert ended(client, job)["state"] == "succeeded" and text(client, job).strip()


@pytest.mark.parametrize("role", ["plan", "group-0", "group-1", "spoken", "result"])
def test_a_commit_whose_answer_was_lost_is_not_done_again(client, monkeypatch, role) -> None:
    monkeypatch.setattr("forescribe.asr.segment.cut_plan.GROUP_SIZE", 1)
    store, lost = client.app.state.jobs.store, []
    save = store.save

    def unanswered(id, given, text, refer):
        made = save(id, given, text, refer)
        if given == role and not lost:
            lost.append(given)
            raise OperationalError("commit", {}, Exception("cut"), connection_invalidated=True)
        return made

    monkeypatch.setattr(store, "save", unanswered)
    job = submit(client, sound(70)).json()["id"]
    assert ended(client, job)["state"] == "succeeded" and lost
    seen = events(client, job)
    told = [data["k"] for kind, _, data in seen if kind == "segment"]
    assert told == list(range(len(told))) and len(told) > 2
    progress = [data["done_s"] for kind, _, data in seen if kind == "progress"]
    assert len(progress) == len(told) + 1
    assert len(list((store.files.root / job).iterdir())) == len(store.jobs.get(job).files)


def test_while_a_job_is_done_alone_requests_are_told_to_come_later(client, monkeypatch) -> None:
    """Until it has its plan, which is progress. Jobs are accepted all the same, and wait."""
    monkeypatch.setattr("forescribe.api.jobs.store.ALONE_AFTER_S", (0.0, 0.0))
    store, worker = client.app.state.jobs.store, client.app.state.jobs.worker
    plan_of, begun, go = cut_plan.plan_of, threading.Event(), threading.Event()

    def held(*args, **kwargs):
        begun.set()
        assert go.wait(60)
        return plan_of(*args, **kwargs)

    monkeypatch.setattr(cut_plan, "plan_of", held)
    monkeypatch.setattr(worker, "concurrency", 0)
    job = submit(client, memo(3)).json()["id"]
    with store.transaction() as tx:
        store.jobs.update(tx, job, deaths_beside=2)
    monkeypatch.setattr(worker, "concurrency", 4)
    assert begun.wait(60)
    assert store.jobs.get(job).risk == "alone"
    form = {"model": "random", "language": "de"}
    refused = client.post("/v1/audio/transcriptions", files={"file": memo(1)}, data=form)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
    other = submit(client, memo(2)).json()
    assert other["state"] == "queued" and worker.running() == {job}
    go.set()
    assert {ended(client, id)["state"] for id in (job, other["id"])} == {"succeeded"}
    served = client.post("/v1/audio/transcriptions", files={"file": memo(1)}, data=form)
    assert served.status_code == 200 and store.jobs.get(job).deaths_beside == 0


def test_each_group_is_at_risk_in_the_engine_until_the_job_is_left(
    tmp_path, transcriber, decoders, held, monkeypatch
):
    """The second process finds the plan made. The second group of a job was once not counted."""
    monkeypatch.setattr("forescribe.asr.segment.cut_plan.GROUP_SIZE", 1)
    for process in range(2):
        with application(tmp_path, transcriber, decoders) as client:
            if not process:
                job = submit(ready(client), sound(100)).json()["id"]
            until(lambda: not transcriber.engine.idle)
            store = client.app.state.jobs.store
            assert store.jobs.get(job).risk == "beside"
            if process:
                held.set()
                until(lambda store=store, job=job: store.jobs.get(job).done_s > 0)
                held.clear()
                found = store.jobs.get(job)
                assert found.risk == "beside" or found.done_s == found.total_s
        with closing(Store.open(tmp_path)) as store:
            assert store.jobs.get(job).risk is None  # left, and not dead
    held.set()
    with application(tmp_path, transcriber, decoders) as client:
        assert ended(client, job)["state"] == "succeeded"
        assert client.app.state.jobs.store.jobs.get(job).deaths_beside == 0


def test_what_a_job_shows_has_a_bound_whatever_its_client_and_its_audio_contain(client) -> None:
    """Each poll repeats it, a list does for 100 jobs: 9 MB for a recording with 100,000 notices."""
    store = client.app.state.jobs.store
    told = merged(Notice("audio_gap", f"a gap at {n} s " * 100) for n in range(100_000))
    notices = [notice_to_dict(notice) for notice in told]  # as every transcript has them
    made = submit(client, sound(1), prompt="word " * 20_000, keywords="k" * 100).json()["id"]
    assert ended(client, made)["state"] == "succeeded"
    with store.transaction() as tx:
        store.jobs.update(tx, made, warnings=notices)
        store.jobs.end(tx, made, "failed", ("internal_error", "e" * 100_000))
        stored = tx.execute(sa.select(JOB_ROWS)).one()
    assert sum(len(str(value)) for value in stored) < 50_000
    view = client.get(f"{JOBS}/{made}")
    assert len(view.content) < 50_000 and len(client.get(JOBS).content) < 50_000
    assert view.json()["warnings"][-1]["code"] == "more_warnings"
    assert "99969 more" in view.json()["warnings"][-1]["message"]
    assert all(len(data) < 50_000 for data in (str(event) for event in events(client, made)))
    long = {
        "webhook_url": f"https://example.com/{'a' * 10_000}",
        "webhook_secret": "whsec_" + "a" * 40,
    }
    assert submit(client, sound(1), **long).status_code == 400
