"""A model whose answers are kept, and the processor's seconds of what is left, by thread and stage.

    with Replay(transcriber.context) as replay:
        ...                         # answers are asked of the model, and kept
        replay.free = True
        with Stages() as stages:
            ...                     # the same answers, at no time
    replay.asked                    # those that were not kept: the model was asked again

An answer is found by what the model is asked: a digest of the window's features, the prompt, and at a
temperature its seed. So an upload has the answers of the file that the command has read, and a live session
those of the run before, in which each decode of a growing window is kept. Whoever asks for something else, as
time may have changed what is asked, has the model's answer, and `asked` counts it.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from forescribe.asr.audio.reading import Recording
from forescribe.asr.decode import driver
from forescribe.asr.decode.context import DecodingContext
from forescribe.asr.decode.word_timer import WordTimer
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.model.whisper import Whisper, attending
from forescribe.asr.segment import vad
from forescribe.speculative.requests import Request, Result

Key = tuple[Any, ...]

ROOTS = ("engine", "feeding", "event loop")
"""Stages that begin a thread: what is left of it has their name."""


@dataclass(eq=False)
class Replay:
    """In the place of a context's engine and model: they are asked once for each answer, which is kept and
    given at once from then on, where they are `free`."""

    context: DecodingContext
    free: bool = False
    asked: int = 0  # while free
    answers: dict[Key, Result] = field(default_factory=dict)
    maps: dict[Key, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        context = self.context
        self.engine = context.engine
        self.whisper = attending(context.whisper, "a replay")
        context.engine = _Engine(self)  # type: ignore[assignment]
        context.whisper = _Whisper(self)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        context = self.context
        context.engine = self.engine
        context.whisper = self.whisper

    def ask(self, request: Request) -> Result:
        """The model's own answer, which was not kept."""
        self.asked += 1
        states = self.encoded(request.encoder_states)
        self.engine.submit(replace(request, encoder_states=states))
        while not (ended := self.engine.step()):
            pass
        return ended[0]

    def encoded(self, states: EncoderStates) -> EncoderStates:
        features = states.target.features  # type: ignore[attr-defined]
        return self.whisper.encode(*(row[None] for row in features))[0]


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

    def cancel(self, tag: Any) -> None:
        self._queue = [request for request in self._queue if request.tag is not tag]
        self._replay.engine.cancel(tag)

    def step(self) -> list[Result]:
        replay = self._replay
        if not replay.free:
            ended = replay.engine.step()
            replay.answers |= {_key(r.request): replace(r, request=_NOTHING) for r in ended}
            return ended
        taken, self._queue = self._queue, []
        for key, request in {_key(request): request for request in taken}.items():
            if key not in replay.answers:
                replay.answers[key] = replay.ask(request)
        return [replace(replay.answers[_key(request)], request=request) for request in taken]


_NOTHING = Request((0,))


def _key(request: Request) -> Key:
    """The same for the same question."""
    digest = request.encoder_states.target.features_digest
    return digest, request.prompt, request.temperature, request.seed


def _digest(numbers: Tensor) -> int:
    return hash(numbers.contiguous().cpu().numpy().tobytes())


class _Whisper:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replay.whisper, name)

    def encode(self, *features: Tensor) -> list[EncoderStates]:
        """States that know the features that they are of. Every eighth frame is part of the digest: a window
        of a live session is at least 25 frames longer than the one before."""
        if self._replay.free:
            states = [EncoderStates(torch.zeros(1, 1)) for _ in features[0]]
        else:
            states = self._replay.whisper.encode(*features)
        for own, *rows in zip(states, *features, strict=True):
            own.target.features_digest = _digest(rows[0][::16, ::8])
            own.target.features = rows
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
        elif key not in maps:
            self.replay.asked += 1
            own = self.replay.encoded(states)
            with self.replay.whisper.reading() as decoder:
                assert decoder is not None
                maps[key] = decoder.cross_attention(tokens, own, heads)
        return maps[key]


# -- seconds --------------------------------------------------------------------------------------------


def _stages() -> list[tuple[Any, str, str]]:
    """What is timed, where it is looked up, and the stage that it is part of."""
    return [
        (Recording, "blocks", "reading"),
        (vad._SileroStream, "probabilities", "voice activity"),
        (driver.Session, "run", ROOTS[0]),
        (Whisper, "features", "features"),
        (WordTimer, "run", "word times"),
        (LiveStream, "feed", "live: items"),
        (_Engine, "step", "replay"),
        (_Whisper, "encode", "replay"),
        (_Reader, "cross_attention", "replay"),
    ]


def processors_s(foreign: Collection[int] = ()) -> float:
    """Of this process and of its children, their own included, but for those that are `foreign`."""
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for file in Path("/proc/self/task").glob("*/children"):
        for number in map(int, file.read_text().split()):
            if number not in foreign:
                # utime, stime, cutime, cstime, in ticks
                fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


class Stages:
    """Seconds of the processor by thread and stage, each without the stages inside it, while it is entered. A
    thread is named after the first stage that it enters. `wall_s` and `all_s`, of all processes that are not
    `foreign`, are from its start or the last `clear` to `stop`."""

    wall_s = all_s = 0.0

    def __init__(self) -> None:
        self.foreign: set[int] = set()
        self._local = threading.local()
        self._threads: list[tuple[str, Counter[str]]] = []
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for owner, name, stage in _stages():
            self._before.append((owner, name, work := vars(owner)[name]))
            timed = self._iterated if name == "blocks" else self.timed
            setattr(owner, name, timed(stage, work))
        self.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for owner, name, work in self._before:
            setattr(owner, name, work)

    def timed(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, which is part of this stage."""

        @wraps(work)
        def run(*arguments: Any, **named: Any) -> Any:
            before = self._switch(stage)
            try:
                return work(*arguments, **named)
            finally:
                self._switch(before)

        return run

    def _iterated(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def blocks(recording: Recording) -> Iterator[Any]:
            own = work(recording)
            following = self.timed(stage, partial(next, own, None))
            try:
                while (block := following()) is not None:
                    yield block
            finally:
                own.close()

        return blocks

    def _switch(self, stage: str | None) -> str | None:
        """Ends the stage of this thread, which is returned, and begins another."""
        local, now_s = self._local, time.thread_time()
        if not hasattr(local, "stage"):
            assert stage is not None
            local.stage, local.since_s, local.spent = None, now_s, Counter[str]()
            self._threads.append((stage, local.spent))
        before: str | None = local.stage
        if before is not None:
            local.spent[before] += now_s - local.since_s
        local.stage, local.since_s = stage, now_s
        return before

    def clear(self) -> None:
        """Forget what was spent; for a moment in which nothing is done."""
        for _, spent in self._threads:
            spent.clear()
        self._began = time.perf_counter(), processors_s(self.foreign)
        self.wall_s = 0.0

    def stop(self) -> None:
        """The end of what counts; a second one changes nothing."""
        if not self.wall_s:
            now = time.perf_counter(), processors_s(self.foreign)
            self.wall_s, self.all_s = (n - b for n, b in zip(now, self._began, strict=True))

    @property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Of each kind of thread the seconds of its stages, the largest first."""
        found: dict[str, Counter[str]] = {}
        for name, spent in self._threads:
            found.setdefault(name, Counter()).update(spent)
        order = sorted(found, key=lambda name: (name not in ROOTS, name))
        return {name: dict(found[name].most_common()) for name in order}
