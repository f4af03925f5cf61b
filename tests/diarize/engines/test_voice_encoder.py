"""The bundled speaker encoder: vectors, features and files."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from benchmarks.quality.diarization import read_rttm
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import ModelError
from forescribe.diarize.engines import voice_encoder
from forescribe.diarize.engines.clustering import Plda, unit
from forescribe.diarize.engines.voice_encoder import DIMENSION, NAME, VoiceEncoder, features, load
from forescribe.speculative.models.hub import FOLDER

RATE = 16_000
SPEAKERS = FOLDER / "speakers"
SAMPLES = Path(__file__).parents[3] / "samples"


@pytest.fixture(scope="module")
def encoder() -> VoiceEncoder:
    return load(SPEAKERS)


@pytest.fixture(scope="module")
def memo() -> np.ndarray:
    return read_audio(SAMPLES / "memo.flac")


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[N, D], [N, D] -> [N]"""
    return np.asarray((unit(one) * unit(other)).sum(1))


# Vectors


def test_a_vector_does_not_depend_on_the_rows_beside_it(
    encoder: VoiceEncoder, memo: np.ndarray
) -> None:
    rows = features(memo[RATE : 7 * RATE])
    ends = [(0, 1), (0, 7), (5, 25), (30, 61), (100, 180), (100, 300), (200, 397), (300, 500)]
    parts = [rows[start:end] for start, end in ends]
    alone = np.concatenate([encoder.vectors([part]) for part in parts])
    assert alone.shape == (len(parts), DIMENSION)
    together = encoder.vectors(parts)
    assert cosines(together, alone).min() > 1 - 1e-4
    order = np.random.default_rng(0).permutation(2 * len(parts)) % len(parts)
    many = encoder.vectors([parts[n] for n in order] + [rows])
    assert cosines(many[:-1], alone[order]).min() > 1 - 1e-4


@pytest.mark.parametrize("gain", [2.0, 0.5, 0.1, 0.01, 0.001])
def test_the_level_hardly_changes_a_vector(
    encoder: VoiceEncoder, memo: np.ndarray, gain: float
) -> None:
    part = memo[RATE : 3 * RATE]
    as_it_is, scaled = (encoder.vectors([features(part * np.float32(g))]) for g in (1.0, gain))
    assert cosines(as_it_is, scaled)[0] > 0.99


def test_two_halves_of_a_reader_are_more_alike_than_two_readers(
    encoder: VoiceEncoder, memo: np.ndarray
) -> None:
    path = SAMPLES / "conversation.flac"
    conversation, turns = read_audio(path), read_rttm(path.with_suffix(".rttm").read_text())
    parts = [features(memo[second * RATE :][: 2 * RATE]) for second in (1, 6, 16, 36, 46, 53)]
    others = [turn for turn in turns["conversation"] if turn.speaker == "A"][:3]
    parts += [features(conversation[t.start_sample :][: 2 * RATE]) for t in others]
    vectors = Plda(SPEAKERS)(encoder.vectors(parts)).reshape(3, 3, -1)
    first, second, other = unit(vectors.mean(1))
    assert first @ second > 0.6
    assert max(first @ other, second @ other) < 0.45


# Files


def bundled() -> bytes:
    return (SPEAKERS / NAME).read_bytes()


def small(**tensors: torch.Tensor) -> bytes:
    """A file of some tensors."""
    return lzma.compress(save(tensors), preset=0)


@pytest.mark.parametrize(
    "contents",
    [
        None,
        lambda: b"",
        lambda: b"\0" * 1000,
        lambda: bundled()[:-1000],
        lambda: bundled()[:500_000] + b"\xff" * 100 + bundled()[500_100:],
        lambda: lzma.decompress(bundled()),
        lambda: small(weight=torch.zeros(2, 2, dtype=torch.int8)),
    ],
    ids=["missing", "empty", "zeros", "cut", "changed", "plain", "no scales"],
)
def test_a_missing_or_damaged_file_is_named(
    tmp_path: Path, contents: Callable[[], bytes] | None
) -> None:
    if contents is not None:
        (tmp_path / NAME).write_bytes(contents())
    with pytest.raises(ModelError) as error:
        voice_encoder.load(tmp_path)
    assert str(tmp_path / NAME) in str(error.value)
