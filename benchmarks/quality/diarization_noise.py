"""Diarization over noise: conversations of synthetic voices, by kind and level of noise.

    python -m benchmarks.quality.diarization_noise --json out.json
    python -m benchmarks.quality.diarization_noise --data DATA --group tuning

Needs flite and espeak-ng; with --data the conversations are of real voices in that folder. The same
conversations are scored without noise, then with each kind and level. The reference turns are those of
the clean voices.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.provenance import record
from benchmarks.quality.diarization import Case, mixed, score
from benchmarks.rows import layout
from forescribe.diarize.engines.registry import load
from training.sentences.held_out import read_lines
from training.sentences.read_aloud import spoken
from training.speakers.mixtures import mix
from training.speech.augment import coloured_noise
from training.speech.voices import RATE, Voice, speak

Samples = NDArray[np.float32]
Noise = Callable[[int, np.random.Generator], Samples]

VOICES = {
    "rms": Voice("flite", "rms", 1.05, 105.0),
    "slt": Voice("flite", "slt", 1.05, 178.0),
    "awb": Voice("flite", "awb", 1.05, 125.0),
    "kal": Voice("flite", "kal16", 1.05, 105.0),
    "gb": Voice("espeak", "en-gb+m4", 158.0, 47.0),
    "us": Voice("espeak", "en-us+f4", 158.0, 47.0),
}
CASTS = (
    ("rms", "slt"),
    ("awb", "us"),
    ("rms", "slt", "awb"),
    ("slt", "kal", "gb"),
    ("rms", "slt", "awb", "gb"),
    ("slt", "awb", "kal", "us"),
)
"""The voices of each conversation."""

SENTENCES = 8
"""Of each voice: about 25 s."""

TALKERS = 8
"""Voices of the babble noise, none of which is in a conversation."""

LEVELS_DB = (30.0, 20.0, 15.0, 10.0)


def babble(count: int, rng: np.random.Generator) -> Samples:
    """Many voices at once, unit power."""
    lines = read_lines("meeting.txt")
    total = np.zeros(count, np.float32)
    for number in range(TALKERS):
        style = ("m1", "m2", "m3", "m5", "m7", "f1", "f2", "f3")[number % 8]
        voice = Voice("espeak", f"en-us+{style}", 150.0 + 5 * number, 40.0 + 3 * number)
        text = " ".join(rng.choice(lines, 10, replace=False).tolist())
        said = speak(spoken(text.replace(":", ".")), voice).astype(np.float32) / 32768
        total += np.resize(np.roll(said, int(rng.integers(len(said)))), count)
    return np.asarray(total / total.std(), np.float32)


NOISES: Mapping[str, Noise] = {
    "white": lambda count, rng: coloured_noise(count, 0.0, rng),
    "pink": lambda count, rng: coloured_noise(count, 1.0, rng),
    "babble": babble,
}
CLEAN = "clean"


@dataclass(frozen=True)
class Condition:
    """A kind of noise and its level below the speech in dB."""

    kind: str
    ratio_db: float = 0.0

    @property
    def name(self) -> str:
        return self.kind if self.kind == CLEAN else f"{self.kind} {self.ratio_db:g} dB"


def conversations(seed: int, count: int = len(CASTS)) -> Iterator[Case]:
    """One minute of conversation for each cast of synthetic voices."""
    rng = np.random.default_rng(seed)
    lines = read_lines("open_eval.txt")
    for number, cast in enumerate(CASTS[:count]):
        some = rng.permutation(lines).tolist()
        clips = {who: read_aloud(some[n::8][:SENTENCES], VOICES[who]) for n, who in enumerate(cast)}
        made = mix(f"cast-{number}", clips, rng, seconds=60.0)
        yield Case(made.name, made.samples, made.turns)


def read_aloud(lines: Sequence[str], voice: Voice) -> Samples:
    """Sentences with pauses between them, in a quiet room."""
    pause: Samples = np.zeros(RATE // 3, np.float32)
    parts: list[Samples] = [pause]
    for line in lines:
        said: Samples = speak(spoken(line), voice).astype(np.float32) / np.float32(32768)
        parts += [said, pause]
    audio: Samples = np.concatenate(parts)
    return audio / np.float32(10 * np.sqrt(np.mean(audio**2)))


def over(case: Case, condition: Condition, seed: int) -> Case:
    """The recording with noise below the level of its speech."""
    if condition.kind == CLEAN:
        return case
    spoken_parts = [case.samples[t.start_sample : t.end_sample] for t in case.turns]
    speech = float(np.sqrt(np.mean(np.concatenate(spoken_parts) ** 2)))
    noise = NOISES[condition.kind](len(case.samples), np.random.default_rng(seed))
    noisy = case.samples + noise * np.float32(speech * 10 ** (-condition.ratio_db / 20))
    scaled = np.asarray(noisy / max(1.0, float(np.abs(noisy).max())), np.float32)
    return replace(case, samples=scaled)


HEAD = ("noise", "DER %", "missed", "false", "confused", "fair DER %", "count right", "counted off")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="folder with speakers/: real voices instead")
    parser.add_argument("--group", default="tuning", choices=("tuning", "test"), help="of voices")
    parser.add_argument("--count", type=int, default=len(CASTS), help="of conversations")
    parser.add_argument("--seed", type=int, default=0, help="of texts, turns and noise")
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--levels", type=float, nargs="+", default=list(LEVELS_DB), help="in dB")
    parser.add_argument("--verbose", action="store_true", help="a line per recording")
    parser.add_argument("--json", type=Path, help="where to write everything")
    given = parser.parse_args(arguments)
    if given.data is None:
        cases = list(conversations(given.seed, given.count))
    else:
        cases = list(mixed(given.data, given.group, given.count))
    diarizer = load("embedded", device="cpu")
    rows, scores = list[tuple[str, ...]](), {}
    noisy = [Condition(kind, level) for kind, level in product(given.noises, given.levels)]
    for condition in (Condition(CLEAN), *noisy):
        heard = (over(case, condition, given.seed + n) for n, case in enumerate(cases))
        total = score(diarizer, heard, told=False, verbose=given.verbose)
        scores[condition.name] = vars(total.errors)
        counted = " ".join(f"{off:+d}" if off else "0" for off in total.errors.counted)
        cells = total.cells(condition.name)
        rows.append((cells[0], *cells[2:7], cells[8], counted))
    print("\n".join(layout([HEAD, *rows])))
    print(f"engine {diarizer.engine.to_dict()}; collar 0 and overlap scored")
    if given.json is not None:
        told = {"engine": diarizer.engine.to_dict(), "scores": scores}
        given.json.write_text(
            json.dumps({**record("benchmarks.quality.diarization_noise"), **told}) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
