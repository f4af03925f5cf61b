"""Hostile input: whatever a client sends, the answer is a client's error in our form, never a fault.

Requests are made of bytes, as no client library would send them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from forescribe.api.errors import ApiError
from forescribe.api.http.bodies import loads
from tests.api.conftest import sound, until
from tests.api.contract import conforms
from tests.api.jobs.application import JOBS, application, ready
from tests.api.uploads.test_uploads import BOUNDARY, MULTIPART, body, part
from tests.text.language_models import write

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
KIND = MULTIPART["Content-Type"]
JSON = {"Content-Type": "application/json"}
AUDIO = sound(0.3)
FILE = part("file", AUDIO, "a.wav")
NO_AUDIO = part("file", b"no audio", "a.wav")
NO_JOB = f"{JOBS}/job_{'0' * 32}"

DEEP = (
    '{"type":' * 5000,
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    '["\\ud800"]',
    '{"type": "server_vad", "threshold": 1e999}',
    '{"type": "server_vad", "prefix_padding_ms": ' + "9" * 400 + "}",
    '{"type": "server_vad", "prefix_padding_ms": ' + "9" * 5000 + "}",
    '{"type": "\\u0000"}',
    '{"type": NaN}',
    '{"\\udfff": 1}',
)
TEXTS = (b"\xff\xfe", b"\xed\xa0\x80", b"a\x00b", b"\x00", b"1e999", b"9" * 5000, b"-" + b"9" * 400)


@pytest.fixture(scope="module")
def client(transcriber, decoders, tmp_path_factory) -> Iterator[TestClient]:
    """All that the service has: speech, text and jobs."""
    folder = tmp_path_factory.mktemp("hostile")
    text_model = str(write(folder / "text"))
    more = {"text_model": text_model, "text_draft": "none", "batch_size": 2, "diarizer": "none"}
    made = application(folder / "jobs", transcriber, decoders, device="cpu", **more)
    with made as client:
        ready(client)
        until(lambda: client.app.state.text_serving.life.state == "ready", 240)
        client.text_model = text_model
        yield client


def refused(answer, where: object) -> None:
    """A client's error, in the form of its route, that can be read."""
    assert 400 <= answer.status_code < 500, (where, answer.status_code, answer.text[:300])
    if answer.request.url.path in ("/", "/predict"):
        assert set(answer.json()) == {"detail"}
    else:
        conforms(answer.json(), "ErrorResponse")
    assert len(answer.content) < 10_000


def form(*parts: bytes) -> bytes:
    return body(part("model", b"random"), *parts, FILE)


FIELDS = {
    TRANSCRIBE: ("chunking_strategy", "languages", "timestamp_granularities", "include[]", "keywords"),
    JOBS: ("chunking_strategy", "languages", "keywords", "known_speaker_names[]"),
}  # fmt: skip


@pytest.mark.parametrize("deep", DEEP, ids=lambda text: text[:24])
def test_no_json_of_a_field_is_a_fault(client, deep) -> None:
    for path, fields in FIELDS.items():
        for name in fields:
            if deep.startswith("{") and name != "chunking_strategy":
                continue  # a text like any other there
            content = form(part(name, deep.encode()))
            refused(client.post(path, headers=MULTIPART, content=content), (path, name))
    content = body(part("parameters", deep.encode()), FILE)
    answer = client.post("/predict", headers=MULTIPART, content=content)
    if (
        "9" * 400 in deep and "9" * 5000 not in deep
    ):  # a number like any other, of a name that is ignored
        assert answer.status_code == 200
    else:
        refused(answer, "/predict")


@pytest.mark.parametrize(
    "deep", [*DEEP, '"text"', "1", "", "{", "\ufeff{}", "'"], ids=lambda t: t[:24]
)
def test_no_json_body_is_a_fault(client, deep) -> None:
    for path in (COMPLETE, CHAT):
        refused(client.post(path, headers=JSON, content=deep.encode()), path)
        model, value = json.dumps(client.text_model), deep or "?"
        inside = f'{{"model": {model}, "prompt": {value}, "messages": {value}}}'
        if deep != '"text"':
            refused(client.post(path, headers=JSON, content=inside.encode()), path)
    for content in (deep, f'{{"num_speakers": {deep or "?"}}}'):
        answer = client.post(f"{NO_JOB}/diarize", headers=JSON, content=content.encode())
        refused(answer, "diarize")


@pytest.mark.parametrize("value", TEXTS, ids=lambda value: repr(value[:8]))
def test_no_text_of_a_field_is_a_fault(client, value) -> None:
    names = {
        TRANSCRIBE: ("prompt", "language", "temperature", "stream", "keywords", "model", "response_format"),
        TRANSLATE: ("prompt", "temperature", "model"),
        JOBS: ("prompt", "num_speakers", "webhook_url", "webhook_secret", "upload_id", "task"),
    }  # fmt: skip
    for path, fields in names.items():
        for name in fields:
            parts = [part(name, value), NO_AUDIO]
            if name != "model":
                parts.insert(0, part("model", b"random"))
            answer = client.post(path, headers=MULTIPART, content=body(*parts))
            refused(answer, (path, name))
            longest = {"prompt": 100_000, "keywords": 100}.get(name, -1)
            plain = value.isascii() and b"\0" not in value and len(value) <= longest
            assert (answer.json()["error"]["code"] == "invalid_audio") is plain, (path, name)
    for name in (b"\xff", b"a\x00", b"\xed\xa0\x80", b"x" * 5000, b"[]", b"model[" + b"a" * 100):
        raw = part("NAME", value).replace(b"NAME", name)
        for path in (TRANSCRIBE, JOBS, "/predict"):
            refused(client.post(path, headers=MULTIPART, content=form(raw)), (path, name))


def multipart(head: str, value: bytes = AUDIO) -> bytes:
    return f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode("latin-1") + value + b"\r\n"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("multipart/form-data", form()),
        ("multipart/form-data; boundary=", form()),
        ("multipart/form-data; boundary=other", form()),
        ("multipart/form-data; boundary=" + "x" * 5000, form()),
        ("multipart/form-data; boundary=\xff", form()),
        (KIND, b""),
        (KIND, form()[:-8]),
        (KIND, form()[:200]),
        (KIND, b"\0" * 1000),
        (KIND, form(FILE)),
        (KIND, form(part("model", b"random"))),
        (KIND, body(multipart("Content-Disposition: form-data"))),
        (KIND, body(multipart("Content-Type: audio/wav"))),
        (KIND, body(multipart("no header"))),
        (f"{KIND}; charset=nonsense", form(part("prompt", b"\xff"))),
        (f"{KIND}; charset=unicode_escape", form(part("prompt", rb"\ud800"), FILE)),
        ("multipart/mixed; boundary=x", form()),
        ("multipart/form-dataX; boundary=x", form()),
        ("application/x-www-form-urlencoded", b"model=random"),
        ("text/plain", b"model=random"),
        ("", b"x"),
        ("\xff", b"x"),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_form_that_cannot_be_read_is_refused(client, kind, content) -> None:
    headers = {"Content-Type": kind.encode("latin-1")}
    for path in (TRANSCRIBE, TRANSLATE, JOBS, "/predict", "/"):
        refused(client.post(path, headers=headers, content=content), (path, kind))


ODD = ("%00", "%ED%A0%80", "9" * 5000, "1e999", "-1", "%F0%9F%98%80", "a" * 10_000, "٣")


@pytest.mark.parametrize("odd", ODD, ids=lambda text: text[:12])
def test_no_path_query_or_header_is_a_fault(client, odd) -> None:
    gets = [
        f"{JOBS}?limit={odd}",
        f"{JOBS}?after={odd}",
        f"{JOBS}?state={odd}",
        f"{JOBS}/{odd}",
        f"{JOBS}/{odd}/events",
        f"{JOBS}/{odd}/result",
        f"{JOBS}/{odd}/audio",
        f"{NO_JOB}/result?response_format={odd}",
        f"/v1/models/{odd}",
        f"/page/{odd}",
        f"/{odd}",
    ]
    for path in gets:
        refused(client.get(path), path)
    for path in (
        f"{JOBS}/{odd}/cancel",
        f"{JOBS}/{odd}/retry",
        f"{NO_JOB}/diarize?num_speakers={odd}",
    ):
        refused(client.post(path), path)
    refused(client.delete(f"{JOBS}/{odd}"), "DELETE")
    refused(client.delete(f"/v1/uploads/{odd}"), "DELETE upload")
    raw = quote(odd[:4000], safe="%").encode("latin-1").replace(b"%", b"")
    for name in ("Upload-Length", "Upload-Offset", "Tus-Resumable"):
        for value in (raw, b"\xff\xfe", b"", b"1e9", b"9" * 30):
            headers = {name.encode(): value, b"Content-Type": b"application/offset+octet-stream"}
            answer = client.request("PATCH", f"/v1/uploads/up_{'0' * 32}", headers=headers)
            refused(answer, (name, value))
    for value in (b"\xff" * 20, b"x" * 300, b"", b"a b\tc"):
        headers = {
            b"Idempotency-Key": value,
            **{k.encode(): v.encode() for k, v in MULTIPART.items()},
        }
        answer = client.post(JOBS, headers=headers, content=form(part("nonsense", b"")))
        refused(answer, ("Idempotency-Key", value))


def test_a_jobs_headers_are_no_faults(client) -> None:
    posted = client.post(
        JOBS, headers=MULTIPART, content=body(part("language", b"de"), FILE)
    ).json()
    for value in (
        "bytes=",
        "bytes=a-b",
        "bytes=9-1",
        "bytes=" + "0-1," * 500,
        "bytes=" + "9" * 5000 + "-",
        "x=1",
    ):
        answer = client.get(f"{JOBS}/{posted['id']}/audio", headers={"Range": value})
        assert answer.status_code in (200, 206, 400, 416), value
        if answer.status_code >= 400:
            conforms(answer.json(), "ErrorResponse")
    size = len(AUDIO)
    answer = client.get(f"{JOBS}/{posted['id']}/audio", headers={"Range": f"bytes={size}-"})
    assert answer.status_code == 416 and answer.headers["content-range"] == f"bytes */{size}"
    conforms(answer.json(), "ErrorResponse")
    for value in (b"9" * 5000, b"\xff", b"-1", b"1e9"):
        answer = client.get(f"{JOBS}/{posted['id']}/events", headers={b"Last-Event-ID": value})
        refused(answer, value)
    client.delete(f"{JOBS}/{posted['id']}")


@pytest.mark.parametrize(
    "metadata",
    [
        b"filename AAAA",
        b"filename gA==",
        b"filename \xff",
        b"filename 7aCA",
        b"filename",
        b"," * 5000,
    ],
)
def test_the_metadata_of_an_upload_is_a_label_or_nothing(client, metadata) -> None:
    headers = {b"Upload-Length": b"4", b"Upload-Metadata": metadata}
    made = client.post("/v1/uploads", headers=headers)
    assert made.status_code == 201, made.text
    where = made.headers["location"]
    patch = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    assert client.patch(where, headers=patch, content=b"RIFF").status_code == 204
    content = body(part("upload_id", where.rpartition("/")[2].encode()))
    refused(client.post(JOBS, headers=MULTIPART, content=content), metadata)  # no audio
    assert client.delete(where).status_code == 204


# -- the functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["[]", '""', "{}"])
def test_more_values_than_any_request_needs_are_refused_before_they_are_read(value) -> None:
    many = "[" + f"{value}," * 2_000_000 + f"{value}]"
    began = time.process_time()
    for data in (many, many.encode()):
        with pytest.raises(ApiError, match="more than 150000 values"):
            loads(data, "body")
    assert time.process_time() - began < 0.5
    assert len(loads(json.dumps([*range(100_000)]), "body")) == 100_000
