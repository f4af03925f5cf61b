"""The Hugging Face contract: its keys, its errors, none of its faults."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from forescribe.api.speech.diarization import Speakers
from forescribe.asr.decode.options import Guards
from tests.api.conftest import FORM, RATE, Halves, silence, sound, wav
from tests.asr.detectors import EnergyDetector
from tests.asr.recordings import cut


@pytest.fixture(autouse=True)
def one_try(monkeypatch) -> None:
    """To the guards all words of random weights are doubtful: six more tries take six times as long."""
    once = partial(Guards, temperatures=(0.5,))
    monkeypatch.setattr("forescribe.api.speech.huggingface_contract.Guards", once)


def post(client, audio: bytes, path: str = "/predict", **parameters):
    given = {"language": "de", **parameters}
    return client.post(path, files={"file": audio}, data={"parameters": json.dumps(given)})


def test_the_answer_has_the_ancestors_keys(service) -> None:
    body = post(service(), sound(40, 1), "/").json()
    # Random weights write doubtful text, which is said beside the contract's keys.
    assert set(body) - {"warnings"} == {"speakers", "chunks", "text"}
    assert [one["speaker"] for one in body["speakers"]] == ["SPEAKER_00", "SPEAKER_01"]
    assert "".join(one["text"] for one in body["speakers"]).strip() == body["text"]
    assert 0 <= body["speakers"][0]["timestamp"][0] <= body["speakers"][-1]["timestamp"][1] <= 40
    assert "".join(chunk["text"] for chunk in body["chunks"]).strip() == body["text"] != ""
    for chunk in body["chunks"]:
        start, end = chunk["timestamp"]
        assert 0 <= start <= end <= 40


def test_so_many_speakers_as_are_asked_for(service) -> None:
    client, audio = service(), sound(6, 6)
    for count in (1, 2):
        body = post(client, audio, num_speakers=count).json()
        assert len({one["speaker"] for one in body["speakers"]}) == count
    answer = post(client, audio, min_speakers=3, max_speakers=2)
    assert answer.status_code == 400 and "at least 3 and at most 2" in answer.json()["detail"]


def test_audio_beyond_82_s_is_not_cut_off(service) -> None:
    """The one published Whisper service on Gaudi pads to 8192 frames, and drops what is longer."""
    answer = (
        service()
        .post(
            "/v1/audio/transcriptions",
            files={"file": sound(100, 7)},
            data={**FORM, "response_format": "verbose_json"},
        )
        .json()
    )
    covered = [(span["start"], span["end"]) for span in answer["coverage"]["spans"]]
    assert covered[0][0] == 0 and covered[-1][1] == answer["duration"] == 100
    assert all(end == start for (_, end), (start, _) in zip(covered, covered[1:], strict=False))
    assert answer["segments"][-1]["end"] > 82


def test_a_language_is_its_requests_alone(service) -> None:
    """There, too, a request's language is written onto the model that all share."""
    client, names = service(), ["de", "en", "fr", "de"]

    def language(name: str) -> str:
        data = {**FORM, "language": name, "response_format": "verbose_json"}
        return client.post(
            "/v1/audio/transcriptions", files={"file": sound(2, 8)}, data=data
        ).json()["language"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(language, names)) == ["german", "english", "french", "german"]
    detected = client.post(
        "/v1/audio/transcriptions",
        files={"file": sound(2, 8)},
        data={"model": "random", "temperature": "0.5", "response_format": "verbose_json"},
    )
    assert detected.json()["language_probability"] is not None


def test_no_speech_and_several_channels_are_no_errors(service) -> None:
    client = service()
    assert post(client, silence(2)).json()["chunks"] == []
    stereo = np.stack([np.sin(np.arange(RATE) * 0.1)] * 2, axis=1)
    assert post(client, wav(stereo)).status_code == 200


@pytest.mark.parametrize(
    ("audio", "parameters", "status"),
    [
        (b"no audio", "{}", 400),
        (sound(1), "{", 400),
        (sound(1), "[]", 400),
        (sound(1), '{"task": "sing"}', 400),
        (sound(1), '{"language": "tlh"}', 400),
        (sound(9), "{}", 413),
    ],
)
def test_errors_are_the_ancestors(service, audio, parameters, status) -> None:
    client = service(max_audio_s=5)
    answer = client.post("/", files={"file": audio}, data={"parameters": parameters})
    assert answer.status_code == status
    assert list(answer.json()) == ["detail"] and isinstance(answer.json()["detail"], str)


@pytest.fixture(scope="module")
def handler(whisper):
    """As an endpoint makes it, from a folder of weights."""
    from forescribe.api.speech.endpoint_handler import EndpointHandler

    patch = pytest.MonkeyPatch()
    for name in ("ASR_MODEL", "ASSISTANT_MODEL", "DIARIZATION_MODEL"):
        patch.delenv(name, raising=False)
    made = EndpointHandler(str(whisper.pair.target))
    made.session.context.detector = EnergyDetector()  # as the service beside it
    yield made
    made.close()
    patch.undo()


def test_a_handler_answers_base64_as_the_route_answers_files(handler, service) -> None:
    audio = sound(3, 3)
    asked = {"inputs": base64.b64encode(audio).decode(), "parameters": {"language": "de"}}
    made = handler(asked)
    plain = post(service(diarizer="none"), audio).json()
    assert plain["speakers"] == []  # nobody tells them apart
    assert made == plain == handler({**asked, "inputs": audio})


def test_a_handler_with_a_diarizer_has_the_routes_speakers(handler, service, monkeypatch) -> None:
    monkeypatch.setattr(handler, "speakers", Speakers(Halves, handler.decoders))
    audio = sound(20, 4)
    asked = {"inputs": audio, "parameters": {"language": "de", "num_speakers": 2}}
    made = handler(asked)
    assert made == post(service(), audio, num_speakers=2).json() and made["speakers"]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"inputs": 5},
        {"inputs": "no base64!"},
        {"inputs": base64.b64encode(b"no audio").decode()},
        {"inputs": base64.b64encode(sound(1)).decode(), "parameters": {"task": "sing"}},
        {"inputs": base64.b64encode(sound(1)).decode(), "parameters": {"language": "tlh"}},
    ],
)
def test_a_handlers_errors_have_the_same_key(handler, asked) -> None:
    made = handler(asked)
    assert list(made) == ["detail"] and made["detail"]


def test_a_handler_searches_as_its_model_does(monkeypatch) -> None:
    """The bundled one with five beams: its words are others without."""
    from forescribe.api.speech.endpoint_handler import EndpointHandler

    monkeypatch.setenv("ASR_MODEL", "tiny.en")
    monkeypatch.delenv("ASSISTANT_MODEL", raising=False)
    monkeypatch.delenv("DIARIZATION_MODEL", raising=False)
    monkeypatch.setattr("forescribe.api.speech.huggingface_contract.Guards", Guards)
    made = EndpointHandler()
    try:
        assert not made.session.context.whisper.drafts
        inputs = wav(cut("memo.flac", (20, 25))[0])
        text = made({"inputs": inputs, "parameters": {"language": "en"}})["text"]
        assert "are worn" in text and "were worn" not in text
    finally:
        made.close()
