"""Features of a whole recording, piece by piece: those of transformers' extractor for all of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from forescribe.asr.decode.sequential import SeekableAudio
from forescribe.asr.model.whisper import LogMel

EXTRACTOR = WhisperFeatureExtractor(feature_size=80)


def sound(count: int) -> np.ndarray:
    """Quiet at first, loud later: the floor of the quiet part is set by the loud one."""
    rng = np.random.default_rng(count)
    return (rng.standard_normal(count) * np.linspace(0.001, 0.5, count)).astype(np.float32)


@pytest.fixture
def mel():
    return LogMel(EXTRACTOR)


@pytest.mark.parametrize("count", [16000 * 67 + 77, 16000 * 30, 16000 * 30 + 1])
def test_windows_are_slices_of_the_features_of_all(mel, count):
    audio = sound(count)
    whole = EXTRACTOR(
        audio, sampling_rate=16000, truncation=False, padding="longest", return_tensors="pt"
    )["input_features"][0]
    reel = SeekableAudio(np.array_split(audio, 7), mel)
    assert (reel.frames, reel.sample_count) == (count // 160, count) == (whole.shape[1], count)
    for frame in (0, 1, 1234, 2999, count // 160 - 1):
        theirs = whole[:, frame : frame + 3000]
        ours = reel.features(frame)
        assert ours.shape == (80, 3000)
        assert torch.allclose(ours[:, : theirs.shape[1]], theirs, atol=2e-5)
        assert not ours[:, theirs.shape[1] :].any()
    reel.close()


@pytest.mark.parametrize("count", [1, 159, 16000 * 4 + 5])
def test_a_short_recording_is_padded_with_zeros(mel, count):
    audio = sound(count)
    theirs = EXTRACTOR(audio, sampling_rate=16000, return_tensors="pt")["input_features"][0]
    reel = SeekableAudio([audio], mel)
    assert reel.frames == max(1, count // 160)
    assert torch.allclose(reel.features(0), theirs, atol=2e-5)
    reel.close()


def test_a_recording_that_breaks_off_leaves_no_file_open(mel):
    def blocks():
        yield sound(100)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        SeekableAudio(blocks(), mel)
