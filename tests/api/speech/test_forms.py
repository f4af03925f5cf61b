"""Forms: every spelling that clients send gives the same record."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.api.errors import ApiError
from forescribe.api.jobs import submissions
from forescribe.api.jobs.submissions import JobForm
from forescribe.api.settings import Settings
from forescribe.api.speech import forms
from forescribe.api.speech.forms import (
    TranscriptionForm,
    TranslationForm,
    VadConfig,
    parse,
    set_aside,
)

MODEL = ("model", "whisper-1")


def transcription(*fields: tuple[str, str]) -> TranscriptionForm:
    return parse(TranscriptionForm, [MODEL, *fields])


def refused(*fields: tuple[str, str], kind: type = TranscriptionForm) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(kind, fields)
    assert caught.value.code == "invalid_value"
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        [("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment")],
        [("timestamp_granularities", "word"), ("timestamp_granularities", "segment")],
        [("timestamp_granularities[0]", "word"), ("timestamp_granularities[1]", "segment")],
        [("timestamp_granularities", '["word", "segment"]')],
        [("timestamp_granularities[]", '["word", "segment"]')],
        [("timestamp_granularities[]", "word"), ("timestamp_granularities", '["segment"]')],
    ],
)
def test_every_spelling_of_a_list_means_the_same(fields) -> None:
    assert transcription(*fields).timestamp_granularities == ("word", "segment")


@pytest.mark.parametrize(
    "fields",
    [
        [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", "0.7")],
        [("chunking_strategy", '{"type": "server_vad", "threshold": 0.7}')],
    ],
)
def test_every_spelling_of_an_object_means_the_same(fields) -> None:
    assert transcription(*fields).chunking_strategy == VadConfig(type="server_vad", threshold=0.7)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([MODEL, MODEL], "model"),
        ([MODEL, ("temperature", "1.5")], "temperature"),
        ([MODEL, ("temperature", "nan")], "temperature"),
        ([MODEL, ("temperature", "warm")], "temperature"),
        ([MODEL, ("response_format", "xml")], "response_format"),
        ([MODEL, ("stream", "perhaps")], "stream"),
        ([MODEL, ("include[]", "everything")], "include"),
        ([MODEL, ("timestamp_granularities[]", "letter")], "timestamp_granularities"),
        ([MODEL, ("timestamp_granularities", '["word"')], "timestamp_granularities"),
        ([MODEL, ("timestamp_granularities", "[1]")], "timestamp_granularities"),
        ([MODEL, ("languages", "[]")], "languages"),
        ([MODEL, ("chunking_strategy", "sometimes")], "chunking_strategy"),
        ([MODEL, ("chunking_strategy", "{}")], "chunking_strategy"),
        ([MODEL, ("chunking_strategy", "{")], "chunking_strategy"),
        ([MODEL, ("chunking_strategy[type]", "client_vad")], "chunking_strategy"),
        ([MODEL, ("chunking_strategy[size]", "3")], "chunking_strategy"),
        (
            [MODEL, ("chunking_strategy", "auto"), ("chunking_strategy[type]", "server_vad")],
            "chunking_strategy",
        ),
        ([MODEL, ("model[name]", "x")], "model"),
        ([MODEL, ("known_speaker_names", '["a", "b", "c", "d", "e"]')], "known_speaker_names"),
        ([MODEL, ("beams", "5")], "beams"),
        ([MODEL, ("[]", "5")], "[]"),
        ([MODEL, ("prompt", "a" * 100_001)], "prompt"),
        ([MODEL, ("keywords", json.dumps(["a"] * 1001))], "keywords"),
        ([MODEL, *[("keywords[]", "a")] * 1001], "keywords"),
        ([MODEL, ("keywords[]", "a" * 1001)], "keywords"),
        ([MODEL, ("languages", json.dumps(["en"] * 1001))], "languages"),
    ],
)
def test_what_is_wrong_is_named_as_the_client_knows_it(fields, param) -> None:
    assert refused(*fields).param == param


def test_what_is_wrong_in_an_object_is_named() -> None:
    vad = '{"type": "server_vad", "threshold": 2}'
    assert "chunking_strategy.threshold: must be at most 1" in str(
        refused(MODEL, ("chunking_strategy", vad))
    )


def test_the_nearest_field_is_named() -> None:
    assert "did you mean language?" in str(refused(("langauge", "en")))


@pytest.mark.parametrize("name", ["language", "stream", "timestamp_granularities[]", "include"])
def test_a_translation_has_no_fields_of_a_transcription(name) -> None:
    assert refused(MODEL, (name, "en"), kind=TranslationForm).param == name.removesuffix("[]")


@pytest.mark.parametrize(("value", "reads"), [(None, True), ("true", True), ("False", False)])
def test_the_rest_of_a_window_reads_the_text_before_it_unless_a_client_says_no(
    value, reads
) -> None:
    """For uploads, translations and jobs; no warning names the field."""
    name, serving = "condition_on_previous_text", Mock(multilingual=True)
    fields, unused = set_aside([MODEL, *([] if value is None else [(name, value)])])
    made = [
        forms.transcription(parse(TranscriptionForm, fields), serving, Settings(_env_file=None)),
        forms.translation(parse(TranslationForm, fields), serving),
        submissions.transcription(parse(JobForm, fields), serving, Settings(_env_file=None)),
    ]
    assert [options.condition_on_previous_text for options in made] == [reads] * 3 and not unused
    assert refused(MODEL, (name, "perhaps")).param == name


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=5))
def test_whatever_is_sent_is_a_record_or_a_refusal(fields) -> None:
    try:
        parse(TranscriptionForm, [MODEL, *fields])
    except ApiError as error:
        assert error.status == 400 and error.param is not None
