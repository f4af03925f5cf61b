"""Errors of word times, on recordings in which it is known when each word is said.

    python -m benchmarks.quality.word_times --json words.json

By default on synthetic speech whose synthesiser told the times (`tests/asr/words/data`). A recording has a
`.json` file beside it: for each word `text`, `start` and `end` in samples at 16 kHz. It is transcribed as by
the command, with voice activity detection, windows and the model's text; words with the same text are
compared. Exit status: 0; 1 if a target is missed; 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from benchmarks import provenance
from benchmarks.comparison import layout
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ForescribeError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, Word

RECORDING = provenance.ROOT / "tests" / "asr" / "words" / "data" / "words.ogg"
HEAD = ("recording", "words", "matched", "start median", "p95", "end median", "p95", "both", "p95")


@dataclass(frozen=True)
class TimedWord:
    """A word with its times in samples at 16 kHz; None where two words are joined."""

    text: str
    start: int | None
    end: int | None


MEDIAN_S, P95_S = 0.08, 0.25
"""Targets for the median and the 95th percentile of the errors."""


@dataclass(frozen=True)
class WordErrors:
    """Errors in seconds of `matched` of `spoken` words; positive if the time is late."""

    spoken: int = 0
    matched: int = 0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(
            self.spoken + other.spoken,
            self.matched + other.matched,
            self.starts + other.starts,
            self.ends + other.ends,
        )

    @property
    def both(self) -> list[float]:
        return self.starts + self.ends

    @property
    def within_aims(self) -> bool:
        return quantile(self.both, 0.5) <= MEDIAN_S and quantile(self.both, 0.95) <= P95_S


def quantile(errors: Iterable[float], share: float) -> float:
    """A quantile of the absolute errors in seconds; infinite without errors."""
    sizes = np.abs(np.array(list(errors)))
    return float(np.quantile(sizes, share)) if len(sizes) else float("inf")


def compare(spoken: Sequence[TimedWord], written: Sequence[Word]) -> WordErrors:
    """Compare written words with the spoken words they are aligned with, in samples."""
    truth, heard = [fold(w.text) for w in spoken], [fold(w.text) for w in written]
    blocks = SequenceMatcher(None, truth, heard, autojunk=False).get_matching_blocks()
    pairs = [
        (spoken[block.a + n], written[block.b + n]) for block in blocks for n in range(block.size)
    ]
    return WordErrors(
        spoken=len(spoken),
        matched=len(pairs),
        starts=[(w.start_sample - s.start) / SAMPLE_RATE for s, w in pairs if s.start is not None],
        ends=[(w.end_sample - s.end) / SAMPLE_RATE for s, w in pairs if s.end is not None],
    )


def fold(text: str) -> str:
    """Normalise text: lower case, without punctuation."""
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


def table(rows: dict[str, WordErrors]) -> str:
    def cells(name: str, errors: WordErrors) -> tuple[str, ...]:
        sides = (errors.starts, errors.ends, errors.both)
        figures = [quantile(side, share) for side in sides for share in (0.5, 0.95)]
        share = f"{errors.matched / max(1, errors.spoken):.1%}"
        return (name, str(errors.spoken), share, *(f"{1000 * each:.0f}" for each in figures))

    return "\n".join(layout([HEAD, *(cells(name, errors) for name, errors in rows.items())]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.word_times")
    parser.add_argument("audio", nargs="*", type=Path, default=[RECORDING])
    parser.add_argument("--model", default="tiny.en", help="preset, hub id in the cache, or folder")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    options = parser.parse_args(arguments)
    rows: dict[str, WordErrors] = {}
    try:
        transcriber = Transcriber.load(options.model, batch=options.batch, network=False)
        for outcome in transcriber.transcribe(options.audio, Options(language="en", words=True)):
            if outcome.transcript is None:
                raise outcome.error or RuntimeError(outcome.name)
            path = Path(outcome.name)
            spoken = [
                TimedWord(**each) for each in json.loads(path.with_suffix(".json").read_text())
            ]
            rows[path.name] = compare(spoken, outcome.transcript.words)
    except (ForescribeError, OSError) as error:
        print(f"benchmarks.quality.word_times: {error}", file=sys.stderr)
        return 2
    total = sum(rows.values(), WordErrors())
    print(f"{options.model}; errors in ms")
    print(table(rows | {"all": total}))
    bias = [1000 * float(np.median(side)) if side else 0.0 for side in (total.starts, total.ends)]
    print(f"median signed error: starts {bias[0]:+.0f} ms, ends {bias[1]:+.0f} ms")
    met = "met" if total.within_aims else "missed"
    print(f"targets (median {MEDIAN_S} s, p95 {P95_S} s): {met}")
    if options.json is not None:
        record = provenance.record("benchmarks.quality.word_times") | {"model": options.model}
        record |= {"rows": {name: asdict(errors) for name, errors in rows.items()}}
        options.json.write_text(json.dumps(record) + "\n")
    return 0 if total.within_aims else 1


if __name__ == "__main__":
    sys.exit(main())
