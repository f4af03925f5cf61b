"""LiveItem: what is being spoken, from its first sample to its transcript, and the passes that decode it.

An item cuts its samples as an upload would be cut. A pass decodes some of its windows as a recording of their
own in the shared session. Once the end of a window is certain it is decoded as in an upload; until then a
*tentative* window, which ends where the audio ends so far, is decoded again and again. The words written
before are its guess, which the target verifies in one pass, so a decode of seconds that were decoded before
takes few rounds. The last pass joins all windows to the transcript that an upload of the samples would have.

Tentative windows are decoded without timestamps, which would move with the end of the audio, once (without
retries at higher temperatures), without beams, and without timing words. Knows nothing of threads, turns or
events.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..audio.inputs import Sound
from ..decode.context import DecodingContext
from ..decode.driver import Session
from ..decode.options import Guards, Options
from ..decode.recording import Submission
from ..decode.requests import BoundOptions, bind, settled_language
from ..decode.results import Decoded, Outcome, Part
from ..decode.sources import Kept, live_source
from ..decode.text import texts_of, tokens_of
from ..formats.transcript import Transcript
from ..formats.transcript_parts import SAMPLE_RATE, seconds
from ..model.speech_model import SpeechModel
from ..segment.cutter import Cutter
from ..segment.windows import Samples, Window
from ..words.assembly import split_words
from .commit import Committer, LiveWord
from .events import LiveOptions

Kind = Literal["tentative", "closing", "last"]
"""Of a pass: the ends of its windows may change, or they do not, or they are the last ones of the item."""

CUT_TOKENS = 3
"""Tokens at the end of a hypothesis that are no part of the next guess: a word that was cut off by the end of
the audio is nearly always another one when more of it is there."""

PUNCTUATION = frozenset(string.punctuation + "…")

LEAST_SPEECH = 2 * SAMPLE_RATE
"""Samples of speech from which on a detected language is kept for the item's tentative windows."""

SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")

NAME = "live audio"


@dataclass(frozen=True)
class Bindings:
    """The options of a stream, checked against the model: of final windows, and of tentative ones."""

    context: DecodingContext
    final: BoundOptions
    tentative: BoundOptions

    @classmethod
    def of(cls, options: Options, context: DecodingContext) -> Bindings:
        """Raises UsageError for options that the model cannot serve."""
        guards = replace(options.guards or Guards(), temperatures=(0.0,))
        one = replace(options, beam_size=1, patience=1.0, length_penalty=None)
        once = replace(one, timestamps=False, words=False, guards=guards)
        return cls(context, bind(options, context), bind(once, context))


class LiveItem:
    """One item. It is `over` once it has been completed, has failed or was dropped."""

    def __init__(self, number: int, start: int, bindings: Bindings, live: LiveOptions) -> None:
        self.number, self.start, self.bindings = number, start, bindings
        self.committer, self.guesses = Committer(live.delay), live.guesses
        self.length = 0  # samples
        self.heard = 0  # of these, in steps with a voice
        self.text = ""  # released words
        self.tail = ""  # the hypothesis behind them
        self.over = self.finished = False
        self.current: Pass | None = None
        self.newest_s = 0.0  # when the newest sample arrived
        self.kept = Kept()  # its final windows so far
        self.hypothesis: tuple[int, ...] = ()  # of the window that ends last
        context, options = bindings.context, live.options
        self._whisper = context.whisper
        self._cutter = Cutter(context.voice_detector(), options.windows, skip_silence=options.vad)
        self._unheard = 0  # samples of steps with a voice, since the last pass began
        self._settled = False  # whether the last pass ended in silence
        self._language: str | None = None  # of tentative windows
        self._certain: list[Window] = []  # their ends do not change; not decoded yet
        self._silent: list[Window] = []
        self._tentative: dict[tuple[int, int], Decoded] = {}  # by their first and last sample
        self._spans: set[tuple[int, int]] = set()  # of the pass that began last

    @property
    def end(self) -> int:
        """The sample of the stream behind its last one."""
        return self.start + self.length

    @property
    def behind(self) -> int:
        """Samples that have arrived since the pass under way began; 0 where there is none."""
        return 0 if self.current is None else self.length - self.current.length

    @property
    def sentence_ended(self) -> bool:
        """Whether the words of all speech so far end a sentence."""
        text = (self.text + self.tail).rstrip()
        return self._settled and not self._unheard and text.endswith(SENTENCE_ENDS)

    def push(self, samples: Samples, now_s: float, *, heard: bool) -> list[Window]:
        """Take the next samples; the windows of speech whose ends are certain now."""
        self.length += len(samples)
        self.newest_s = now_s
        if heard:
            self.heard += len(samples)
            self._unheard += len(samples)
        return self._keep(self._cutter.push(samples))

    def finish(self) -> list[Window]:
        """No samples follow; the last windows of speech."""
        self.finished = True
        return self._keep(self._cutter.finish())

    def drop(self, session: Session) -> None:
        self.over = True
        if self.current is not None:
            session.cancel(self.current.submission)

    def hurry(self, session: Session) -> None:
        """Give up a pass of tentative windows: the last pass of all windows shall not wait for it."""
        if self.current is not None and self.current.kind == "tentative":
            session.cancel(self.current.submission)
            self.current = None

    # -- passes -----------------------------------------------------------------------------------

    def next_pass(self, step: int, done: Callable[[Pass], None], *, pause: bool) -> Pass | None:
        """The next pass; None where there is no reason for one. One of tentative windows takes place after
        `step` samples of speech, or in a `pause` behind any."""
        if self.finished:
            windows = sorted([*self._silent, *self._certain], key=lambda window: window.index)
            return Pass(self, "last", list(map(self._guessed, windows)), done)
        if self._certain:
            windows, self._certain = self._certain, []
            return Pass(self, "closing", list(map(self._guessed, windows)), done)
        if not (self._unheard >= step or (pause and self._unheard)):
            return None
        self._unheard, self._settled = 0, pause
        spoken = [w for w in self._cutter.so_far() if w.speech]
        self._spans = {(w.start, w.end) for w in spoken}
        fresh = [w for w in spoken if (w.start, w.end) not in self._tentative]
        guessed = [
            replace(self._guessed(w, tentative=True), tentative=True, language=self._language)
            for w in fresh
        ]
        return Pass(self, "tentative", guessed, done) if guessed else None

    def read_tentative(self, ended: Pass) -> list[LiveWord]:
        """Take the answers of a tentative pass; the words that they release."""
        for decoded in ended.answers:
            self._tentative[decoded.start, decoded.end] = decoded
        # Answers of windows that have moved were needed for the guesses of this pass only.
        self._tentative = {s: d for s, d in self._tentative.items() if s in self._spans}
        if self._language is None and self.heard >= LEAST_SPEECH:
            self._language = settled_language(ended.submission)
        answers = [self._tentative[span] for span in sorted(self._tentative)]
        if answers and self.guesses:
            is_text = self._whisper.tokens.is_text
            self.hypothesis = tuple(filter(is_text, answers[-1].tokens))
        # A doubtful answer is an invention more often than not: it waits for more audio.
        words = [w for d in answers if d.doubt is None for w in words_of(self._whisper, d)]
        released = self.committer.update(words, settled=self._settled)
        if (place := self.committer.place) is not None:
            self.tail = "".join(word.text for word in words[place:])
        return self._released(released)

    def read_final(self, ended: Pass) -> list[LiveWord]:
        """Take the answers for windows whose ends do not change; the words that they release."""
        kept = ended.submission.kept({window.index for window in ended.windows})
        own, self.kept = kept.decoded, self.kept.joined(kept)
        end = max((decoded.end for decoded in own), default=0)
        self._tentative = {span: d for span, d in self._tentative.items() if span[0] >= end}
        words = [word for decoded in own for word in words_of(self._whisper, decoded)]
        released = self.committer.close(words)
        if self.finished:
            self.tail = ""
        return self._released(released)

    def completed(self, ended: Pass) -> Transcript:
        """The transcript, after the last pass."""
        assert ended.outcome is not None and ended.outcome.transcript is not None
        self.committer.end()
        self.over = True
        return ended.outcome.transcript

    def _keep(self, windows: list[Window]) -> list[Window]:
        """Windows whose ends are certain; those of speech."""
        spoken = [window for window in windows if window.speech]
        self._certain += spoken
        self._silent += [window for window in windows if not window.speech]
        return spoken

    def _guessed(self, window: Window, *, tentative: bool = False) -> Window:
        """The window with what was written of it before as a guess."""
        earlier = [d for (start, _), d in self._tentative.items() if start == window.start]
        if not (self.guesses and window.speech and earlier) or earlier[-1].doubt is not None:
            return window
        guess = guess_from(self._whisper, earlier[-1])
        begin = self._whisper.tokens.timestamp_begin
        if not tentative and begin is not None and self.bindings.final.options.timestamps:
            guess = (begin, *guess)
        return replace(window, guess=guess)

    def _released(self, words: list[LiveWord]) -> list[LiveWord]:
        if words and not self.text:
            words[0] = replace(words[0], text=words[0].text.lstrip())
        self.text += "".join(word.text for word in words)
        return words


class Pass:
    """The listener of a pass over `windows` of an item's samples so far. `done` is called with it on the
    engine's thread, once `outcome` is set; None where it was cancelled."""

    submission: Submission

    def __init__(
        self, item: LiveItem, kind: Kind, windows: Sequence[Window], done: Callable[[Pass], None]
    ) -> None:
        self.item, self.kind, self.windows = item, kind, windows
        self.length, self.newest_s = item.length, item.newest_s
        self.outcome: Outcome | None = None
        self._done = done

    def start(self, session: Session) -> None:
        """Queue it, to be decoded when its newest sample is due. Raises CapacityError once the session is
        closed."""
        item = self.item
        spoken = (window.start for window in self.windows if window.speech)
        # The windows hold the samples; a recording is opened for its name and its warnings.
        silence = np.zeros(min(self.length, SAMPLE_RATE), np.float32)
        self.submission = Submission(
            session.context,
            Sound(silence, SAMPLE_RATE),
            item.bindings.tentative if self.kind == "tentative" else item.bindings.final,
            self,
            arrived_s=self.newest_s - seconds(min(spoken, default=0)),
            name=NAME,
            windows=live_source(
                self.windows, item.kept, item.hypothesis, whole=self.kind == "last"
            ),
        )
        session.enter(self.submission)

    def progressed(self, part: Part) -> None:
        """Nothing: the words are read from the outcome."""

    def ended(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self._done(self)

    @property
    def answers(self) -> tuple[Decoded, ...]:
        return () if self.outcome is None else self.outcome.decoded

    @property
    def rounds(self) -> int:
        return sum(decoded.result.rounds for decoded in self.decoded)

    @property
    def decoded(self) -> list[Decoded]:
        """Windows that it decoded, further parts of them included."""
        known = {window.index for window in self.windows}
        return [decoded for decoded in self.answers if decoded.index in known]


def guess_from(whisper: SpeechModel, decoded: Decoded) -> tuple[int, ...]:
    """How a longer form of a window probably begins: its text so far, without the end."""
    tokens = list(filter(whisper.tokens.is_text, decoded.tokens))
    tokens = tokens[: len(tokens) - CUT_TOKENS]
    while tokens and set(whisper.tokenizer.decode(tokens[-1:]).strip()) <= PUNCTUATION:
        tokens.pop()
    return tuple(tokens)


def words_of(whisper: SpeechModel, decoded: Decoded) -> Iterator[LiveWord]:
    """The words of a window; none where its text does not count."""
    told = tokens_of(whisper, decoded)
    ids = [token for part in texts_of(whisper, decoded) for token in part.tokens]
    for word in split_words(whisper.tokenizer, decoded.language, ids):
        tokens = tuple(token for _, token in zip(range(word.count), told, strict=False))
        yield LiveWord(word.text, tokens)
