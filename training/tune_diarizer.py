"""The embedded diarizer's parameters, chosen on mixtures of voices that trained nothing.

    python -m training.tune_diarizer ../shared/data

Both networks hear every mixture once; then each combination only clusters again. Three kinds count
alike: conversations of two minutes, half a minute of two voices over the telephone, one voice alone.
Prints a table, the best last; what was chosen stands in diarize/embedded.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from asr.audio import read_audio
from benchmarks.mixtures import Mixture, mix, mixtures, usable
from benchmarks.turn_errors import Errors, turn_errors
from diarize.clustering import Doubt, DoubtfulVBx
from diarize.embedded import EmbeddedDiarization, Tuning, build
from diarize.encoder import SpeakerEncoder
from diarize.pipeline import PyannoteDiarizer
from diarize.upstream import PLDA
from training.channels import CHANNELS
from training.encoder import FOLDER
from training.plda import split
from training.speakers import clips, speaker_of


class Remembering(EmbeddedDiarization):
    """Hears each recording once."""

    known: dict[str, Any]

    def get_segmentations(self, file: Any, hook: Any = None) -> Any:
        key = f"speech {file['waveform'].data_ptr()}"
        if key not in self.known:
            self.known[key] = super().get_segmentations(file, hook)
        return self.known[key]

    def heard(self, file: Any, spoken: Any, hook: Any) -> Any:
        key = f"voices {file['waveform'].data_ptr()} {self.segmentation.threshold}"
        if key not in self.known:
            self.known[key] = super().heard(file, spoken, hook)
        return self.known[key]


@dataclass(frozen=True)
class Kind:
    """Recordings that are judged together."""

    name: str
    recordings: list[Mixture]


def kinds(data: Path, group: str) -> Iterator[Kind]:
    paths = {speaker_of(path): path for path in clips(data / "speakers")}
    chosen = sorted(getattr(split(sorted(paths)), group))
    voices = {str(speaker): read_audio(paths[speaker]) for speaker in chosen}
    voices = {who: clip for who, clip in voices.items() if usable(clip)}
    yield Kind("conversations", mixtures(voices, count=8, seed=1))
    rng = np.random.default_rng(2)
    calls = []
    for number in range(10):
        two = rng.choice(sorted(voices), 2, replace=False).tolist()
        call = mix(f"call-{number}", {who: voices[who] for who in two}, rng, seconds=30)
        calls.append(replace(call, samples=CHANNELS["telephone"](call.samples, rng)))
    yield Kind("calls", calls)
    alone = []
    for number, who in enumerate(sorted(voices)[:12]):
        one = mix(f"alone-{number}", {who: voices[who]}, rng, seconds=40)
        channel = list(CHANNELS.values())[number % len(CHANNELS)]
        alone.append(replace(one, samples=channel(one.samples, rng)))
    yield Kind("alone", alone)


def tuned(diarizer: PyannoteDiarizer, tuning: Tuning, doubt: Doubt) -> None:
    """Gives the pipeline other parameters."""
    pipeline = diarizer.pipeline
    plda = PLDA(FOLDER / "xvec_transform.npz", FOLDER / "plda.npz", lda_dimension=tuning.lda)
    pipeline.clustering = DoubtfulVBx(plda, doubt)
    pipeline.instantiate(tuning.parameters())


def judged(diarizer: PyannoteDiarizer, kind: Kind) -> Errors:
    total = Errors()
    for recording in kind.recordings:
        found = diarizer.diarize(recording.samples)
        total += turn_errors(recording.turns, found.regular, len(recording.samples))
    return total


def cost(errors: list[Errors]) -> float:
    """Mean error rate, and a tenth of the share of wrong counts."""
    return float(np.mean([e.der + 0.1 * (1 - e.right) for e in errors]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--speech", type=float, nargs="+", default=[0.5])
    parser.add_argument("--gap", type=float, nargs="+", default=[0.5])
    parser.add_argument("--lda", type=int, nargs="+", default=[64])
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.6, 0.7, 0.8])
    parser.add_argument("--fa", type=float, nargs="+", default=[0.07, 0.2])
    parser.add_argument("--fb", type=float, nargs="+", default=[0.8, 2.0, 4.0])
    parser.add_argument("--alike", type=float, nargs="+", default=[0.35])
    parser.add_argument("--least", type=float, nargs="+", default=[2.0])
    given = parser.parse_args()
    diarizer = build(FOLDER)
    diarizer.pipeline.__class__ = Remembering
    diarizer.pipeline.known = {}
    assert isinstance(diarizer.pipeline._embedding.model_.encoder, SpeakerEncoder)
    recordings = list(kinds(given.data, "tuning"))
    rows = []
    grid = product(
        given.speech,
        given.gap,
        given.lda,
        given.threshold,
        given.fa,
        given.fb,
        given.alike,
        given.least,
    )
    for speech, gap, lda, threshold, fa, fb, alike, least in grid:
        tuning = Tuning(speech, gap, lda, threshold, fa, fb)
        tuned(diarizer, tuning, Doubt(least, alike))
        errors = [judged(diarizer, kind) for kind in recordings]
        told = "  ".join(
            f"{kind.name} {100 * e.der:.1f} = {100 * e.missed_s / e.speech_s:.1f} missed + "
            f"{100 * e.false_s / e.speech_s:.1f} false + {100 * e.confusion:.1f}, "
            f"{100 * e.right:.0f} % counted"
            for kind, e in zip(recordings, errors, strict=True)
        )
        rows.append(
            (cost(errors), f"{tuning.parameters()} lda {lda} {Doubt(least, alike)}: {told}")
        )
        print(f"{rows[-1][0]:.4f}  {rows[-1][1]}", flush=True)
    print("best:", *(f"{price:.4f}  {row}" for price, row in sorted(rows)[:5]), sep="\n")


if __name__ == "__main__":
    main()
