"""Log-mel features against transformers' own extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from forescribe.asr.model.whisper import LogMel, amplified

Samples = NDArray[np.float32]


@pytest.fixture(scope="module")
def windows() -> list[Samples]:
    """A full window, a short one, one sample, digital silence, a quiet one, an odd length."""
    rng = np.random.default_rng(0)
    time = np.arange(480_000) / 16_000
    full = np.sin(2 * np.pi * 300 * time) * (1 + np.sin(2 * np.pi * 3 * time)) / 4
    noise = rng.normal(size=480_000) / 10
    parts = [
        full + noise,
        noise[:51_234],
        noise[:1],
        np.zeros(16_000),
        full * 1e-4,
        noise[:479_999],
    ]
    return [part.astype(np.float32) for part in parts]


@pytest.mark.parametrize("bands", [80, 128])
def test_features_equal_those_of_transformers(bands: int, windows: list[Samples]) -> None:
    extractor = WhisperFeatureExtractor(feature_size=bands)
    expected = extractor(windows, sampling_rate=16_000, return_tensors="np")["input_features"]
    features = LogMel(extractor)(windows)
    assert features.shape == (len(windows), bands, 3000) and features.dtype == torch.float32
    assert np.abs(features.numpy() - expected).max() < 1e-4


def test_a_window_does_not_depend_on_who_shares_its_batch(windows: list[Samples]) -> None:
    log_mel = LogMel(WhisperFeatureExtractor(feature_size=80))
    together = log_mel(windows)
    for row, window in zip(together, windows, strict=True):
        assert row.equal(log_mel([window])[0])


@pytest.mark.parametrize(
    "count", [0, 1, 159, 160, 8_000, 48_001, 320_000, 479_599, 479_601, 480_000]
)
def test_what_holds_no_sound_is_known(count: int) -> None:
    """The features of a window are those of all 30 s: to the bit with AVX-512, else to one of float32."""
    log_mel = LogMel(WhisperFeatureExtractor(feature_size=80))
    window = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    whole = log_mel._features([window], log_mel.samples)
    torch.testing.assert_close(log_mel([window]), whole, rtol=0, atol=3e-7)


def test_quiet_windows_are_amplified_and_others_left_alone(windows: list[Samples]) -> None:
    full, quiet = windows[0], windows[0] * np.float32(1e-4)
    loudest = np.abs(full).max()
    np.testing.assert_allclose(amplified(quiet), full * (0.1 / loudest), rtol=1e-3, atol=1e-7)
    assert amplified(full) is full
    for odd in (np.zeros(9, np.float32), np.zeros(0, np.float32), np.full(9, np.nan, np.float32)):
        np.testing.assert_array_equal(amplified(odd), odd)
    assert np.isfinite(amplified(np.full(9, 1e-45, np.float32))).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_features(windows: list[Samples]) -> None:
    extractor = WhisperFeatureExtractor(feature_size=128)
    torch.testing.assert_close(
        LogMel(extractor, "cuda")(windows).cpu(), LogMel(extractor)(windows), atol=1e-4, rtol=0
    )
