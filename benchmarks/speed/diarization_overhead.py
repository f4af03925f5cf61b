"""The cost of diarization during a transcription: each alone, then both together.

    python -m benchmarks.speed.diarization_overhead --model tiny.en samples/*.flac

Targets: both together take at most 1.25 times the slower of the two, with the same words, and
diarization alone runs at 8 times real time or faster. Needs an idle machine. CPU time is printed too:
if both together need more of it than the cores provide, the ratio cannot be below the printed lower
bound. Takes under two minutes for the bundled samples on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.provenance import record
from benchmarks.rows import layout
from forescribe.asr.decode.options import Options, Outcome
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.diarize.engines.registry import AUTO, load
from forescribe.diarize.transcribers import DiarizingTranscriber, SpeakerOnlyTranscriber

MOST = 1.25
"""Upper bound of the time for both over the slower one alone."""

LEAST = 8.0
"""Lower bound of the speed of diarization alone, in times real time."""

WORDS, SPEAKERS, BOTH = "words", "speakers", "both"

Run = Callable[[Sequence[str]], list[Outcome]]


@dataclass(frozen=True)
class Pass:
    """One pass over all recordings. `cpu_s` is the CPU time of all threads."""

    wall_s: float
    cpu_s: float
    audio_s: float
    texts: dict[str, str]  # by recording; empty for diarization alone


def timed(run: Run, audio: Sequence[str]) -> Pass:
    """Time a pass. Raises the error of a recording that failed."""
    cpu, start = time.process_time(), time.perf_counter()
    outcomes = run(audio)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    done = {o.name: o.transcript for o in outcomes if o.transcript is not None}
    return Pass(
        wall,
        cpu,
        sum(transcript.duration for transcript in done.values()),
        {name: transcript.text for name, transcript in done.items()},
    )


@dataclass(frozen=True)
class Verdict:
    """Compares the fastest pass of each kind."""

    words: Pass
    speakers: Pass
    both: Pass
    cores: int

    @property
    def slower_s(self) -> float:
        """The time of the slower one alone."""
        return max(self.words.wall_s, self.speakers.wall_s)

    @property
    def ratio(self) -> float:
        """The time of both over that of the slower one."""
        return self.both.wall_s / self.slower_s

    @property
    def least(self) -> float:
        """The lowest possible ratio: the same work with no core idle."""
        work = (self.words.cpu_s + self.speakers.cpu_s) / self.cores
        return max(1.0, work / self.slower_s)

    @property
    def speed(self) -> float:
        """The speed of diarization alone, in times real time."""
        return self.speakers.audio_s / self.speakers.wall_s

    @property
    def same(self) -> bool:
        """Whether the words are equal with and without speakers."""
        return self.both.texts == self.words.texts

    @property
    def met(self) -> bool:
        return self.same and self.ratio <= MOST and self.speed >= LEAST

    def lines(self) -> list[str]:
        rows = [("", "wall s", "CPU s", "x real time")]
        for name, one in ((WORDS, self.words), (SPEAKERS, self.speakers), (BOTH, self.both)):
            speed = f"{one.audio_s / one.wall_s:.1f}"
            rows.append((name, f"{one.wall_s:.2f}", f"{one.cpu_s:.2f}", speed))
        return [
            *layout(rows),
            f"both over the slower one: {self.ratio:.2f} (target {MOST}, {_met(self.ratio <= MOST)}; "
            f"lower bound with {self.cores} cores: {self.least:.2f})",
            f"turns alone: {self.speed:.1f}x real time (target {LEAST:g}, {_met(self.speed >= LEAST)})",
            f"same words: {self.same}",
        ]


def _met(met: bool) -> str:
    return "met" if met else "missed"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("audio", nargs="+")
    parser.add_argument("--model", default=None)
    parser.add_argument("--diarizer", default=AUTO)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2, help="passes; the fastest counts")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    transcriber = Transcriber.load(given.model, device=given.device, batch=given.batch)
    diarizer = load(given.diarizer, device=given.device)
    options = Options(words=True)
    runs: dict[str, Run] = {
        WORDS: lambda audio: list(transcriber.transcribe(audio, options)),
        SPEAKERS: lambda audio: list(SpeakerOnlyTranscriber(diarizer).transcribe(audio)),
        BOTH: lambda audio: list(
            DiarizingTranscriber(transcriber, diarizer).transcribe(audio, options)
        ),
    }
    for run in runs.values():  # warm-up: lazy loading and compilation
        timed(run, given.audio[:1])
    passes: dict[str, list[Pass]] = {name: [] for name in runs}
    for _ in range(given.repeats):  # in turn, so that a slower machine affects all alike
        for name, run in runs.items():
            passes[name].append(timed(run, given.audio))
    best = {name: min(done, key=lambda one: one.wall_s) for name, done in passes.items()}
    # Not this thread's affinity: an OpenMP runtime may have bound it to one core.
    verdict = Verdict(best[WORDS], best[SPEAKERS], best[BOTH], os.cpu_count() or 1)
    print("\n".join(verdict.lines()))
    if given.json is not None:
        told = {"ratio": verdict.ratio, "least": verdict.least, "speed": verdict.speed}
        rows = {name: [asdict(one) for one in done] for name, done in passes.items()}
        data = {
            **record("benchmarks.speed.diarization_overhead"),
            **told,
            "same": verdict.same,
            "passes": rows,
        }
        given.json.write_text(json.dumps(data) + "\n")
    return 0 if verdict.met else 1


if __name__ == "__main__":
    sys.exit(main())
