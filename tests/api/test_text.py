"""OpenAI's own client against the completions routes of a running server, with a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from fastapi.testclient import TestClient

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.conftest import served, until
from tests.text.language_models import write

KEY = new_key()
ASKED = {"max_tokens": 24, "seed": 6, "temperature": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("text") / "target")


def app_of(settings: Settings, **more):
    """Without speech, which takes its time to load: texts do not wait for it here."""

    def nothing():
        raise AssertionError("nobody loads this")

    serving = Serving(settings, nothing, nothing)
    serving.start = lambda: None
    serving.thread.loaded.set()
    return create_app(settings, serving, failed=lambda failure: None, **more)


@pytest.fixture(scope="module")
def server(model) -> Iterator[tuple[str, object]]:
    draft = write(model.parent / "draft", seed=1, near=model)
    settings = Settings(
        text_model=str(model),
        text_draft=str(draft),
        api_keys={"sdk": digest(KEY)},
        device="cpu",
        batch_size=3,
        gamma=3,
        drain_s=0,
    )
    app = app_of(settings)
    with served(app) as url:
        until(lambda: app.state.text_serving.life.state != "loading", 240)
        assert app.state.text_serving.life.state == "ready"
        yield url, app.state.text_serving
    assert app.state.text_serving.life.state == "stopped"


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    url = f"{server[0]}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=300) as client:
        yield client


def test_a_completion_and_its_stream_say_the_same(client, server, model) -> None:
    name = str(model)
    whole = client.completions.create(model=name, prompt="the other", logprobs=2, **ASKED)
    (choice,) = whole.choices
    assert (whole.object, choice.index) == ("text_completion", 0)
    assert choice.finish_reason in ("stop", "length")
    assert 0 < whole.usage.completion_tokens <= 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    said = choice.logprobs
    assert len(said.tokens) == len(said.token_logprobs) == len(said.top_logprobs)
    assert said.text_offset[0] == 0 and len(said.tokens) > 3
    for token, logprob, best in zip(
        said.tokens, said.token_logprobs, said.top_logprobs, strict=True
    ):
        assert logprob == best[token] <= 0

    with client.completions.create(
        model=name, prompt="the other", logprobs=2, stream=True,
        stream_options={"include_usage": True}, **ASKED,
    ) as stream:  # fmt: skip
        *chunks, last = list(stream)
    assert last.choices == [] and last.usage == whole.usage
    assert len({chunk.id for chunk in (*chunks, last)}) == 1
    assert all(chunk.usage is None for chunk in chunks) and len(chunks) > 3
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert [c.choices[0].finish_reason for c in chunks][-1] == choice.finish_reason
    told = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens]
    assert told == said.tokens


def test_a_conversation_and_its_stream_say_the_same(client, model) -> None:
    asked = {
        "model": str(model),
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "tea?"}]},
        ],
        "max_completion_tokens": 20,
        "seed": 2,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert (whole.object, choice.message.role) == ("chat.completion", "assistant")
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    data = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
    assert data.decode(errors="replace").startswith(choice.message.content[:3])
    with client.chat.completions.create(**asked, stream=True) as stream:
        first, *chunks = list(stream)
    assert first.object == "chat.completion.chunk"
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason
    assert chunks[-1].choices[0].delta.content is None


@pytest.mark.parametrize(
    ("changed", "param", "said"),
    [
        ({"max_tokens": 0}, "max_tokens", "max_tokens: Input should be greater than or equal to 1"),
        ({"temperature": 3}, "temperature", "temperature: Input should be less than or equal to 2"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias: is not here"),
        ({"stop": [""]}, "stop", "stop[0]: String should have at least 1 character"),
        ({"prompt": [99999]}, "prompt", "token 99999 is none of"),
        ({"prompt": "a" * 500}, "prompt", "it must fit 96"),
        ({"n": 100, "prompt": ["a", "b"]}, "n", "more than 128 texts"),
    ],
)
def test_what_cannot_be_served_is_a_bad_request_that_names_it(client, model, changed, param, said):
    known = {"model": str(model), "prompt": "a"} | changed
    extra = {k: known.pop(k) for k in list(known) if k == "logit_bias"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**known, extra_body=extra)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert said in caught.value.message
    assert str(model.parent) not in caught.value.message


NOTHING = {
    "tools": [],
    "functions": [],
    "tool_choice": "none",
    "function_call": "none",
    "parallel_tool_calls": True,
    "logit_bias": {},
    "store": False,
    "metadata": {"run": "7"},
    "modalities": ["text"],
    "service_tier": "auto",
    "user": "u-1",
    "safety_identifier": "u-1",
    "prompt_cache_key": "k",
    "response_format": {"type": "text"},
    "stream_options": None,
}
"""What wrappers of SDKs send without being asked to."""


def test_what_asks_for_nothing_changes_nothing(client, model) -> None:
    said = client.chat.completions.create(
        model=str(model), messages=[{"role": "user", "content": "tea?"}], **ASKED
    )
    answer = {**said.choices[0].message.model_dump(), "content": None, "annotations": []}
    asked = [
        {"role": "user", "content": "tea?", "name": "Laura"},
        {**answer, "tool_calls": []},
        {"role": "user", "content": "tea?"},
    ]
    plain = [{"role": m["role"], "content": m["content"] or ""} for m in asked]
    first, second = (
        client.post(
            "/chat/completions", cast_to=object, body={"messages": messages, **ASKED, **more}
        )
        for messages, more in ((asked, NOTHING), (plain, {"model": str(model)}))
    )
    assert first["choices"] == second["choices"] and first["choices"][0]["message"]["content"]
    assert first["model"] == model.name


@pytest.mark.parametrize(
    "asks",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"logit_bias": {"5": 1}},
        {"parallel_tool_calls": 1},
        {"store": True},
        {"modalities": ["text", "audio"]},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
    ],
)
def test_what_asks_for_something_that_is_not_here_is_refused(client, asks) -> None:
    body = {"messages": [{"role": "user", "content": "tea?"}], **asks}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", cast_to=object, body=body)
    assert caught.value.param == next(iter(asks))


@pytest.mark.parametrize(("given", "context"), [(None, 8192), (5000, 5000)])
def test_prompts_may_be_as_long_as_the_models_context_or_the_settings(
    tmp_path, given, context
) -> None:
    long = write(tmp_path / "long", positions=8192)
    settings = Settings(
        text_model=str(long), text_draft="none", text_context=given, device="cpu", batch_size=2
    )
    with TestClient(app_of(settings), base_url="http://127.0.0.1") as client:
        until(lambda: client.app.state.text_serving.life.state == "ready", 60)

        def answer(tokens: int) -> httpx.Response:
            body = {"model": str(long), "prompt": [97] * tokens, "max_tokens": 2}
            return client.post("/v1/completions", json=body)

        if given is None:
            assert answer(4100).json()["usage"]["prompt_tokens"] == 4100
        refused = answer(context)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt"
        assert f"it must fit {context}" in refused.json()["error"]["message"]


def test_other_errors_have_openais_body_too(client, server) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    url = f"{server[0]}/v1/completions"
    keyed = {"Authorization": f"Bearer {KEY}"}
    assert httpx.post(url, json={}).status_code == 401
    for body in (b"[1]", b"{", b'{"model": "x"}'):
        answer = httpx.post(url, content=body, headers=keyed)
        assert answer.status_code in (400, 404) and "error" in answer.json()


def test_a_client_that_no_longer_waits_frees_its_rows(server, model) -> None:
    """128 texts on three rows: a client that disconnects leaves most of them unwritten."""
    url, text_serving = server
    before = text_serving.generator.stats.emitted
    body = {"model": str(model), "prompt": "the", "n": 128, "max_tokens": 90, "seed": 1}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            f"{url}/v1/completions",
            json=body,
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=httpx.Timeout(0.7, connect=30, write=30),
        )
    until(lambda: text_serving.generator.idle and not text_serving._owners, 60)
    assert text_serving.generator.stats.emitted - before < 64 * 90


def test_without_a_text_model_the_routes_say_so() -> None:
    client = TestClient(app_of(Settings(drain_s=0)), base_url="http://localhost")
    answer = client.post("/v1/completions", json={"model": "gpt-2"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "text_model" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("secret"), "internal_error"), (MemoryError(), "overloaded")]
)
def test_a_fault_of_the_text_model_fails_what_is_under_way_and_nothing_later(
    model, error, code
) -> None:
    app = app_of(Settings(text_model=str(model), device="cpu", drain_s=0))

    def fail() -> None:
        text_serving.generator.step = step
        raise error

    with TestClient(app, base_url="http://localhost") as client:
        text_serving = app.state.text_serving
        until(lambda: text_serving.life.state == "ready", 240)
        step, text_serving.generator.step = text_serving.generator.step, fail
        asked = {"model": str(model), "prompt": ["so", "on"], "max_tokens": 3}
        failed = client.post("/v1/completions", json=asked)
        assert failed.json()["error"]["code"] == code and "secret" not in failed.text
        assert text_serving.life.state == "ready"
        until(
            lambda: text_serving.round_s == 0 and text_serving.generator.idle
        )  # its thread goes on
        assert client.post("/v1/completions", json=asked).status_code == 200
