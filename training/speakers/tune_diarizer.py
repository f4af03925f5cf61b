"""Tune the parameters of the embedded diarizer on voices that its PLDA was not trained on.

    python -m training.speakers.vectors DATA/speakers
    python -m training.speakers.tune_diarizer DATA

Uses three-fold cross-validation over the training voices: each third is evaluated with a mean and a PLDA
trained on the others. The test group is not used. Both networks process a recording once; each combination
of parameters only repeats the clustering. There are three kinds of recordings: conversations of two
minutes, half a minute of two voices over the telephone, and one voice alone. Prints a table with the best
combination last. The chosen values are in diarize/engines/embedded.py.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forescribe.asr.audio.reading import read_audio
from forescribe.diarize.engines.clustering import SplittingVBx
from forescribe.diarize.engines.embedded import (
    EmbeddedDiarization,
    LevelSettings,
    Tuning,
    build,
    refine_boundaries,
)
from forescribe.diarize.engines.pyannote_pipeline import PyannoteDiarizer
from forescribe.diarize.engines.upstream import PLDA
from training.speakers.encoder import FOLDER
from training.speakers.folds import FOLDS, fold_of, split
from training.speakers.mixtures import Mixture, mix, mixtures, usable
from training.speakers.plda import DIMENSIONS, Plda, load_vectors, store, train
from training.speakers.turn_errors import Errors, turn_errors
from training.speakers.vectors import clips, speaker_of
from training.speech.channels import CHANNELS

CONVERSATIONS, CALLS, ALONE = "conversations", "calls", "alone"
KINDS = (CONVERSATIONS, CALLS, ALONE)


class CachingDiarization(EmbeddedDiarization):
    """Runs the networks once per recording."""

    known: dict[int, Any]

    def get_segmentations(self, file: Any, hook: Any = None) -> Any:
        return self._once(
            file, 0, lambda: super(CachingDiarization, self).get_segmentations(file, hook)
        )

    def window_vectors(self, file: Any, *given: Any) -> Any:
        return self._once(
            file, 1, lambda: super(CachingDiarization, self).window_vectors(file, *given)
        )

    def _once(self, file: Any, step: int, hear: Any) -> Any:
        key = 2 * file["waveform"].data_ptr() + step
        if key not in self.known:
            self.known[key] = hear()
        return self.known[key]


@dataclass(frozen=True, eq=False)
class Fold:
    """Recordings of a third of the voices, by kind, with the mean and PLDA of the others."""

    recordings: dict[str, list[Mixture]]
    mean: np.ndarray  # [256]
    plda: Plda


def folds(data: Path) -> Iterator[Fold]:
    paths = {speaker_of(path): path for path in clips(data / "speakers")}
    training = split(sorted(paths)).training
    for fold in range(FOLDS):
        own = {str(s): read_audio(paths[s]) for s in sorted(training) if fold_of(s) == fold}
        own = {who: clip for who, clip in own.items() if usable(clip)}
        rng = np.random.default_rng(200 + fold)
        mean, x, y = load_vectors(frozenset(s for s in training if fold_of(s) != fold))
        yield Fold(
            {
                CONVERSATIONS: mixtures(own, count=8, seed=100 + fold),
                CALLS: [phone_call(own, rng) for _ in range(4)],
                ALONE: list(single_voices(own, rng)),
            },
            mean,
            train(x, y, DIMENSIONS),
        )


def phone_call(voices: dict[str, np.ndarray], rng: np.random.Generator) -> Mixture:
    """Two voices over one telephone."""
    two = rng.choice(sorted(voices), 2, replace=False).tolist()
    call = mix("call", {who: voices[who] for who in two}, rng, seconds=30)
    return replace(call, samples=CHANNELS["telephone"](call.samples, rng))


def single_voices(voices: dict[str, np.ndarray], rng: np.random.Generator) -> Iterator[Mixture]:
    channels = ("clean", "telephone", "room", "telephone")
    for who, channel in zip(rng.choice(sorted(voices), 4, replace=False), channels, strict=True):
        one = mix("alone", {str(who): voices[str(who)]}, rng, seconds=40)
        yield replace(one, samples=CHANNELS[channel](one.samples, rng))


def engine(fold: Fold) -> PyannoteDiarizer:
    """The engine with the mean of a fold and cached networks."""
    diarizer = build(FOLDER)
    pipeline = diarizer.pipeline
    pipeline.__class__, pipeline.known = CachingDiarization, {}
    pipeline._embedding.model_.encoder.mean.copy_(torch.from_numpy(fold.mean))
    return diarizer


def set_tuning(
    diarizer: PyannoteDiarizer, fold: Fold, tuning: Tuning, levels: LevelSettings
) -> None:
    """Set other parameters of the pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        store(fold.plda, Path(folder))
        plda = PLDA(
            Path(folder) / "xvec_transform.npz",
            Path(folder) / "plda.npz",
            lda_dimension=tuning.lda,
        )
    diarizer.pipeline.clustering = SplittingVBx(plda)
    diarizer.pipeline.instantiate(tuning.parameters())
    diarizer.refine = lambda turns, samples: refine_boundaries(turns, samples, levels)


def evaluate(diarizer: PyannoteDiarizer, recordings: list[Mixture]) -> Errors:
    total = Errors()
    for recording in recordings:
        found = diarizer.diarize(recording.samples)
        total += turn_errors(recording.turns, found.regular, len(recording.samples))
    return total


def cost(errors: dict[str, Errors]) -> float:
    """The mean error rate over the kinds plus a tenth of the share of wrong counts."""
    return float(np.mean([e.der + 0.1 * (1 - e.right) for e in errors.values()]))


def describe(errors: dict[str, Errors]) -> str:
    return "  ".join(
        f"{kind} {100 * e.der:.1f} = {100 * e.missed_s / e.speech_s:.1f} missed + "
        f"{100 * e.false_s / e.speech_s:.1f} false + {100 * e.confusion:.1f}, "
        f"{100 * e.right:.0f} % counted"
        for kind, e in errors.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    plain, level = Tuning(), LevelSettings()
    parser.add_argument("--speech", type=float, nargs="+", default=[plain.speech])
    parser.add_argument("--lda", type=int, nargs="+", default=[plain.lda])
    parser.add_argument("--threshold", type=float, nargs="+", default=[1.15, 1.2, 1.25])
    parser.add_argument("--fa", type=float, nargs="+", default=[0.07, 0.1, 0.2])
    parser.add_argument("--fb", type=float, nargs="+", default=[0.8, 1.6])
    parser.add_argument("--part", type=float, nargs="+", default=[level.part])
    given = parser.parse_args()
    parts = [(engine(part), part) for part in folds(given.data)]
    rows = []
    for speech, lda, threshold, fa, fb, share in product(
        given.speech, given.lda, given.threshold, given.fa, given.fb, given.part
    ):
        tuning = Tuning(speech, plain.gap_s, lda, threshold, fa, fb)
        errors = dict.fromkeys(KINDS, Errors())
        for diarizer, part in parts:
            set_tuning(diarizer, part, tuning, LevelSettings(part=share))
            for kind, recordings in part.recordings.items():
                errors[kind] = errors[kind] + evaluate(diarizer, recordings)
        rows.append((cost(errors), f"{tuning} part {share}: {describe(errors)}"))
        print(f"{rows[-1][0]:.4f}  {rows[-1][1]}", flush=True)
    print("best:", *(f"{price:.4f}  {row}" for price, row in sorted(rows)[:5]), sep="\n")


if __name__ == "__main__":
    main()
