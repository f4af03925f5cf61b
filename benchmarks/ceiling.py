"""What a file costs apart from the model: the speed that a device which takes no time would reach.

    python -m benchmarks.ceiling hour.mp3 --model tiny.en --words --readers 0 1
    python -m benchmarks.ceiling readers/*.flac --model tiny.en --readers 0 1 2 --service

The recordings are transcribed once, and what the model has answered is kept: tokens with their probabilities,
and the attention that word times are read from. Then they are transcribed again with these answers. Reading,
voice activity, cutting, features, admission, guards, retries, word times and transcripts are the program's
own. Features count as part of it, though a card makes them itself.

For each way: seconds of the clock, of the engine's thread, and of all threads and processes; of the second
what reading and features take. The exit code is 1 if a transcript differs from that of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks import provenance
from forescribe.asr.decode.context import DecodingContext
from forescribe.asr.decode.options import Guards, Options, Outcome, Part
from forescribe.asr.decode.session import Session
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.model.speech_model import EncoderStates
from forescribe.asr.model.whisper import attending
from forescribe.speculative.requests import Request, Result

Key = tuple[Any, ...]


@dataclass(eq=False)
class Replay:
    """In the place of a context's engine and model: they are asked once for each answer, which is kept and
    given at once from then on, where they are `free`."""

    context: DecodingContext
    free: bool = False
    answers: dict[Key, Result] = field(default_factory=dict)
    maps: dict[Key, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        context = self.context
        self.engine = context.engine
        self.whisper = attending(context.whisper, "a replay")
        context.engine = context.slots.engine = _Engine(self)  # type: ignore[assignment]
        context.whisper = _Whisper(self)
        return self

    def __exit__(self, *_: object) -> None:
        context = self.context
        context.engine = context.slots.engine = self.engine
        context.whisper = self.whisper


class _Engine:
    def __init__(self, replay: Replay) -> None:
        self._replay, self._queue = replay, list[Request]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replay.engine, name)

    @property
    def free(self) -> int:
        engine = self._replay.engine
        return engine.batch - len(self._queue) if self._replay.free else engine.free

    @property
    def idle(self) -> bool:
        return not self._queue and self._replay.engine.idle

    def submit(self, request: Request) -> None:
        if self._replay.free:
            self._queue.append(request)
        else:
            self._replay.engine.submit(request)

    def step(self) -> list[Result]:
        replay = self._replay
        if not replay.free:
            ended = replay.engine.step()
            replay.answers |= {_key(r.request): replace(r, request=_NOTHING) for r in ended}
            return ended
        taken, self._queue = self._queue, []
        return [replace(replay.answers[_key(request)], request=request) for request in taken]


_NOTHING = Request((0,))


def _key(request: Request) -> Key:
    """The same in each run."""
    window = request.tag.window
    return request.tag.recording.name, window.start, request.prompt, request.temperature


class _Whisper:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replay.whisper, name)

    def encode(self, *features: Tensor) -> list[EncoderStates]:
        """States that know the features that they are of."""
        if self._replay.free:
            states = [EncoderStates(torch.zeros(1, 1)) for _ in features[0]]
        else:
            states = self._replay.whisper.encode(*features)
        for own, row in zip(states, features[0], strict=True):
            own.target.features_digest = hash(row[::8, ::50].numpy().tobytes())  # type: ignore[attr-defined]
        return states

    @contextmanager
    def reading(self) -> Iterator[_Reader]:
        if self._replay.free:
            yield _Reader(self._replay, None)
        else:
            with self._replay.whisper.reading() as decoder:
                if decoder is None:
                    raise SystemExit("word times are kept from the native engine alone")
                yield _Reader(self._replay, decoder)


@dataclass(frozen=True)
class _Reader:
    replay: Replay
    decoder: Any

    def cross_attention(self, tokens: Tensor, states: EncoderStates, heads: Any) -> Any:
        maps, key = self.replay.maps, (states.target.features_digest, *tokens.tolist())  # type: ignore[attr-defined]
        if self.decoder is not None:
            maps[key] = self.decoder.cross_attention(tokens, states, heads)
        return maps[key]


@dataclass(frozen=True)
class Row:
    way: str
    times_real_time: float
    wall_s: float
    engine_thread_s: float
    all_s: float  # of processors, children too
    reading_s: float  # on the engine's thread
    features_s: float
    equal: bool

    @property
    def per_4000_s(self) -> float:
        """Seconds of the engine's thread for 4,000 s of audio."""
        return 4000 * self.engine_thread_s / (self.times_real_time * self.wall_s)


def processors_s() -> float:
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def measured(
    way: str,
    transcriber: Transcriber,
    expected: dict[str, list[str]],
    perform: Callable[[], tuple[list[Outcome], float]],
) -> Row:
    """A row of what `perform` returns: outcomes, and seconds of the engine's thread."""
    watch = transcriber.context.watch
    before, began, processors = dict(watch.seconds), time.perf_counter(), processors_s()
    outcomes, thread_s = perform()
    wall_s, after = time.perf_counter() - began, watch.seconds
    audio_s = sum(o.transcript.sample_count for o in outcomes if o.transcript) / 16_000
    spent = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in ("audio", "encode")}
    return Row(
        way,
        audio_s / wall_s,
        wall_s,
        thread_s,
        processors_s() - processors,
        spent["audio"],
        spent["encode"],
        texts(outcomes) == expected,
    )


def texts(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    return {
        o.name: [s.text for s in o.transcript.segments] if o.transcript else [str(o.error)]
        for o in outcomes
    }


def called(
    transcriber: Transcriber, paths: Sequence[str], options: Options
) -> tuple[list[Outcome], float]:
    """By a call, in this thread."""
    began_s = time.thread_time()
    return list(transcriber.transcribe(paths, options)), time.thread_time() - began_s


def served(
    transcriber: Transcriber, paths: Sequence[str], options: Options
) -> tuple[list[Outcome], float]:
    """By a session with all of the recordings at once."""
    session, spent = Session(transcriber.context), list[float]()

    def run() -> None:
        session.run()
        spent.append(time.thread_time())

    thread = threading.Thread(target=run)
    thread.start()
    listeners = [_Listener() for _ in paths]
    for path, listener in zip(paths, listeners, strict=True):
        session.submit(path, options, listener)
    for listener in listeners:
        listener.done.wait()
    session.close()
    thread.join()
    return [listener.outcome for listener in listeners], spent[0]


class _Listener:
    def __init__(self) -> None:
        self.done, self.outcome = threading.Event(), Outcome("")

    def progressed(self, part: Part) -> None:
        """Nobody listens."""

    def ended(self, outcome: Any) -> None:
        self.outcome = outcome
        self.done.set()


def main(arguments: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m benchmarks.ceiling")
    made.add_argument("recordings", nargs="+")
    made.add_argument("--model", default="tiny.en")
    made.add_argument("--language", default="en")
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--words", action="store_true", help="with word times")
    made.add_argument("--readers", type=int, nargs="+", default=[0], metavar="N")
    made.add_argument("--service", action="store_true", help="all at once, by a session, too")
    made.add_argument("--cores", type=int, metavar="N", help="of this machine's")
    made.add_argument("--threads", type=int, default=1, help="of torch; a card needs one")
    made.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    given = made.parse_args(arguments)
    if given.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    loaded = Transcriber.load(given.model, "none", batch=given.batch, gamma=0)
    options = Options(language=given.language, words=given.words, guards=Guards())
    rows = []
    with Replay(loaded.context) as replay:
        expected = texts(called(loaded, given.recordings, options)[0])
        replay.free = True
        torch.set_num_threads(given.threads)
        ways: list[tuple[str, Callable[[], tuple[list[Outcome], float]]]] = [
            (f"{n} readers", lambda n=n: called(loaded.with_readers(n), given.recordings, options))  # type: ignore[misc]
            for n in given.readers
        ]
        if given.service:
            ways.append(("service", lambda: served(loaded, given.recordings, options)))
        for way, perform in ways:
            rows.append(row := measured(way, loaded, expected, perform))
            print(
                f"{way:<10} {row.times_real_time:7.0f} x real time; {row.wall_s:.2f} s; engine's thread "
                f"{row.engine_thread_s:.2f} s, for 4,000 s {row.per_4000_s:.2f} (by the clock reading "
                f"{row.reading_s:.2f}, features {row.features_s:.2f}); processors {row.all_s:.2f} s; "
                f"{'equal' if row.equal else 'DIFFERS'}",
                flush=True,
            )
    if given.json is not None:
        found = [vars(row) | {"per_4000_s": row.per_4000_s} for row in rows]
        record = provenance.record("benchmarks.ceiling") | {"rows": found}
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.equal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
