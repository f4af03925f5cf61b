"""The classes of the job store: references, log, keys and states of jobs."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import Callback, NewJob


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path)
    store.clock = lambda: 1000.0
    with store.transaction() as tx:
        for id in ("a", "b"):
            callback = Callback("https://example.com/", "whsec_x") if id == "a" else None
            store.jobs.insert(tx, NewJob(id, "team", None, 60.0, {}, {"task": "x"}, callback))
    yield store
    store.close()


def test_a_blob_is_deleted_with_its_last_reference(store) -> None:
    name = store.blobs.put(b"shared")
    with store.transaction() as tx:
        store.references.put(tx, "a", "group", name, 1)
        store.references.put(tx, "b", "group", name, 1)
    store.references.drop("a", "group")
    assert store.blobs.read(name) == b"shared" and store.references.get_all("a", "group") == []
    store.erase("b")
    assert list(store.blobs.names()) == [] and store.jobs.get("b") is None


def test_a_reference_that_is_replaced_leaves_the_earlier_blob_to_be_swept(store) -> None:
    old, new = store.blobs.put(b"old"), store.blobs.put(b"new")
    with store.transaction() as tx:
        store.references.put(tx, "a", "result", old)
        for name in (old, old, new):
            store.references.put(tx, "a", "result", name)
    assert store.references.sweep() == 1 and list(store.blobs.names()) == [new]


def test_a_key_belongs_to_one_job_of_one_owner(store) -> None:
    with store.transaction() as tx:
        store.keys.insert(tx, "team", "k", "print", "a")
        store.keys.insert(tx, "press", "k", "print", "b")
    assert store.keys.get("team", "k", "print") == "a"
    with pytest.raises(IntegrityError), store.transaction() as tx:
        store.keys.insert(tx, "team", "k", "other", "b")
    store.keys.delete_before(1001.0)
    assert store.keys.get("team", "k", "print") is None


def test_every_transition_is_logged_and_a_new_run_begins_anew(store) -> None:
    assert store.jobs.claim("one", beside=()) is not None
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "failed", ("internal_error", "text"))
    ended = store.jobs.get("a")
    assert ended is not None
    store.jobs.set_callback(ended, "failed")
    with store.transaction() as tx:
        again = store.jobs.new_run(tx, "a", "transcribe")
    assert (again.run, again.state, again.error) == (2, "queued", None)
    assert again.callback is not None
    assert (again.callback.state, again.callback.tries) == ("pending", 0)
    states = [entry.data["state"] for entry in store.log.entries("a")]
    assert states == ["queued", "running", "failed", "queued"]
    assert [entry.n for entry in store.log.entries("a", after=2)] == [3, 4]


def test_audio_is_due_once_its_job_has_been_over_for_longer_than_it_is_kept(store) -> None:
    name = store.blobs.put(b"audio")
    with store.transaction() as tx:
        store.references.put(tx, "a", "audio", name)
        store.jobs.end(tx, "a", "succeeded")  # at 1000.0
    assert store.jobs.with_audio_succeeded_before(1000.0) == []
    assert (
        store.jobs.with_audio_succeeded_before(1000.5) == store.jobs.ended_before(1000.5) == ["a"]
    )
    assert store.jobs.ended_before(1000.0) == []


def test_a_job_of_another_owner_does_not_exist(store) -> None:
    assert store.jobs.get("a", "team") is not None and store.jobs.get("a", "press") is None
    assert store.jobs.page("press", 10) == ([], False)
    jobs, more = store.jobs.page("team", 1)
    assert len(jobs) == 1 and more
    assert store.jobs.backlog("team") == (2, 120.0) and store.jobs.backlog("press") == (0, 0)
