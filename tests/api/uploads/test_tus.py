"""Resumable uploads: the offset is what is there, one writer at a time, nothing beyond what was said."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forescribe.api.access.keys import digest, new_key
from forescribe.api.access.limits import Client
from forescribe.api.errors import ApiError
from forescribe.api.settings import Settings
from forescribe.api.uploads import Uploads
from tests.api.conftest import memo, until
from tests.api.http import raw
from tests.api.jobs.application import FORM, JOBS, application, ended, ready

TUS = {"Tus-Resumable": "1.0.0"}
BODY = {**TUS, "Content-Type": "application/offset+octet-stream"}
PLACE = "/v1/uploads"
LIMITS = Settings(model="random", max_upload_bytes=1000, max_open_uploads_per_key=3)


@pytest.fixture(scope="module")
def client(tmp_path_factory, transcriber, decoders):
    with application(
        tmp_path_factory.mktemp("jobs"), transcriber, decoders, max_upload_bytes=1 << 20
    ) as made:
        yield ready(made)


def create(client, length: int, **headers: str):
    return client.post(PLACE, headers={**TUS, "Upload-Length": str(length), **headers})


def patch(client, place: str, offset: int, data: bytes, **headers: str):
    return client.patch(
        place, headers={**BODY, "Upload-Offset": str(offset), **headers}, content=data
    )


def offset(client, place: str) -> int:
    return int(client.head(place, headers=TUS).headers["upload-offset"])


def test_a_file_in_pieces_becomes_a_job(client) -> None:
    audio = memo(2)
    name = base64.b64encode("Gespräch.wav".encode()).decode()
    made = create(client, len(audio), **{"Upload-Metadata": f"filename {name}"})
    assert made.status_code == 201
    place = made.headers["location"]
    for at in range(0, len(audio), 20_000):
        assert offset(client, place) == at
        assert patch(client, place, at, audio[at : at + 20_000]).status_code == 204
    id = place.rsplit("/", 1)[1]
    fields = {name: (None, value) for name, value in {**FORM, "upload_id": id}.items()}
    headers = {"Idempotency-Key": "tus"}
    answer = client.post(JOBS, files=fields, headers=headers)
    assert answer.status_code == 202, answer.text
    assert answer.json()["label"] == "Gespräch.wav"
    job = answer.json()["id"]
    assert client.get(f"{JOBS}/{job}/audio").content == audio
    assert client.head(place, headers=TUS).status_code == 404
    again = client.post(JOBS, files=fields, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, job)
    assert client.post(JOBS, files=fields).status_code == 404
    assert ended(client, job)["state"] == "succeeded"


def test_what_is_wrong_is_told_and_nothing_of_it_kept(client) -> None:
    place = create(client, 10).headers["location"]
    assert patch(client, place, 0, b"12345").status_code == 204
    assert patch(client, place, 3, b"45").status_code == 409
    assert patch(client, place, 5, b"6789012").status_code == 413
    assert patch(client, place, 5, b"6", **{"Content-Type": "text/plain"}).status_code == 415
    assert patch(client, place, 5, b"6", **{"Tus-Resumable": "0.2"}).status_code == 412
    assert client.patch(place, headers=BODY, content=b"6").status_code == 400
    assert offset(client, place) == 5
    fields = {k: (None, v) for k, v in {**FORM, "upload_id": place.rsplit("/", 1)[1]}.items()}
    assert client.post(JOBS, files=fields).status_code == 409
    assert create(client, (1 << 20) + 1).status_code == 413
    assert create(client, -1).status_code == 400
    assert client.patch(f"{PLACE}/up_{'0' * 32}", headers=BODY).status_code in (400, 404)
    assert client.head(f"{PLACE}/..%2f..%2fjobs.db", headers=TUS).status_code == 404
    assert client.delete(place, headers=TUS).status_code == 204
    assert client.head(place, headers=TUS).status_code == 404


def test_a_chunked_body_beyond_the_length_is_cut_off(client) -> None:
    place = create(client, 10).headers["location"]
    pieces = iter([b"12345", b"67890", b"more"])
    answer = client.patch(place, headers={**BODY, "Upload-Offset": "0"}, content=pieces)
    assert answer.status_code == 413 and offset(client, place) <= 10


@pytest.mark.parametrize(
    ("keyed", "limits", "status", "code"),
    [
        (False, {"max_uploads": 3}, 503, "overloaded"),
        (True, {"max_uploads": 9, "max_requests_per_key": 3}, 429, "rate_limited"),
    ],
)
def test_pieces_that_come_slowly_have_a_bound(
    tmp_path, transcriber, decoders, keyed, limits, status, code
) -> None:
    """The places of all uploads; the server's own requests take none of them."""
    key = new_key()
    limits |= {"api_keys": {"team": digest(key)}} if keyed else {}
    with application(tmp_path, transcriber, decoders, max_requests=1, **limits) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        admission = client.app.state.serving.admission
        admission.start(Client("other"))  # no place for a request: pieces come in all the same
        *slow, last = [create(client, 10).headers["location"] for _ in range(4)]
        go = threading.Event()

        async def receive():
            while not go.is_set():
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        headers = {**BODY, "Upload-Offset": "0", "Authorization": f"Bearer {key}"}
        threads = [
            threading.Thread(target=raw.post, args=(client, place, headers, receive, "PATCH"))
            for place in slow
        ]
        for thread in threads:
            thread.start()
        try:
            until(lambda: admission.uploads == 3)
            answer = patch(client, last, 0, b"12345")
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert int(answer.headers["retry-after"]) >= 1
        finally:
            go.set()
            for thread in threads:
                thread.join()
        assert admission.uploads == 0
        assert patch(client, last, 0, b"12345").status_code == 204


def test_a_disk_below_its_mark_takes_no_further_piece(client, monkeypatch) -> None:
    place = create(client, 4).headers["location"]
    jobs = client.app.state.jobs
    with monkeypatch.context() as patched:
        patched.setattr(type(jobs.store.files), "free", -1)
        answer = patch(client, place, 0, b"1234")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert offset(client, place) == 0 and patch(client, place, 0, b"1234").status_code == 204


def test_what_it_can_do_is_told(client) -> None:
    answer = client.options(PLACE)
    assert answer.status_code == 204 and answer.headers["tus-version"] == "1.0.0"
    assert answer.headers["tus-extension"] == "creation,termination"
    assert answer.headers["tus-max-size"] == str(1 << 20)


def test_a_key_is_looked_at_on_every_verb_before_a_byte_is_kept(
    tmp_path, transcriber, decoders
) -> None:
    keys = {name: new_key() for name in ("one", "two")}
    hashes = {name: digest(key) for name, key in keys.items()}
    with application(tmp_path, transcriber, decoders, api_keys=hashes) as client:
        as_ = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
        place = create(client, 4, **as_["one"]).headers["location"]
        for headers, status in ((as_["two"], 404), ({}, 401)):
            told = {**BODY, "Upload-Offset": "0", **headers}
            assert client.patch(place, headers=told, content=b"1234").status_code == status
            assert client.head(place, headers={**TUS, **headers}).status_code == status
            assert client.delete(place, headers={**TUS, **headers}).status_code == status
        assert client.post(PLACE, headers={**TUS, "Upload-Length": "4"}).status_code == 401
        (part,) = (tmp_path / "uploads").glob("*.part")
        assert part.stat().st_size == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    pieces=st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=12).filter(
        lambda pieces: any(data for data, _ in pieces)  # an empty upload is refused
    )
)
def test_whatever_breaks_the_file_is_what_was_sent_up_to_its_offset(tmp_path, pieces) -> None:
    """Pieces arrive; where a piece is lost, so is its process: the next one begins with `recover`."""
    whole = b"".join(piece for piece, _ in pieces)
    uploads = Uploads(tmp_path, LIMITS)
    id = uploads.create("", len(whole)).id
    while (at := uploads.get(id, "").offset) < len(whole):
        if not pieces:
            pieces = [(whole[at:], False)]
        piece, dies = pieces[0]
        pieces = pieces[1:]
        piece = whole[at : at + len(piece)]
        if dies:  # written, and perhaps not on disk
            with (tmp_path / f"{id}.part").open("ab") as file:
                file.write(piece)
            uploads.recover()
            assert uploads.get(id, "").offset == at
            continue
        with uploads.appending(id, "", at) as part:
            part.write(piece)
    with uploads.whole(id, "") as file:
        assert file.read() == whole
    uploads.delete(id, "")


def test_an_upload_that_nobody_goes_on_with_expires(tmp_path) -> None:
    now = [os.stat(tmp_path).st_mtime]
    uploads = Uploads(tmp_path / "uploads", LIMITS, lambda: now[0])
    id = uploads.create("", 10).id
    uploads.expire(60)
    assert uploads.get(id, "").offset == 0
    now[0] += 3600
    uploads.expire(60)
    with pytest.raises(ApiError):
        uploads.get(id, "")
    assert not list((tmp_path / "uploads").iterdir())


def test_bytes_whose_description_is_lost_expire_too(tmp_path) -> None:
    """A process was killed between the two files of an upload."""
    now = [time.time()]
    uploads = Uploads(tmp_path / "uploads", LIMITS, lambda: now[0])
    kept, lost = uploads.create("a", 10), uploads.create("a", 10)
    (tmp_path / "uploads" / f"{lost.id}.json").unlink()
    uploads.expire(60.0)
    assert (tmp_path / "uploads" / f"{lost.id}.part").exists()
    now[0] += 30.0
    os.utime(tmp_path / "uploads" / f"{kept.id}.part", (now[0], now[0]))
    now[0] += 40.0
    uploads.expire(60.0)
    assert {p.stem for p in (tmp_path / "uploads").glob("*.part")} == {kept.id}


def refused(act: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value


def test_one_writer_at_a_time_wherever_it_is(tmp_path) -> None:
    stores = [Uploads(tmp_path, LIMITS) for _ in range(2)]
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


@pytest.mark.parametrize(("id", "owner"), [("", "press"), ("up_../../x", "team")])
def test_an_upload_is_there_for_its_owner_only(tmp_path, id, owner) -> None:
    store = Uploads(tmp_path, LIMITS)
    id = id or store.create("team", 20).id
    for act in (
        lambda: store.get(id, owner),
        lambda: store.appending(id, owner, 0).__enter__(),
        lambda: store.whole(id, owner).__enter__(),
        lambda: store.delete(id, owner),
    ):
        assert refused(act).status == 404


def test_clients_without_keys_are_told_apart_by_their_addresses(tmp_path) -> None:
    store = Uploads(tmp_path, LIMITS)
    for _ in range(3):
        store.create("", 10, client="203.0.113.9")
    assert refused(lambda: store.create("", 10, client="203.0.113.9")).code == "rate_limited"
    id = store.create("", 10, client="203.0.113.10").id
    with Uploads(tmp_path, LIMITS).appending(
        id, "", 0
    ) as part:  # its next piece may come from elsewhere
        part.write(b"0123456789")
    assert Uploads(tmp_path, LIMITS).get(id, "").offset == 10


def test_creations_at_the_same_time_are_counted_one_after_the_other(tmp_path) -> None:
    stores, start, made = [Uploads(tmp_path, LIMITS) for _ in range(8)], threading.Barrier(8), []

    def work(store: Uploads) -> None:
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
        assert empty.json()["error"]["message"].startswith("the file is empty (Upload-Length: 0): ")
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
