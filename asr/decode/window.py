"""PendingWindow: the one record of a window with speech, from its reader to its end.

It is cut, encoded, answered (once or several times) and ended; what becomes known is added to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..formats.transcript_parts import seconds
from ..segment.windows import Window

if TYPE_CHECKING:
    from forescribe.speculative.requests import Request

    from ..model.speech_model import EncoderStates
    from ..words.assembly import Pause
    from .judge import Answer
    from .options import Decoded
    from .recording import RecordingState

MOST_TOKENS_PER_S = 8.0
"""Of an answer for a window in which no voice was detected: repetitions in music have no end."""


@dataclass(eq=False)
class PendingWindow:
    """A window on its way, and the tag of its requests.

    Once it is encoded it has its `language`, the `pauses` where words are to be timed, and the `request` for
    the engine; `best` is the best answer that was rejected; `decoded` says how it ended, with the encoder
    `states` and the `spoken` samples that hold its words, if these are still to be timed: more than its own
    where the end of a word follows.
    """

    recording: RecordingState
    window: Window
    language: str = ""
    pauses: tuple[Pause, ...] = ()
    request: Request | None = None
    best: Answer | None = None
    decoded: Decoded | None = None
    states: EncoderStates | None = None
    spoken: int = 0

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

    def end(self) -> None:
        """No cycle through a request: encoder states are freed with the window."""
        self.request = self.best = None
