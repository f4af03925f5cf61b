"""`diarized_json`: every segment has a speaker, and people who are known have their names."""

from __future__ import annotations

import base64
import time
from dataclasses import replace

import pytest

from forescribe.api.speech.answers import diarized
from forescribe.asr.errors import CapacityError, ModelError
from forescribe.asr.formats.transcript_parts import Correction
from tests.api.conftest import TRANSCRIBE, Halves, sound, until
from tests.api.contract import conforms
from tests.api.page.fakejobs import transcript
from tests.api.speech.test_transcriptions import events

FORM = {
    "model": "gpt-4o-transcribe-diarize",
    "language": "de",
    "response_format": "diarized_json",
    "temperature": "0.5",
    "chunking_strategy": "auto",
}


def post(client, audio: bytes, **fields):
    return client.post(TRANSCRIBE, files={"file": audio}, data={**FORM, **fields})


def url(audio: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(audio).decode()


def nobody_inside(client) -> None:
    admission = client.app.state.serving.admission
    until(lambda: admission.requests == 0 and admission.seconds == 0)


def test_every_segment_has_a_speaker_by_order_of_appearance(service) -> None:
    client = service()
    body = post(client, sound(40, 1)).json()
    conforms(body, "CreateTranscriptionResponseDiarizedJson")
    assert list(dict.fromkeys(s["speaker"] for s in body["segments"])) == ["A", "B"]
    assert [s["id"] for s in body["segments"]][:2] == ["seg_001", "seg_002"]
    assert "".join(s["text"] for s in body["segments"]).strip() == body["text"]
    nobody_inside(client)


def test_words_that_were_heard_otherwise_are_told_by_the_id_of_their_segment() -> None:
    told = transcript([("A", "The memo."), ("B", "By Kubernetes.")])
    own = Correction(4, "cube netties", "Kubernetes", "terms")
    first, second = told.segments
    made = replace(told, segments=(first, replace(second, corrections=(own,))))
    body = diarized(made)
    conforms(body, "CreateTranscriptionResponseDiarizedJson")
    assert body["corrections"] == [
        {"segment": "seg_002", "at": 4, "heard": "cube netties", "written": "Kubernetes"}
        | {"source": "terms"}
    ]
    assert body["segments"][1]["text"][4:].startswith("Kubernetes")
    assert "corrections" not in diarized(told)


@pytest.mark.parametrize(("name", "other"), [("agent", "A"), ("A", "B")])
def test_who_is_known_has_a_name_and_the_others_letters(service, name, other) -> None:
    """The first half sounds as the reference does, the second does not; a letter is not a known name."""
    known = {"known_speaker_names[]": name, "known_speaker_references[]": url(sound(4, 2))}
    body = post(service(), sound(40, 1), **known).json()
    assert list(dict.fromkeys(s["speaker"] for s in body["segments"])) == [name, other]


def test_a_stream_ends_with_the_segments(service) -> None:
    client = service()
    whole = post(client, sound(40, 1)).json()
    sent = events(post(client, sound(40, 1), stream="true").text)
    for event in sent:
        conforms(event, "CreateTranscriptionResponseStreamEvent")
    by_type = {name: [e for e in sent if e["type"] == f"transcript.text.{name}"] for name in KINDS}
    assert "".join(event["delta"] for event in by_type["delta"]) == whole["text"]
    assert by_type["segment"] == whole["segments"]
    assert sent[-1] == by_type["done"][0] and sent[-1]["text"] == whole["text"]
    nobody_inside(client)


KINDS = ("delta", "segment", "done")


@pytest.mark.parametrize(
    ("names", "references", "param"),
    [
        (["a"], [], "known_speaker_references"),
        (["a"], ["http://host/a.wav"], "known_speaker_references"),
        (["a"], ["data:audio/wav;base64,!"], "known_speaker_references"),
        (["a"], [url(b"no audio")], "known_speaker_references"),
        (["a"], [url(sound(1))], "known_speaker_references"),
        (["a"], [url(sound(11))], "known_speaker_references"),
        (["a"] * 5, [url(b"")] * 5, "known_speaker_names"),
        (["Ann\r\n\r\n00:00:00.000 --> 00:00:01.000"], [url(sound(4))], "known_speaker_names"),
        (["a\tb"], [url(sound(4))], "known_speaker_names"),
        (["a\u2028b"], [url(sound(4))], "known_speaker_names"),
        (["a" * 256], [url(sound(4))], "known_speaker_names"),
        (["unknown"], [url(sound(4))], "known_speaker_names"),
        (["a", "a"], [url(sound(4))] * 2, "known_speaker_names"),
    ],
)
def test_a_reference_that_is_none_is_refused(service, names, references, param) -> None:
    client = service()
    known = {"known_speaker_names[]": names, "known_speaker_references[]": references}
    answer = post(client, sound(2), **known)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    nobody_inside(client)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(CapacityError("no memory"), 503), (ModelError("/secret/weights are broken"), 500)],
)
def test_a_diarizer_that_fails_fails_its_request_alone(service, monkeypatch, fault, status) -> None:
    def fail(self, *args: object) -> None:
        raise fault

    loading = isinstance(fault, ModelError)
    monkeypatch.setattr(Halves, "__init__" if loading else "diarize", fail)
    client = service()
    answer = post(client, sound(2))
    assert answer.status_code == status and "secret" not in answer.text
    nobody_inside(client)
    assert post(client, sound(2), response_format="json").status_code == 200


def test_a_request_is_inside_until_its_speakers_are_found(service, monkeypatch) -> None:
    client, seen = service(), []
    diarize = Halves.diarize

    def slow(self, *args):
        time.sleep(0.2)
        seen.append(client.app.state.serving.admission.requests)
        return diarize(self, *args)

    monkeypatch.setattr(Halves, "diarize", slow)
    post(client, sound(1))
    assert seen == [1]
    nobody_inside(client)
