"""Accuracy and speed of diarization engines, for turns and for the speakers of words.

    python -m benchmarks.quality.diarization samples --json out.json
    python -m benchmarks.quality.diarization samples DATA/ami --diarizer embedded community-1

A folder has FLAC files with their turns, as RTTM of the same name or together in `reference.rttm`, and
sentences with speakers in `.json` files where they are known: with times in proportion to length within each
sentence, so that only the speakers of words can be wrong.

DER = (missed + false alarm + confusion) / reference speech, overlap counted for each speaker. "Full"
has no collar and scores overlap; "fair" leaves out 0.25 s on both sides of each boundary, which is
`collar=0.5` for pyannote.metrics.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks import provenance
from benchmarks.comparison import layout
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript_parts import Turn, Word, samples_at, seconds
from forescribe.diarize.attribution import assign_speakers
from forescribe.diarize.diarizer import Diarizer
from forescribe.diarize.engines.registry import AUTO, load
from forescribe.diarize.turns import Turns

RATE = 16_000
HEAD = (
    "folder",
    "recordings",
    "DER %",
    "missed",
    "false",
    "confused",
    "fair DER %",
    "JER %",
    "count right",
    "off by",
    "wrong words %",
    "x real time",
)


@dataclass
class Errors:
    """Errors pooled over recordings, weighted by speech."""

    speech_s: float = 0.0
    missed_s: float = 0.0
    false_s: float = 0.0
    confused_s: float = 0.0
    fair_speech_s: float = 0.0
    fair_error_s: float = 0.0
    jaccard: list[float] = field(default_factory=list)
    counted: list[int] = field(
        default_factory=list
    )  # found minus true number of speakers, by recording

    def __add__(self, other: Errors) -> Errors:
        return Errors(*(getattr(self, n) + getattr(other, n) for n in vars(self)))

    @property
    def der(self) -> float:
        return (self.missed_s + self.false_s + self.confused_s) / max(self.speech_s, 1e-9)

    @property
    def fair(self) -> float:
        return self.fair_error_s / max(self.fair_speech_s, 1e-9)

    @property
    def confusion(self) -> float:
        return self.confused_s / max(self.speech_s, 1e-9)

    @property
    def jer(self) -> float:
        return float(np.mean(self.jaccard)) if self.jaccard else 0.0

    @property
    def right(self) -> float:
        """Share of recordings with the right number of speakers."""
        return float(np.mean([c == 0 for c in self.counted])) if self.counted else 0.0

    @property
    def off_by(self) -> float:
        """Mean error of the number of speakers."""
        return float(np.mean(np.abs(self.counted))) if self.counted else 0.0


def turn_errors(reference: Turns, found: Turns, sample_count: int) -> Errors:
    """Score one whole recording."""
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    truth, answer = annotation(reference), annotation(found)
    everything = Timeline([Segment(0, seconds(sample_count))])
    full: dict[str, Any] = DiarizationErrorRate(collar=0.0, skip_overlap=False)(
        truth, answer, uem=everything, detailed=True
    )
    fair: dict[str, Any] = DiarizationErrorRate(collar=0.5, skip_overlap=False)(
        truth, answer, uem=everything, detailed=True
    )
    jer = float(JaccardErrorRate()(truth, answer, uem=everything)) if len(reference) else 0.0
    return Errors(
        full["total"],
        full["missed detection"],
        full["false alarm"],
        full["confusion"],
        fair["total"],
        fair["missed detection"] + fair["false alarm"] + fair["confusion"],
        [jer],
        [len(found.speakers) - len(reference.speakers)],
    )


def annotation(turns: Turns) -> Any:
    """Convert to pyannote's class, with a track for every turn, as turns may overlap."""
    from pyannote.core import Annotation, Segment

    made = Annotation(uri="recording")
    for track, turn in enumerate(turns):
        made[Segment(turn.start, turn.end), track] = turn.speaker
    return made


def wrong_words(reference: Sequence[Word], found: Sequence[str | None]) -> int:
    """The number of words with a wrong speaker under the best one-to-one mapping of names."""
    pairs = Counter(
        (word.speaker, who) for word, who in zip(reference, found, strict=True) if who is not None
    )
    true = sorted({word.speaker or "" for word in reference})
    heard = sorted({who for who in found if who is not None})
    table = np.array([[pairs[t, h] for h in heard] for t in true]).reshape(len(true), len(heard))
    rows, columns = linear_sum_assignment(table, maximize=True)
    return len(reference) - int(table[rows, columns].sum())


def read_rttm(text: str) -> dict[str, Turns]:
    """Read the turns of each recording. Comments and lines of other types are ignored.

    Raises UsageError with the line number for an invalid turn.
    """
    found: dict[str, list[tuple[int, int, str]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        try:
            name, start, length, speaker = fields[1], fields[3], fields[4], fields[7]
            begin = samples_at(float(start))
            end = samples_at(float(start) + float(length))
            turn = Turn(begin, end, speaker)
        except (IndexError, ValueError, OverflowError) as error:
            raise UsageError(
                f"RTTM line {number} is not a valid turn ({error}): {line!r}"
            ) from error
        found.setdefault(name, []).append((turn.start_sample, turn.end_sample, turn.speaker))
    return {name: Turns.of(turns) for name, turns in found.items()}


@dataclass(frozen=True, eq=False)
class Case:
    """A recording with its turns, and its words if they are known."""

    name: str
    samples: NDArray[np.float32]
    turns: Turns
    words: tuple[Word, ...] = ()


def cases(folder: Path) -> Iterator[Case]:
    """The recordings of a folder."""
    together = folder / "reference.rttm"
    known = read_rttm(together.read_text()) if together.is_file() else {}
    for path in sorted(folder.glob("*.flac")):
        own, told = path.with_suffix(".rttm"), path.with_suffix(".json")
        turns = read_rttm(own.read_text())[path.stem] if own.is_file() else known[path.stem]
        lines = json.loads(told.read_text()) if told.is_file() else []
        words = [
            word
            for line in lines
            for word in spread(line["text"], line["start"], line["end"], line["speaker"])
        ]
        yield Case(path.stem, read_audio(path), turns, tuple(words))


def spread(text: str, start: float, end: float, speaker: str) -> list[Word]:
    """The words of a sentence, with times in proportion to their letters."""
    texts = text.split()
    edges = np.cumsum([0, *(len(t) + 1 for t in texts)]) / sum(len(t) + 1 for t in texts)
    at = [samples_at(start + float(edge) * (end - start)) for edge in edges]
    return [Word(f" {t}", a, b, None, speaker) for t, a, b in zip(texts, at, at[1:], strict=False)]


@dataclass
class Score:
    """The result for a folder."""

    errors: Errors = field(default_factory=Errors)
    recordings: int = 0
    audio_s: float = 0.0
    wall_s: float = 0.0
    words: int = 0
    wrong: int = 0

    def cells(self, name: str) -> tuple[str, ...]:
        errors, speech = self.errors, max(self.errors.speech_s, 1e-9)
        return (
            name,
            str(self.recordings),
            f"{100 * errors.der:.1f}",
            f"{100 * errors.missed_s / speech:.1f}",
            f"{100 * errors.false_s / speech:.1f}",
            f"{100 * errors.confusion:.1f}",
            f"{100 * errors.fair:.1f}",
            f"{100 * errors.jer:.1f}",
            f"{100 * errors.right:.0f} %",
            f"{errors.off_by:.2f}",
            f"{100 * self.wrong / self.words:.2f}" if self.words else "-",
            f"{self.audio_s / self.wall_s:.1f}",
        )


def score(diarizer: Diarizer, cases: Iterator[Case], *, verbose: bool = False) -> Score:
    """Score all recordings of a set."""
    total = Score()
    for case in cases:
        start = time.perf_counter()
        found = diarizer.diarize(case.samples)
        total.wall_s += time.perf_counter() - start
        errors = turn_errors(case.turns, found.regular, len(case.samples))
        total.errors, total.recordings = total.errors + errors, total.recordings + 1
        total.audio_s += len(case.samples) / RATE
        if verbose:
            count = f"{len(found.speakers)} of {len(case.turns.speakers)} speakers"
            print(f"{case.name}: DER {100 * errors.der:.1f} %, {count}", file=sys.stderr)
        unnamed = [Word(w.text, w.start_sample, w.end_sample) for w in case.words]
        who = [a.speaker for a in assign_speakers(unnamed, found.exclusive, found.regular)]
        total.words += len(case.words)
        total.wrong += wrong_words(case.words, who) if case.words else 0
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.diarization")
    parser.add_argument("folders", nargs="+", type=Path, help="of recordings with their turns")
    parser.add_argument("--diarizer", nargs="+", default=[AUTO], help="engines: a table each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--verbose", action="store_true", help="a line per recording")
    parser.add_argument("--json", type=Path, help="where to write everything")
    given = parser.parse_args(arguments)
    results = []
    for chosen in given.diarizer:
        diarizer = load(chosen, device=given.device)
        diarizer.diarize(np.zeros(RATE, np.float32))  # warm-up: lazy loading
        scores = {
            folder.name: score(diarizer, cases(folder), verbose=given.verbose)
            for folder in given.folders
        }
        print("\n".join(layout([HEAD, *(s.cells(name) for name, s in scores.items())])))
        print(
            f"engine {diarizer.engine.to_dict()}; collar 0 and overlap scored, fair: 0.25 s each side"
        )
        rows = {name: {**vars(s), "errors": vars(s.errors)} for name, s in scores.items()}
        results.append({"engine": diarizer.engine.to_dict(), "scores": rows})
    if given.json is not None:
        told = {**provenance.record("benchmarks.quality.diarization"), "engines": results}
        given.json.write_text(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
