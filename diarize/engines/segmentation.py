"""Local speakers: pyannote's segmentation-3.0 over a recording of any length.

The network (`PyanNet`; Bredin 2023, "pyannote.audio 2.1 speaker diarization pipeline"; powerset training:
Plaquet and Bredin 2023, arXiv 2310.13025) reads 10 s at a time and tells up to three speakers apart, two at
once. Chunks overlap by half. The local speakers of neighbouring chunks are matched where they overlap, and
their probabilities are blended, the middle of a chunk more than its ends. So a slot is one person for as long
as that person is heard every few seconds; whether two slots, or a slot at two times, are the same person is
for the clustering.

Shapes: C chunks, N frames of the network (16.875 ms), F frames of 10 ms, P = 7 sets of speakers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from forescribe.asr.errors import ModelError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from .upstream import Problem, PyanNet, Resolution, Specifications
from .voice_encoder import HOP, Samples, read_weights

NAME = "segmentation.safetensors.xz"
"""The file of weights in a folder."""

CHUNK = 10 * SAMPLE_RATE
"""Samples the network was trained on."""

STEP = CHUNK // 2
"""Samples between chunks. Half of it takes twice the time."""

SLOTS = 3
"""Speakers of a chunk at most."""

SETS: tuple[frozenset[int], ...] = tuple(
    frozenset(members) for members in ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
)
"""The speakers of each class of the network."""

MEMBERS = np.array([[slot in members for slot in range(SLOTS)] for members in SETS], np.float32)
"""[P, 3]: probabilities of sets @ MEMBERS are those of slots."""

BATCH = 8
"""Chunks. On CPUs more are slower, as their activations leave the caches."""

Probabilities = NDArray[np.float32]


class Segmentation:
    """The network on one device."""

    def __init__(self, network: PyanNet) -> None:
        self.network = network
        field = network.receptive_field
        self._step_s, self._centre_s = field.step, field.start + field.duration / 2

    @torch.inference_mode()
    def probabilities(
        self, samples: Samples, report: Callable[[float], None] = lambda done: None
    ) -> Probabilities:
        """`[T]` samples -> `[T // 160, 7]`: which speakers speak in each frame of 10 ms, see SETS.
        `report` gets the share that is done."""
        starts = range(0, max(1, len(samples) - CHUNK + STEP), STEP)
        blend = _Blend(starts[-1] + CHUNK, self._step_s)
        for first in range(0, len(starts), BATCH):
            batch = starts[first : first + BATCH]
            chunks = np.zeros((len(batch), 1, CHUNK), np.float32)
            for row, start in zip(chunks, batch, strict=True):
                part = samples[start : start + CHUNK]
                row[0, : len(part)] = part
            device = self.network.device
            logs = self.network(torch.from_numpy(chunks).to(device)).cpu().numpy()
            for start, chunk in zip(batch, np.exp(logs), strict=True):
                blend.add(start, chunk)
            report((first + len(batch)) / len(starts))
        frames = blend.frames()
        centres = (np.arange(len(samples) // HOP) + 0.5) * HOP / SAMPLE_RATE
        nearest = np.round((centres - self._centre_s) / self._step_s).astype(np.int64)
        return np.asarray(frames[np.clip(nearest, 0, len(frames) - 1)], np.float32)


class _Blend:
    """Chunks `[N, 7]` on one line of time, their slots in the order of the chunks before."""

    def __init__(self, sample_count: int, step_s: float) -> None:
        self._step = step_s * SAMPLE_RATE
        count = int(np.ceil(sample_count / self._step)) + 1
        self._sum = np.zeros((count, len(SETS)), np.float32)
        self._weight = np.zeros((count, 1), np.float32)
        self._last: Probabilities | None = None  # of the chunk before
        self._at = self._end = 0

    def add(self, start: int, chunk: Probabilities) -> None:
        """Add the chunk that begins at sample `start`; chunks come in order."""
        at, count = round(start / self._step), len(chunk)
        shared = 0 if self._last is None else min(count, self._at + len(self._last) - at)
        if self._last is not None and shared > 0:
            offset = at - self._at
            before = self._last[offset : offset + shared] @ MEMBERS
            chunk = max(
                (chunk[:, order] for order in ORDERS),
                key=lambda some: float(np.minimum(before, some[:shared] @ MEMBERS).sum()),
            )
        # The ends of a chunk lack context on one side.
        ramp = np.minimum(np.arange(count) + 0.5, count - np.arange(count) - 0.5) / (count / 2)
        weight = np.square(ramp)[:, None].astype(np.float32)
        self._sum[at : at + count] += weight * chunk
        self._weight[at : at + count] += weight
        self._last, self._at, self._end = chunk, at, at + count

    def frames(self) -> Probabilities:
        """[N, 7]"""
        weight = np.maximum(self._weight[: self._end], np.float32(1e-9))
        return np.asarray(self._sum[: self._end] / weight, np.float32)


def _order(renamed: tuple[int, ...]) -> NDArray[np.int64]:
    """The columns of a chunk whose slot `k` becomes `renamed[k]`."""
    found = np.zeros(len(SETS), np.int64)
    for column, members in enumerate(SETS):
        found[SETS.index(frozenset(renamed[slot] for slot in members))] = column
    return found


ORDERS = [_order(renamed) for renamed in permutations(range(SLOTS))]


def load(folder: Path, device: torch.device | str = "cpu") -> Segmentation:
    """Load segmentation-3.0. Raises ModelError if the file is missing or holds something else."""
    network = PyanNet(
        sincnet={"stride": 10},
        lstm={"hidden_size": 128, "num_layers": 4, "bidirectional": True, "monolithic": True},
        linear={"hidden_size": 128, "num_layers": 2},
    )
    network.specifications = Specifications(
        problem=Problem.MONO_LABEL_CLASSIFICATION,
        resolution=Resolution.FRAME,
        duration=CHUNK / SAMPLE_RATE,
        classes=[f"speaker#{slot + 1}" for slot in range(SLOTS)],
        powerset_max_classes=2,
        permutation_invariant=True,
    )
    network.build()
    try:
        network.load_state_dict(read_weights(folder / NAME))
    except RuntimeError as error:
        raise ModelError(f"no segmentation in {str(folder / NAME)!r}: {error}") from error
    return Segmentation(network.to(torch.device(device)).eval().requires_grad_(False))
