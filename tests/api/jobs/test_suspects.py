"""Suspects: which jobs may have killed a process, and their work in a process of its own."""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from forescribe.api.jobs import steps, suspects
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.suspects import MAX_CRASHES, SUSPECT, CrashTracker, SuspectDied
from forescribe.api.jobs.tables import NewJob
from forescribe.api.jobs.workflows import RunReplaced
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import CapacityError
from tests.api.conftest import memo
from tests.api.jobs.application import JOBS, application, ended, ready, submit
from tests.asr.children import dies, ends


def still_wanted() -> None:
    """It is still wanted."""


@pytest.fixture
def store(tmp_path):
    made = Store.open(tmp_path)
    with made.transaction() as tx:
        for name in "abcd":
            made.jobs.insert(tx, NewJob(name, "", None, 60.0, {}, {}))
    yield made
    made.close()


@pytest.fixture
def samples(tmp_path):
    with (tmp_path / "samples").open("w+b") as file:
        yield SimpleNamespace(file=file, sample_count=0, notices=())


def die_with(store: Store, *jobs: str, times: int = 1) -> None:
    """Processes die in which these jobs are exposed."""
    for n in range(times):
        for job in jobs:
            store.crashes.expose(f"process {n}", job)
        store.crashes.count_deaths({"me"})


def crashes(store: Store, job: str) -> int:
    found = store.jobs.get(job)
    assert found is not None
    return found.crashes


def test_only_those_inside_are_suspects_of_a_death(store) -> None:
    first = CrashTracker(store, "first")
    for job in "abc":
        first.expose(job, still_wanted)
    first.withdraw("c")
    assert store.crashes.count_deaths({"second"}) == [("a", 1), ("b", 1)]  # d was waiting
    assert [store.crashes.deaths(job) for job in "abcd"] == [1, 1, 0, 0]
    assert [crashes(store, job) for job in "abcd"] == [0] * 4  # either of the two may be the cause
    assert store.crashes.count_deaths({"second"}) == []  # once


def test_a_living_process_is_no_death(store) -> None:
    CrashTracker(store, "first").expose("a", still_wanted)
    assert store.crashes.count_deaths({"first", "second"}) == [] and store.crashes.deaths("a") == 0


def test_a_process_that_ends_on_purpose_blames_nobody(store) -> None:
    tracker = CrashTracker(store, "first")
    tracker.expose("a", still_wanted)
    tracker.end()
    tracker.expose("b", still_wanted)  # as the draining goes on
    assert store.crashes.count_deaths({"second"}) == []


def test_a_job_is_a_suspect_from_its_second_death_until_it_gets_on(store) -> None:
    tracker = CrashTracker(store, "me")
    for deaths in range(SUSPECT + 1):
        with tracker.exposed("a", still_wanted) as suspect:
            assert suspect == (deaths >= SUSPECT)
        die_with(store, "a")
    with store.transaction() as tx:
        store.jobs.set_progress(tx, "a", 1.0)
    assert store.crashes.deaths("a") == 0
    with tracker.exposed("a", still_wanted) as suspect:
        assert not suspect


def test_suspects_take_turns_and_nobody_else_waits_for_them(store) -> None:
    die_with(store, "a", "b", times=SUSPECT)
    tracker = CrashTracker(store, "me")
    assert tracker.expose("a", still_wanted)
    second = threading.Thread(target=tracker.expose, args=("b", still_wanted))
    second.start()
    assert not tracker.expose("c", still_wanted)
    second.join(0.3)
    assert second.is_alive()
    tracker.progressed("c")  # it is none, so it stays
    tracker.progressed("a")  # which goes on beside the others
    second.join(10)
    assert not second.is_alive()
    assert store.crashes.count_deaths(set()) == [("b", SUSPECT + 1), ("c", 1)]


def test_who_is_not_wanted_any_more_waits_no_longer(store) -> None:
    die_with(store, "a", "b", times=SUSPECT)
    tracker = CrashTracker(store, "me")
    tracker.expose("b", still_wanted)

    def gone() -> None:
        raise RunReplaced

    with pytest.raises(RunReplaced):
        tracker.expose("a", gone)
    tracker.withdraw("b")
    assert tracker.expose("a", still_wanted)


def test_a_row_that_could_not_be_taken_back_goes_later(store, monkeypatch) -> None:
    tracker = CrashTracker(store, "me")
    tracker.expose("a", still_wanted)
    tracker.expose("b", still_wanted)
    with monkeypatch.context() as away:
        away.setattr(store.crashes, "withdraw", lambda *_: 1 / 0)
        tracker.withdraw("a")
    tracker.sync()
    assert store.crashes.count_deaths(set()) == [("b", 1)]


def test_who_cannot_be_put_on_record_is_not_inside(store, monkeypatch) -> None:
    die_with(store, "a", "b", times=SUSPECT)
    tracker = CrashTracker(store, "me")
    with monkeypatch.context() as away:
        away.setattr(store.crashes, "expose", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tracker.expose("a", still_wanted)
    assert tracker.expose("b", still_wanted)  # it is its turn, so "a" is not there


# -- in a child -----------------------------------------------------------------------------------


def test_a_child_that_dies_counts_at_once_and_the_third_is_the_last(store, samples) -> None:
    tracker = CrashTracker(store, "me")
    for n in range(1, MAX_CRASHES + 1):
        with pytest.raises(SuspectDied, match="SIGKILL") as died:
            tracker.alone("a", still_wanted, ends, samples, "over its work")
        assert crashes(store, "a") == n and died.value.last == (n == MAX_CRASHES)
    assert tracker.alone("b", still_wanted, ends, samples, "well") == "well"
    assert crashes(store, "b") == 0


def test_a_child_that_cannot_load_its_models_is_not_the_jobs_fault(store, samples) -> None:
    tracker = CrashTracker(store, "me")
    with pytest.raises(CapacityError, match="there may be too little memory"):
        tracker.alone("a", still_wanted, ends, samples, "before it begins")
    assert crashes(store, "a") == 0


def test_a_job_that_is_not_wanted_any_more_ends_its_child_and_is_not_charged(
    store, samples
) -> None:
    began_s = time.monotonic()

    def gone() -> None:
        if time.monotonic() > began_s + 0.3:
            raise RunReplaced

    with pytest.raises(RunReplaced):
        CrashTracker(store, "me").alone("a", gone, ends, samples, "never")
    with pytest.raises(RunReplaced):
        CrashTracker(store, "me").alone("a", gone, ends, samples, "over its work")
    assert crashes(store, "a") == 0


def test_there_may_be_no_memory_for_a_second_model(monkeypatch) -> None:
    def full(settings: object) -> None:
        raise MemoryError

    monkeypatch.setattr(suspects, "load_transcriber", full)
    with pytest.raises(CapacityError, match="no memory for a second model"):
        suspects.group_alone(lambda: None, None, None, None, None, ())  # type: ignore[arg-type]


@pytest.fixture
def client(tmp_path, whisper, decoders):
    """A service whose model a child can load too."""
    given = {"model": str(whisper.pair.target), "device": "cpu", "gamma": 2}
    transcriber = Transcriber.load(given["model"], device="cpu", batch=4, gamma=2)
    with application(tmp_path, transcriber, decoders, batch_size=4, **given) as client:
        yield ready(client)


def test_a_suspect_is_planned_and_decoded_in_a_child_and_says_the_same(client, monkeypatch) -> None:
    monkeypatch.setattr("forescribe.asr.segment.cut_plan.GROUP_SIZE", 1)
    audio = memo(40)
    job = submit(client, audio).json()["id"]
    assert ended(client, job)["state"] == "succeeded"
    jobs, done, known = client.app.state.jobs, list[str](), []
    asked, alone = jobs.active.crashes.records.deaths, jobs.active.crashes.alone
    jobs.active.crashes.records.deaths = lambda job: max(asked(job), SUSPECT * (len(done) < 2))

    def counted(job, check, work, *args):
        done.append(work.__name__)
        known.append(args[-1])
        made = alone(job, check, work, *args)
        # The child's module is not patched; it reads the size of groups from the plan.
        return replace(made, group_size=1) if work.__name__ == "plan_alone" else made

    monkeypatch.setattr(jobs.active.crashes, "alone", counted)
    suspect = submit(client, audio).json()["id"]
    assert ended(client, suspect)["state"] == "succeeded"
    assert done == ["plan_alone", "group_alone"]  # and the rest beside the others
    assert known[1] == []  # it was the first group: none had been decoded before
    whole = [
        client.get(f"{JOBS}/{id}/result", params={"response_format": "transcript"}).json()
        for id in (job, suspect)
    ]
    assert len(whole[0]["segments"]) > 1 and whole[0]["segments"] == whole[1]["segments"]


def test_a_job_that_kills_its_children_fails_alone(client, monkeypatch) -> None:
    monkeypatch.setattr(steps, "PAUSES_S", (0.01, 0.01, 0.01))
    records = client.app.state.jobs.store.crashes
    monkeypatch.setattr(records, "deaths", lambda job: SUSPECT)
    monkeypatch.setattr(steps, "plan_alone", dies)
    job = submit(client, memo(2)).json()["id"]
    over = ended(client, job)
    assert over["state"] == "failed" and over["error"]["code"] == "internal_error"
    assert "died over this job" in over["error"]["message"]
    assert client.app.state.jobs.store.jobs.get(job).crashes == MAX_CRASHES


# -- databases of earlier versions ----------------------------------------------------------------


def test_exposed_jobs_of_an_earlier_version_are_read_and_its_statements_still_hold(
    tmp_path,
) -> None:
    """It has a column `alone`, which may not be NULL; both versions work on one database in turn."""
    store = Store.open(tmp_path)
    with store.transaction() as tx:
        store.jobs.insert(tx, NewJob("a", "", None, 60.0, {}, {}))
        store.jobs.insert(tx, NewJob("b", "", None, 60.0, {}, {}))
    with sqlite3.connect(tmp_path / "jobs.db") as earlier:
        columns = "(job, executor, alone, deaths)"
        earlier.execute(f"insert into forescribe_exposed {columns} values ('a', 'before', 1, 1)")
    earlier.close()
    assert store.crashes.count_deaths({"me"}) == [("a", 2)]
    assert CrashTracker(store, "me").expose("a", still_wanted)
    assert not CrashTracker(store, "me").expose("b", still_wanted)
    with sqlite3.connect(tmp_path / "jobs.db") as earlier:
        rows = earlier.execute("select job, alone, deaths from forescribe_exposed order by job")
        assert rows.fetchall() == [("a", 1, 2), ("b", 0, 0)]
    earlier.close()
    store.close()
