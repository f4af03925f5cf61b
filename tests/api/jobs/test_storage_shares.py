"""Shares of the storage: exact under concurrency, freed by deletion, and never at the expense of others."""

from __future__ import annotations

import threading

import pytest

from forescribe.api.access.keys import digest, new_key
from forescribe.api.errors import ApiError
from forescribe.api.files import FILES as FILE_ROWS
from forescribe.api.files import Files
from forescribe.api.jobs.blobs import Blobs
from forescribe.api.jobs.shares import StorageShares
from forescribe.api.jobs.store import Store
from forescribe.api.settings import Settings
from tests.api.batches.calls import FILES, upload
from tests.api.conftest import sound
from tests.api.jobs.application import JOBS, application, database_of, ended, ready, submit

KEYS = {name: new_key() for name in ("one", "two")}
HASHES = {name: digest(key) for name, key in KEYS.items()}


def head(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


def keep(files: Files, owner: str, data: bytes) -> str:
    draft = files.store.blobs.draft()
    draft.write(data)
    return files.add(owner, "user_data", "talk.wav", draft).id


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    made = Store.open(tmp_path, database_of(request.param))
    made.database.create(FILE_ROWS)
    yield made
    made.close()


def test_what_comes_together_does_not_exceed_the_share_together(store) -> None:
    files = Files(Settings(api_keys=HASHES, max_stored_bytes_per_key=250), store)
    results: list[str] = []
    start = threading.Barrier(12)

    def add(k: int) -> None:
        start.wait()
        try:
            keep(files, "one", bytes([k]) * 100)
            results.append("kept")
        except ApiError as error:
            results.append(error.code)

    threads = [threading.Thread(target=add, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["kept"] * 2 + ["storage_quota_exceeded"] * 10
    assert files.shares.stored_bytes("one") == 200 and files.count("one") == 2
    assert len(list(store.blobs.names())) == 2  # what was refused is not on the disk


def test_a_content_counts_once_for_a_key_and_until_its_last_reference_is_gone(store) -> None:
    files = Files(Settings(api_keys=HASHES, max_stored_bytes_per_key=250), store)
    ids = [keep(files, "one", b"a" * 200) for _ in range(3)]
    keep(files, "two", b"a" * 200)
    assert files.shares.stored_bytes("one") == files.shares.stored_bytes("two") == 200
    for id in ids[:2]:
        files.delete(id, "one")
    assert files.shares.stored_bytes("one") == 200
    files.delete(ids[2], "one")
    assert files.shares.stored_bytes("one") == 0


def test_a_key_that_fills_its_part_of_the_disk_leaves_the_others_theirs(store, monkeypatch) -> None:
    """Without the setting: two keys, a disk of 10,000 bytes, and 2,000 of them to be kept free."""

    def free(blobs: Blobs) -> int:
        return 10_000 - sum(blobs.path(name).stat().st_size for name in blobs.names())

    monkeypatch.setattr(Blobs, "free", property(free))
    settings = Settings(api_keys=HASHES, min_free_bytes=2000)
    files, now = Files(settings, store), [0.0]
    files.shares = StorageShares(settings, store, clock=lambda: now[0])
    for name in KEYS:
        kept = 0
        with pytest.raises(ApiError) as refused:
            while True:
                now[0] += 60
                keep(files, name, f"{name} {kept}".encode().ljust(500))
                kept += 1
        assert refused.value.code == "storage_quota_exceeded" and kept == 8
    assert store.blobs.free == 2000
    assert files.shares.limit("") is None  # a service without keys has the disk as its limit


def test_the_key_is_told_what_to_delete_and_nobody_else_notices(
    tmp_path, transcriber, decoders
) -> None:
    audio, other = sound(2), sound(2, 1)
    given = {"api_keys": HASHES, "max_stored_bytes_per_key": len(audio) + 20_000}
    with application(tmp_path, transcriber, decoders, **given) as client:
        jobs = ready(client).app.state.jobs
        taken = submit(client, audio, headers=head("one"))
        assert taken.status_code == 202
        refused = submit(client, other, headers=head("one"))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "storage_quota_exceeded")
        assert (
            "DELETE /v1/jobs/{id}" in error["message"]
            and "delete jobs or files" in error["message"]
        )
        assert upload(client, other, headers=head("one")).status_code == 400
        assert submit(client, other, headers=head("two")).status_code == 202
        assert upload(client, other, headers=head("two")).status_code == 200

        id = taken.json()["id"]
        client.headers.update(head("one"))
        assert ended(client, id)["state"] == "succeeded"
        stored = jobs.submissions.shares.stored_bytes("one")
        assert len(audio) < stored < len(audio) + 20_000  # with its request and its result
        jobs.store.references.drop(id, "audio")  # as retention does
        assert jobs.submissions.shares.stored_bytes("one") == stored - len(audio)
        assert client.delete(f"{JOBS}/{id}").status_code == 204
        assert jobs.submissions.shares.stored_bytes("one") == 0
        assert client.get(FILES).json()["data"] == []


def test_a_share_that_is_used_up_is_told_before_the_body_is_received(
    tmp_path, transcriber, decoders
) -> None:
    with application(
        tmp_path, transcriber, decoders, api_keys=HASHES, max_stored_bytes_per_key=100
    ) as client:
        ready(client)
        assert upload(client, b"a" * 100, headers=head("one")).status_code == 200
        for path in (JOBS, FILES, "/v1/uploads"):
            answer = client.post(path, headers={**head("one"), "Upload-Length": "5"})
            assert answer.json()["error"]["code"] == "storage_quota_exceeded", path
