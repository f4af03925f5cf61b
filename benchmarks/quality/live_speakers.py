"""Speakers of live streams: how much of the speech has the right label, and what it costs.

    python -m benchmarks.quality.live_speakers samples
    python -m benchmarks.quality.live_speakers samples conditions --data DATA --group test --seed 22

Recordings are cut as a live stream with turns cuts them, and labelled window by window; nothing is decoded.
`right` is the share of the time in which one person speaks (the reference's turns) that has that person's
label, by the best one-to-one mapping of labels to people; `unknown` and `wrong` are labelled otherwise, and
the rest is silence for the engine. A row for each set or condition, then all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.provenance import ROOT
from benchmarks.quality.diarization import Case, cases, samples
from benchmarks.rows import layout
from forescribe.asr.decode.session import Session
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.live.events import Committed, Event, LiveOptions, Speech
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.live.turns import TurnDetection
from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.online import OnlineSpeakers
from forescribe.diarize.turns import UNKNOWN, Turn, Turns
from training.speakers.conditions import GROUPS, conditions, readers

RATE, FRAME = 16_000, 1_600
HEAD = ("set", "recordings", "right %", "unknown %", "wrong %", "counts right", "off by", "ms / s")


@dataclass
class Row:
    name: str
    right: int = 0  # frames
    unknown: int = 0
    wrong: int = 0
    speech: int = 0
    off: list[int] = field(default_factory=list)  # labels minus people
    cpu_s: float = 0.0
    heard_s: float = 0.0

    def add(self, other: Row) -> None:
        for name in ("right", "unknown", "wrong", "speech", "off", "cpu_s", "heard_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def cells(self) -> tuple[str, ...]:
        shares = (100 * part / self.speech for part in (self.right, self.unknown, self.wrong))
        exact, off = sum(not n for n in self.off), sum(map(abs, self.off)) / len(self.off)
        counts = (f"{exact} of {len(self.off)}", f"{off:.2f}")
        cost = f"{1000 * self.cpu_s / self.heard_s:.0f}"
        return (self.name, str(len(self.off)), *(f"{s:.1f}" for s in shares), *counts, cost)


def windows(session: Session, audio: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The windows of speech of a stream, by the samples at which they begin. `session` does not run."""
    told: list[Event] = []
    stream = LiveStream(session, LiveOptions(turns=TurnDetection(), speech=True), told.append)
    for at in range(0, len(audio), FRAME):
        stream.feed(audio[at : at + FRAME])
    stream.finish()
    stream.cancel()
    starts = {e.item: round(RATE * e.start_s) for e in told if isinstance(e, Committed)}
    spoken = [e for e in told if isinstance(e, Speech)]
    return [(starts[e.item] + e.start, e.samples) for e in spoken]


def measure(engine: embedded.EmbeddedDiarizer, session: Session, case: Case, row: Row) -> None:
    speakers, found = OnlineSpeakers(engine, str), list[Turn]()
    for start, part in windows(session, case.samples):
        began = time.process_time()
        _, exclusive = speakers.turns(part)
        row.cpu_s += time.process_time() - began
        row.heard_s += len(part) / RATE
        found += exclusive.shifted(start)
    frames = len(case.samples) // FRAME
    spoken = np.stack([_active(case.turns, who, frames) for who in case.turns.speakers])
    alone = spoken.sum(0) == 1
    answer = Turns(tuple(found))
    labels = [label for label in answer.speakers if label != UNKNOWN]
    pairs = np.array(
        [
            [np.sum(alone & own & _active(answer, label, frames)) for label in labels]
            for own in spoken
        ]
    ).reshape(len(spoken), len(labels))
    right = int(pairs[linear_sum_assignment(-pairs)].sum())
    row.right += right
    row.wrong += int(pairs.sum()) - right
    row.unknown += int(np.sum(alone & _active(answer, UNKNOWN, frames)))
    row.speech += int(alone.sum())
    row.off.append(len(labels) - len(spoken))


def _active(turns: Turns, speaker: str, frames: int) -> np.ndarray:
    """[F] where somebody speaks."""
    found = np.zeros(frames, bool)
    for turn in turns:
        if turn.speaker == speaker:
            found[turn.start_sample // FRAME : turn.end_sample // FRAME] = True
    return found


def sets(chosen: argparse.Namespace) -> Iterator[tuple[str, list[Case]]]:
    if "samples" in chosen.sets:
        yield "samples", list(samples(ROOT / "samples"))
    if "conditions" in chosen.sets:
        for name, mixtures in conditions(readers(chosen.data, chosen.group), chosen.seed):
            yield name, list(cases(mixtures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sets", nargs="+", choices=("samples", "conditions"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--group", choices=GROUPS, default="test")
    parser.add_argument("--seed", type=int, default=22)
    chosen = parser.parse_args()
    engine = embedded.build(embedded.folder())
    session = Session(Transcriber.load("tiny.en").context)
    rows, every = list[Row](), Row("all")
    for name, recordings in sets(chosen):
        rows.append(Row(name))
        for case in recordings:
            measure(engine, session, case, rows[-1])
        every.add(rows[-1])
    print("\n".join(layout([HEAD, *(row.cells() for row in [*rows, every])])))


if __name__ == "__main__":
    main()
