"""Chunks of local speakers on one line of time, with synthetic chunks and a network that reads the level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forescribe.diarize.engines import segmentation
from forescribe.diarize.engines.segmentation import CHUNK, ORDERS, SETS, STEP, Segmentation, _Blend
from forescribe.speculative.models.hub import FOLDER

RATE = 16_000
HOP = 160
STEP_S = 270 / RATE
FRAMES = 589
"""Of the network, in a chunk."""

WINDOW = 991
"""Samples that a frame is computed from."""

HALF = round(STEP / 270)
"""Frames between chunks."""


def said_by(count: int, shortest: int, seed: int = 0) -> np.ndarray:
    """[count] classes: all of them again and again, each for `shortest` frames to three times as many."""
    rng = np.random.default_rng(seed)
    spans = rng.integers(shortest, 3 * shortest, count)
    orders = [rng.permutation(len(SETS)) for _ in range(-(-count // len(SETS)))]
    return np.repeat(np.concatenate(orders)[:count], spans)[:count]


def chunk(classes: np.ndarray, order: int = 0, certain: float = 0.9) -> np.ndarray:
    """[N, 7] probabilities of these classes, their slots renamed."""
    rows = np.full((len(classes), len(SETS)), (1 - certain) / (len(SETS) - 1), np.float32)
    rows[np.arange(len(classes)), classes] = certain
    return rows[:, ORDERS[order]]


@pytest.mark.parametrize("orders", [(0, 5, 0, 3), (0, 1, 2, 3), (0, 4, 4, 0)])
def test_slots_stay_the_same_people_when_later_chunks_name_them_in_another_order(
    orders: Sequence[int],
) -> None:
    said = said_by(3 * HALF + FRAMES, 10)
    blend = _Blend(3 * STEP + CHUNK, STEP_S)
    for number, order in enumerate(orders):
        at = round(number * STEP / 270)
        blend.add(number * STEP, chunk(said[at : at + FRAMES], order))
    frames = blend.frames()
    assert np.allclose(frames.sum(1), 1, atol=1e-5)
    assert np.array_equal(frames.argmax(1), said[: len(frames)])
    assert np.allclose(frames.max(1), 0.9, atol=1e-5)  # not a mixture of two orders


class LevelNetwork:
    """Hears class k where the level is k / 10. Chunks name the slots in one of `orders` after the other."""

    def __init__(self, orders: Sequence[int] = (0,)) -> None:
        self.orders = orders
        self.chunks = 0
        self.batches: list[int] = []

    def __call__(self, chunks: Tensor) -> Tensor:
        assert chunks.dtype == torch.float32 and chunks.shape[1:] == (1, CHUNK)
        self.batches.append(len(chunks))
        rows = []
        for windows in chunks[:, 0].unfold(1, WINDOW, 270)[:, :FRAMES].amax(2).numpy():
            classes = np.round(windows * 10).astype(np.int64)
            rows.append(chunk(classes, self.orders[self.chunks % len(self.orders)]))
            self.chunks += 1
        return torch.from_numpy(np.log(np.stack(rows)))


def run(
    samples: np.ndarray,
    orders: Sequence[int] = (0,),
    report: Callable[[float], None] = lambda done: None,
) -> np.ndarray:
    network: Any = LevelNetwork(orders)
    return Segmentation(network).probabilities(samples, report)


@pytest.mark.parametrize(
    "count", [0, 1, HOP - 1, HOP, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + STEP + 1, 25 * RATE]
)
def test_each_10_ms_have_probabilities_in_recordings_of_any_length(count: int) -> None:
    found = run(np.full(count, 0.2, np.float32))
    assert found.shape == (count // HOP, len(SETS))
    assert np.allclose(found.sum(1), 1, atol=1e-5) and (found >= 0).all()
    assert (found.argmax(1) == 2).all()


@pytest.mark.parametrize("seconds", [7, 10, 25, 61])
def test_frames_are_where_their_sound_is_and_slots_are_the_same_throughout(seconds: int) -> None:
    said = np.repeat(said_by(seconds * 20, 10), RATE // 20)
    samples = (said / 10).astype(np.float32)
    found = run(samples, orders=(0, 3, 1, 5)).argmax(1)
    edges = np.flatnonzero(np.diff(said)) // HOP
    near = np.zeros(len(found), bool)
    for edge in edges:
        near[max(0, edge - 4) : edge + 5] = True
    assert np.array_equal(found[~near], said[HOP // 2 :: HOP][~near])


def test_the_bundled_network_hears_nobody_in_silence() -> None:
    network = segmentation.load(FOLDER / "speakers")
    assert segmentation.FRAME_S == STEP_S
    assert segmentation.CENTRE_S == pytest.approx(495.5 / RATE)
    found = network.probabilities(np.zeros(3 * RATE, np.float32))
    assert found.shape == (300, len(SETS)) and np.allclose(found.sum(1), 1, atol=1e-5)
    assert (found.argmax(1) == 0).all()
