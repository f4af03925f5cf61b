"""Forms: every spelling that clients send gives the same record."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.api.errors import ApiError
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
    assert "chunking_strategy.threshold: Input should be less than or equal to 1" in str(
        refused(MODEL, ("chunking_strategy", vad))
    )


def test_the_nearest_field_is_named() -> None:
    assert "did you mean language?" in str(refused(("langauge", "en")))


@pytest.mark.parametrize("name", ["language", "stream", "timestamp_granularities[]", "include"])
def test_a_translation_has_no_fields_of_a_transcription(name) -> None:
    assert refused(MODEL, (name, "en"), kind=TranslationForm).param == name.removesuffix("[]")


@pytest.mark.parametrize(("value", "told"), [("true", False), ("1", False), ("False", True)])
def test_a_client_that_wants_no_previous_text_is_told_that_it_has_no_effect(value, told) -> None:
    """That of other windows is never read; that of the part before always is."""
    name = "condition_on_previous_text"
    fields, unused = set_aside([MODEL, (name, value)])
    assert fields == [MODEL]
    assert [name in notice.message for notice in unused] == [True] * told


def test_a_stored_form_may_hold_a_field_that_is_gone() -> None:
    stored = parse(JobForm, [MODEL, ("language", "de")]).model_dump(mode="json")
    stored["condition_on_previous_text"] = True
    assert JobForm.model_validate_json(json.dumps(stored)).language == "de"
    assert refused(MODEL, ("long_form", "windows"), kind=JobForm).param == "long_form"


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=5))
def test_whatever_is_sent_is_a_record_or_a_refusal(fields) -> None:
    try:
        parse(TranscriptionForm, [MODEL, *fields])
    except ApiError as error:
        assert error.status == 400 and error.param is not None


def test_the_least_threshold_of_a_number_is_one() -> None:
    """Half of it is 0, with which no speech would end; found by schemathesis."""
    given = '{"type": "server_vad", "threshold": 5e-324}'
    form = forms.parse(forms.TranscriptionForm, [("chunking_strategy", given)])
    options = forms.transcription(form, Mock(), Settings(jobs=False))
    assert options.windows.offset == options.windows.onset == 5e-324
