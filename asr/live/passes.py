"""A pass: some windows of a live item, decoded as a recording of their own in the shared session.

The windows of an item are those that an upload of the same samples is cut into. Once the end of one is
certain it is decoded as in an upload; until then a *tentative* window, which ends where the audio ends so
far, is decoded again and again. The words written before are its guess, which the target verifies in one
pass, so a decode of seconds that were decoded before takes few rounds. The last pass joins all windows to the
transcript that an upload of the samples would have.

Tentative windows are decoded without timestamps, which would move with the end of the audio, once (without
retries at higher temperatures), and without timing words.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ..audio.inputs import Sound
from ..decode.context import DecodingContext
from ..decode.driver import Session
from ..decode.options import Guards, Options
from ..decode.recording import Submission
from ..decode.requests import BoundOptions, bind
from ..decode.results import Decoded, Outcome, Part
from ..decode.sources import WindowSource
from ..formats.transcript_parts import SAMPLE_RATE, seconds
from ..model.speech_model import SpeechModel
from ..segment.windows import Window

Kind = Literal["tentative", "closing", "last"]
"""Of a pass: the ends of its windows may change, or they do not, or they are the last ones of the item."""

CUT_TOKENS = 3
"""Tokens at the end of a hypothesis that are no part of the next guess: a word that was cut off by the end of
the audio is nearly always another one when more of it is there."""

PUNCTUATION = frozenset(string.punctuation + "…")


@dataclass(frozen=True)
class Bindings:
    """The options of a stream, checked against the model: of final windows, and of tentative ones."""

    final: BoundOptions
    tentative: BoundOptions

    @classmethod
    def of(cls, options: Options, context: DecodingContext) -> Bindings:
        """Raises UsageError for options that the model cannot serve."""
        guards = replace(options.guards or Guards(), temperatures=(0.0,))
        once = replace(options, timestamps=False, words=False, guards=guards)
        return cls(bind(options, context), bind(once, context))


class Pass:
    """The listener of a pass over `windows` of an item's first `length` samples, the newest of which arrived
    at `newest_s`. `done` is called with it on the engine's thread, once `outcome` is set; None where it was
    cancelled."""

    def __init__(
        self,
        kind: Kind,
        windows: Sequence[Window],
        length: int,
        newest_s: float,
        done: Callable[[Pass], None],
    ) -> None:
        self.kind, self.windows, self.length, self.newest_s = kind, windows, length, newest_s
        self.outcome: Outcome | None = None
        self.submission: Submission | None = None
        self._done = done

    def start(self, session: Session, bound: BoundOptions, source: WindowSource, name: str) -> None:
        """Queue it, to be decoded when its newest sample is due. Raises CapacityError once the session is
        closed."""
        first_s = seconds(
            min((window.start for window in self.windows if window.speech), default=0)
        )
        # The windows hold the samples; a recording is opened for its name and its warnings.
        silence = np.zeros(min(self.length, SAMPLE_RATE), np.float32)
        self.submission = Submission(
            session.context,
            Sound(silence, SAMPLE_RATE),
            bound,
            self,
            arrived_s=self.newest_s - first_s,
            name=name,
            windows=source,
        )
        session.enter(self.submission)

    def progressed(self, part: Part) -> None:
        """Nothing: the words are read from the outcome."""

    def ended(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self._done(self)

    @property
    def rounds(self) -> int:
        return sum(decoded.result.rounds for decoded in self.decoded)

    @property
    def decoded(self) -> list[Decoded]:
        """Windows that it decoded, further parts of them included."""
        known = {window.index for window in self.windows}
        answers = () if self.outcome is None else self.outcome.decoded
        return [decoded for decoded in answers if decoded.index in known]


def guess_from(whisper: SpeechModel, decoded: Decoded) -> tuple[int, ...]:
    """How a longer form of a window probably begins: its text so far, without the end."""
    tokens = list(filter(whisper.tokens.is_text, decoded.tokens))
    tokens = tokens[: len(tokens) - CUT_TOKENS]
    while tokens and set(whisper.tokenizer.decode(tokens[-1:]).strip()) <= PUNCTUATION:
        tokens.pop()
    return tuple(tokens)
