"""Batches over the application with a small model: every state, every kind of mistake, and other keys."""

from __future__ import annotations

import json

import pytest

from forescribe.api.access.keys import digest, new_key
from tests.api.batches.calls import (
    BATCHES,
    FILES,
    TRANSCRIBE,
    TRANSLATE,
    begin,
    ended,
    jsonl,
    line,
    lines_of,
    upload,
)
from tests.api.conftest import keyed, memo, silence, sound, until
from tests.api.jobs.application import JOBS, application, ready

KEY, OTHER = new_key(), new_key()


@pytest.fixture
def client(tmp_path, transcriber, decoders):
    with application(tmp_path, transcriber, decoders) as client:
        yield ready(client)


def audio(client, data: bytes, **options) -> str:
    return upload(client, data, **options).json()["id"]


def test_every_line_is_answered_as_its_route_would(client) -> None:
    file, quiet = audio(client, memo(3)), audio(client, silence(2))
    formats = ("json", "text", "srt", "vtt", "verbose_json", "diarized_json")
    made = begin(
        client,
        jsonl(
            [line(form, file=file, response_format=form) for form in formats]
            + [line("quiet", file=quiet)]
        ),
        metadata={"for": "a test"},
    )
    assert made.status_code == 200
    batch = ended(client, made.json()["id"])
    assert batch["status"] == "completed" and batch["error_file_id"] is None
    assert batch["request_counts"] == {"total": 7, "completed": 7, "failed": 0}
    assert batch["metadata"] == {"for": "a test"} and batch["model"] == "random"
    assert batch["usage"]["input_tokens"] == 6 * 150 + 100
    times = [batch[f"{n}_at"] for n in ("created", "in_progress", "finalizing", "completed")]
    assert times == sorted(times) and batch["expires_at"] == batch["created_at"] + 86400
    rows = lines_of(client, batch["output_file_id"])
    assert list(rows) == [*formats, "quiet"]  # in the order of the input
    jobs = client.get(JOBS).json()["data"]
    for form in formats:
        response = rows[form]["response"]
        assert response["status_code"] == 200 and rows[form]["error"] is None
        data = {"model": "random", "language": "de", "temperature": "0.5", "response_format": form}
        direct = client.post(TRANSCRIBE, files={"file": memo(3)}, data=data)
        plain = "json" not in form
        assert direct.status_code == 200
        told = direct.text if plain else direct.json()
        if form in ("srt", "vtt"):  # words of jobs are always timed, so cues are cut at words
            (job,) = [job for job in jobs if job["id"][4:] == response["request_id"][4:]]
            params = {"response_format": form}
            assert response["body"] == client.get(f"{JOBS}/{job['id']}/result", params=params).text
        elif form == "text":
            assert response["body"] == told
        elif form == "diarized_json":
            assert response["body"] == told
        else:
            assert response["body"]["text"] == told["text"]
            assert set(told) <= set(response["body"])
    assert rows["quiet"]["response"]["body"]["text"] == ""


def test_translations(client) -> None:
    made = begin(
        client,
        jsonl(
            [line("one", TRANSLATE, file=audio(client, memo(2)), response_format="verbose_json")]
        ),
        TRANSLATE,
    )
    batch = ended(client, made.json()["id"])
    (row,) = lines_of(client, batch["output_file_id"]).values()
    assert row["response"]["body"]["task"] == "translate"
    assert row["response"]["body"]["language"] == "english"


def test_a_line_that_is_wrong_fails_alone(client) -> None:
    good, bad = audio(client, sound(2)), audio(client, b"no audio")
    wrong = {
        "unknown file": ({"file": "file-" + "0" * 32}, 404, "file_not_found", "file"),
        "no id": ({"file": "../../etc/passwd"}, 404, "file_not_found", "file"),
        "no audio": ({"file": bad}, 400, "invalid_audio", "file"),
        "no file": ({}, 400, "missing_file", "file"),
        "two files": ({"file": good, "file_url": "https://x.test/"}, 400, "missing_file", "file"),
        "not a string": ({"file": 5}, 400, "invalid_value", "file"),
        "model": ({"file": good, "model": "other"}, 404, "model_not_found", "model"),
        "no model": ({"file": good, "model": None}, 400, "invalid_value", "model"),
        "field": ({"file": good, "colour": "red"}, 400, "invalid_value", "colour"),
        "format": ({"file": good, "response_format": "xml"}, 400, "invalid_value", None),
        "words": ({"file": good, "timestamp_granularities": ["word"]}, 400, "invalid_value", None),
        "stream": ({"file": good, "stream": True}, 400, "invalid_value", "stream"),
        "logprobs": ({"file": good, "include": ["logprobs"]}, 400, "invalid_value", "include"),
        "language": ({"file": good, "language": "klingon"}, 400, "invalid_value", "language"),
        "url": ({"file_url": "https://x.test/a.wav"}, 400, "invalid_value", "file_url"),
        "url as file": ({"file": "https://x.test/a.wav"}, 400, "invalid_value", "file_url"),
    }
    lines = [line(name, **body) for name, (body, *_) in wrong.items()]
    made = begin(client, jsonl([*lines, line("good", file=good)]))
    batch = ended(client, made.json()["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {
        "total": len(wrong) + 1,
        "completed": 1,
        "failed": len(wrong),
    }
    assert set(lines_of(client, batch["output_file_id"])) == {"good"}
    rows = lines_of(client, batch["error_file_id"])
    assert set(rows) == set(wrong)
    for name, (_, status, code, param) in wrong.items():
        response = rows[name]["response"]
        error = response["body"]["error"]
        assert (response["status_code"], error["code"]) == (status, code), name
        assert rows[name]["error"] is None and error["message"]
        if param is not None:
            assert error["param"] == param, name


def test_a_file_that_is_wrong_fails_the_batch(tmp_path, transcriber, decoders) -> None:
    wrong = [
        (b"\n\n", "empty_file", None),
        (b"{", "invalid_json_line", 1),
        (b"[1]", "invalid_json_line", 1),
        (b"\xff\xfe{}", "invalid_json_line", 1),
        (b"\xef\xbb\xbf[]", "invalid_json_line", 1),
        (b'{"a": NaN}', "invalid_json_line", 1),
        (b"[" * 100_000, "invalid_json_line", 1),
        (jsonl([line("a", file="x")]) + jsonl([line("a", file="y")]), "duplicate_custom_id", 2),
        (jsonl([{**line("a"), "method": "GET"}]), "invalid_method", 1),
        (jsonl([line("a", TRANSLATE)]), "invalid_url", 1),
        (jsonl([{**line("a"), "custom_id": 5}]), "invalid_value", 1),
        (jsonl([{**line("a"), "custom_id": ""}]), "invalid_value", 1),
        (jsonl([{**line("a"), "body": []}]), "invalid_value", 1),
        (jsonl([{**line("a"), "more": 1}]), "unknown_parameter", 1),
        (b"\n" + jsonl([{"custom_id": "a"}]), "missing_required_parameter", 2),
        (jsonl([line(str(k)) for k in range(4)]), "too_many_requests", None),
    ]
    with application(tmp_path, transcriber, decoders, max_batch_lines=3) as client:
        ready(client)
        for data, code, number in wrong:
            batch = ended(client, begin(client, data).json()["id"])
            assert batch["status"] == "failed" and batch["failed_at"]
            first = batch["errors"]["data"][0]
            assert (first["code"], first["line"]) == (code, number) and first["message"], data
            assert batch["output_file_id"] is None and batch["error_file_id"] is None
            assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}


def test_what_a_batch_may_not_be(client) -> None:
    requests = upload(client, jsonl([line("a")]), "batch", "r.jsonl").json()["id"]
    good = {"input_file_id": requests, "endpoint": TRANSCRIBE, "completion_window": "24h"}
    wrong = [
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"input_file_id": "file-" + "0" * 32}, 404, "input_file_id"),
        ({"input_file_id": 5}, 400, "input_file_id"),
        ({"input_file_id": audio(client, sound(1))}, 400, "input_file_id"),
        ({"metadata": {"a": 5}}, 400, "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, 400, None),
        ({"more": True}, 400, "more"),
    ]
    for change, status, param in wrong:
        answer = client.post(BATCHES, json={**good, **change})
        assert answer.status_code == status, (change, answer.text)
        if param:
            assert answer.json()["error"]["param"] == param
    assert client.post(BATCHES, content=b"[]").status_code == 400
    assert client.get(BATCHES).json()["data"] == []


def test_a_cancelled_batch_keeps_what_was_finished(client, held) -> None:
    file = audio(client, sound(2))
    first = begin(client, jsonl([line("first", file=file)])).json()["id"]
    held.set()
    assert ended(client, first)["status"] == "completed"
    held.clear()
    made = begin(client, jsonl([line(str(k), file=file) for k in range(40)])).json()["id"]
    until(lambda: client.get(JOBS).json()["data"][0]["options"].get("batch") == made)
    answer = client.post(f"{BATCHES}/{made}/cancel")
    assert answer.status_code == 200 and answer.json()["status"] in ("cancelling", "cancelled")
    batch = ended(client, made)
    assert batch["status"] == "cancelled" and batch["cancelling_at"] and batch["cancelled_at"]
    rows = lines_of(client, batch["error_file_id"])
    assert len(rows) == 40 and batch["output_file_id"] is None
    assert {row["error"]["code"] for row in rows.values()} == {"batch_cancelled"}
    assert all(row["response"] is None for row in rows.values())
    jobs = client.get(JOBS, params={"limit": 100}).json()["data"]
    assert {job["state"] for job in jobs if job["options"]["batch"] == made} == {"cancelled"}
    assert len(jobs) <= 1 + 16  # the others were never created
    assert client.post(f"{BATCHES}/{made}/cancel").json()["status"] == "cancelled"
    assert client.post(f"{BATCHES}/{first}/cancel").status_code == 409


def test_a_batch_ends_with_its_window(client, held) -> None:
    file = audio(client, sound(2))
    made = begin(client, jsonl([line(str(k), file=file) for k in range(20)])).json()["id"]
    until(lambda: client.get(f"{BATCHES}/{made}").json()["status"] == "in_progress")
    store = client.app.state.jobs.store
    store.clock = lambda now=store.clock: now() + 86_401
    batch = ended(client, made)
    assert batch["status"] == "expired" and batch["expired_at"]
    rows = lines_of(client, batch["error_file_id"])
    assert {row["error"]["code"] for row in rows.values()} == {"batch_expired"}
    assert len(rows) == 20 == batch["request_counts"]["failed"]


def test_an_input_file_may_be_deleted_while_its_batch_runs(client, held) -> None:
    file = audio(client, sound(2))
    made = begin(client, jsonl([line("a", file=file)])).json()
    assert client.delete(f"{FILES}/{made['input_file_id']}").json()["deleted"] is True
    until(lambda: client.get(JOBS).json()["data"])
    assert client.delete(f"{FILES}/{file}").status_code == 200
    held.set()
    batch = ended(client, made["id"])
    assert batch["request_counts"]["completed"] == 1


def test_a_job_that_is_deleted_or_cancelled_is_a_failed_line(client, held) -> None:
    file = audio(client, sound(2))
    made = begin(client, jsonl([line(name, file=file) for name in "ab"])).json()["id"]
    until(lambda: len(client.get(JOBS).json()["data"]) == 2)
    a, b = [job["id"] for job in client.get(JOBS).json()["data"]]
    client.delete(f"{JOBS}/{a}")
    client.post(f"{JOBS}/{b}/cancel")
    batch = ended(client, made)
    assert batch["status"] == "completed" and batch["request_counts"]["failed"] == 2
    rows = lines_of(client, batch["error_file_id"])
    codes = sorted(row["response"]["body"]["error"]["code"] for row in rows.values())
    # A deletion cancels what runs and erases it once its step has ended: a batch may look in between.
    assert codes in (["conflict", "job_not_found"], ["conflict", "conflict"])


def test_a_result_that_is_deleted_before_the_output_is_written(client, held) -> None:
    """Between the end of a line and the end of its batch there may be hours."""
    file = audio(client, sound(2))
    made = begin(client, jsonl([line(name, file=file) for name in "ab"])).json()["id"]
    until(lambda: len(client.get(JOBS).json()["data"]) == 2)
    runner = client.app.state.batches.runner
    finish, jobs = runner.steps.finish, [job["id"] for job in client.get(JOBS).json()["data"]]

    def late(batch) -> None:
        client.app.state.jobs.operations.delete(jobs[0], "")
        runner.steps.finish = finish
        finish(batch)

    runner.steps.finish = late
    held.set()
    batch = ended(client, made)
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    (row,) = lines_of(client, batch["error_file_id"]).values()
    assert row["response"]["status_code"] == 404


def test_batches_and_files_belong_to_their_key(tmp_path, transcriber, decoders) -> None:
    keys = {"team": digest(KEY), "other": digest(OTHER)}
    with application(tmp_path, transcriber, decoders, api_keys=keys) as client:
        ready(client)
        mine, theirs = keyed(KEY), keyed(OTHER)
        file = upload(client, sound(1), headers=mine).json()["id"]
        made = begin(client, jsonl([line("a", file=file)]), headers=mine).json()
        foreign = begin(client, jsonl([line("a", file=file)]), headers=theirs).json()
        batch = ended(client, made["id"], headers=mine)
        assert batch["request_counts"]["completed"] == 1
        stolen = ended(client, foreign["id"], headers=theirs)
        assert stolen["request_counts"]["failed"] == 1
        for method, path in (
            ("GET", f"{FILES}/{file}"),
            ("GET", f"{FILES}/{file}/content"),
            ("GET", f"{FILES}/{batch['output_file_id']}/content"),
            ("DELETE", f"{FILES}/{file}"),
            ("GET", f"{BATCHES}/{made['id']}"),
            ("POST", f"{BATCHES}/{made['id']}/cancel"),
        ):
            assert client.request(method, path, headers=theirs).status_code == 404, path
            assert client.request(method, path).status_code == 401
        body = {"endpoint": TRANSCRIBE, "completion_window": "24h"}
        body["input_file_id"] = made["input_file_id"]
        assert client.post(BATCHES, json=body, headers=theirs).status_code == 404
        assert len(client.get(FILES, headers=mine).json()["data"]) == 3
        assert len(client.get(FILES, headers=theirs).json()["data"]) == 2
        assert [b["id"] for b in client.get(BATCHES, headers=theirs).json()["data"]] == [
            foreign["id"]
        ]


def test_the_same_key_is_the_same_batch(client) -> None:
    requests = upload(client, jsonl([line("a")]), "batch", "r.jsonl").json()["id"]
    body = {"input_file_id": requests, "endpoint": TRANSCRIBE, "completion_window": "24h"}
    headers = {"Idempotency-Key": "5f1c"}
    first, second = (client.post(BATCHES, json=body, headers=headers).json() for _ in range(2))
    assert first["id"] == second["id"]
    other = client.post(BATCHES, json={**body, "metadata": {"a": "b"}}, headers=headers)
    assert other.status_code == 422
    assert len(client.get(BATCHES).json()["data"]) == 1


def test_batches_are_listed_in_pages(client) -> None:
    data = jsonl([line("a")])
    made = [begin(client, data).json()["id"] for _ in range(5)]
    seen, after = [], None
    while True:
        params = {"limit": 2, **({"after": after} if after else {})}
        page = client.get(BATCHES, params=params).json()
        seen += [batch["id"] for batch in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == made[::-1]
    assert client.get(BATCHES, params={"after": "batch_" + "0" * 32}).status_code == 400


def test_the_number_of_open_jobs_is_bounded(tmp_path, transcriber, decoders, held) -> None:
    with application(tmp_path, transcriber, decoders, batch_open_jobs=3) as client:
        file = audio(ready(client), sound(1))
        made = begin(client, jsonl([line(str(k), file=file) for k in range(5)])).json()["id"]
        table = client.app.state.batches.table
        until(lambda: table.counts([made])[made] == {"pending": 2, "submitted": 3})
        client.app.state.batches.runner.advance_all()
        assert table.counts([made])[made] == {"pending": 2, "submitted": 3}
        held.set()
        assert ended(client, made)["request_counts"]["completed"] == 5


def test_the_database_holds_no_text_of_a_batch(client, tmp_path) -> None:
    file = audio(client, memo(2), name="private.wav")
    lines = [line("a", file=file, prompt="confidential")]
    batch = ended(client, begin(client, jsonl(lines)).json()["id"])
    (row,) = lines_of(client, batch["output_file_id"]).values()
    text = row["response"]["body"]["text"].strip()
    client.app.state.jobs.store.database.truncate_log()
    data = (tmp_path / "jobs.db").read_bytes()
    assert text and text.encode() not in data
    tables = client.app.state.jobs.store.database.engine
    with tables.connect() as tx:
        for table in ("forescribe_batches", "forescribe_batch_lines", "forescribe_files"):
            rows = [tuple(row) for row in tx.exec_driver_sql(f"select * from {table}")]
            assert rows and "confidential" not in json.dumps(rows)
