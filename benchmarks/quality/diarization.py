"""Accuracy and speed of diarization engines, for turns and for the speakers of words.

    python -m benchmarks.quality.diarization samples --model tiny.en
    python -m benchmarks.quality.diarization samples mixtures ami telephone --data DATA --json out.json
    python -m benchmarks.quality.diarization conditions --data DATA --group test --seed 22
    python -m benchmarks.quality.diarization samples telephone --diarizer embedded community-1

`samples` are the bundled recordings, with words; `telephone` is the 30 s call in pyannote.audio; `mixtures`
are conversations of voices that were not used in training or tuning, `ami` far-field meetings, and
`conditions` ten kinds of conversations that are difficult, a row each, all from --data (see its README).
Words are those of the reference, with times in proportion to length within each sentence, so that only
their speakers can be wrong. With --model, the words and times of a transcription are scored as well.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.provenance import ROOT, record
from benchmarks.rows import layout, normalise
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Word, samples_at
from forescribe.diarize.attribution import assign_speakers, attribute_speakers
from forescribe.diarize.diarizer import Bounds, Diarizer
from forescribe.diarize.engines.registry import AUTO, load
from forescribe.diarize.turns import Turns
from training.speakers.conditions import conditions, readers
from training.speakers.mixtures import Mixture, mixtures, usable
from training.speakers.rttm import read_rttm
from training.speakers.turn_errors import (
    Errors,
    turn_errors,
    wrong_words,
)

RATE = 16_000
SETS = ("samples", "telephone", "mixtures", "ami", "conditions")
HEAD = (
    "set",
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
    "cpWER %",
    "tcpWER %",
    "written wrong %",
    "written cpWER %",
    "written ORC-WER %",
    "x real time",
)


@dataclass(frozen=True, eq=False)
class Case:
    """A recording with its turns, and its words if they are known."""

    name: str
    samples: NDArray[np.float32]
    turns: Turns
    words: tuple[Word, ...] = ()
    path: Path | None = None


def samples(folder: Path) -> Iterator[Case]:
    """Recordings with `.rttm` and `.json` files of the same name."""
    for path in sorted(folder.glob("*.flac")):
        turns = read_rttm(path.with_suffix(".rttm").read_text())[path.stem]
        told = json.loads(path.with_suffix(".json").read_text())
        words = [
            word
            for line in told
            for word in spread(line["text"], line["start"], line["end"], line["speaker"])
        ]
        yield Case(path.stem, read_audio(path), turns, tuple(words), path)


def telephone() -> Iterator[Case]:
    """The sample of pyannote.audio, read without importing the package, which would decode it."""
    package = find_spec("pyannote.audio")
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "sample"
    words = []
    for line in (folder / "sample.stm").read_text().splitlines():
        _, _, speaker, start, end, text = line.split(maxsplit=5)
        words += spread(text, float(start), float(end), speaker)
    (turns,) = read_rttm((folder / "sample.rttm").read_text()).values()
    yield Case(
        "telephone", read_audio(folder / "sample.wav"), turns, tuple(words), folder / "sample.wav"
    )


def mixed(data: Path, group: str, count: int) -> Iterator[Case]:
    """Mixtures of the voices of one group of `training.speakers.folds.split`."""
    from training.speakers.folds import split
    from training.speakers.vectors import clips, speaker_of

    paths = {speaker_of(path): path for path in clips(data / "speakers")}
    chosen = sorted(getattr(split(sorted(paths)), group))
    voices = {str(speaker): read_audio(paths[speaker]) for speaker in chosen}
    voices = {who: clip for who, clip in voices.items() if usable(clip)}
    yield from cases(mixtures(voices, count=count))


def cases(recordings: Iterable[Mixture]) -> Iterator[Case]:
    for mixture in recordings:
        yield Case(mixture.name, mixture.samples, mixture.turns)


def ami(data: Path) -> Iterator[Case]:
    turns = read_rttm((data / "ami" / "reference.rttm").read_text())
    for path in sorted((data / "ami").glob("*.flac")):
        yield Case(path.stem, read_audio(path), turns[path.stem])


def spread(text: str, start: float, end: float, speaker: str) -> list[Word]:
    """The words of a sentence, with times in proportion to their letters."""
    texts = text.split()
    edges = np.cumsum([0, *(len(t) + 1 for t in texts)]) / sum(len(t) + 1 for t in texts)
    at = [samples_at(start + float(edge) * (end - start)) for edge in edges]
    return [Word(f" {t}", a, b, None, speaker) for t, a, b in zip(texts, at, at[1:], strict=False)]


@dataclass
class Score:
    """The result for a set of recordings."""

    errors: Errors
    recordings: int = 0
    audio_s: float = 0.0
    wall_s: float = 0.0
    words: int = 0
    wrong: int = 0
    cpwer: float | None = None
    tcpwer: float | None = None
    compared: int = 0  # written words that are aligned with a reference word
    written_wrong: int = 0  # of these, with another speaker
    written_cpwer: float | None = None
    written_orcwer: float | None = None

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
            "-" if self.cpwer is None else f"{100 * self.cpwer:.2f}",
            "-" if self.tcpwer is None else f"{100 * self.tcpwer:.2f}",
            f"{100 * self.written_wrong / self.compared:.2f}" if self.compared else "-",
            "-" if self.written_cpwer is None else f"{100 * self.written_cpwer:.2f}",
            "-" if self.written_orcwer is None else f"{100 * self.written_orcwer:.2f}",
            f"{self.audio_s / self.wall_s:.1f}",
        )


def score(
    diarizer: Diarizer,
    cases: Iterator[Case],
    *,
    told: bool,
    verbose: bool,
    write: Callable[[Path], Transcript] | None = None,
) -> Score:
    """Score all recordings of a set. `told` passes the number of speakers to the engine; `write`
    transcribes."""
    total = Score(Errors())
    spoken: dict[str, tuple[Sequence[Word], Sequence[Word]]] = {}
    written: dict[str, tuple[Sequence[Word], Sequence[Word]]] = {}
    for case in cases:
        bounds = Bounds(exactly=len(case.turns.speakers)) if told else None
        start = time.perf_counter()
        found = diarizer.diarize(case.samples, bounds)
        total.wall_s += time.perf_counter() - start
        errors = turn_errors(case.turns, found.regular, len(case.samples))
        total.errors, total.recordings = total.errors + errors, total.recordings + 1
        total.audio_s += len(case.samples) / RATE
        if verbose:
            count = f"{len(found.speakers)} of {len(case.turns.speakers)} speakers"
            print(
                f"{case.name}: DER {100 * errors.der:.1f} %, {count}", file=sys.stderr, flush=True
            )
        if case.words:
            unnamed = [Word(w.text, w.start_sample, w.end_sample) for w in case.words]
            who = [a.speaker for a in assign_speakers(unnamed, found.exclusive, found.regular)]
            total.words += len(case.words)
            total.wrong += wrong_words(case.words, who)
            named = [replace(w, speaker=s) for w, s in zip(unnamed, who, strict=True)]
            spoken[case.name] = case.words, named
        if case.words and write is not None and case.path is not None:
            transcript = attribute_speakers(write(case.path), found.regular, found.exclusive)
            own = [word for segment in transcript.segments for word in segment.words or ()]
            wrong, compared = wrong_written_words(case.words, own)
            total.written_wrong, total.compared = (
                total.written_wrong + wrong,
                total.compared + compared,
            )
            written[case.name] = case.words, own
    if spoken and find_spec("meeteval") is not None:
        rates = attributed_errors(spoken)
        total.cpwer, total.tcpwer = rates["cpwer"], rates["tcpwer"]
    if written and find_spec("meeteval") is not None:
        rates = attributed_errors(written)
        total.written_cpwer, total.written_orcwer = rates["cpwer"], rates["orcwer"]
    return total


def writer(model: str, device: str) -> Callable[[Path], Transcript]:
    """Return a function that transcribes with word times. Raises the error of a failing recording."""
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber

    transcriber = Transcriber.load(model, device=device)

    def write(path: Path) -> Transcript:
        (outcome,) = transcriber.transcribe([path], Options(words=True))
        if outcome.transcript is None:
            assert outcome.error is not None
            raise outcome.error
        return outcome.transcript

    return write


def wrong_written_words(reference: Sequence[Word], written: Sequence[Word]) -> tuple[int, int]:
    """Return (words with the wrong speaker, words compared).

    Compares the words of a transcript that are aligned with a reference word, correct or substituted;
    insertions and deletions have no speaker to compare. The first over the second is the word
    diarization error rate. Both lists are in order of time.
    """
    import jiwer

    truth, answer = _plain(reference), _plain(written)
    if not truth or not answer:
        return 0, 0
    found = jiwer.process_words(
        " ".join(text for text, _ in truth), " ".join(text for text, _ in answer)
    )
    pairs = [
        (chunk.ref_start_idx + n, chunk.hyp_start_idx + n)
        for chunk in found.alignments[0]
        if chunk.type in ("equal", "substitute")
        for n in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]
    said = [truth[place][1] for place, _ in pairs]
    return wrong_words(said, [answer[place][1].speaker for _, place in pairs]), len(pairs)


def _plain(words: Sequence[Word]) -> list[tuple[str, Word]]:
    """Normalised words; a word may become several: "12-inch" becomes two."""
    return [(text, word) for word in words for text in normalise(word.text).split()]


def attributed_errors(
    recordings: Mapping[str, tuple[Sequence[Word], Sequence[Word]]], collar: float = 5.0
) -> dict[str, float]:
    """Return cpWER, tcpWER (collar in seconds) and ORC-WER of pairs of reference and transcript.

    cpWER minus ORC-WER is the share of errors due to speakers. Needs meeteval.
    """
    import meeteval

    truth = _listed({name: said for name, (said, _) in recordings.items()})
    answer = _listed({name: written for name, (_, written) in recordings.items()})
    wer = meeteval.wer
    return {
        "cpwer": _rate(wer.cpwer(truth, answer)),
        "tcpwer": _rate(wer.tcpwer(truth, answer, collar=collar)),
        "orcwer": _rate(wer.orcwer(truth, answer)),
    }


def _listed(recordings: Mapping[str, Sequence[Word]]) -> Any:
    from meeteval.io import SegLST

    return SegLST(
        [
            {
                "session_id": name,
                "speaker": word.speaker or "nobody",
                "words": normalise(word.text),
                "start_time": word.start,
                "end_time": max(word.end, word.start + 0.001),
            }
            for name, words in recordings.items()
            for word in words
            if normalise(word.text)
        ]
    )


def _rate(sessions: Any) -> float:
    """Errors over words, pooled over recordings."""
    length = sum(one.length for one in sessions.values())
    return float(sum(one.errors for one in sessions.values()) / length)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sets", nargs="+", choices=SETS)
    parser.add_argument("--diarizer", nargs="+", default=[AUTO], help="engines: a table each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", help="score the words that it writes, too")
    parser.add_argument("--data", type=Path, help="folder with speakers/ and ami/")
    parser.add_argument("--group", default="test", choices=("tuning", "test"), help="of voices")
    parser.add_argument("--seed", type=int, default=0, help="of the conditions")
    parser.add_argument("--count", type=int, default=12, help="of mixtures")
    parser.add_argument("--told", action="store_true", help="give the true number of speakers")
    parser.add_argument("--verbose", action="store_true", help="a line per recording")
    parser.add_argument("--json", type=Path, help="where to write everything")
    given = parser.parse_args(arguments)
    if given.data is None and {"mixtures", "ami", "conditions"} & set(given.sets):
        parser.error("mixtures, ami and conditions need --data")
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "samples": lambda: samples(ROOT / "samples"),
        "telephone": telephone,
        "mixtures": lambda: mixed(given.data, given.group, given.count),
        "ami": lambda: ami(given.data),
    }
    names = [name for name in given.sets if name != "conditions"]
    if "conditions" in given.sets:
        found = dict(conditions(readers(given.data, given.group), given.seed))
        makers |= {name: partial(cases, mixtures) for name, mixtures in found.items()}
        names += found
    write = None if given.model is None else writer(given.model, given.device)
    results = []
    for chosen in given.diarizer:
        diarizer = load(chosen, device=given.device)
        diarizer.diarize(np.zeros(RATE, np.float32))  # warm-up: lazy loading
        scores = {
            name: score(
                diarizer, makers[name](), told=given.told, verbose=given.verbose, write=write
            )
            for name in names
        }
        print("\n".join(layout([HEAD, *(s.cells(name) for name, s in scores.items())])))
        print(
            f"engine {diarizer.engine.to_dict()}; collar 0 and overlap scored, fair: 0.25 s each side"
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory so far {peak:.0f} MB")
        rows = {name: {**vars(s), "errors": vars(s.errors)} for name, s in scores.items()}
        results.append({"engine": diarizer.engine.to_dict(), "scores": rows, "peak_mb": peak})
    if given.json is not None:
        told = {**record("benchmarks.quality.diarization"), "engines": results}
        given.json.write_text(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
