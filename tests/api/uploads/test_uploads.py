"""Uploads: limits hold while the body streams, whatever its header says."""

from __future__ import annotations

import errno
import json
import tempfile

import pytest

from forescribe.api.routers import asr_webservice
from forescribe.asr.audio import sandbox
from forescribe.diarize import speaker_finder
from tests import full_disk
from tests.api.conftest import FORM, TRANSCRIBE, sound
from tests.api.http import raw

BOUNDARY = "----x"
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, value: bytes, file: str | None = None) -> bytes:
    named = f'; filename="{file}"' if file else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def body(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def refused(answer, status: int, code: str) -> None:
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


def test_a_name_in_place_of_the_recording_is_told_of_the_at(service) -> None:
    """`curl -F file=memo.flac`: it was "not audio that can be decoded"."""
    client = service()
    answer = client.post(TRANSCRIBE, headers=MULTIPART, content=body(part("file", b"x.flac")))
    refused(answer, 400, "invalid_audio")
    message = answer.json()["error"]["message"]
    assert message.startswith("file: a text of 6 letters ('x.flac'), no recording; was the @ ")
    assert message.endswith("-F file=@x.flac")
    audio = sound(1)  # `curl -F 'file=<memo.flac'` is a recording without a name
    whole = body(*(part(n, v.encode()) for n, v in FORM.items()), part("file", audio))
    assert client.post(TRANSCRIBE, headers=MULTIPART, content=whole).status_code == 200


def test_a_body_that_declares_too_much_is_not_read(service) -> None:
    client, audio = service(max_upload_bytes=1000), sound(1)
    refused(client.post(TRANSCRIBE, files={"file": audio}, data=FORM), 413, "file_too_large")


def test_a_body_that_declares_nothing_is_cut_off_at_the_limit(service) -> None:
    client, sent = service(max_upload_bytes=100_000), []

    async def receive():
        start = part("model", b"random") + part("file", b"", "a.wav")[:-2]
        sent.append(b"x" * 10_000 if sent else start)
        return {"type": "http.request", "body": sent[-1], "more_body": True}

    start, *rest = raw.post(client, TRANSCRIBE, MULTIPART, receive)
    assert start["status"] == 413
    assert json.loads(rest[0]["body"])["error"]["code"] == "file_too_large"
    assert len(sent) == 11


def test_seconds_are_counted_by_decoding_not_by_the_header(service) -> None:
    """A header that says nothing of the length; the samples do."""
    audio = bytearray(sound(3))
    audio[40:44] = (0x7FFFFFFF).to_bytes(4, "little")  # as programs write wav to a pipe
    client = service(max_audio_s=2)
    refused(client.post(TRANSCRIBE, files={"file": bytes(audio)}, data=FORM), 413, "audio_too_long")
    assert (
        service(max_audio_s=4).post(TRANSCRIBE, files={"file": bytes(audio)}, data=FORM).is_success
    )


@pytest.mark.parametrize(
    ("content", "status", "code", "param"),
    [
        (body(part("model", b"random")), 400, "missing_file", "file"),
        (body(part("audio", b"x", "a.wav")), 400, "invalid_value", "audio"),
        (body(part("file", b"x", "a"), part("file", b"x", "b")), 400, "invalid_value", None),
        (body(part("prompt", b"x" * 300_000), part("file", b"x", "a")), 400, "invalid_value", None),
        (body(*(part("keywords", b"x") for _ in range(70))), 400, "invalid_value", None),
        (b"no form", 400, "invalid_value", None),
        (b"", 400, "missing_file", "file"),
    ],
)
def test_a_form_that_is_none_is_refused(service, content, status, code, param) -> None:
    answer = service().post(TRANSCRIBE, headers=MULTIPART, content=content)
    refused(answer, status, code)
    if param:
        assert answer.json()["error"]["param"] == param


def test_another_media_type_is_refused(service) -> None:
    client = service()
    refused(client.post(TRANSCRIBE, json={"model": "random"}), 415, "unsupported_media_type")
    refused(client.post(TRANSCRIBE, data=FORM), 415, "unsupported_media_type")


def test_a_full_disk_is_told_as_such(service, monkeypatch) -> None:
    def full(self, data):
        raise OSError(errno.ENOSPC, "No space left on device: /secret")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    answer = service().post(TRANSCRIBE, files={"file": sound(1)}, data=FORM)
    refused(answer, 507, "storage_full")
    assert "secret" not in answer.text


@pytest.mark.parametrize("full", [speaker_finder, asr_webservice, sandbox])
def test_a_full_temporary_disk_is_507_and_the_next_upload_is_served(
    service, monkeypatch, full
) -> None:
    client, form = service(), {**FORM, "response_format": "diarized_json"}

    def ask():
        if full is asr_webservice:
            query = {"encode": "false", "language": "de"}
            return client.post("/asr", params=query, files={"audio_file": sound(1)[44:]})
        return client.post(TRANSCRIBE, files={"file": sound(2)}, data=form)

    with monkeypatch.context() as patched:
        patched.setattr(full, "tempfile", full_disk)
        answer = ask()
    assert answer.status_code == 507 and "/tmp" not in answer.text
    assert ask().status_code == 200


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a\x00.wav", "-", "http://host/a.wav", "a" * 5000]
)
def test_a_files_name_is_nothing_to_us(service, caplog, name) -> None:
    fields = [part(field, value.encode()) for field, value in FORM.items()]
    content = body(*fields, part("file", sound(0.3), name))
    with caplog.at_level("DEBUG"):
        answer = service().post(TRANSCRIBE, headers=MULTIPART, content=content)
    assert answer.status_code in (200, 400)
    assert name not in caplog.text


def test_an_uploads_file_is_closed_whatever_becomes_of_it(service, monkeypatch) -> None:
    made = []
    init = tempfile.SpooledTemporaryFile.__init__

    def remember(self, *args, **kwargs):
        made.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "__init__", remember)
    client = service()
    for audio, fields in (
        (sound(1), FORM),
        (b"no audio", FORM),
        (sound(1), {**FORM, "language": "tlh"}),
        (sound(1), {**FORM, "prompt": "<|endoftext|>"}),
        (sound(1), {**FORM, "stream": "true"}),
    ):
        client.post(TRANSCRIBE, files={"file": audio}, data=fields)
    assert len(made) == 5 and all(file.closed for file in made)
