"""The bundled speaker networks against the published ones, in the folder TESTS_SPEAKER_NETWORKS."""

from __future__ import annotations

import lzma
import os
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as read_tensors
from torch import Tensor

from forescribe.asr.audio.reading import read_audio
from forescribe.diarize.engines import segmentation, voice_encoder
from forescribe.diarize.engines.clustering import unit
from forescribe.diarize.engines.segmentation import (
    MEMBERS,
    SLOTS,
    Activity,
    PieceSettings,
    Segmentation,
    find_pieces,
)
from forescribe.diarize.engines.voice_encoder import VoiceEncoder
from forescribe.speculative.models.hub import FOLDER
from training.speakers import networks

pytestmark = pytest.mark.weights

BUNDLED = FOLDER / "speakers"
SECONDS = 10
"""Of stretches in which the slots of both have one order: it may change where nobody speaks for long."""

CONVERSATION = Path(__file__).parents[3] / "samples" / "conversation.flac"


@pytest.fixture(scope="module")
def published() -> Path:
    folder = Path(os.environ.get("TESTS_SPEAKER_NETWORKS", ""))
    for name, _ in (networks.SEGMENTATION, networks.VOICES):
        if not os.environ.get("TESTS_SPEAKER_NETWORKS") or not (folder / name).is_file():
            pytest.skip(f"no {name} in TESTS_SPEAKER_NETWORKS ({folder})")
    return folder


@pytest.fixture(scope="module")
def conversation() -> np.ndarray:
    return read_audio(CONVERSATION)


@pytest.fixture(scope="module")
def bundled() -> Segmentation:
    return segmentation.load(BUNDLED)


@pytest.fixture(scope="module")
def heard(bundled: Segmentation, conversation: np.ndarray) -> np.ndarray:
    return bundled.probabilities(conversation)


@pytest.fixture(scope="module")
def activity(conversation: np.ndarray, heard: np.ndarray) -> Activity:
    return find_pieces(conversation, heard)


def stored(name: str) -> dict[str, Tensor]:
    return read_tensors(lzma.decompress((BUNDLED / name).read_bytes()))


def equal(made: dict[str, Tensor], name: str) -> bool:
    """Integers to the last one; a machine may round floats in the last bit."""
    kept = stored(name)
    return made.keys() == kept.keys() and all(
        made[key].dtype is tensor.dtype
        and (
            torch.equal(made[key], tensor)
            if tensor.dtype is torch.int8
            else torch.allclose(made[key].float(), tensor.float(), rtol=2e-3, atol=1e-6)
        )
        for key, tensor in kept.items()
    )


def test_the_bundled_networks_are_made_from_the_published_ones(published: Path) -> None:
    made = networks.rounded(networks.published_segmentation(published))
    assert equal(made, segmentation.NAME)
    made = networks.rounded(networks.folded(networks.published_voices(published)))
    assert equal(made, voice_encoder.NAME)


def test_the_bundled_encoder_gives_nearly_the_vectors_of_the_published_one(
    published: Path, conversation: np.ndarray, activity: Activity
) -> None:
    exact = VoiceEncoder(networks.folded(networks.published_voices(published)))
    rows = voice_encoder.features(conversation)
    parts = [rows[piece.start : piece.end] for piece in activity.pieces]
    assert len(parts) > 50
    one, other = (unit(encoder.vectors(parts)) for encoder in (exact, voice_encoder.load(BUNDLED)))
    cosines = (one * other).sum(1)
    assert np.median(cosines) > 0.9 and np.percentile(cosines, 5) > 0.8


def test_the_bundled_segmentation_hears_what_the_published_one_hears(
    published: Path, bundled: Segmentation, conversation: np.ndarray, heard: np.ndarray
) -> None:
    exact = segmentation.load(BUNDLED)
    exact.network.load_state_dict(networks.published_segmentation(published))
    active, expected = (
        rows @ MEMBERS > PieceSettings().active
        for rows in (heard, exact.probabilities(conversation))
    )
    different = 0
    for first in range(0, len(active), SECONDS * 100):
        part = slice(first, first + SECONDS * 100)
        renamed = (active[part][:, order] for order in permutations(range(SLOTS)))
        different += min(int((some != expected[part]).any(1).sum()) for some in renamed)
    assert different <= 0.03 * len(active)
