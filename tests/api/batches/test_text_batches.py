"""Batches of texts: OpenAI's client and contract, what goes wrong, other processes, keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch
from openai.types.chat import ChatCompletion

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.batches.table import LineRow
from forescribe.api.jobs.service import Jobs
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.batches.calls import begin, ended, jsonl, lines_of
from tests.api.conftest import served, until
from tests.api.jobs.application import application
from tests.api.speech.test_sdk import ended as sdk_ended
from tests.api.speech.test_sdk import strictly
from tests.docs.pages import ROOT, blocks
from tests.text.language_models import write

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
KEY, OTHER = new_key(), new_key()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("text") / "target")


def asked(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    default: dict[str, Any] = {"model": "target", "seed": 1, "max_tokens": 8}
    if url == CHAT:
        default["messages"] = [{"role": "user", "content": f"tea {custom_id}?"}]
    else:
        default["prompt"] = "one two"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**default, **body}}


@pytest.fixture
def client(tmp_path, model, transcriber, decoders, request):
    given = {"text_model": str(model), "text_draft": "none", "device": "cpu", "batch_size": 2}
    given |= getattr(request, "param", {})
    with application(tmp_path, transcriber, decoders, **given) as client:
        until(lambda: client.app.state.text_serving.state == "ready", 120)
        yield client


@pytest.fixture(scope="module")
def sdk(tmp_path_factory) -> Iterator[openai.OpenAI]:
    settings = Settings(
        model="tiny.en",
        text_model="demo-text",
        device="cpu",
        api_keys={"sdk": digest(KEY)},
        drain_s=0,
        data_dir=tmp_path_factory.mktemp("jobs"),
        min_free_bytes=0,
    )
    serving = Serving.of(settings)
    app = create_app(settings, serving, Jobs.open(settings, serving))
    with served(app) as url:
        until(lambda: app.state.text_serving.state == "ready" and serving.state == "ready", 240)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            yield client


def test_the_sdk_gets_a_batch_of_conversations(sdk) -> None:
    name = {"model": "demo-text"}
    given = [asked("a", **name), asked("b", n=2, logprobs=True, **name), asked("c", tools=[])]
    lines = jsonl(given)
    file = sdk.files.create(file=("texts.jsonl", lines), purpose="batch")
    raw = sdk.batches.with_raw_response.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h"
    )
    strictly(Batch, raw)
    batch = sdk_ended(sdk, raw.parse().id)
    strictly(Batch, sdk.batches.with_raw_response.retrieve(batch.id))
    assert (batch.status, batch.endpoint, batch.model) == ("completed", CHAT, "demo-text")
    rows = [json.loads(r) for r in sdk.files.content(batch.output_file_id).text.splitlines()]
    bodies = {row["custom_id"]: row["response"]["body"] for row in rows}
    assert list(bodies) == ["a", "b"]
    for custom_id, body in bodies.items():
        ChatCompletion.model_validate(body, strict=True)
        (line,) = [line for line in given if line["custom_id"] == custom_id]
        direct = sdk.chat.completions.create(**line["body"])
        assert body["choices"][0]["message"]["content"] == direct.choices[0].message.content
    assert len(bodies["b"]["choices"]) == 2 and bodies["b"]["choices"][1]["logprobs"]["content"]
    used = [body["usage"] for body in bodies.values()]
    assert batch.usage.input_tokens == sum(u["prompt_tokens"] for u in used)
    assert batch.usage.output_tokens == sum(u["completion_tokens"] for u in used)
    (failed,) = [json.loads(r) for r in sdk.files.content(batch.error_file_id).text.splitlines()]
    assert failed["response"]["body"]["error"]["param"] == "tools"


@pytest.mark.nightly
def test_the_page_runs_as_it_is_printed(sdk, tmp_path, monkeypatch) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    opened: list[Any] = []

    def tracked(*given):
        opened.append(open(*given))
        return opened[-1]

    names: dict[str, Any] = {"open": tracked}
    for block in (b for b in blocks("python") if b.page == "docs/openai-batches.md"):
        text = block.text.replace("http://localhost:8000/v1", str(sdk.base_url))
        exec(compile(text.replace('"none"', repr(KEY)), block.name, "exec"), names)
    for name, key in (("batch", "text"), ("texts", "choices")):
        batch = sdk_ended(sdk, names[name].id)
        assert batch.status == "completed"
        row = json.loads(sdk.files.content(batch.output_file_id).text)
        assert row["response"]["body"][key]
    for one in (*opened, names["client"]):
        one.close()


def test_completions_and_what_is_wrong_with_a_line(client) -> None:
    wrong = {
        "stream": ({"stream": True}, 400, "invalid_value", "stream"),
        "model": ({"model": "other"}, 404, "model_not_found", "model"),
        "too long": ({"prompt": [1] * 5000}, 400, "invalid_value", "prompt"),
        "field": ({"echo": True}, 400, "invalid_value", "echo"),
    }
    lines = [asked(name, COMPLETE, **body) for name, (body, *_) in wrong.items()]
    made = begin(client, jsonl([asked("good", COMPLETE), *lines]), COMPLETE)
    batch = ended(client, made.json()["id"])
    assert batch["request_counts"] == {"total": 5, "completed": 1, "failed": 4}
    (good,) = lines_of(client, batch["output_file_id"]).values()
    direct = client.post(COMPLETE, json=asked("good", COMPLETE)["body"]).json()
    assert good["response"]["body"]["choices"] == direct["choices"]
    rows = lines_of(client, batch["error_file_id"])
    for name, (_, status, code, param) in wrong.items():
        response = rows[name]["response"]
        error = response["body"]["error"]
        assert (response["status_code"], error["code"], error["param"]) == (status, code, param)


def test_a_batch_has_a_share_of_the_slots_and_no_line_twice(client, monkeypatch) -> None:
    """More lines than slots: as many as `batch_size` are in the model's queue at a time."""
    serving = client.app.state.text_serving
    seen: list[int] = []
    written: list[Any] = []
    original = serving.write

    def counted(*given):
        written.append(original(*given))
        seen.append(sum(one._unfinished > 0 for one in written))
        return written[-1]

    monkeypatch.setattr(serving, "write", counted)
    made = begin(client, jsonl([asked(str(k)) for k in range(12)]), CHAT)
    batch = ended(client, made.json()["id"])
    assert batch["request_counts"]["completed"] == len(seen) == 12 and max(seen) <= 2
    assert list(lines_of(client, batch["output_file_id"])) == [str(k) for k in range(12)]


@pytest.fixture
def held(client, monkeypatch) -> Iterator[list[Any]]:
    """Texts wait until they are let go."""
    from forescribe.api.text.serving import TextRequest

    waiting: list[Any] = []
    original = TextRequest.completions

    async def wait(self):
        import asyncio

        waiting.append(self)
        while self in waiting:
            await asyncio.sleep(0.01)
        return await original(self)

    monkeypatch.setattr(TextRequest, "completions", wait)
    yield waiting
    waiting.clear()


def test_a_cancelled_batch_keeps_what_was_written(client, held) -> None:
    made = begin(client, jsonl([asked("a"), asked("b"), asked("c")]), CHAT).json()["id"]
    until(lambda: len(held) == 2)
    table = client.app.state.batches.table
    held.pop(0)
    until(lambda: table.counts([made])[made].get("succeeded") == 1)
    assert client.post(f"/v1/batches/{made}/cancel").json()["status"] == "cancelling"
    batch = ended(client, made)
    assert batch["status"] == "cancelled"
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    (kept,) = lines_of(client, batch["output_file_id"])
    assert kept in ("a", "b")  # whichever was begun first
    rows = lines_of(client, batch["error_file_id"])
    assert {row["error"]["code"] for row in rows.values()} == {"batch_cancelled"}
    until(lambda: not client.app.state.batches.texts._answering)
    until(lambda: client.app.state.text_serving.generator.idle)  # its slots are free


def test_a_text_whose_process_has_ended_is_written_by_the_next(
    tmp_path, model, transcriber, decoders
) -> None:
    """Also one that was finished, but not recorded."""
    given = {"text_model": str(model), "text_draft": "none", "device": "cpu", "batch_size": 2}
    with application(tmp_path, transcriber, decoders, **given) as first:
        until(lambda: first.app.state.text_serving.state == "ready", 120)
        first.app.state.batches.runner.stop()  # nobody works on it
        made = begin(first, jsonl([asked("a"), asked("b")]), CHAT).json()["id"]
        batches = first.app.state.batches
        batch = batches.table.get(made)
        batches.runner.steps.validate(batch)
        with batches.store.transaction() as tx:
            (line, _) = batches.table.lines(made)
            assert isinstance(line, LineRow) and batches.table.set_line(tx, line, "submitted")
    with application(tmp_path, transcriber, decoders, **given) as second:
        until(lambda: second.app.state.text_serving.state == "ready", 120)
        batch = ended(second, made)
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert set(lines_of(second, batch["output_file_id"])) == {"a", "b"}


def test_lines_wait_for_the_model(tmp_path, model, transcriber, decoders) -> None:
    given = {"text_model": str(model), "text_draft": "none", "device": "cpu"}
    with application(tmp_path, transcriber, decoders, **given) as client:
        serving = client.app.state.text_serving
        until(lambda: serving.state == "ready", 120)
        serving.state = "loading"
        made = begin(client, jsonl([asked("a")]), CHAT).json()["id"]
        table = client.app.state.batches.table
        until(lambda: made in client.app.state.batches.runner._resting)
        assert table.counts([made])[made] == {"pending": 1}
        serving.state = "ready"
        assert ended(client, made)["request_counts"]["completed"] == 1


def test_the_database_holds_no_text(client, tmp_path) -> None:
    made = begin(client, jsonl([asked("a")]), CHAT).json()["id"]
    batch = ended(client, made)
    (row,) = lines_of(client, batch["output_file_id"]).values()
    said = row["response"]["body"]["choices"][0]["message"]["content"].strip()
    client.app.state.jobs.store.database.truncate_log()
    data = (tmp_path / "jobs.db").read_bytes()
    assert len(said) > 4 and said.encode() not in data


def test_without_a_text_model_or_the_right_there_is_no_batch(
    tmp_path, model, transcriber, decoders
) -> None:
    keys = {"all": digest(KEY), "jobs": {"hash": digest(OTHER), "scopes": ["jobs"]}}
    with application(tmp_path, transcriber, decoders, api_keys=keys) as client:
        every, jobs = ({"Authorization": f"Bearer {key}"} for key in (KEY, OTHER))
        refused = begin(client, jsonl([asked("a")]), CHAT, every)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        refused = begin(client, jsonl([asked("a")]), CHAT, jobs)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
