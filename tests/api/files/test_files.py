"""Files: upload, pages, contents, deletion and expiry; and what may not be uploaded."""

from __future__ import annotations

import pytest

from tests.api.batches.calls import FILES, upload
from tests.api.conftest import sound
from tests.api.jobs.application import application, files, ready, submit

DAY_S = 24 * 3600


@pytest.fixture
def client(tmp_path, transcriber, decoders):
    with application(tmp_path, transcriber, decoders) as client:
        yield client


def test_a_file_is_kept_as_it_is(client) -> None:
    made = upload(client, b"one\r\ntwo\0", "user_data", "talk %22a%22.wav")
    assert made.status_code == 200
    file = made.json()
    assert file["object"] == "file" and file["status"] == "processed"
    assert file["bytes"] == 9 and file["purpose"] == "user_data"
    assert file["filename"] == 'talk "a".wav'
    assert file["expires_at"] == file["created_at"] + 30 * DAY_S
    assert client.get(f"{FILES}/{file['id']}").json() == file
    content = client.get(f"{FILES}/{file['id']}/content")
    assert content.content == b"one\r\ntwo\0" and content.status_code == 200
    assert content.headers["accept-ranges"] == "bytes"
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["x-content-type-options"] == "nosniff"
    head = client.head(f"{FILES}/{file['id']}/content")
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-length"] == "9" and head.headers["etag"] == content.headers["etag"]


def test_a_file_comes_in_parts(client) -> None:
    data = b"0123456789"
    content = f"{FILES}/{upload(client, data).json()['id']}/content"
    for header, part in (
        ("bytes=1-2", slice(1, 3)),
        ("bytes=7-", slice(7, None)),
        ("bytes=-3", slice(-3, None)),
        ("bytes=-900", slice(None)),
        ("bytes=8-900", slice(8, None)),
        ("Bytes = 3-3", slice(3, 4)),
    ):
        answer = client.get(content, headers={"Range": header})
        assert (answer.status_code, answer.content) == (206, data[part]), header
        assert answer.headers["content-length"] == str(len(data[part]))
        first, last = range(10)[part][0], range(10)[part][-1]
        assert answer.headers["content-range"] == f"bytes {first}-{last}/10"
    for header in ("bytes=0-1,4-5", "bytes=5-2", "bytes=-", "lines=1-2", ""):  # no part: the whole
        answer = client.get(content, headers={"Range": header})
        assert (answer.status_code, answer.content) == (200, data), header
    for header in ("bytes=10-", "bytes=10-20", "bytes=-0"):
        answer = client.get(content, headers={"Range": header})
        assert answer.status_code == 416
        assert answer.json()["error"]["code"] == "range_not_satisfiable"
        assert answer.headers["content-range"] == "bytes */10"


def test_a_part_of_another_file_is_not_mixed_with_this_one(client) -> None:
    """`If-Range` names the file that the client has a part of, by its ETag or its time."""
    data = b"0123456789"
    content = f"{FILES}/{upload(client, data).json()['id']}/content"
    whole = client.get(content)
    for header in ("etag", "last-modified"):
        same = {"Range": "bytes=4-", "If-Range": whole.headers[header]}
        assert client.get(content, headers=same).content == data[4:]
    for value in ('"another"', f"W/{whole.headers['etag']}", "Thu, 01 Jan 1970 00:00:00 GMT"):
        for bytes_ in ("bytes=4-", "bytes=90-"):
            answer = client.get(content, headers={"Range": bytes_, "If-Range": value})
            assert (answer.status_code, answer.content) == (200, data)


def test_files_are_listed_in_pages(client) -> None:
    store = client.app.state.jobs.store
    made = []
    for k in range(7):
        store.clock = lambda at=k: 1_000_000.0 + at
        made.append(upload(client, b"x" * (k + 1)).json()["id"])
    seen, after = [], {}
    while True:
        page = client.get(FILES, params={"limit": 3, **after}).json()
        seen += [file["id"] for file in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": seen[-1]}
    assert seen == made[::-1] and len(client.get(FILES).json()["data"]) == 7


def test_a_deleted_file_is_gone_from_the_disk(client, tmp_path) -> None:
    marker = b"MARKER" * 10
    first, second = (upload(client, marker, name=name).json()["id"] for name in ("a", "b"))
    assert client.delete(f"{FILES}/{first}").json() == {
        "id": first,
        "object": "file",
        "deleted": True,
    }
    assert client.get(f"{FILES}/{first}").status_code == 404
    assert client.delete(f"{FILES}/{first}").status_code == 404
    assert client.get(f"{FILES}/{second}/content").content == marker  # equal, and another file
    client.delete(f"{FILES}/{second}")
    assert marker not in files(tmp_path)


def test_a_file_ends_with_its_time(client, tmp_path) -> None:
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(client, b"MARKER", **fields).json()
    assert file["expires_at"] == file["created_at"] + 3600
    lasting = upload(client, b"lasting").json()["id"]
    store = client.app.state.jobs.store
    store.clock = lambda now=store.clock: now() + 3601
    assert client.get(f"{FILES}/{file['id']}").status_code == 404
    assert [f["id"] for f in client.get(FILES).json()["data"]] == [lasting]
    client.app.state.files.erase_expired()
    assert b"MARKER" not in files(tmp_path)


def test_what_is_not_taken(tmp_path, transcriber, decoders) -> None:
    soon = '{"anchor": "created_at", "seconds": 1}'
    given = {"max_upload_bytes": 2000}
    with application(tmp_path, transcriber, decoders, **given) as client:
        for data, fields, status, code in (
            (b"x", {"purpose": "fine-tune"}, 400, "invalid_value"),
            (b"x", {"purpose": ""}, 400, "invalid_value"),
            (b"x", {"purpose": "batch_output"}, 400, "invalid_value"),
            (b"", {}, 400, "empty_file"),
            (b"x", {"more": "1"}, 400, "invalid_value"),
            (b"x", {"expires_after[seconds]": "3600"}, 400, "invalid_value"),
            (b"x", {"expires_after": soon}, 400, "invalid_value"),
            (b"x" * 2001, {}, 413, "file_too_large"),
        ):
            answer = upload(client, data, **{"purpose": "user_data", **fields})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), fields
        assert client.get(FILES).json()["data"] == []
        assert list(client.app.state.jobs.store.blobs.names()) == []


def test_a_form_without_a_file_names_it(client) -> None:
    answer = client.post(FILES, files={"purpose": (None, "batch")})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "file"


def test_a_full_disk_takes_no_file(tmp_path, transcriber, decoders) -> None:
    with application(tmp_path, transcriber, decoders, min_free_bytes=1 << 60) as client:
        assert upload(client, b"a").status_code == 507


def test_ids_that_are_none(client) -> None:
    for id in ("x", "file-", "file-" + "G" * 32, "file-" + "0" * 31 + "%00"):
        for path in (id, f"{id}/content"):
            assert client.get(f"{FILES}/{path}").status_code == 404
    assert client.get(FILES, params={"after": "no"}).status_code == 400


def test_equal_audio_of_a_job_and_a_file_is_stored_once(client) -> None:
    data = sound(1)
    assert submit(ready(client), data).status_code == 202
    upload(client, data)
    blobs = client.app.state.jobs.store.blobs
    assert sum(blobs.read(name) == data for name in blobs.names()) == 1
