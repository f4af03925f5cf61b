"""Guards judge as openai/whisper does, and NaN never passes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.decode.guards import Guards, Judgement
from forescribe.asr.decode.judge import unsure
from forescribe.asr.errors import UsageError

GOOD = {"compression_ratio": 1.5, "mean_logprob": -0.3, "no_speech_prob": 0.01}
KEEP, RETRY, SILENCE = Judgement.KEEP, Judgement.RETRY, Judgement.SILENCE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, KEEP),
        ({"compression_ratio": 2.41}, RETRY),
        ({"compression_ratio": 2.4}, KEEP),
        ({"mean_logprob": -1.01}, RETRY),
        ({"mean_logprob": -1.0}, KEEP),
        ({"no_speech_prob": 0.99}, KEEP),  # probable words outweigh a doubt about speech
        ({"no_speech_prob": 0.61, "mean_logprob": -1.01}, SILENCE),
        ({"no_speech_prob": 0.6, "mean_logprob": -1.01}, RETRY),
        ({"no_speech_prob": 0.9, "mean_logprob": -2.0, "compression_ratio": 9.0}, SILENCE),
    ],
)
def test_judgements_are_those_of_whisper(change, expected):
    judgement, reason = Guards().judge(**{**GOOD, **change})
    assert judgement is expected
    assert (reason is None) == (judgement is KEEP)


@given(st.sampled_from(sorted(GOOD)))
def test_a_nan_is_never_kept_in_silence(name):
    assert Guards().judge(**{**GOOD, name: math.nan})[0] is RETRY


def test_where_no_voice_was_heard_the_no_speech_probability_decides_alone():
    """Measured with whisper-base: "you" for silence has a mean log-probability of -0.82, which is kept."""
    likely = {**GOOD, "no_speech_prob": 0.9}
    assert Guards().judge(**likely)[0] is KEEP
    assert Guards().judge(**likely, heard=False)[0] is SILENCE
    assert Guards().judge(**GOOD, heard=False)[0] is KEEP  # singing that the detector does not hear
    assert Guards(no_speech=None).judge(**likely, heard=False)[0] is KEEP


DISTANT = {"ratio": 1.0, "mean_logprob": -1.49, "no_speech_prob": 0.18}
"""whisper-base's answer for a distant voice that was not detected."""


@pytest.mark.parametrize(
    ("text", "tokens", "change"),
    [
        ("Thank you.", 3, {"no_speech_prob": 0.02}),  # music
        ("... ... ... ... ...", 6, {}),  # bursts of noise
        ("I'm not a good guy.", 7, {"mean_logprob": -2.19}),  # a synthesised melody
        ("I'm going to go to the next video.", 10, {"no_speech_prob": 0.57}),  # tones
        ("to go to go to go to go to go", 16, {"ratio": 2.1}),
        *[("Yeah, cue test.", 5, {name: math.nan}) for name in ("mean_logprob", "no_speech_prob")],
    ],
)
def test_where_no_voice_was_detected_only_an_answer_that_is_sure_counts(text, tokens, change):
    assert unsure("Yeah, cue test.", 5, **DISTANT) is None
    assert unsure(text, tokens, **{**DISTANT, **change}) is not None


def test_a_guard_that_is_off_does_not_judge():
    bad = {"compression_ratio": 9.0, "mean_logprob": -9.0, "no_speech_prob": 0.0}
    assert Guards(compression_ratio=None, logprob=None).judge(**bad)[0] is KEEP
    assert Guards(compression_ratio=None).judge(**bad)[0] is RETRY
    assert Guards(logprob=None).judge(**{**GOOD, "no_speech_prob": 0.9})[0] is SILENCE


def test_temperatures_are_tried_in_order_and_end():
    guards, seen = Guards(), [0.0]
    while (following := guards.next_temperature(seen[-1])) is not None:
        seen.append(following)
    assert tuple(seen) == guards.temperatures
    with pytest.raises(UsageError, match="rise"):
        Guards(temperatures=(0.4, 0.2))
    with pytest.raises(UsageError, match="one or more"):
        Guards(temperatures=())
