"""Pauses: found where it is quiet, in whatever is loud around, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from forescribe.asr.model.whisper import LogMel
from forescribe.asr.words.assembly import HOP, SHORTEST_PAUSE, pauses

RATE = 16_000
MEL = LogMel(WhisperFeatureExtractor(feature_size=80))


def speechlike(spans: list[tuple[float, float]], length_s: float, noise: float) -> np.ndarray:
    """Hissing tones in `spans` (seconds) over noise of this level."""
    rng = np.random.default_rng(0)
    t = np.arange(round(length_s * RATE)) / RATE
    audio = noise * rng.standard_normal(len(t))
    for start, end in spans:
        here = (start <= t) & (t < end)
        tones = sum(np.sin(2 * np.pi * f * t[here]) for f in (150, 700, 1900, 3500))
        audio[here] += 0.1 * tones + 0.05 * rng.standard_normal(here.sum())
    return audio.astype(np.float32)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 3e-3])
@pytest.mark.parametrize("length_s", [9.0, 30.0])
def test_a_known_silence_is_found_to_within_40_ms(noise, length_s):
    spans = [(0.5, 2.0), (2.4, 4.0), (5.5, 8.0)]
    if length_s > 10:
        spans += [(8.3, 20.0), (20.2, 29.0)]
    audio = speechlike(spans, length_s, noise)
    found = pauses(MEL([audio])[0], len(audio))
    starts = [0.0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), length_s]
    assert len(found) == len(starts)
    for pause, start, end in zip(found, starts, ends, strict=True):
        assert pause.start / RATE == pytest.approx(start, abs=0.04)
        assert pause.end / RATE == pytest.approx(end, abs=0.04)


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 300 * HOP))
def test_pauses_are_apart_long_enough_and_in_their_window(loud, length):
    features = torch.tensor([[1.0 if each else -1.5 for each in loud]])
    found = pauses(features, min(length, len(loud) * HOP))
    edges = [at for pause in found for at in pause]
    assert edges == sorted(set(edges))
    assert not edges or edges[-1] <= length
    for pause in found:
        frames = range(pause.start // HOP, -(-pause.end // HOP))
        assert len(frames) >= SHORTEST_PAUSE
        assert not any(loud[frame] for frame in frames)
