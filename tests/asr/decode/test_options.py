"""Records of options refuse, by name, what is no number or contradicts itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.reading import from_array, open_audio
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.subtitles import LineRules
from forescribe.asr.segment.vad import EnergyDetector


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
        {"long_form": "short"},
        {"long_form": "sequential", "timestamps": False},
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


@pytest.mark.parametrize("name", ["width", "count", "words"])
@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan])
def test_subtitle_lines(name, value) -> None:
    with pytest.raises(UsageError, match=name):
        LineRules(**{name: value})


@pytest.mark.parametrize("name", ["max_s", "wall_s", "cpu_s", "memory_bytes"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_bounds_of_a_decoder(name, value) -> None:
    with pytest.raises(ValueError, match=name):
        Bounds(**{name: value})


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_blocks_of_a_recording(value) -> None:
    with pytest.raises(ValueError, match="block_s"):
        from_array(np.zeros(16), block_s=value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_the_longest_recording(value) -> None:
    with pytest.raises(ValueError, match="max_s"):
        open_audio("samples/silence.flac", max_s=value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_level_of_speech(value) -> None:
    with pytest.raises(ValueError, match="floor_db"):
        EnergyDetector(value)
