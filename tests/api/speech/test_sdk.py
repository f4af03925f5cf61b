"""OpenAI's own client against the running service with the bundled model: what an application sees."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.jobs.service import Jobs
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.batches.calls import jsonl
from tests.api.conftest import TRANSCRIBE, memo, served, until

MEMO = ("memo.wav", memo(3))
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
        until(lambda: serving.state == "ready")
        yield f"{url}/v1"
    assert serving.state == "stopped"


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


# -- files and batches -------------------------------------------------------------------------------


def strictly(kind, raw) -> None:
    """The body has the fields and types of the client's own model; the client itself does not check."""
    kind.model_validate(json.loads(raw.http_response.content), strict=True)


def ended(client: openai.OpenAI, id: str) -> Batch:
    end = time.monotonic() + 120
    while (batch := client.batches.retrieve(id)).status not in ("completed", "failed", "cancelled"):
        assert time.monotonic() < end, batch
        time.sleep(0.1)
    return batch


def requests(client: openai.OpenAI, *bodies: dict) -> FileObject:
    lines = [
        {"custom_id": f"call-{k}", "method": "POST", "url": TRANSCRIBE, "body": body}
        for k, body in enumerate(bodies)
    ]
    return client.files.create(file=("calls.jsonl", jsonl(lines)), purpose="batch")


def test_files(client) -> None:
    audio = memo(3)
    raw = client.files.with_raw_response.create(
        file=("memo.wav", audio),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    strictly(FileObject, raw)
    file = raw.parse()
    assert file.bytes == len(audio) and file.filename == "memo.wav"
    assert file.expires_at == file.created_at + 7200
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == audio
    others = [client.files.create(file=(n, n.encode()), purpose="user_data") for n in "abc"]
    listed = [one.id for one in client.files.list(limit=2)]
    assert listed == [*(one.id for one in others[::-1]), file.id]  # over several pages
    for one in (file, *others):
        raw = client.files.with_raw_response.delete(one.id)
        strictly(FileDeleted, raw)
        assert raw.parse().deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.retrieve(file.id)
    assert caught.value.code == "file_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.create(file=("a", b"a"), purpose="fine-tune")
    assert caught.value.param == "purpose"


def test_a_batch_of_transcriptions(client) -> None:
    memo_file = client.files.create(file=("memo.wav", memo(3)), purpose="user_data")
    broken = client.files.create(file=("a.wav", b"no audio" * 100), purpose="user_data")
    body = {"model": "whisper-1", "file": memo_file.id, "language": "en"}
    given = requests(
        client,
        body,
        {**body, "response_format": "verbose_json", "timestamp_granularities": ["word"]},
        {**body, "file": broken.id},
    )
    raw = client.batches.with_raw_response.create(
        input_file_id=given.id,
        endpoint="/v1/audio/transcriptions",
        completion_window="24h",
        metadata={"from": "a test"},
    )
    strictly(Batch, raw)
    batch = ended(client, raw.parse().id)
    strictly(Batch, client.batches.with_raw_response.retrieve(batch.id))
    assert batch.status == "completed" and batch.metadata == {"from": "a test"}
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    rows = [json.loads(row) for row in client.files.content(batch.output_file_id).text.splitlines()]
    direct = client.audio.transcriptions.create(model="whisper-1", file=MEMO, language="en")
    assert [row["custom_id"] for row in rows] == ["call-0", "call-1"]
    assert all(row["response"]["body"]["text"] == direct.text for row in rows)
    assert rows[1]["response"]["body"]["words"]
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output" and output.bytes > 100
    (error,) = [json.loads(r) for r in client.files.content(batch.error_file_id).text.splitlines()]
    assert error["response"]["status_code"] == 400 and error["custom_id"] == "call-2"
    assert batch.id in [one.id for one in client.batches.list(limit=1)]


def test_a_batch_that_is_refused_and_one_that_is_cancelled(client) -> None:
    bad = client.files.create(file=("bad.jsonl", b"{}\n{"), purpose="batch")
    create = client.batches.create
    window = {"endpoint": "/v1/audio/transcriptions", "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError, match="line 1"):
        create(input_file_id=bad.id, **window)
    audio = client.files.create(file=("memo.wav", memo(3)), purpose="user_data")
    given = requests(client, *[{"model": "whisper-1", "file": audio.id}] * 30)
    batch = create(input_file_id=given.id, **window)
    assert client.batches.cancel(batch.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.batches.retrieve("batch_unknown")
    assert caught.value.code == "batch_not_found"
