"""Guards as people type them: on unless switched off, nonsense is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from forescribe.asr.decode.options import Guards
from forescribe.asr.errors import UsageError
from forescribe.cli.transcribe_options import TranscribeOptions


def guards(**typed: Any) -> Guards | None:
    return TranscribeOptions(["a.wav"], **typed).decoding.guards


def test_thresholds_make_guards() -> None:
    assert guards(guards=False) is None
    assert guards() == Guards()
    made = guards(
        temperature_increment_on_fallback="0.5", no_speech_threshold="0.3", logprob_threshold="None"
    )
    assert made is not None
    assert (made.no_speech, made.logprob, made.compression_ratio) == (0.3, None, 2.4)
    assert made.temperatures == (0.0, 0.5, 1.0)
    once = guards(temperature_increment_on_fallback="None")
    assert once is not None and once.temperatures == (0.0,)
    assert guards(temperature_increment_on_fallback="0.2") == Guards()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"guards": False, "no_speech_threshold": "0.6"}, "contradict"),
        (
            {"no_speech_threshold": "some"},
            "--no-speech-threshold some is neither a number nor None",
        ),
        ({"logprob_threshold": "nan"}, "neither a number nor None"),
        ({"temperature_increment_on_fallback": "0"}, "give 0.01 or more"),
        ({"temperature_increment_on_fallback": "-1"}, "give 0.01 or more"),
        ({"no_speech_threshold": "1.5"}, "it must be from 0 to 1"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(typed, message) -> None:
    with pytest.raises(UsageError, match=message):
        guards(**typed)
