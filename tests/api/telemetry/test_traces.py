"""Traces from upload to words, across processes; without text, names or keys; and nothing at all when off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forescribe.api.telemetry import Tracing
from forescribe.asr.errors import UsageError
from tests.api.conftest import TRANSCRIBE, memo, until
from tests.api.jobs.application import FORM, JOBS, application, ended, ready, submit

TRACE, SPAN = "a" * 32, "b" * 16
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


class Kept:
    """Spans that have ended, and the tracing that writes them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider)
        self.tracing.close = lambda: None  # it is several processes' here

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def children(self, parent: ReadableSpan) -> set[str]:
        id = parent.context.span_id
        return {span.name for span in self.spans if span.parent and span.parent.span_id == id}


@pytest.fixture
def kept(monkeypatch) -> Kept:
    """Every service of the test writes its spans there."""
    kept = Kept()
    monkeypatch.setattr(
        "forescribe.api.speech.serving.Tracing", lambda: kept.tracing
    )  # as Serving.of does
    return kept


@pytest.fixture
def client(tmp_path, kept, transcriber, decoders):
    with application(tmp_path, transcriber, decoders) as client:
        yield ready(client)


def post(client, headers=PARENT, **form):
    files = {"file": ("private.wav", memo(3))}
    data = {"model": "random", **FORM, "prompt": "confidential", **form}
    return client.post(TRANSCRIBE, files=files, data=data, headers=headers)


WORDS = {"response_format": "verbose_json", "timestamp_granularities": "word"}


def test_a_request_from_upload_to_words(client, kept) -> None:
    assert post(client, **WORDS).status_code == 200
    until(lambda: any(span.name == f"POST {TRANSCRIBE}" for span in kept.spans))
    root = kept.named(f"POST {TRANSCRIBE}")
    assert f"{root.context.trace_id:032x}" == TRACE and f"{root.parent.span_id:016x}" == SPAN
    assert root.attributes["http.route"] == TRANSCRIBE
    assert root.attributes["http.response.status_code"] == 200
    assert kept.children(root) == {"receive", "decode", "queue", "transcribe"}
    transcribe = kept.named("transcribe")
    assert kept.children(transcribe) == {"encode", "rounds", "words"}
    assert kept.named("decode").attributes["forescribe.audio_s"] == 3.0
    order = [kept.named(name) for name in ("receive", "decode", "queue", "encode", "words")]
    assert [s.start_time for s in order] == sorted(s.start_time for s in order)
    for span in kept.spans:
        assert span.start_time <= span.end_time
        assert root.start_time <= span.start_time and span.end_time <= root.end_time


def test_a_diarized_request_and_one_that_is_refused(client, kept) -> None:
    assert post(client, response_format="diarized_json").status_code == 200
    assert post(client, {}, model="other").status_code == 404
    assert post(client, {"traceparent": "00-zz"}).status_code == 200
    until(lambda: sum(span.name == f"POST {TRANSCRIBE}" for span in kept.spans) == 3)
    assert kept.named("diarize").context.trace_id == int(TRACE, 16)
    roots = [span for span in kept.spans if span.name == f"POST {TRANSCRIBE}"]
    assert [root.attributes["http.response.status_code"] for root in roots] == [200, 404, 200]
    assert [root.parent is None for root in roots] == [False, True, True]
    (failed,) = [root for root in roots if root.attributes["http.response.status_code"] == 404]
    assert failed.attributes["http.route"] == TRANSCRIBE


def test_a_job_is_traced_by_the_process_that_does_it(
    tmp_path, kept, transcriber, decoders, held
) -> None:
    """It is accepted by one process, and done by the next."""
    with application(tmp_path, transcriber, decoders) as client:
        job = submit(ready(client), memo(3), headers=PARENT, diarize="true").json()["id"]
        until(lambda: client.get(f"{JOBS}/{job}").json()["state"] == "running")
    first = {span.name for span in kept.spans}
    assert f"POST {JOBS}" in first and "job finish" not in first
    held.set()
    with application(tmp_path, transcriber, decoders) as client:
        assert ended(ready(client), job)["state"] == "succeeded"
    root = kept.named(f"POST {JOBS}")
    steps = {"job plan", "job group", "job assemble", "job diarize", "job finish"}
    assert kept.children(root) >= steps
    (assemble,) = [s for s in kept.spans if s.name == "job assemble" and s.status.is_ok]
    assert kept.children(assemble) == {"encode", "rounds", "words"}
    mine = [span for span in kept.spans if span.name in steps]
    assert {f"{span.context.trace_id:032x}" for span in mine} == {TRACE}
    assert {span.attributes["forescribe.job"] for span in mine} == {job}


def test_spans_hold_no_text_no_names_and_no_keys(client, kept) -> None:
    text = post(client, **WORDS).json()["text"]
    job = submit(client, memo(3), headers={"Idempotency-Key": "k3y"}, prompt="confidential")
    ended(client, job.json()["id"])
    client.get("/no/such/private", params={"key": "s3cr3t"})
    post(client, temperature="private")
    told = json.dumps([json.loads(span.to_json()) for span in kept.spans])
    assert len(kept.spans) > 12 and text.strip()
    for secret in (text.strip(), "confidential", "private", "k3y", "s3cr3t", "talk.wav"):
        assert secret not in told
    assert not any(span.events for span in kept.spans)  # events are where exceptions are recorded


def test_a_step_that_fails_tells_its_code(client, kept) -> None:
    job = submit(client, memo(2)).json()["id"]
    ended(client, job)
    with pytest.raises(ZeroDivisionError), kept.tracing.span("work"):
        raise ZeroDivisionError("confidential")
    span = kept.named("work")
    assert span.attributes["error.type"] == "ZeroDivisionError" and not span.status.is_ok
    assert "confidential" not in span.to_json()


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_what_switches_traces_on(environment, on) -> None:
    tracing = Tracing.from_environment(environment)
    assert tracing.active is on
    tracing.close()


def test_an_exporter_that_is_not_there_is_named(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(UsageError, match="zipkin"):
        Tracing.from_environment()


def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="scripts/setup serve otel"):
        Tracing.from_environment()


def run(code: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "FORESCRIBE_"))}
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=clean,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


OFF = """
import sys
from forescribe.api.app import create_app
from forescribe.api.settings import Settings
app = create_app(Settings(jobs=False))
print(any(m.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for m in sys.modules))
print(app.state.serving.tracing.active, app.state.serving.tracing.phases())
"""

FASTAPI = """
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans = InMemorySpanExporter()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
@app.get("/fault")
def fault(): raise ValueError("confidential")
client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
assert client.get("/fault").status_code == 500
print(len(spans.get_finished_spans()))
"""


def test_nothing_is_imported_or_measured_when_off_and_fastapis_own_telemetry_is() -> None:
    """FastAPI's records messages of exceptions, wherever the process has a global provider."""
    assert run(OFF + FASTAPI).split() == ["False", "False", "None", "0"]
