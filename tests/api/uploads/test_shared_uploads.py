"""Resumable uploads of several replicas: the offset is what is stored, whoever asks and whoever died."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forescribe.api.errors import ApiError
from forescribe.api.jobs.store import Store
from forescribe.api.uploads import shared
from forescribe.api.uploads.shared import SharedUploads
from forescribe.api.uploads.tus import UploadLimits
from forescribe.asr.errors import StorageError
from tests.api.jobs.test_object_blobs import blobs_in

PIECE = 16
"""Bytes of a piece in these tests."""

LIMITS = UploadLimits(max_bytes=1000, max_open=100, max_open_bytes=1 << 30)


@dataclass
class Replica:
    store: Store
    uploads: SharedUploads

    def die(self) -> None:
        """Its heartbeat is gone, as when another process has found it dead."""
        self.store.heartbeats.delete(self.uploads.executor)


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch) -> Iterator[list[Replica]]:
    monkeypatch.setattr(shared, "PIECE_BYTES", PIECE)
    made = []
    for name in ("one", "two"):
        own = tmp_path / name
        own.mkdir()
        database = f"sqlite:///{tmp_path / 'jobs.db'}"
        store = Store.open(own, database, blobs_in(tmp_path / "bucket", own / "objects"))
        store.heartbeats.beat(name, ())
        made.append(Replica(store, SharedUploads(store, name, LIMITS)))
    yield made
    for replica in made:
        replica.store.close()


def append(replica: Replica, id: str, offset: int, data: bytes) -> None:
    with replica.uploads.appending(id, "", offset) as part:
        part.write(data)


def status(act, *args) -> int:
    with pytest.raises(ApiError) as caught:
        act(*args)
    return caught.value.status


def test_pieces_go_to_any_replica_and_make_one_file(replicas) -> None:
    one, two = replicas
    data = bytes(range(100))
    id = one.uploads.create("", len(data), "talk.wav").id
    for n, at in enumerate(range(0, 100, 10)):
        append(replicas[n % 2], id, at, data[at : at + 10])
        assert one.uploads.get(id, "").offset == two.uploads.get(id, "").offset == at + 10
    assert two.uploads.digest(id, "") == hashlib.sha256(data).digest()
    with two.uploads.whole(id, "") as file:
        assert file.read() == data
        file.seek(0)
        assert file.read(7) == data[:7]
    assert two.uploads.get(id, "").label == "talk.wav"
    one.uploads.delete(id, "")
    assert status(two.uploads.get, id, "") == 404
    assert not list(one.store.blobs.names())


def test_a_large_body_is_stored_while_it_arrives(replicas) -> None:
    one, two = replicas
    id = one.uploads.create("", 100).id
    with one.uploads.appending(id, "", 0) as part:
        part.write(b"a" * (2 * PIECE + 5))
        assert two.uploads.get(id, "").offset == 2 * PIECE
    assert two.uploads.get(id, "").offset == 2 * PIECE + 5
    assert len(list(one.store.blobs.names())) == 3
    assert not list((one.store.blobs.root / "drafts").iterdir())


def test_an_upload_goes_on_elsewhere_when_its_replica_has_died(replicas) -> None:
    one, two = replicas
    data = bytes(range(60))
    id = one.uploads.create("", 60).id
    writing = one.uploads.appending(id, "", 0)
    part = writing.__enter__()
    part.write(data[: PIECE + 3])
    assert status(two.uploads.appending(id, "", PIECE).__enter__) == 423
    one.die()
    append(two, id, PIECE, data[PIECE:40])
    with pytest.raises(ApiError) as caught:  # it was suspended, and comes back
        writing.__exit__(None, None, None)
    assert caught.value.status == 409
    append(two, id, 40, data[40:])
    with two.uploads.whole(id, "") as file:
        assert file.read() == data
    two.uploads.delete(id, "")
    assert not list(two.store.blobs.names())  # that of the late piece neither


def test_storage_that_is_away_moves_no_offset(replicas, monkeypatch) -> None:
    one, _ = replicas
    id = one.uploads.create("", 20).id
    append(one, id, 0, b"12345")

    def away(*_):
        raise StorageError("away")

    with monkeypatch.context() as patched:
        patched.setattr(one.store.blobs.objects, "put", away)
        with pytest.raises(StorageError):
            append(one, id, 5, b"67890")
    assert one.uploads.get(id, "").offset == 5
    append(one, id, 5, b"67890")
    assert not list((one.store.blobs.root / "drafts").iterdir())


def test_uploads_that_nobody_goes_on_with_expire_and_lost_locks_end(replicas) -> None:
    one, two = replicas
    id, other = one.uploads.create("", 20).id, one.uploads.create("", 20).id
    append(one, id, 0, b"12345")
    one.uploads.expire(3600.0)
    assert one.uploads.get(id, "").offset == 5
    lock = one.uploads._locked(other, "")
    lock.__enter__()
    one.uploads._writing.clear()  # its end could not be recorded: the database was away
    two.uploads.expire(3600.0)
    assert status(two.uploads.delete, other, "") == 423
    one.uploads.expire(3600.0)
    two.uploads.delete(other, "")
    two.uploads.expire(-60.0)
    assert status(one.uploads.get, id, "") == 404
    assert not list(one.store.blobs.names())


Step = st.tuples(st.integers(0, 1), st.binary(max_size=40), st.sampled_from(["", "", "dies"]))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None
)
@given(steps=st.lists(Step, max_size=12).filter(lambda steps: any(data for _, data, _ in steps)))
def test_whatever_breaks_the_file_is_what_was_sent_up_to_its_offset(replicas, steps) -> None:
    """Pieces of any size go to any replica; some die in the middle, with bytes that are not stored."""
    whole = b"".join(data for _, data, _ in steps)[:1000]
    id, dead = replicas[0].uploads.create("", len(whole)).id, []
    for n, data, fate in steps:
        replica, other = replicas[n], replicas[1 - n]
        at = other.uploads.get(id, "").offset
        data = whole[at : at + len(data)]
        if not fate:
            append(replica, id, at, data)
            assert other.uploads.get(id, "").offset == at + len(data)
            continue
        block = replica.uploads.appending(id, "", at)
        dead.append(block)
        part = block.__enter__()
        part.write(data)
        part.discard()  # the process is gone, and so is what is not stored
        replica.die()
        assert other.uploads.get(id, "").offset == at + len(data) // PIECE * PIECE
        replica.uploads._writing.clear()
        replica.store.heartbeats.beat(replica.uploads.executor, ())  # its successor
        replica.uploads.expire(3600.0)
    at = replicas[0].uploads.get(id, "").offset
    append(replicas[0], id, at, whole[at:])
    with replicas[1].uploads.whole(id, "") as file:
        assert file.read() == whole
    replicas[1].uploads.delete(id, "")
