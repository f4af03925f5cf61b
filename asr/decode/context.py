"""DecodingContext: what all recordings share, which is one loaded model with its engine.

`IsolatedEngine` is the engine with exceptions as values, so that a fault in one window does not affect
another one:

    slots.submit(request)                           # never raises
    for ended in slots.ended(engine.step()):        # a Result or a Fault for each request that ended
        ...

The engine itself contains the faults of its requests; here they become one type with those of requests that
it rejects. `encode_windows` makes encoder states and, on request, languages of a batch of windows; a batch
that fails is repeated window by window, so that a faulty window fails alone.

Knows how its parts fit together; nothing of recordings, or of what requests are for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.errors import release
from forescribe.speculative.requests import Finish, Request, Result
from forescribe.speculative.stats import Stats
from forescribe.speculative.transfers import SideStream, Stopwatch

from ..model.whisper import DraftStates, EncoderStates, LogMel, Whisper
from ..segment.vad import Detector, SileroDetector
from ..segment.windows import Samples, Window
from .rules import NoSpeech

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False)
class DecodingContext:
    """A Whisper model, its engine and what prepares audio for them, on one device.

    `mels` make the features that the models' encoders read, the target's first.
    `slots` is the engine with faults as values; `watch` counts the seconds before the engine, on cuda with
    the rounds that run beside an encoder. `side` is where the encoder runs.
    `gamma` is what the transcriber was created with, None for an adaptive draft length. `detector` is
    loaded on first use where it is None.
    """

    whisper: Whisper
    engine: Engine
    slots: IsolatedEngine
    mels: tuple[LogMel, ...]
    no_speech: NoSpeech
    watch: Stopwatch
    gamma: int | None = None
    detector: Detector | None = None
    caller: object = None  # the session that last began to decode in its caller's thread
    side: SideStream = field(init=False)

    def __post_init__(self) -> None:
        self.side = SideStream(self.whisper.device)

    @property
    def mel(self) -> LogMel:
        """What makes the features of the target."""
        return self.mels[0]

    def features(self, windows: Sequence[Samples]) -> tuple[Tensor, ...]:
        """The features of windows, by model, for `Whisper.encode`."""
        return tuple(mel(windows) for mel in self.mels)

    @property
    def batch(self) -> int:
        """Windows that are decoded at a time."""
        return self.engine.batch

    @property
    def encoded_together(self) -> int:
        """Windows that are encoded at a time. Where the encoder takes them one by one anyway, features and
        encoder states of the next windows would only wait in memory."""
        return self.batch if self.whisper.device.rows_together else 1

    @property
    def forward(self) -> str:
        """What runs the forwards of the target's decoder: a name of `ModelEngine`."""
        return str(getattr(self.engine.target, "engine", self.whisper.engine))

    def stats(self) -> Stats:
        """The engine's statistics so far, with the seconds before the engine: `audio` (decoding audio and
        voice activity) and `encode`."""
        return self.engine.stats + Stats(seconds=self.watch.seconds)

    def voice_detector(self) -> Detector:
        """The voice activity detector, loaded on first use. Raises ModelError."""
        if self.detector is None:
            self.detector = SileroDetector()
        return self.detector


class IsolatedEngine:
    """An engine whose requests have unique tags. Belongs to one thread, like the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ended: list[Ended] = []  # not returned yet

    @property
    def free(self) -> int:
        """Requests that could enter with the next step."""
        return self.engine.free

    @property
    def idle(self) -> bool:
        """Whether nothing is decoded or waits to be returned."""
        return self.engine.idle and not self._ended

    def submit(self, request: Request) -> None:
        """Queue a request. One that the engine rejects ends as a fault with the next step."""
        try:
            self.engine.submit(request)
        except Exception as error:
            self._ended.append(Fault(request, error))

    def cancel(self, tag: Hashable) -> None:
        """Drop a request, wherever it is. Its row and its encoder states are free with the next step,
        or with `settle`."""
        self.engine.cancel(tag)
        self._ended = [ended for ended in self._ended if ended.request.tag != tag]

    def advance(self) -> bool:
        """Runs a step while something else is awaited; what ends is returned with the next step. False
        where nothing is decoded."""
        if self.engine.idle:
            return False
        self._ended = self.ended(self.engine.step())
        return True

    def settle(self) -> None:
        """Free at once what was cancelled; what ends meanwhile is returned with the next step."""
        for _ in range(self.engine.device.rounds_per_poll + 1):
            if self.engine.idle:
                return
            self._ended = self.ended(self.engine.step())

    def ended(self, results: Iterable[Result]) -> list[Ended]:
        """What has ended by now, from the results of the engine's step; nothing that was cancelled."""
        before, self._ended = self._ended, []
        return [*before, *(_as_ended(r) for r in results if r.finish is not Finish.CANCELLED)]


@dataclass(frozen=True, eq=False)
class Fault:
    """A request that could not be decoded."""

    request: Request
    error: Exception


Ended = Result | Fault


Among = tuple[str, ...] | None
"""Codes among which a language is to be detected; none: among all; None: it is not to be detected."""


def encode_windows(
    context: DecodingContext, windows: Sequence[Window], detect: Sequence[Among]
) -> list[EncodedWindow | Exception]:
    """Encode windows, and detect the language of each among those of `detect`.

    Returns an exception in place of each window that failed.
    """

    def encode(
        batch: Sequence[tuple[Window, Among]],
    ) -> list[EncodedWindow | Exception]:
        detect = [wanted for _, wanted in batch]
        side = context.side
        # Rounds of the windows that are being decoded go on meanwhile, where the device has streams.
        passed = side.run(lambda: _forward(context, [window for window, _ in batch]), advance)
        passed.hand_over(side)
        return side.run(lambda: passed.windows(context.whisper, detect))

    advance = context.slots.advance
    return apply_each(encode, list(zip(windows, detect, strict=True)))


@dataclass(frozen=True, eq=False)
class EncodedWindow:
    """Features `[M, F]` and encoder states of a window; its language and the probability of that
    language, where detection was requested."""

    features: Tensor
    encoder_states: EncoderStates
    language: tuple[str, float] | None


class NotFinite(ArithmeticError):
    """The encoder returned NaN or infinity, so nothing computed from its states can be trusted."""


def apply_each(
    work: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]
) -> list[R | Exception]:
    """Apply `work` to all items together or, where that fails, to each alone.

    Returns a result or an exception for each item.
    """
    try:
        return list(work(items))
    except Exception as error:
        if len(items) < 2:
            return [error] * len(items)
    return [result for item in items for result in apply_each(work, [item])]


def _as_ended(result: Result) -> Ended:
    if result.error is None:
        return result
    cause = result.error.__cause__
    release(result.error)
    return Fault(result.request, cause if isinstance(cause, Exception) else result.error)


@dataclass(frozen=True, eq=False)
class _Forward:
    """What the encoder made of a batch of features, which nothing has read yet."""

    features: Tensor  # [B, M, F], the target's
    states: list[EncoderStates]
    finite: Tensor  # [B] bool

    def hand_over(self, side: SideStream) -> None:
        """For the stream of the rounds, which reads the states."""
        own = (d.features for s in self.states for d in s.by_draft if isinstance(d, DraftStates))
        for part in (self.features, *(s.target for s in self.states), *own):
            side.hand_over(part)

    def windows(self, whisper: Whisper, detect: Sequence[Among]) -> list[EncodedWindow | Exception]:
        """The windows with their languages. Reads the device: once, and once more for languages."""
        finite: list[bool] = self.finite.tolist()
        rows = {row: a for row, a in enumerate(detect) if a is not None and finite[row]}
        states = [self.states[row] for row in rows]
        detected = whisper.detect_language(states, list(rows.values())) if rows else []
        languages = dict(zip(rows, detected, strict=True))
        return [
            EncodedWindow(self.features[row], window_states, languages.get(row))
            if finite[row]
            else NotFinite("the encoder's numbers are not finite")
            for row, window_states in enumerate(self.states)
        ]


def _forward(context: DecodingContext, windows: Sequence[Window]) -> _Forward:
    own = [window.features() for window in windows if window.features is not None]
    if own:
        features = tuple(torch.stack(rows) for rows in zip(*own, strict=True))
    else:
        features = context.features([window.samples for window in windows])
    states = context.whisper.encode(*features)
    return _Forward(features[0], states, _finite(states))


def _finite(states: Sequence[EncoderStates]) -> Tensor:
    """Whether each window's states are finite `[B]`. NaN would also spoil the detected language."""
    return torch.stack([s.target.isfinite().all() for s in states])
