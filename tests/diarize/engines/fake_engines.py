"""Engines for tests: one that uses the level of the sound, and a pipeline folder of random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forescribe.diarize.diarizer import (
    Bounds,
    Diarization,
    Engine,
    Samples,
    SimilarityThresholds,
    StageHook,
    Voice,
    ignore_progress,
)
from forescribe.diarize.turns import Turns

RATE = 16_000
FRAME = RATE // 10


class LevelDiarizer:
    """Loud frames are speaker LOUD, quiet ones QUIET, and the rest is silence. Frames have 100 ms.

    The vector of a voice is determined by its level, so that equal levels are one person everywhere.
    `calls` holds the lengths of the samples.
    """

    engine = Engine("level", "levels-1", SimilarityThresholds(same=0.95, possible=0.9))

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.bounds: list[Bounds] = []

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook = ignore_progress
    ) -> Diarization:
        self.calls.append(len(samples))
        self.bounds.append(bounds or Bounds())
        hook("levels", 0.5)
        spans = []
        for start in range(0, len(samples), FRAME):
            part = np.abs(samples[start : start + FRAME])
            if part.max() > 0.01:
                who = "LOUD" if part.max() > 0.3 else "QUIET"
                spans.append((start, start + len(part), who))
        turns = Turns.of(spans).joined()
        hook("levels", 1.0)
        return Diarization.of(
            turns,
            turns,
            tuple(Voice(who, vector(who), turns.samples_of(who)) for who in turns.speakers),
            len(samples),
            self.engine,
            (bounds or Bounds()).notices(len(turns.speakers)),
        )


def vector(who: str) -> np.ndarray:
    return np.array([1.0, 0.0] if who == "LOUD" else [0.0, 1.0], np.float32)


def sound(*parts: tuple[float, float]) -> Samples:
    """(seconds, level), one after the other."""
    return np.concatenate(
        [np.full(round(length * RATE), level, np.float32) for length, level in parts]
    )


def community_folder(folder: Path) -> Path:
    """A folder like community-1's: the same classes with random weights, small or in full size, in
    checkpoints as written by pyannote's trainer. The random segmentation finds overlapping speakers."""
    import lightning
    import pyannote.audio
    import torch
    from pyannote.audio.core.task import Problem, Resolution, Specifications
    from pyannote.audio.models.embedding import WeSpeakerResNet34
    from pyannote.audio.models.segmentation import PyanNet

    torch.manual_seed(3)
    segmentation = PyanNet(lstm={"hidden_size": 16, "num_layers": 1}, linear={"num_layers": 1})
    segmentation.specifications = Specifications(
        problem=Problem.MONO_LABEL_CLASSIFICATION,
        resolution=Resolution.FRAME,
        duration=10.0,
        min_duration=10.0,
        warm_up=(0.0, 0.0),
        classes=["speaker#1", "speaker#2", "speaker#3"],
        powerset_max_classes=2,
        permutation_invariant=True,
    )
    segmentation.build()
    with torch.no_grad():
        # Untrained, one class would win everywhere; so that classes change, they follow the sound.
        segmentation.classifier.weight.mul_(40)
    embedding = WeSpeakerResNet34()
    embedding.specifications = Specifications(
        problem=Problem.REPRESENTATION,
        resolution=Resolution.CHUNK,
        duration=5.0,
        classes=["a", "b"],
    )
    for name, model in (("segmentation", segmentation), ("embedding", embedding)):
        place = folder / name
        place.mkdir(parents=True)
        checkpoint = {
            "pytorch-lightning_version": lightning.__version__,
            "hparams_name": "kwargs",
            "hyper_parameters": dict(model.hparams),
            "state_dict": model.state_dict(),
            "pyannote.audio": {
                "versions": {"pyannote.audio": pyannote.audio.__version__},
                "architecture": {"module": type(model).__module__, "class": type(model).__name__},
                "specifications": model.specifications,
            },
        }
        torch.save(checkpoint, place / "pytorch_model.bin")
    plda(folder / "plda", 256, 128)
    (folder / "config.yaml").write_text(CONFIG)
    return folder


def plda(folder: Path, dimensions: int, kept: int) -> None:
    """One that only turns and shortens vectors."""
    folder.mkdir(parents=True, exist_ok=True)
    turned, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dimensions, kept)))
    zero = np.zeros(kept)
    np.savez(folder / "xvec_transform.npz", mean1=np.zeros(dimensions), mean2=zero, lda=turned)
    np.savez(folder / "plda.npz", mu=zero, tr=np.eye(kept), psi=np.linspace(10, 0.1, kept))


CONFIG = """\
dependencies:
  pyannote.audio: 4.0.0
pipeline:
  name: pyannote.audio.pipelines.SpeakerDiarization
  params:
    clustering: VBxClustering
    segmentation: $model/segmentation
    segmentation_batch_size: 4
    segmentation_step: 0.5
    embedding: $model/embedding
    embedding_batch_size: 4
    embedding_exclude_overlap: true
    plda: $model/plda
params:
  clustering:
    threshold: 0.6
    Fa: 0.07
    Fb: 0.8
  segmentation:
    min_duration_off: 0.0
"""
