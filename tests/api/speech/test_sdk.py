"""OpenAI's own client against the running service with the bundled model: what an application sees."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.jobs.service import Jobs
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.conftest import memo, served, until, wav
from tests.asr.recordings import cut

MEMO = ("memo.wav", memo(3))
WORN = ("worn.wav", wav(cut("memo.flac", (20, 25))[0]))
"""Its words are others with beams ("are worn") than without ("were worn")."""
KEY = new_key()


@pytest.fixture(scope="module")
def address(encoded_once, tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("jobs")
    settings = Settings(
        model="tiny.en", api_keys={"sdk": digest(KEY)}, drain_s=0, data_dir=folder, min_free_bytes=0
    )
    serving = Serving.of(settings)
    app = create_app(settings, serving, Jobs.open(settings, serving))
    with served(app) as url:
        until(lambda: serving.life.state == "ready")
        yield f"{url}/v1"
    assert serving.life.state == "stopped"


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


def test_the_models_are_listed(client) -> None:
    assert {"tiny.en", "whisper-1"} <= {model.id for model in client.models.list()}


def test_verbose_json_with_words(client) -> None:
    made = client.audio.transcriptions.create(
        model="whisper-1",
        file=MEMO,
        language="en",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert made.language == "english" and made.duration > 1
    assert made.segments and made.words
    joined = "".join(segment.text for segment in made.segments).split()
    assert [word.word for word in made.words] == joined
    assert all(0 <= w.start <= w.end <= made.duration for w in made.words)


def test_every_field_of_the_contract_is_taken(client) -> None:
    made = client.audio.transcriptions.create(
        model="gpt-4o-transcribe",
        file=(*MEMO, "audio/wav"),
        language="en",
        prompt="A memo.",
        temperature=0.2,
        response_format="json",
        include=["logprobs"],
        chunking_strategy={"type": "server_vad", "silence_duration_ms": 400},
        stream=False,
    )
    written = bytes(int(byte) for token in made.logprobs for byte in token.bytes)
    assert written.decode().strip() == made.text


def test_an_upload_is_searched_as_the_model_is_unless_it_asks_otherwise(client, address) -> None:
    """With five beams here. The contract of Hugging Face, which has no such parameter, is too."""
    found = {
        size: client.audio.transcriptions.create(
            model="whisper-1", file=WORN, language="en", extra_body={"beam_size": size}
        ).text
        for size in ("5", "1", "auto")
    }
    plain = client.audio.transcriptions.create(model="whisper-1", file=WORN, language="en").text
    assert plain == found["5"] != found["1"] and "are worn" in plain
    assert "were worn" in found["auto"]
    by_route = httpx.post(
        f"{address.removesuffix('/v1')}/predict",
        files={"file": WORN[1]},
        data={"parameters": '{"language": "en"}'},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=60,
    )
    assert by_route.json()["text"] == plain


def test_a_stream_is_deltas_and_one_done(client) -> None:
    with client.audio.transcriptions.create(
        model="whisper-1", file=MEMO, stream=True, chunking_strategy="auto", include=["logprobs"]
    ) as stream:
        *deltas, done = list(stream)
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text
    assert done.usage.output_tokens >= len(done.logprobs)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's view of it
def test_a_translation_by_a_model_of_one_language_is_refused(client) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot translate") as caught:
        client.audio.translations.create(model="whisper-1", file=MEMO)
    assert caught.value.param == "model"


def test_errors_are_the_clients_own_exceptions(client, address) -> None:
    create = client.audio.transcriptions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="whisper-1", file=b"no audio at all")
    assert (caught.value.code, caught.value.param) == ("invalid_audio", "file")
    with pytest.raises(openai.NotFoundError):
        create(model="large-v9", file=MEMO)
    stranger = openai.OpenAI(base_url=address, api_key=new_key(), max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
