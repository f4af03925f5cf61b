"""The Hugging Face contract: its keys, its errors, none of its faults."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from asr.vad import EnergyDetector
from tests.api.conftest import RATE, silence, sound, wav


def post(client, audio: bytes, path: str = "/predict", **parameters):
    given = {"language": "de", **parameters}
    return client.post(path, files={"file": audio}, data={"parameters": json.dumps(given)})


@pytest.mark.parametrize("path", ["/", "/predict"])
def test_the_answer_has_the_ancestors_keys(service, path) -> None:
    body = post(service(), sound(40, 1), path).json()
    assert set(body) == {"speakers", "chunks", "text"}
    assert body["speakers"] == []
    assert "".join(chunk["text"] for chunk in body["chunks"]).strip() == body["text"] != ""
    for chunk in body["chunks"]:
        start, end = chunk["timestamp"]
        assert 0 <= start <= end <= 40


def test_parameters_may_be_left_out_or_text(service) -> None:
    client, audio = service(), sound(2, 2)
    assert client.post("/predict", files={"file": audio}).status_code == 200
    texts = {"batch_size": 1, "assisted": "true", "sampling_rate": "8000", "chunk_length_s": "30"}
    assert post(client, audio, **texts).json()["text"] == post(client, audio).json()["text"]


def test_what_has_no_effect_is_named(service) -> None:
    body = post(
        service(), sound(2), num_speakers=2, chunk_length_s=10, beams=4, assisted=True
    ).json()
    text = " ".join(body["warnings"])
    assert all(word in text for word in ("speakers", "chunk_length_s", "beams", "assisted"))


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
    from api.handler import EndpointHandler

    patch = pytest.MonkeyPatch()
    for name in ("ASR_MODEL", "ASSISTANT_MODEL"):
        patch.delenv(name, raising=False)
    made = EndpointHandler(str(whisper.pair.target))
    made.session.t.detector = EnergyDetector()  # as the service beside it
    yield made
    made.close()
    patch.undo()


def test_a_handler_answers_base64_as_the_route_answers_files(handler, service) -> None:
    audio = sound(3, 3)
    asked = {"inputs": base64.b64encode(audio).decode(), "parameters": {"language": "de"}}
    made = handler(asked)
    assert made == post(service(), audio).json() == handler({**asked, "inputs": audio})


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
