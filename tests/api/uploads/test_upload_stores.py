"""The contract of both stores of uploads: one writer, offsets, owners, and what a client may have open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forescribe.api.access.keys import digest, new_key
from forescribe.api.errors import ApiError
from forescribe.api.jobs.store import Store
from forescribe.api.uploads.shared import SharedUploads
from forescribe.api.uploads.tus import UploadLimits, Uploads, UploadStore
from tests.api.conftest import memo
from tests.api.jobs.application import FORM, JOBS, application, ready
from tests.api.jobs.test_object_blobs import blobs_in
from tests.api.uploads.test_tus import PLACE, TUS, create, patch

LIMITS = UploadLimits(max_bytes=100, max_open=3, max_open_bytes=150)


@pytest.fixture(params=["disk", "objects"])
def opened(request, tmp_path: Path) -> Iterator[Callable[[], UploadStore]]:
    """Opens the same uploads once more, as another process does."""
    stores = []

    def open_again() -> UploadStore:
        if request.param == "disk":
            return Uploads(tmp_path / "uploads", LIMITS)
        own = tmp_path / str(len(stores))
        own.mkdir()
        blobs = blobs_in(tmp_path / "bucket", own / "objects")
        stores.append(Store.open(own, f"sqlite:///{tmp_path / 'jobs.db'}", blobs))
        stores[-1].heartbeats.beat(own.name, ())
        return SharedUploads(stores[-1], own.name, LIMITS)

    yield open_again
    for store in stores:
        store.close()


def refused(act: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value


def test_one_writer_at_a_time_wherever_it_is(opened) -> None:
    stores = opened(), opened()
    id = stores[0].create("team", 20).id
    with stores[0].appending(id, "team", 0) as part:
        part.write(b"12345")
        for store in stores:
            for act in (
                lambda: store.appending(id, "team", 5).__enter__(),  # noqa: B023
                lambda: store.whole(id, "team").__enter__(),  # noqa: B023
                lambda: store.delete(id, "team"),  # noqa: B023
            ):
                assert refused(act).status == 423
    assert stores[1].get(id, "team").offset == 5
    stores[1].delete(id, "team")


def test_nothing_is_kept_beyond_the_length_or_at_another_offset(opened) -> None:
    one, two = opened(), opened()
    id = one.create("team", 20).id
    with one.appending(id, "team", 0) as part:
        part.write(b"12345")
        assert refused(lambda: part.write(b"x" * 16)).status == 413 and part.offset == 5
    assert refused(lambda: two.appending(id, "team", 3).__enter__()).status == 409
    assert refused(lambda: two.whole(id, "team").__enter__()).status == 409
    assert two.get(id, "team").offset == 5


@pytest.mark.parametrize(("id", "owner"), [("", "press"), ("up_../../x", "team")])
def test_an_upload_is_there_for_its_owner_only(opened, id, owner) -> None:
    store = opened()
    id = id or store.create("team", 20).id
    for act in (
        lambda: store.get(id, owner),
        lambda: store.appending(id, owner, 0).__enter__(),
        lambda: store.whole(id, owner).__enter__(),
        lambda: store.digest(id, owner),
        lambda: store.delete(id, owner),
    ):
        assert refused(act).status == 404


def test_a_client_has_so_many_open_uploads_in_all_processes(opened) -> None:
    one, two = opened(), opened()
    ids = [store.create("team", 10).id for store in (one, two, one)]
    error = refused(lambda: two.create("team", 10))
    assert (error.code, error.status) == ("rate_limited", 429) and error.retry_after >= 1
    two.create("press", 10)  # another key's
    one.delete(ids[0], "team")
    two.create("team", 10)
    assert refused(lambda: one.create("team", 10)).code == "rate_limited"


def test_a_finished_upload_counts_until_it_is_a_job(opened) -> None:
    store = opened()
    for _ in range(3):
        id = store.create("team", 1).id
        with store.appending(id, "team", 0) as part:
            part.write(b"x")
    assert refused(lambda: store.create("team", 1)).code == "rate_limited"


def test_a_client_reserves_so_many_bytes(opened) -> None:
    store = opened()
    store.create("team", 100)
    error = refused(lambda: store.create("team", 51))
    assert error.code == "rate_limited" and "100 bytes" in error.message
    store.create("team", 50)
    assert refused(lambda: store.create("team", 1)).code == "rate_limited"


def test_clients_without_keys_are_told_apart_by_their_addresses(opened) -> None:
    store = opened()
    for _ in range(3):
        store.create("", 10, client="203.0.113.9")
    assert refused(lambda: store.create("", 10, client="203.0.113.9")).code == "rate_limited"
    id = store.create("", 10, client="203.0.113.10").id
    with opened().appending(id, "", 0) as part:  # its next piece may come from elsewhere
        part.write(b"0123456789")
    assert opened().get(id, "").complete


def test_creations_at_the_same_time_are_counted_one_after_the_other(opened) -> None:
    stores, start, made = [opened() for _ in range(8)], threading.Barrier(8), []

    def work(store: UploadStore) -> None:
        start.wait()
        try:
            made.append(store.create("team", 1).id)
        except ApiError as error:
            made.append(error.code)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.count("rate_limited") == 5 and len(made) == 8


@pytest.mark.parametrize(("length", "code"), [(0, "empty_file"), (101, "file_too_large")])
def test_lengths_that_can_never_be_taken(opened, length, code) -> None:
    error = refused(lambda: opened().create("team", length))
    assert error.code == code and 400 <= error.status < 500 and error.retry_after is None


def test_the_longest_upload_fits_into_what_a_client_may_reserve() -> None:
    limits = UploadLimits(max_bytes=200, max_open=3, max_open_bytes=150)
    assert limits.longest == 150
    assert refused(lambda: limits.check_length(151)).code == "file_too_large"


def test_uploads_of_an_earlier_version_count_for_their_owner(tmp_path) -> None:
    """Its files and rows name no client."""
    uploads = Uploads(tmp_path / "uploads", LIMITS)
    for _ in range(3):
        path = tmp_path / "uploads" / f"{uploads.create('team', 1).id}.json"
        path.write_text('{"tenant": "team", "length": 1, "label": null}')
    assert refused(lambda: uploads.create("team", 1)).code == "rate_limited"
    database = tmp_path / "jobs.db"
    store = Store.open(tmp_path, f"sqlite:///{database}", blobs_in(tmp_path / "b", tmp_path / "o"))
    with store.transaction() as tx:
        tx.execute(sa.text("ALTER TABLE forescribe_uploads DROP COLUMN client"))
        for n in range(3):
            values = f"('up_{n:032x}', 'team', 1, NULL, 0, 0, NULL, NULL, 0.0)"
            tx.execute(sa.text(f"INSERT INTO forescribe_uploads VALUES {values}"))
    store.close()
    store = Store.open(tmp_path, f"sqlite:///{database}", blobs_in(tmp_path / "b", tmp_path / "o"))
    shared = SharedUploads(store, "one", LIMITS)
    assert shared.get(f"up_{0:032x}", "team").length == 1
    assert refused(lambda: shared.create("team", 1)).code == "rate_limited"
    store.close()


@pytest.mark.parametrize("keyed", [False, True])
def test_the_service_counts_by_key_or_address(tmp_path, transcriber, decoders, keyed) -> None:
    keys = {name: new_key() for name in ("team", "press")} if keyed else {}
    limits = {"max_open_uploads_per_key": 2, "api_keys": {n: digest(k) for n, k in keys.items()}}
    with application(tmp_path, transcriber, decoders, **limits) as client:
        bearer = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
        own = bearer.get("team", {})
        empty = create(ready(client), 0, **own)
        assert (empty.status_code, empty.json()["error"]["code"]) == (400, "empty_file")
        assert empty.json()["error"]["param"] == "Upload-Length"
        audio = memo(1)
        first, _ = (create(client, len(audio), **own) for _ in range(2))
        more = create(client, 5, **own)
        assert (more.status_code, more.json()["error"]["code"]) == (429, "rate_limited")
        assert int(more.headers["retry-after"]) >= 1
        if keyed:
            assert create(client, 5, **bearer["press"]).status_code == 201
        place = first.headers["location"]
        assert patch(client, place, 0, audio, **own).status_code == 204
        assert create(client, 5, **own).status_code == 429
        fields = {k: (None, v) for k, v in {**FORM, "upload_id": place[-35:]}.items()}
        assert client.post(JOBS, files=fields, headers=own).status_code == 202
        assert create(client, 5, **own).status_code == 201
        longest = client.options(PLACE, headers={**TUS, **own}).headers["tus-max-size"]
        assert int(longest) == client.app.state.settings.max_upload_bytes
