"""What diarization costs when it runs beside a transcription: each alone, then both together.

    python -m benchmarks.beside --model demo samples/*.flac

Aim: both together take at most 1.25 times the slower of the two alone. The words must be the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from asr.options import Options
from asr.outcome import Outcome
from asr.transcriber import Transcriber
from benchmarks.provenance import record
from diarize.engines import AUTO, load
from diarize.only import OnlySpeakers
from diarize.transcribing import WithSpeakers

AIM = 1.25


def timed(run: Callable[[], list[Outcome]]) -> tuple[float, list[Outcome]]:
    start = time.perf_counter()
    outcomes = run()
    return time.perf_counter() - start, outcomes


def texts(outcomes: list[Outcome]) -> dict[str, str]:
    """By recording. Raises the error of one that failed."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return {o.name: o.transcript.text for o in outcomes if o.transcript is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("audio", nargs="+")
    parser.add_argument("--model", default=None)
    parser.add_argument("--diarizer", default=AUTO)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    transcriber = Transcriber.load(given.model, device=given.device, batch=given.batch)
    diarizer = load(given.diarizer, device=given.device)
    options = Options(words=True)
    runs: dict[str, Callable[[], list[Outcome]]] = {
        "words": lambda: list(transcriber.transcribe(given.audio, options)),
        "speakers": lambda: list(OnlySpeakers(diarizer).transcribe(given.audio)),
        "both": lambda: list(WithSpeakers(transcriber, diarizer).transcribe(given.audio, options)),
    }
    walls: dict[str, list[float]] = {name: [] for name in runs}
    said: dict[str, dict[str, str]] = {}
    for repeat in range(given.repeats + 1):
        for name, run in runs.items():
            wall, outcomes = timed(run)
            said[name] = texts(outcomes)
            if repeat:  # the first warms up
                walls[name].append(wall)
    best = {name: min(found) for name, found in walls.items()}
    ratio = best["both"] / max(best["words"], best["speakers"])
    same = said["both"] == said["words"]
    for name, wall in best.items():
        print(f"{name:9} {wall:7.2f} s")
    verdict = "met" if ratio <= AIM else "missed"
    print(f"both over the slower one: {ratio:.2f} (aim {AIM}, {verdict}); same words: {same}")
    if given.json is not None:
        told = {"walls_s": walls, "ratio": ratio, "same_words": same}
        given.json.write_text(json.dumps({**record("benchmarks.beside"), **told}) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
