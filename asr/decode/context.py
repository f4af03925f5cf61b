"""DecodingContext: what all recordings share, which is one loaded model with its engine, and the encoding of
windows for it.

`encode_windows` makes encoder states and, on request, languages of a batch of windows; a batch that fails is
repeated window by window, so that a faulty window fails alone.

Knows how its parts fit together; nothing of recordings, or of what requests are for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from forescribe.speculative.device import SideStream, Stopwatch
from forescribe.speculative.drafters.model_drafter import confidence_for
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.drafters.script import Breaks, ScriptDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.engine.schedule import Fixed, Goodput, schedule_for
from forescribe.speculative.native.adapters import NativeWhisperDecoder
from forescribe.speculative.protocols import Drafter, Schedule
from forescribe.speculative.requests import Finish, Request, Result, Stats

from ..model.presets import BeamSize
from ..model.speech_model import SpeechModel
from ..model.states import DraftStates, EncoderStates, Features
from ..model.vocabulary import alphabetic
from ..model.whisper import POSITIONS_PER_S, Whisper, attending, end_of
from ..segment.vad import Detector, SileroDetector
from ..segment.windows import Window
from ..words.second_look import Held

T = TypeVar("T")
R = TypeVar("R")

ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Marks at the end of a sentence, of Chinese and Japanese too."""

TOKENS_PER_S = 3.5
"""Tokens that people's voices write, about."""

LEVELS = (0, 1, 2, 4)
"""Levels of the trees behind beams."""

SCRIPT_SLOTS = 16384
"""Tokens of a text that drafts are copied from: about an hour and a half of speech."""


@dataclass(eq=False)
class DecodingContext:
    """A speech model, its engine and what prepares audio for them, on one device.

    `watch` counts the seconds before the engine, on cuda with the rounds that run beside an encoder. `side`
    is where the encoder runs. `gamma` is what the transcriber was created with, None for an adaptive draft
    length. `detector` is loaded on first use where it is None. `beam_size` is that of calls which name none.
    """

    whisper: SpeechModel
    engine: Engine
    beam_size: BeamSize
    gamma: int | None = None
    detector: Detector | None = None
    caller: object = None  # the session that last began to decode in its caller's thread
    before: Stats = field(default_factory=Stats)  # of engines of other sizes
    watch: Stopwatch = field(init=False)
    side: SideStream = field(init=False)
    _ended: list[Result] = field(default_factory=list, init=False)  # of steps beside other work

    def __post_init__(self) -> None:
        device = self.whisper.device
        self.watch, self.side = Stopwatch(device), SideStream(device)

    def resize(self, size: int) -> None:
        """Decode `size` windows at a time from now on, in every transcriber that shares this; nothing may be
        under way. Where memory runs out there is no engine any more, and another size may be tried."""
        self.before, whisper = self.stats(), self.whisper
        if (engine := vars(self).pop("engine", None)) is not None:
            del engine  # its caches must be free before others are made
            self._ended = []
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.engine = engine_of(whisper, size, self.gamma)
        self.watch = Stopwatch(whisper.device)

    @property
    def encoded_together(self) -> int:
        """Windows that are encoded at a time. Where the encoder takes them one by one anyway, features and
        encoder states of the next windows would only wait in memory."""
        return self.engine.batch if self.whisper.device.rows_together else 1

    @property
    def forward(self) -> str:
        """What runs the forwards of the target's decoder: a name of `ModelEngine`."""
        return str(getattr(self.engine.target, "engine", self.whisper.engine))

    def held(self, request: Request) -> Held | None:
        """Where the target's native kernels hold the text of a request that ended in the last step."""
        row, target = self.engine.row_of(request), self.engine.target
        if row is None or not isinstance(target, NativeWhisperDecoder):
            return None
        return Held(target, row)

    def expect(self, features: Sequence[Sequence[Any]], spent_s: float) -> None:
        """Tells an adaptive draft length what its first drafts will cost, before there are any.

        A draft model with an encoder of its own hears a window before it drafts for it. The windows of
        `features` took the target's encoder `spent_s`; the draft's takes a known share of that
        (`SpeechModel.hearing`). Only where the host has waited for the encoder is `spent_s` its time.
        """
        count, schedules = len(features[0]), (self.engine.schedule, self.engine.beam_schedule)
        known = [schedule for schedule in schedules if isinstance(schedule, Goodput)]
        if not (known and self.whisper.device.synchronous):
            return
        shares = sum(self.whisper.hearing(row) for row in zip(*features, strict=True))
        if shares:
            tokens = TOKENS_PER_S * sum(map(end_of, features[0])) / POSITIONS_PER_S
            for schedule in known:
                schedule.work.expect(count, shares * spent_s / count, tokens, spent_s)

    def drafting(self, *, beams: bool) -> str | None:
        """What an adaptive draft length has decided so far, of single texts or of `beams`; None where it is
        fixed."""
        schedule = self.engine.beam_schedule if beams else self.engine.schedule
        return schedule.decision if isinstance(schedule, Goodput) else None

    def beside(self, work: Callable[[], T]) -> T:
        """What `work` returns. On a card it runs on a stream of its own, while rounds of the windows that are
        being decoded go on."""
        return self.side.run(work, self.advance)

    @property
    def idle(self) -> bool:
        """Whether nothing is decoded, and no result waits for `ended`."""
        return self.engine.idle and not self._ended

    def ended(self, results: Iterable[Result]) -> list[Result]:
        """The results of a step of the engine, and of those before it that ran beside other work; none of
        what was cancelled."""
        held, self._ended = self._ended, []
        return held + [result for result in results if result.finish is not Finish.CANCELLED]

    def advance(self) -> bool:
        """Run a step while something else is awaited. False where nothing is decoded."""
        if self.idle:
            return False
        self._ended = self.ended(self.engine.step())
        return True

    def cancel(self, tag: Hashable) -> None:
        """Drop a request, wherever it is. Its row and its encoder states are free with the next step, or with
        `settle`."""
        self.engine.cancel(tag)
        self._ended = [result for result in self._ended if result.request.tag != tag]

    def settle(self) -> None:
        """Free at once what was cancelled."""
        for _ in range(self.engine.device.rounds_per_poll + 1):
            if not self.advance():
                return

    def stats(self) -> Stats:
        """The statistics of its engines so far, with the seconds before the engine: `audio` (decoding audio
        and voice activity) and `encode`."""
        if "engine" not in vars(self):
            return self.before
        return self.before + self.engine.stats + Stats(seconds=self.watch.seconds)

    def voice_detector(self) -> Detector:
        """The voice activity detector, loaded on first use. Raises ModelError."""
        if self.detector is None:
            self.detector = SileroDetector()
        return self.detector


Among = tuple[str, ...] | None
"""Codes among which a language is to be detected; none: among all; None: it is not to be detected."""


def encode_windows(
    context: DecodingContext,
    windows: Sequence[Window],
    detect: Sequence[Among],
    searched: Sequence[bool],
) -> list[EncodedWindow | Exception]:
    """Encode windows, and detect the language of each among those of `detect`; see `features` for those that
    are `searched`.

    Returns an exception in place of each window that failed.
    """
    encode = partial(_encoded_together, context)
    return apply_each(encode, list(zip(windows, detect, searched, strict=True)))


@dataclass(frozen=True, eq=False)
class EncodedWindow:
    """Features and encoder states of a window; its language and the probability of that
    language, where detection was requested."""

    features: Features
    encoder_states: EncoderStates
    language: tuple[str, float] | None


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


def _encoded_together(
    context: DecodingContext, batch: Sequence[tuple[Window, Among, bool]]
) -> list[EncodedWindow | Exception]:
    """Encode windows in one batch. Reads the device once, and once more for languages."""
    whisper, side = context.whisper, context.side

    def encode() -> tuple[Sequence[Features], list[EncoderStates], Tensor]:
        samples = [window.samples for window, *_ in batch]
        features = whisper.features(samples, [searched for *_, searched in batch])
        began = time.perf_counter()
        states = whisper.encode(*features)
        context.expect(features, time.perf_counter() - began)
        # NaN would also spoil the detected language.
        return features[0], states, torch.stack([s.target.isfinite().all() for s in states])

    def read() -> list[EncodedWindow | Exception]:
        finite: list[bool] = are_finite.tolist()
        asked = {row: a for row, (_, a, _) in enumerate(batch) if a is not None and finite[row]}
        heard = [states[row] for row in asked]
        detected = whisper.detect_language(heard, list(asked.values())) if asked else []
        languages = dict(zip(asked, detected, strict=True))
        return [
            EncodedWindow(features[row], own, languages.get(row))
            if finite[row]
            else ArithmeticError("the encoder's numbers are not finite")
            for row, own in enumerate(states)
        ]

    features, states, are_finite = context.beside(encode)
    made = [features, *(own.target for own in states)]
    made += (d.features for own in states for d in own.by_draft if isinstance(d, DraftStates))
    for each in made:
        if isinstance(each, Tensor):
            side.hand_over(each)  # to the stream of the rounds, which reads them
    return side.run(read)


# -- the engine -----------------------------------------------------------------------------------------


def engine_of(whisper: SpeechModel, batch: int, gamma: int | None) -> Engine:
    """An engine of `batch` slots. Where shapes are compiled, every one is now, before there is work that
    would wait for it."""
    drafter = None if gamma == 0 else _drafter(whisper, gamma)
    grows = None  # a draft head grows no tree, nor do several drafts
    if gamma != 0 and len(whisper.drafts) == 1:
        grows = getattr(whisper.drafts[0], "tree_drafter", None)
    levels: Schedule = Goodput(LEVELS) if gamma is None else Fixed(min(gamma, LEVELS[-1]))
    engine = Engine(
        whisper.decoder(),
        drafter,
        batch=batch,
        eos=whisper.tokens.ends,
        schedule=schedule_for(gamma, drafter),
        processors=whisper.rules(),
        device=whisper.device,
        beam_target=whisper.decoder,
        beam_drafter=grows,
        beam_schedule=None if grows is None else levels,
    )
    engine.choose_threads()
    if whisper.device.static_shapes:
        engine.warm_up()
    return engine


def _drafter(whisper: SpeechModel, gamma: int | None) -> Drafter:
    """The drafter of a pair: its draft models, or without any copies from the text that a request brings.

    Joined in one round they gain little: n-grams of the text so far write 1.00 to 1.12 tokens per round of
    speech, and a text that is right in every word takes the 4.81 of a draft model to 5.25
    (docs/methods/free-drafts.md).
    """
    if not whisper.drafts:
        return ScriptDrafter(
            slots=SCRIPT_SLOTS,
            special_from=whisper.tokens.end if whisper.attends else None,
            breaks=_breaks(attending(whisper, "timestamps")) if whisper.attends else None,
            early=whisper.device.synchronous,
        )
    # The token rules are not applied to drafts: they cost as much as a small draft model's forward
    # pass, and a distilled draft model has learnt what the rules allow.
    confidence = confidence_for(gamma, whisper.device)
    drafters = [draft.drafter(index, confidence) for index, draft in enumerate(whisper.drafts)]
    if len(drafters) == 1:
        return drafters[0]
    return RoutingDrafter(
        drafters, lambda request: request.encoder_states.chosen, skips=whisper.device.synchronous
    )


def _breaks(whisper: Whisper) -> Breaks:
    """Where Whisper writes timestamps that a text lacks: behind the ends of sentences."""
    vocabulary = whisper.tokenizer.get_vocab()
    ends = tuple(map(alphabetic, ENDS))
    after = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
    after[[number for name, number in vocabulary.items() if name.endswith(ends)]] = True
    return Breaks(after, none=whisper.tokens.no_timestamps)
