"""PendingWindow: the one record of a window with speech, from its reader to the transcript.

It is cut, encoded, answered (once or several times) and ended; what becomes known is added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from forescribe.speculative.requests import Request, Result

from ..formats.transcript_parts import Segment, Word, seconds
from ..segment.windows import Window
from .guards import Judgement
from .results import Decoded

if TYPE_CHECKING:
    from ..audio.reading import Recording
    from ..model.states import EncoderStates
    from ..words.assembly import Pause

MOST_TOKENS_PER_S = 8.0
"""Of an answer for a window in which no voice was detected: repetitions in music have no end."""


@dataclass(frozen=True)
class Answer:
    """An answer for a window, with what the guards say of it."""

    result: Result
    judgement: Judgement
    reason: str | None
    rank: tuple[bool, float]  # `Guards.rank`

    def replaces(self, best: Answer) -> bool:
        """Whether it is better than the best one before it."""
        if best.judgement is Judgement.KEEP:  # and was doubtful: this one is that of beams
            return self.judgement is Judgement.KEEP
        return self.judgement is not Judgement.RETRY or self.rank > best.rank


class RecordingState:
    """What is known of a recording, for its windows: what was opened, None before that; the language that it
    was found to be in; and its windows that have ended, in order."""

    def __init__(self) -> None:
        self.audio: Recording | None = None
        self.language: str | None = None
        self.language_probability: float | None = None
        self.windows: list[PendingWindow] = []


@dataclass(eq=False)
class PendingWindow:
    """A window of a recording, and the tag of its requests."""

    recording: RecordingState  # until it has ended and its words are timed
    window: Window  # from then on without its samples
    # Its place in the queues: by `due_s`, then by `number`.
    due_s: float = 0.0
    number: int = 0
    # Encoded: the quiet parts of its sound, where words are to be timed, and what the engine is asked.
    language: str = ""
    pauses: tuple[Pause, ...] = ()
    request: Request | None = None
    # Answered: the best answer so far, where it is asked for again.
    best: Answer | None = None
    # Ended. The states are kept until its words are timed, in samples `spoken` that hold them: more than its
    # own where the end of a word follows. Segments are without words, which are None where none were timed.
    decoded: Decoded | None = None
    states: EncoderStates | None = None
    spoken: int = 0
    segments: tuple[Segment, ...] | None = None
    words: list[tuple[Word, ...]] | None = None
    fault: BaseException | None = None
    timing_fault: Exception | None = None

    def __lt__(self, other: PendingWindow) -> bool:
        return (self.due_s, self.number) < (other.due_s, other.number)

    @property
    def ended(self) -> Decoded:
        """How it has ended."""
        assert self.decoded is not None
        return self.decoded

    @property
    def heard(self) -> bool:
        """Whether there may be a voice."""
        voiced = self.window.voiced
        return not self.window.unheard and (voiced is None or bool(voiced))

    @property
    def most_tokens(self) -> int | None:
        """The most that its answer may have; None: as many as the model has room for."""
        window = self.window
        return round(MOST_TOKENS_PER_S * seconds(window.length)) + 10 if window.unheard else None

    def forget_request(self) -> None:
        """No cycle through a request: encoder states are freed with the window."""
        self.request = self.best = None

    def free(self) -> None:
        """Nothing will be computed from it any more. Its recording refers to it, so it must not to that."""
        self.forget_request()
        self.window, self.states = replace(self.window, samples=np.zeros(0, np.float32)), None
        del self.recording
