"""Records of options refuse, by name, what is no number or contradicts itself."""

from __future__ import annotations

import math

import pytest

from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.errors import UsageError


@pytest.mark.parametrize(
    "wrong",
    [
        {"compression_ratio": math.nan},
        {"compression_ratio": 0.0},
        {"compression_ratio": -2.4},
        {"logprob": math.nan},
        {"logprob": 0.5},
        {"no_speech": math.nan},
        {"no_speech": -0.1},
        {"temperatures": (math.nan,)},
        {"temperatures": (0.0, math.inf)},
        {"temperatures": (-0.2, 0.0)},
        {"temperatures": (0.2, 0.2)},
    ],
    ids=str,
)
def test_guards(wrong) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Guards(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": -1},
        {"gamma": math.nan},
        {"gamma": 2.5},
        {"gamma": True},
        {"task": "sing"},
        {"terms": ["Lynde"]},
    ],
    ids=str,
)
def test_options_of_a_call(wrong) -> None:
    with pytest.raises(UsageError):
        Options(**wrong)


@pytest.mark.parametrize("name", ["language", "initial_prompt"])
@pytest.mark.parametrize("value", [5, b"cafe", "caf\udce9", "\ud800"])
def test_text_in_options_has_bytes(name, value) -> None:
    with pytest.raises(UsageError, match=name):
        Options(**{name: value})
