"""What audio costs apart from the model: the speed that a device which takes no time would reach.

    python -m benchmarks.ceiling hour.mp3 --model tiny.en --words --readers 0 1
    python -m benchmarks.ceiling readers/*.flac --model tiny.en --readers 0 --service --clients 8 --streams 8

The recordings are transcribed once, and what the model has answered is kept (`benchmarks.replay`): tokens
with their probabilities, and the attention that word times are read from. Then they are transcribed again
with these answers. Reading, voice activity, cutting, features, admission, guards, retries, word times,
transcripts, the service and live sessions are the program's own.
Features count as part of it, though a card makes them itself.

The ways: by a call that reads itself or with `--readers` (and writes txt, srt, vtt, tsv, json); `--service`,
a session with all recordings at once; `--clients`, uploads over HTTP by so many clients at once, which are a
process of their own; `--streams`, so many live sessions at once, each of which is fed when what it has begun
to decode has ended, so that each run asks the same. For each way: seconds of the clock, of the engine's
thread, of all threads and processes, and of each stage by thread. `taskset` gives it fewer cores. The exit
code is 1 if a transcript differs from that of the model, or the model had to be asked again.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import provenance
from benchmarks.replay import Replay, Stages
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.results import Outcome, Part
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.formats.files import formats, rendered

Texts = dict[str, Any]
"""What a way has written of each recording: equal where the model's answers are."""

Perform = Callable[[Stages], Texts]


@dataclass(frozen=True)
class Row:
    way: str
    audio_s: float
    wall_s: float
    all_s: float  # of processors, children too
    stages: dict[str, dict[str, float]]  # of the processor, by thread
    asked: int  # answers that were not kept
    equal: bool

    @property
    def engine_thread_s(self) -> float:
        return sum(self.stages.get("engine", {}).values())

    @property
    def per_4000_s(self) -> float:
        """Seconds of the engine's thread for 4,000 s of audio."""
        return 4000 * self.engine_thread_s / self.audio_s

    def lines(self) -> list[str]:
        asked = f"; {self.asked} ANSWERS WERE NOT KEPT" if self.asked else ""
        head = (
            f"{self.way:<12} {self.audio_s / self.wall_s:7.0f} x real time; {self.wall_s:.2f} s; engine's "
            f"thread {self.engine_thread_s:.2f} s, for 4,000 s {self.per_4000_s:.2f}; processors "
            f"{self.all_s:.2f} s; {'equal' if self.equal else 'DIFFERS'}{asked}"
        )
        found = [head]
        for thread, stages in self.stages.items():
            parts = ", ".join(f"{stage} {s:.2f}" for stage, s in stages.items() if s >= 0.005)
            found.append(f"    {thread}: {sum(stages.values()):.2f} s: {parts}")
        return found


def measured(way: str, replay: Replay, audio_s: float, expected: Texts, perform: Perform) -> Row:
    """A row of what `perform` does, which returns its texts."""
    asked = replay.asked
    with Stages() as stages:
        found = perform(stages)
    took = stages.wall_s, stages.all_s, stages.seconds
    return Row(way, audio_s, *took, replay.asked - asked, found == expected)


def texts(outcomes: Sequence[Outcome]) -> Texts:
    """Segments with their words and times."""
    return {
        o.name: [(s.text, s.words) for s in o.transcript.segments]
        if o.transcript
        else [str(o.error)]
        for o in outcomes
    }


def called(transcriber: Transcriber, paths: Sequence[str], options: Options) -> list[Outcome]:
    """By a call, in this thread."""
    return list(transcriber.transcribe(paths, options))


def written(outcomes: Sequence[Outcome]) -> None:
    """As files, in memory."""
    for outcome in outcomes:
        for format_ in formats("txt,srt,vtt,tsv,json"):
            if outcome.transcript is not None:
                rendered(format_, outcome.transcript, outcome.name)


def served(transcriber: Transcriber, paths: Sequence[str], options: Options) -> list[Outcome]:
    """By a session with all of the recordings at once."""
    session = Session(transcriber.context)
    thread = threading.Thread(target=session.run)
    thread.start()
    listeners = [_Listener() for _ in paths]
    for path, listener in zip(paths, listeners, strict=True):
        session.submit(path, options, listener)
    for listener in listeners:
        listener.done.wait()
    session.close()
    thread.join()
    return [listener.outcome for listener in listeners]


class _Listener:
    def __init__(self) -> None:
        self.done, self.outcome = threading.Event(), Outcome("")

    def progressed(self, part: Part) -> None:
        """Nobody listens."""

    def ended(self, outcome: Any) -> None:
        self.outcome = outcome
        self.done.set()


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.ceiling")
    made.add_argument("recordings", nargs="+")
    made.add_argument("--model", default="tiny.en")
    made.add_argument("--language", default="en")
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--words", action="store_true", help="with word times")
    made.add_argument("--readers", type=int, nargs="*", default=[0], metavar="N")
    made.add_argument("--service", action="store_true", help="all at once, by a session, too")
    made.add_argument("--clients", type=int, nargs="+", default=[], metavar="N", help="of uploads")
    made.add_argument("--streams", type=int, nargs="+", default=[], metavar="N", help="live")
    made.add_argument("--threads", type=int, default=1, help="of torch; a card needs one")
    made.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    loaded = Transcriber.load(given.model, "none", batch=given.batch, gamma=0, beam_size=1)
    options = Options(language=given.language, words=given.words, guards=Guards())
    with Replay(loaded.context) as replay:
        rows = ways(given, loaded, replay, options)
    if given.json is not None:
        found = [
            asdict(row) | {"engine_thread_s": row.engine_thread_s, "per_4000_s": row.per_4000_s}
            for row in rows
        ]
        record = provenance.record("benchmarks.ceiling") | {"rows": found}
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(not row.equal or row.asked for row in rows))


def ways(
    given: argparse.Namespace, loaded: Transcriber, replay: Replay, options: Options
) -> list[Row]:
    """Keeps the model's answers, and measures each way with them."""
    from benchmarks import replayed_service as service

    paths, rows = given.recordings, list[Row]()
    outcomes = called(loaded, paths, options)
    audio_s = sum(o.transcript.sample_count for o in outcomes if o.transcript) / 16_000
    expected = texts(outcomes)

    def measure(way: str, perform: Perform, audio_s: float = audio_s, like: Any = expected) -> None:
        rows.append(row := measured(way, replay, audio_s, like, perform))
        print("\n".join(row.lines()), flush=True)

    def call(readers: int, stages: Stages) -> Texts:
        def whole() -> list[Outcome]:
            found = called(loaded.with_readers(readers), paths, options)
            stages.timed("formats", written)(found)
            return found

        return texts(stages.timed("engine", whole)())

    def session(_: Stages) -> Texts:
        return texts(served(loaded, paths, options))

    most = max(given.streams, default=0)
    samples = service.samples_of(paths[:most])
    told = service.spoken(loaded, samples, options, 1)
    clips = service.clips_of(outcomes) if given.clients else []
    replay.free = True
    torch.set_num_threads(given.threads)
    for readers in given.readers:
        measure(f"{readers} readers", partial(call, readers))
    if given.service:
        measure("service", session)
    for clients in given.clients:
        answers = {o.name: o.transcript and o.transcript.text for o in outcomes}
        uploading = partial(service.uploaded, loaded, clips, options, clients)
        measure(f"{clients} clients", uploading, like=answers)
    for count in given.streams:
        of = sum(len(samples[n % len(samples)]) for n in range(count)) / 16_000
        like = {str(n): told[str(n % len(samples))] for n in range(count)}
        measure(f"{count} streams", partial(service.fed, loaded, samples, options, count), of, like)
    return rows


if __name__ == "__main__":
    sys.exit(main())
