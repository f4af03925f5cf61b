"""Memory: what is held does not grow with the recording. In processes: test_peak_memory.py."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import soundfile
import torch

from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.segment.windows import Window
from forescribe.speculative import choose
from tests.asr.model import folders

RATE = 16_000
BATCH = 2


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    target = folders.write(tmp_path_factory.mktemp("pair") / "target", max_target_positions=16)
    return load(Pair(target), choose("cpu"), network=False)


@torch.inference_mode()
def test_a_window_that_is_tried_again_does_not_hold_the_batch_it_was_heard_in(whisper):
    encoded = whisper.encode(torch.zeros(3, 80, 3000))
    assert len({encoder_states.target.data_ptr() for encoder_states in encoded}) == 3
    for encoder_states in encoded:
        assert encoder_states.target.untyped_storage().nbytes() == encoder_states.target.nbytes


def held() -> tuple[int, int]:
    """Encoder states and samples of windows that are alive, without what the collector leaves out."""
    encoded = windows = 0
    for each in gc.get_objects():
        encoded += type(each) is EncoderStates
        windows += type(each) is Window and len(each.samples) > 0
    return encoded, windows


def most_held(whisper, path, windows: int, options: Options) -> tuple[int, int, int]:
    """The most at any time, looked at after every window, and the number of windows."""
    noise = np.random.default_rng(0).standard_normal(30 * RATE) * 0.1
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        for _ in range(windows):
            file.write(noise)
    seen = []
    transcriber = Transcriber(whisper, batch=BATCH, gamma=0)
    gc.collect()
    gc.freeze()  # or each look would go through a million objects of other tests, and find theirs
    assert held() == (0, 0)
    (outcome,) = transcriber.transcribe([str(path)], options, lambda _: seen.append(held()))
    assert outcome.error is None
    return *map(max, zip(*seen, strict=True)), len(seen)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(Options(language="en", vad=False, words=True), id="words"),
        pytest.param(
            Options(language="en", vad=False, guards=Guards(temperatures=(0.0, 0.5))),
            id="guards",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_long_recording_holds_no_more_windows_than_a_short_one(whisper, tmp_path, options):
    short = most_held(whisper, tmp_path / "short.wav", 2 * BATCH, options)
    long = most_held(whisper, tmp_path / "long.wav", 5 * BATCH, options)
    assert long[2] > 2 * short[2]
    # In the rows, and beside them what is left of a batch that was encoded for one free row: whether a
    # short recording comes to that depends on which of its windows end together.
    beside = 2 * BATCH - 1
    assert long[0] <= max(short[0], beside) and short[0] <= 4 * BATCH
    assert long[1] <= short[1] <= 2 * BATCH
    assert held() == (0, 0)
