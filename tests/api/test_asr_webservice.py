"""`/asr` and `/detect-language` as clients of whisper-asr-webservice ask."""

from __future__ import annotations

import io
import json

import pytest
import soundfile

from tests.api.conftest import Service, silence, sound

SRT = {"task": "transcribe", "language": "de", "output": "srt", "encode": "false"}
"""What Bazarr sends, with `video_file` where it is asked to pass names."""


def raw(recording: bytes) -> bytes:
    """As `ffmpeg -f s16le -ac 1 -ar 16000` writes it."""
    samples, rate = soundfile.read(io.BytesIO(recording), dtype="int16")
    assert rate == 16_000
    return samples.tobytes()


def ask(client, path: str = "/asr", audio: bytes = sound(2, 1), **query: str):
    # `requests` names a file given as bytes after its field.
    return client.post(path, params=query, files={"audio_file": ("audio_file", audio)})


def test_bazarr_gets_subtitles_of_raw_samples(service: Service) -> None:
    client = service()
    answer = ask(client, audio=raw(sound(3, 2)), **SRT, video_file="/films/a.mkv")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="audio_file.srt"'
    assert answer.text.startswith("1\n00:00:00,") and "video_file" in answer.headers["warning"]
    assert answer.text == ask(client, audio=sound(3, 2), **{**SRT, "encode": "true"}).text


@pytest.mark.parametrize("output", ["txt", "vtt", "tsv", "json"])
def test_every_output_is_whispers_file(service: Service, output: str) -> None:
    answer = ask(service(), language="de", output=output, word_timestamps="true")
    begins = {"vtt": "WEBVTT\n\n", "tsv": "start\tend\ttext\n", "json": '{"text": ', "txt": ""}
    assert answer.text.startswith(begins[output]) and len(answer.text.splitlines()) >= 1
    assert answer.headers["content-type"].startswith("text/plain")
    if output == "json":
        body = json.loads(answer.text)
        (first, *_) = body["segments"]
        assert body["language"] == "de" and first["words"][0].keys() >= {"word", "start", "end"}
        assert "settings" not in body


def test_speakers_are_named_where_they_are_asked_for(service: Service) -> None:
    answer = ask(service(), language="de", output="json", diarize="true", max_speakers="2")
    speakers = {segment["speaker"] for segment in json.loads(answer.text)["segments"]}
    assert speakers and speakers <= {"SPEAKER_00", "SPEAKER_01"}


def test_a_language_is_detected_where_somebody_speaks(service: Service) -> None:
    client = service()
    for audio, encode in ((sound(2), "true"), (raw(sound(2)), "false")):
        found = ask(client, "/detect-language", audio, encode=encode).json()
        assert found.keys() == {"detected_language", "language_code", "confidence"}
        assert len(found["language_code"]) == 2 and 0 < found["confidence"] <= 1
    found = ask(client, "/detect-language", silence(2)).json()
    assert found == {"detected_language": "unknown", "language_code": "und", "confidence": 0}


@pytest.mark.parametrize(
    ("path", "audio", "query", "said"),
    [
        ("/asr", sound(1), {"output": "docx"}, "output: Input should be 'txt', 'vtt'"),
        ("/asr", sound(1), {"language": "xx"}, "language"),
        ("/asr", sound(1), {"diarize": "1", "min_speakers": "3", "max_speakers": "2"}, "speakers"),
        ("/asr", b"", {"encode": "false"}, "audio_file has 0 bytes"),
        ("/asr", b"no audio", {}, "not audio"),
        ("/asr", b"", {}, "audio_file: the file is empty"),
        (
            "/detect-language",
            sound(1),
            {"encode": "perhaps"},
            "encode: Input should be a valid boolean",
        ),
    ],
)
def test_what_is_wrong_is_a_detail(service: Service, path, audio, query, said) -> None:
    answer = ask(service(), path, audio, **query)
    assert answer.status_code == 400 and said in answer.json()["detail"]


def test_without_a_file_its_field_is_named(service: Service) -> None:
    answer = service().post("/asr", files={"file": ("a.wav", sound(1))})
    assert answer.status_code == 400 and "audio_file" in answer.json()["detail"]
