"""Live transcription: how late words come, how many are taken back, and what it costs.

    python -m benchmarks.live voices/*.flac --model base --draft tiny.en --json live.json
    python -m benchmarks.live voices/*.flac --streams 1,2,4,8 --seconds 30

Recordings are fed in chunks of 100 ms. With the *virtual clock* decoding takes no time: each chunk is fed
when the decodes that it began have ended, so that latencies are those of the method. With `--streams` they
are fed at the pace of the clock by several speakers at once, and lag is the age of the newest sample when
its words were known.

The ways: `guess + draft`, `guess`, `draft`, and `plain` (each decode begins anew). LocalAgreement-2 over
faster-whisper (Macháček et al. 2023) was beside them until 2a803e84. Times of words are those that the model
gives to its final transcript. The exit code is 1 if the final texts differ from the offline transcript of the
same samples.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import provenance
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.live.commit import LiveWord
from forescribe.asr.live.events import Completed, Delta, Event, Hypothesis, LiveOptions
from forescribe.asr.live.stream import LiveStream

RATE, CHUNK = 16_000, 1_600
WAYS = ("guess + draft", "guess", "draft", "plain")


@dataclass
class Row:
    """One way, over all recordings."""

    way: str
    delay: str
    words: int = 0
    shown_s: list[float] = field(default_factory=list)
    committed_s: list[float] = field(default_factory=list)
    completed_s: list[float] = field(default_factory=list)
    contradicted: int = 0
    erased: int = 0
    decodes: int = 0
    rounds: int = 0
    wall_s: float = 0.0
    audio_s: float = 0.0
    equal: bool = True
    text: str = ""

    def cells(self) -> list[str]:
        def spread(values: list[float]) -> str:
            if not values:
                return ""
            return f"{median(values):.2f} / {np.percentile(values, 95):.2f}"

        return [
            self.way,
            self.delay,
            spread(self.shown_s),
            spread(self.committed_s),
            spread(self.completed_s),
            f"{100 * self.contradicted / max(1, self.words):.1f} %",
            f"{self.erased / max(1, self.words):.2f}",
            f"{self.rounds / max(1, self.decodes):.1f}",
            f"{self.decodes}",
            f"{self.wall_s / self.audio_s:.3f}",
            "yes" if self.equal else "NO",
        ]


HEAD = [
    "way",
    "delay",
    "shown s",
    "committed s",
    "completed s",
    "contradicted",
    "erased",
    "rounds a decode",
    "decodes",
    "wall / audio",
    "final text equal",
]


@dataclass
class Trace:
    """What was told of one recording, with the seconds that had been fed then."""

    told: list[tuple[float, Event]] = field(default_factory=list)
    fed_s: float = 0.0

    def __call__(self, event: Event) -> None:
        self.told.append((self.fed_s, event))


def key(word: str) -> str:
    return LiveWord(word).key


def first_times(shown: Iterator[tuple[float, list[str]]], final: list[str]) -> list[float | None]:
    """When each final word was first shown in its place."""
    times: list[float | None] = [None] * len(final)
    for at_s, words in shown:
        for block in SequenceMatcher(None, final, words, autojunk=False).get_matching_blocks():
            for number in range(block.a, block.a + block.size):
                times[number] = at_s if times[number] is None else times[number]
    return times


def erased(shown: Sequence[list[str]]) -> int:
    """Words that were shown and then changed or removed."""
    count, before = 0, list[str]()
    for words in shown:
        same = 0
        while same < min(len(before), len(words)) and before[same] == words[same]:
            same += 1
        count += len(before) - same
        before = words
    return count


def account(row: Row, told: list[tuple[float, str, str]], final: list[tuple[str, float]]) -> None:
    """Adds a recording: what was `told` (time, released text, all text), and the final words with the times
    at which they end."""
    keys, ends = [key(word) for word, _ in final], [end for _, end in final]
    released = [(t, [key(w) for w in text.split()]) for t, text, _ in told]
    shown = [(t, [key(w) for w in text.split()]) for t, _, text in told]
    for into, times in (
        (row.shown_s, first_times(iter(shown), keys)),
        (row.committed_s, first_times(iter(released), keys)),
    ):
        into += [t - end for t, end in zip(times, ends, strict=True) if t is not None]
    row.erased += erased([words for _, words in shown])
    row.words += len(final)
    row.text += " " + " ".join(word for word, _ in final)


@contextmanager
def serving(transcriber: Transcriber) -> Iterator[Session]:
    session = Session(transcriber.context, readers=1)
    thread = threading.Thread(target=session.run)
    thread.start()
    try:
        yield session
    finally:
        session.close()
        thread.join()


def ours(session: Session, samples: Any, options: LiveOptions, row: Row) -> str:
    """Feeds a recording by the virtual clock; the final text."""
    trace, began = Trace(), time.perf_counter()
    stream = LiveStream(session, options, trace)
    for at in range(0, len(samples), CHUNK):
        trace.fed_s = min(len(samples), at + CHUNK) / RATE
        stream.feed(samples[at : at + CHUNK])
        stream.wait(idle=True)
    stream.finish()
    stream.wait()
    row.wall_s += time.perf_counter() - began
    row.decodes += stream.stats.tentative_passes
    row.rounds += stream.stats.tentative_rounds
    row.contradicted += stream.stats.contradicted
    row.audio_s += len(samples) / RATE
    told, text = list[tuple[float, str, str]](), ""
    for at_s, event in trace.told:
        if isinstance(event, Delta):
            text += event.text
            told.append((at_s, text, text))
        elif isinstance(event, Hypothesis):
            told.append((at_s, event.committed, event.committed + event.tail))
    (completed,) = (e for _, e in trace.told if isinstance(e, Completed))
    words = [(w.text, w.end_sample / RATE) for w in completed.transcript.words]
    row.completed_s += [trace.fed_s - words[-1][1]] if words else []
    account(row, told, words)
    return completed.transcript.text


def paced(
    count: int, seconds: float, recordings: Sequence[Any], begin: Callable[[int, list[float]], Any]
) -> list[float]:
    """Lags of `count` speakers at the pace of the clock; `begin` makes a speaker's `(feed, end)`."""
    lags: list[list[float]] = [[] for _ in range(count)]

    def speak(number: int) -> None:
        samples = np.resize(recordings[number % len(recordings)], round(seconds * RATE))
        feed, end = begin(number, lags[number])
        start = time.monotonic() + number / count  # not all at once
        for at in range(0, len(samples), CHUNK):
            time.sleep(max(0.0, start + (at + CHUNK) / RATE - time.monotonic()))
            feed(samples[at : at + CHUNK])
        end()

    threads = [threading.Thread(target=speak, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [lag for one in lags for lag in one]


def capacity(chosen: Any, recordings: Sequence[Any]) -> list[list[str]]:
    """Lags of several streams at a time."""
    rows = []

    def of(name: str, count: int, lags: list[float]) -> None:
        half = len(lags) // 2
        found = [f"{np.percentile(lags, p):.2f}" for p in (50, 95)] if lags else ["", ""]
        late = f"{np.percentile(lags[half:], 95):.2f}" if lags[half:] else ""
        rows.append([name, str(count), *found, late, str(len(lags))])
        print("  ".join(rows[-1]), flush=True)

    for name, guesses, gamma in ((WAYS[0], True, None), (WAYS[3], False, 0)):
        if name not in chosen.ways:
            continue
        loaded = _load(chosen, gamma, batch=max(chosen.streams))
        options = LiveOptions(_options(chosen), step_s=chosen.step, guesses=guesses)
        with serving(loaded) as session:
            for count in chosen.streams:

                def begin(number: int, lags: list[float], options: Any = options) -> Any:
                    def tell(event: Event) -> None:
                        if isinstance(event, Hypothesis):
                            lags.append(event.lag_s)

                    stream = LiveStream(session, options, tell)

                    def end() -> None:
                        stream.finish()
                        stream.wait(120)

                    return stream.feed, end

                of(name, count, paced(count, chosen.seconds, recordings, begin))
    return rows


def _options(chosen: Any) -> Options:
    return Options(language=chosen.language, guards=Guards(), words=True)


def _load(chosen: Any, gamma: int | None, batch: int = 1) -> Transcriber:
    draft = "none" if gamma == 0 else chosen.draft
    return Transcriber.load(
        chosen.model,
        draft,
        batch=batch,
        gamma=gamma,
        device=chosen.device,
        dtype=chosen.dtype,
        quantize=chosen.quantize,
        beam_size=1,
    )


def virtual(chosen: Any, recordings: Sequence[Any]) -> list[Row]:
    """All ways, recording by recording."""
    rows, expected = list[Row](), list[str]()
    reference = _load(chosen, 0)
    for outcome in (
        next(iter(reference.transcribe([(r, RATE)], _options(chosen)))) for r in recordings
    ):
        assert outcome.transcript is not None
        expected.append(outcome.transcript.text)
    for way in chosen.ways:
        loaded = _load(chosen, chosen.gamma if "draft" in way else 0)
        for delay in chosen.delays if way == WAYS[0] else chosen.delays[:1]:
            row = Row(way, delay)
            options = LiveOptions(
                _options(chosen), step_s=chosen.step, delay=delay, guesses="guess" in way
            )
            with serving(loaded) as session:
                for samples, text in zip(recordings, expected, strict=True):
                    row.equal &= ours(session, samples, options, row) == text
            rows.append(row)
            print("  ".join(row.cells()), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("audio", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--draft")
    parser.add_argument("--gamma", type=int, default=5, help="drafts of the ways with a draft")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of our ways")
    parser.add_argument("--quantize", default="none", help="int8")
    parser.add_argument("--language", default="en")
    parser.add_argument("--step", type=float, default=1.0)
    parser.add_argument("--delays", default="medium", type=lambda text: text.split(","))
    parser.add_argument("--ways", default=",".join(WAYS), type=lambda text: text.split(","))
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    recordings = [read_audio(path) for path in chosen.audio]
    if chosen.streams:
        print("way  streams  lag p50  p95  p95 of the second half  decodes")
        rows: list[Any] = capacity(chosen, recordings)
        failed = False
    else:
        print("  ".join(HEAD))
        found = virtual(chosen, recordings)
        failed = any(not row.equal for row in found)
        rows = [asdict(replace(row, text="")) for row in found]
    if chosen.json is not None:
        record = provenance.record("benchmarks.live") | {"benchmark": "live", "rows": rows}
        chosen.json.write_text(json.dumps(record) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
