"""`/v1/audio/transcriptions` and translations: every format, every field, every refusal."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from forescribe.api.speech.forms import TranscriptionForm, meant, parse
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.words.terms import read_terms
from forescribe.speculative.requests import Beams, Request
from tests.api.conftest import silence, sound, wav
from tests.api.contract import conforms

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
ONE_TRY = {"model": "whisper-1", "temperature": "0.5"}  # for a window
GERMAN = {**ONE_TRY, "language": "de"}


def post(client, audio: bytes | None = None, path: str = TRANSCRIBE, **fields):
    given = {**(GERMAN if path == TRANSCRIBE else ONE_TRY), **fields}
    given = {name: value for name, value in given.items() if value is not None}
    audio = sound(2, 1) if audio is None else audio
    return client.post(path, files={"file": ("a.wav", audio)}, data=given)


def events(text: str) -> list[dict]:
    lines = [line for line in text.split("\n\n") if line and line != ": ping"]
    assert all(re.match("data: |event: error\ndata: ", line) for line in lines)
    return [json.loads(line.split("data: ", 1)[1]) for line in lines if "[DONE]" not in line]


def test_json_is_the_contracts(service) -> None:
    body = post(service()).json()
    conforms(body, "CreateTranscriptionResponseJson")
    assert body["text"] and body["languages"] == [{"code": "de"}]
    assert body["usage"] == {"type": "duration", "seconds": 2}


@pytest.mark.parametrize("field", ["language", "languages"])
def test_of_several_languages_the_one_that_is_heard_is_taken(service, field) -> None:
    value = {"language": "German, en", "languages": '["de", "english"]'}[field]
    answer = post(service(), **{"language": None, field: value})
    assert answer.status_code == 200, answer.text
    assert answer.json()["languages"][0]["code"] in ("de", "en")
    refused = post(service(), **{"language": None, field: value.replace("en", "xx")})
    assert refused.status_code == 400 and "unknown language" in refused.text


def test_what_is_left_out_of_a_language_is_told_in_the_answer(service) -> None:
    body = post(service(), language="de_AT", response_format="verbose_json").json()
    assert body["language"] == "german"
    assert [w["code"] for w in body["warnings"] if "de_AT" in w["message"]] == ["language"]


def test_verbose_json_has_every_key_of_every_segment(service) -> None:
    body = post(service(), sound(40, 2), response_format="verbose_json").json()
    conforms(body, "CreateTranscriptionResponseVerboseJson")
    assert body["task"] == "transcribe" and body["language"] == "german"
    assert isinstance(body["duration"], float) and body["duration"] == 40
    assert "words" not in body and len(body["segments"]) > 1
    assert [segment["id"] for segment in body["segments"]] == list(range(len(body["segments"])))
    assert all(None not in segment.values() and len(segment) == 10 for segment in body["segments"])
    assert body["text"] == "".join(segment["text"] for segment in body["segments"]).strip()
    assert body["coverage"]["spans"][-1]["end"] == 40


@pytest.mark.parametrize(
    ("asked", "words", "segments"),
    [(["word"], True, False), (["segment"], False, True), (["word", "segment"], True, True)],
)
def test_words_and_segments_come_where_they_are_asked_for(service, asked, words, segments) -> None:
    body = post(
        service(), response_format="verbose_json", **{"timestamp_granularities[]": asked}
    ).json()
    conforms(body, "CreateTranscriptionResponseVerboseJson")
    assert ("words" in body, "segments" in body) == (words, segments)
    if words:
        assert body["words"] and all(w["start"] <= w["end"] <= 2 for w in body["words"])


def test_the_words_are_those_of_the_transcriber(service, whisper, transcriber) -> None:
    """The upload's way (streamed, in a session, beside others) changes no token."""
    audio = sound(35, 3)
    made = post(service(), audio, response_format="verbose_json").json()
    from forescribe.asr.decode.options import Guards

    alone = Transcriber(whisper, batch=4, gamma=2, detector=transcriber.context.detector)
    (outcome,) = alone.transcribe(
        [audio], Options(language="de", guards=Guards(temperatures=(0.5,)))
    )
    assert [s["tokens"] for s in made["segments"]] == [
        list(s.tokens) for s in outcome.transcript.segments
    ]


@pytest.mark.parametrize("form", ["text", "srt", "vtt"])
def test_files_come_as_text_of_their_type(service, form) -> None:
    """WebVTT has a registered type, which browsers require of a <track>; SubRip has none."""
    answer = post(service(), response_format=form)
    kind = {"vtt": "text/vtt"}.get(form, "text/plain")
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    start = {"text": "", "srt": "1\n00:00:0", "vtt": "WEBVTT\n\n00:0"}[form]
    assert answer.text.startswith(start) and answer.text.endswith("\n")


def test_silence_is_an_answer_in_every_json(service) -> None:
    client = service()
    short = post(client, silence(3), language=None).json()
    conforms(short, "CreateTranscriptionResponseJson")
    assert short["text"] == "" and short["languages"] == []
    asked = {"response_format": "verbose_json", "timestamp_granularities": '["word", "segment"]'}
    whole = post(client, silence(3), language=None, **asked).json()
    conforms(whole, "CreateTranscriptionResponseVerboseJson")
    assert (whole["text"], whole["words"], whole["segments"]) == ("", [], [])
    assert whole["coverage"]["silent_s"] == whole["duration"] == 3


def test_what_the_guards_refused_is_a_warning_in_every_answer(service) -> None:
    """Random weights: nothing that they write is probable."""
    for form in ("json", "verbose_json"):
        body = post(service(), response_format=form).json()
        (warning,) = [w for w in body["warnings"] if w["code"] == "doubtful_text"]
        assert "0.0 to 2.0 s (improbable (mean log-probability" in warning["message"]
    assert "improbable" in body["coverage"]["spans"][0]["reason"]


def test_logprobs_are_those_of_the_texts_tokens(service) -> None:
    body = post(service(), **{"include[]": "logprobs"}).json()
    conforms(body, "CreateTranscriptionResponseJson")
    written = bytes(b for token in body["logprobs"] for b in token["bytes"])
    # Random bytes: what is no character is marked once or twice, as it falls into segments.
    told, text = (t.replace("\ufffd", "") for t in (written.decode(errors="replace"), body["text"]))
    assert told.strip() == text != ""
    assert all(token["logprob"] <= 0 for token in body["logprobs"])


def test_a_stream_has_the_whole_text_once_and_ends_with_done(service) -> None:
    client, audio = service(), sound(40, 6)
    whole = post(client, audio).json()["text"]
    answer = post(client, audio, stream="true", **{"include[]": "logprobs"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")
    *deltas, done = events(answer.text)
    for event in (*deltas, done):
        conforms(event, "CreateTranscriptionResponseStreamEvent")
    assert {event["type"] for event in deltas} == {"transcript.text.delta"} and len(deltas) > 1
    assert done["type"] == "transcript.text.done"
    assert "".join(event["delta"] for event in deltas) == done["text"] == whole
    assert [t for event in deltas for t in event["logprobs"]] == done["logprobs"]
    assert done["usage"]["total_tokens"] == 40 * 50 + done["usage"]["output_tokens"]


def test_a_strategy_moves_the_cuts(service) -> None:
    import numpy as np

    pause = np.zeros(16_000 * 3)
    samples = np.concatenate([np.sin(np.arange(32_000) * 0.1), pause, np.sin(np.arange(32_000))])
    client, fields = service(), {"response_format": "verbose_json"}
    strategy = json.dumps({"type": "server_vad", "silence_duration_ms": 8000})
    auto = post(client, wav(samples), chunking_strategy="auto", **fields).json()
    told = post(client, wav(samples), chunking_strategy=strategy, **fields).json()
    assert [s["state"] for s in auto["coverage"]["spans"]] == ["decoded", "silent", "decoded"]
    # What the random model's answer leaves of the window is decoded too, so that there may be two.
    assert {s["state"] for s in told["coverage"]["spans"]} == {"decoded"}


def test_a_prompt_is_what_was_said_before(service, transcriber) -> None:
    client, seen = service(), []
    submit = transcriber.engine.submit
    transcriber.engine.submit = lambda request: (seen.append(request), submit(request))[1]
    try:
        post(client, prompt="ab", initial_prompt="cd")
    finally:
        del transcriber.engine.submit
    previous = transcriber.whisper.tokenizer.encode(" ab, cd", add_special_tokens=False)
    for request in seen:
        assert request.prompt[1 : 1 + len(previous)] == tuple(previous)
    assert seen


def test_a_prompt_that_is_too_long_says_how_much_of_it_was_read(service) -> None:
    """It was cut without a word."""
    client = service()

    def told(prompt: str) -> list[str]:
        warnings = post(client, prompt=prompt).json().get("warnings", ())
        return [warning["message"] for warning in warnings if warning["code"] == "cut_prompt"]

    (message,) = told("ab " * 1000)
    assert message.startswith("the prompt has 2,999 characters, and the model has read the last ")
    text = post(client, prompt="ab " * 1000, response_format="text", batch_size="3")
    assert message in text.headers["Warning"] and "batch_size" in text.headers["Warning"]
    assert not told("ab")


def test_who_asks_for_speakers_by_another_name_is_told_the_format(service) -> None:
    for name in ("diarize", "diarization", "num_speakers"):
        error = post(service(), **{name: "2"}).json()["error"]
        assert error["param"] == name
        assert f"{name!r}; response_format=diarized_json says who speaks" in error["message"]


def test_terms_by_any_name_are_one_list(service) -> None:
    fields = {
        "terms": '["Lynde", "cube net ease => Kubernetes"]',
        "keyterms": "# a file\nAvonlea\r\n\nGreen Gables\n",
        "keywords": '["Gweniverer => Guinevere *2"]',
        "hotwords": "Zoë, Hetzner",
    }
    form = parse(TranscriptionForm, fields.items())
    assert [term.text for term in read_terms(meant(form)["terms"])] == [
        "Lynde",
        "Kubernetes",
        "Avonlea",
        "Green Gables",
        "Guinevere",
        "Zoë",
        "Hetzner",
    ]
    for value, told in (("<>", "no letter"), ("x *0", "the weight is 0")):
        error = post(service(), terms=value).json()["error"]
        assert error["param"] == "terms" and told in error["message"]
    for field, value in (("terms", "#MeToo"), ("keywords", '["\U0001f3e0"]'), ("hotwords", "#a")):
        assert post(service(), **{field: value}).status_code == 200
    long = json.dumps([f"{'word ' * 15}{number} => b" for number in range(400)])
    for value, told in (
        ("/a/ => b", "give words, as 'heard => meant'"),
        ("plant", "line 1, 'plant': write 'heard => meant'"),
        (long, "the service takes 20,000"),
    ):
        error = post(service(), replacements=value).json()["error"]
        assert error["param"] == "replacements" and told in error["message"], error
        assert "/expression/ =>" not in error["message"], "which is refused here"


@pytest.mark.parametrize(
    ("hotwords", "terms", "prompted"),
    [
        ("Hetzner", ("Hetzner",), None),
        ("Zoë, Hetzner Cloud,", ("Zoë", " Hetzner Cloud"), None),
        ("a talk about Hetzner", (), "a talk about Hetzner"),
        (f"Zoë, {'long ' * 30}", (), f"Zoë, {'long ' * 30}"),
        (" , ", (), " , "),
    ],
)
def test_hotwords_without_commas_are_text_before_every_window(hotwords, terms, prompted) -> None:
    """As in faster-whisper, whose clients send sentences too: none is refused."""
    form = parse(TranscriptionForm, [("hotwords", hotwords)])
    found = Options(**meant(form))
    assert (found.terms, found.initial_prompt) == (terms, prompted)


@pytest.mark.parametrize(("sent", "size"), [(None, None), ("1", 1), ("5", 5), ("auto", "auto")])
def test_a_form_asks_for_beams_or_leaves_them_to_the_model(sent, size) -> None:
    form = parse(TranscriptionForm, [("beam_size", sent)] if sent is not None else [])
    again = TranscriptionForm.model_validate_json(form.model_dump_json())  # as a job is stored
    assert Options(**meant(form)).beam_size == Options(**meant(again)).beam_size == size


@pytest.mark.parametrize("path", [TRANSCRIBE, TRANSLATE])
def test_what_asks_for_no_beams_is_searched_with_those_of_the_model(
    service, whisper, transcriber, monkeypatch, path
) -> None:
    """One that knows several languages, here with five."""
    searched = Transcriber(
        replace(whisper, beams=5), batch=4, gamma=2, detector=transcriber.context.detector
    )
    submit, asked = searched.engine.submit, list[Request]()
    monkeypatch.setattr(
        searched.engine, "submit", lambda request: (asked.append(request), submit(request))
    )
    client, texts = service(load=lambda: searched), {}
    for size in (None, "5", "1"):
        asked.clear()
        answer = post(client, path=path, temperature=None, beam_size=size)
        assert answer.status_code == 200, answer.text
        texts[size] = answer.json()["text"]
        first = [request for request in asked if not request.temperature]
        assert {r.beams for r in first} == {None if size == "1" else Beams(5)}
    assert texts[None] == texts["5"]


FASTER_WHISPER = {
    "model": None,
    "vad_filter": "true",
    "hotwords": "Zoë, Hetzner",
    "word_timestamps": "true",
    "condition_on_previous_text": "true",
    "batch_size": "16",
    "beam_size": "5",
    "best_of": "1",
    "vad_parameters[threshold]": "0.3",
}
"""What clients of its servers send."""


def test_fields_of_faster_whisper_count_where_they_mean_something(service) -> None:
    client = service()
    body = post(client, response_format="verbose_json", **FASTER_WHISPER).json()
    assert body["words"] and body["segments"]
    (warning,) = [w for w in body["warnings"] if w["code"] == "unused_fields"]
    assert warning["message"].endswith(": batch_size, vad_parameters")
    subtitles = post(client, response_format="srt", **FASTER_WHISPER)
    assert "-->" in subtitles.text and "batch_size" in subtitles.headers["warning"]
    assert "warning" not in post(client, response_format="srt", beam_size="1").headers
    streamed = events(post(client, stream="true", batch_size="8").text)
    assert streamed[-1]["warnings"][-1]["code"] == "unused_fields"
    translated = post(client, path=TRANSLATE, response_format="verbose_json", **FASTER_WHISPER)
    assert translated.json()["words"]


def test_without_the_filter_silence_is_decoded_too(service, transcriber, monkeypatch) -> None:
    client, seen, submit = service(), [], transcriber.engine.submit
    monkeypatch.setattr(
        transcriber.engine, "submit", lambda request: (seen.append(request), submit(request))[1]
    )
    assert post(client, silence(3), vad_filter="true").status_code == 200 and not seen
    assert post(client, silence(3), vad_filter="false").status_code == 200 and seen


def test_a_temperature_is_the_only_one_that_is_tried(service) -> None:
    body = post(service(), response_format="verbose_json", temperature="0.7").json()
    assert {segment["temperature"] for segment in body["segments"]} == {0.7}


def test_a_translation_is_english_whatever_was_said(service) -> None:
    client = service()
    short = post(client, path=TRANSLATE)
    conforms(short.json(), "CreateTranslationResponseJson")
    body = post(client, path=TRANSLATE, response_format="verbose_json").json()
    conforms(body, "CreateTranslationResponseVerboseJson")
    assert (body["task"], body["language"]) == ("translate", "english")


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "large-v9"}, 404, "model_not_found", "model"),
        ({"language": "tlh"}, 400, "invalid_value", "language"),
        ({"languages": '["de"]'}, 400, "invalid_value", "languages"),
        ({"language": None, "languages": '["tlh"]'}, 400, "invalid_value", "languages"),
        ({"language": None, "languages": '["de", "tlh"]'}, 400, "invalid_value", "languages"),
        ({"prompt": "<|endoftext|>"}, 400, "invalid_value", "prompt"),
        ({"response_format": "srt", "stream": "1"}, 400, "invalid_value", "stream"),
        ({"include": "logprobs", "response_format": "text"}, 400, "invalid_value", "include"),
        ({"timestamp_granularities": "word"}, 400, "invalid_value", "timestamp_granularities"),
        ({"known_speaker_names": "me"}, 400, "invalid_value", "known_speaker_names"),
        ({"beams": "5"}, 400, "invalid_value", "beams"),
        ({"beam_size": "0"}, 400, "invalid_value", "beam_size"),
        ({"beam_size": "1000"}, 400, "invalid_value", "beam_size"),
        ({"beam_size": "5", "patience": "0"}, 400, "invalid_value", "patience"),
        ({"beam_size": "5", "length_penalty": "1.5"}, 400, "invalid_value", "length_penalty"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(service, fields, status, code, param) -> None:
    answer = post(service(), **fields)
    conforms(answer.json(), "ErrorResponse")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [(TRANSCRIBE, {"language": "de"}, "language"), (TRANSLATE, {}, "model")],
)
def test_a_model_that_was_made_for_english_serves_nothing_else(
    service, monkeypatch, path, fields, param
) -> None:
    """Although its tokens name other languages, as those of distilled models do."""
    client = service()
    serving = client.app.state.serving
    monkeypatch.setattr(serving, "tokens", replace(serving.tokens, made_for=frozenset({"en"})))
    answer = post(client, path=path, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", param)


@pytest.mark.parametrize("path", [TRANSCRIBE, TRANSLATE])
@pytest.mark.parametrize(
    ("audio", "code"), [(b"", "empty_file"), (b"no audio at all, only words", "invalid_audio")]
)
def test_a_file_that_is_no_audio_is_refused(service, path, audio, code) -> None:
    answer = post(service(), audio, path=path)
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, "file")
