"""The job store: folders, log, keys and states of jobs."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import Job


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path)
    store.clock = lambda: 1000.0
    with store.transaction() as tx:
        for id in ("a", "b"):
            job = Job(id=id, owner="team", total_s=60.0, options={"task": "x"})
            if id == "a":
                job.hook_url, job.hook_state = "https://example.com/", "pending"
            store.jobs.insert(tx, job)
    yield store
    store.close()


def test_a_key_belongs_to_one_job_of_one_owner(store) -> None:
    def insert(id: str, owner: str, fingerprint: str) -> None:
        job = Job(id=id, owner=owner, total_s=1.0, key="k", fingerprint=fingerprint)
        with store.transaction() as tx:
            store.jobs.insert(tx, job)

    insert("c", "team", "print")
    insert("d", "press", "print")
    found = store.jobs.with_key("team", "k")
    assert (found.id, found.fingerprint) == ("c", "print")
    with pytest.raises(IntegrityError):
        insert("e", "team", "other")
    store.jobs.forget_keys(1001.0)
    assert store.jobs.with_key("team", "k") is None
    insert("e", "team", "other")


@pytest.mark.parametrize(
    ("stage", "made", "given"),
    [
        ("reading", ["audio", "form"], {}),
        ("transcribing", ["plan"], {}),
        ("transcribing", ["plan", "group-0"], {"options": {"diarize": True}}),
        ("finishing", ["plan", "spoken"], {}),
        ("diarizing", ["plan", "spoken"], {"options": {"diarize": True}}),
        ("diarizing", ["result"], {"options": {"diarize": True}, "kind": "diarize"}),
        (None, ["plan"], {"state": "queued"}),
        (None, ["plan", "spoken"], {"state": "succeeded"}),
    ],
)
def test_what_a_job_does_is_told_by_what_it_has_made(stage, made, given) -> None:
    files = {role: f"{role}-1" for role in made}
    job = Job(id="a", owner="team", total_s=60.0, files=files, **{"state": "running", **given})
    assert job.view()["stage"] == stage


def test_every_transition_is_logged_and_a_new_run_begins_anew(store) -> None:
    assert store.jobs.claim("one", beside=()) is not None
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "failed", ("internal_error", "text"))
    ended = store.jobs.get("a")
    assert ended is not None
    store.jobs.set_callback(ended, "failed")
    with store.transaction() as tx:
        again = store.jobs.new_run(tx, store.jobs.locked(tx, "a"), "transcribe", {})
    assert (again.run, again.state, again.error_code) == (2, "queued", None)
    assert (again.hook_state, again.hook_tries) == ("pending", 0)
    states = [entry.data["state"] for entry in store.jobs.entries("a")]
    assert states == ["queued", "running", "failed", "queued"]
    assert [entry.n for entry in store.jobs.entries("a", after=2)] == [3, 4]


def test_audio_is_due_once_its_job_has_been_over_for_longer_than_it_is_kept(store) -> None:
    with store.transaction() as tx:
        store.jobs.update(tx, "a", files={"audio": "audio-1", "form": "form-1"})
        store.jobs.update(tx, "b", files={"form": "form-1"})
        for id in ("a", "b"):
            store.jobs.end(tx, id, "succeeded")  # at 1000.0
    assert store.jobs.with_audio_succeeded_before(1000.0) == []
    assert [job.id for job in store.jobs.with_audio_succeeded_before(1000.5)] == ["a"]
    assert [job.id for job in store.jobs.ended_before(1000.5)] == ["a", "b"]
    assert store.jobs.ended_before(1000.0) == []
