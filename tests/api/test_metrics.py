"""Metrics and log: what happened, and never to whom or what was said."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from forescribe.asr.decode.outcome import windows_by_state
from tests.api.conftest import FORM, TRANSCRIBE, silence, sound


def series(client) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_transcription_is_counted(service) -> None:
    client = service()
    for audio in (sound(2, 1), silence(3), b"no audio"):
        client.post(TRANSCRIBE, files={"file": audio}, data=FORM)
    now = series(client)
    assert now["forescribe_audio_seconds_total"] == 5
    assert now["forescribe_windows_total{state=decoded}"] == 1
    assert now["forescribe_windows_total{state=silent}"] == 1
    assert now["forescribe_tokens_total"] > 0
    assert now["forescribe_drafted_tokens_total"] >= now["forescribe_accepted_tokens_total"]
    assert now[f"forescribe_requests_total{{route={TRANSCRIBE},status=200}}"] == 2
    assert now[f"forescribe_requests_total{{route={TRANSCRIBE},status=400}}"] == 1
    assert now["forescribe_requests_inside"] == now["forescribe_queued_audio_seconds"] == 0
    assert now["forescribe_ready"] == 1


def test_windows_are_counted_and_not_the_spans_of_their_parts() -> None:
    def part(index: int, state: str, tried: float = 0.0) -> Any:
        return SimpleNamespace(index=index, state=state, tried=tried)

    parts = [part(0, "decoded"), part(0, "failed"), part(0, "silent"), part(2, "silent")]
    parts += [part(3, "failed"), part(3, "silent"), part(5, "decoded")]
    assert windows_by_state(parts, silent=2) == {"decoded": 2, "failed": 1, "silent": 3}


def test_a_window_that_is_decoded_at_a_temperature_is_counted(service) -> None:
    client = service()  # no text of random weights passes the guards
    client.post(TRANSCRIBE, files={"file": sound(2, 1)}, data=FORM)
    assert series(client)["forescribe_fallbacks_total"] == 1


def test_the_way_of_a_recording_and_what_was_refused(service) -> None:
    client = service()
    client.post(TRANSCRIBE, files={"file": sound(2)}, data=FORM)
    client.post(TRANSCRIBE, files={"file": b"no audio"}, data=FORM)
    client.post(TRANSCRIBE, files={"file": sound(1)}, data={**FORM, "model": "other"})
    now = series(client)
    counts = {"upload": 3, "decode": 1, "wait": 1, "transcribe": 1}
    for step, count in counts.items():
        assert now[f"forescribe_step_seconds_count{{step={step}}}"] == count
    assert now["forescribe_refusals_total{code=invalid_audio}"] == 1
    assert now["forescribe_refusals_total{code=model_not_found}"] == 1
    assert now["forescribe_engine_seconds_total{stage=encode}"] > 0
    assert 0 <= now["forescribe_slots_busy"] <= 1 and now["forescribe_scratch_free_bytes"] > 0


def test_labels_are_few_whatever_is_asked_for(service) -> None:
    client = service()
    for path in ("/a", "/b", "/v1/models/x", "/v1/models/y"):
        client.get(path)
    routes = {name for name in series(client) if name.startswith("forescribe_requests_total")}
    assert len(routes) == 2  # unknown, and the route of a model
    assert not any("/a" in name or "models/x" in name for name in routes)


def test_the_log_has_one_line_for_a_request_and_no_word_of_it(service, caplog) -> None:
    client = service()
    with caplog.at_level("DEBUG"):
        answer = client.post(
            TRANSCRIBE,
            files={"file": ("private.wav", sound(2))},
            data={**FORM, "prompt": "confidential"},
        )
    lines = [json.loads(line) for line in caplog.messages if line.startswith('{"event": "request"')]
    (line,) = [line for line in lines if line["route"] == TRANSCRIBE]
    assert line["request_id"] == answer.headers["x-request-id"] and line["status"] == 200
    (told,) = [json.loads(line) for line in caplog.messages if '"event": "recording"' in line]
    assert told["request_id"] == line["request_id"] and told["audio_s"] == 2
    assert {"wait_s", "wall_s", "x_real_time", "acceptance_rate", "fallbacks"} <= set(told)
    text = answer.json()["text"]
    assert text and text not in caplog.text
    assert "private" not in caplog.text and "confidential" not in caplog.text
