"""Submission: one recording of a session. A reader's thread takes its windows out of it, the
engine's thread puts results into it; what it says on the way is in order and final.

Two threads, and no lock: the reader only adds (windows, silence, `read`), the engine's thread only
looks at what was added. Knows nothing of other recordings; `asr.sessions.session` shares the slots out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from forescribe.speculative.requests import Request

from ..audio.reading import Input, Recording, Samples, open_audio
from ..decode.call import Call, Job
from ..decode.encoding import Heard
from ..decode.isolation import Ended
from ..decode.options import Options
from ..decode.outcome import Decoded, Outcome
from ..errors import ForescribeError, UsageError
from ..formats.transcript import Segment
from ..segment.windows import Window, cut
from ..words.segments import stretches

if TYPE_CHECKING:
    from ..decode.transcriber import Transcriber


Tap = Callable[[Samples], None]


@dataclass(frozen=True)
class Token:
    """A token of the text. `data` is what it stands for, which need not be whole characters."""

    text: str
    logprob: float
    data: bytes


@dataclass(frozen=True)
class Part:
    """The next windows of a recording that are done, in order, none left out. Never retracted."""

    segments: tuple[Segment, ...]  # `id` is 0 and words are missing: both come with the outcome
    tokens: tuple[Token, ...]
    done_s: float  # of the recording, silence included

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


class Listener(Protocol):
    """Hears of one recording, on the engine's thread: it must neither block nor raise."""

    def progressed(self, part: Part) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """Once, and last: from here on nobody reads the source. None where it was cancelled."""


class Submission(Call):
    """One recording on its way through a session.

    `name` is what messages call it. `tap` hears its samples too, on a reader's thread. The first of the
    guards' temperatures is the first that is tried. Raises UsageError for options that the model
    cannot serve.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        source: Input,
        options: Options,
        listener: Listener,
        *,
        arrived_s: float = 0.0,
        name: str | None = None,
        tap: Tap | None = None,
    ) -> None:
        if options.long_form == "sequential":
            raise UsageError("a session decodes windows in parallel; sequential is a call's")
        super().__init__(transcriber, options, None)
        self.source, self.listener, self.name, self.tap = source, listener, name, tap
        self.arrived_s = arrived_s
        self.job: Job | None = None
        self.outcome: Outcome | None = None
        self.settled = False  # there is an outcome, or it was cancelled
        self.let_go = False  # no reader will touch the source again
        self._said = 0  # windows that the listener knows of
        self._over: dict[int, Decoded | None] = {}  # ended, not yet said; None was silent
        self._silent = 0

    # -- in a reader's thread ---------------------------------------------------------------------

    def read(self) -> Generator[Window, None, None]:
        """The windows with speech, in order. Raises what `open_audio` and the decoder raise."""
        with open_audio(self.source, name=self.name) as recording:
            recording.tap = self.tap
            self.job = Job(self.source, recording, time.perf_counter())
            yield from self._spoken(self.job)

    def _windows(self, recording: Recording) -> Iterator[Window]:
        """Without the stopwatch: the reading of several recordings overlaps, and with decoding."""
        detector = self._detector() if self.options.vad else None
        return cut(recording.blocks(), detector, self.options.windows)

    # -- in the engine's thread -------------------------------------------------------------------

    @property
    def wants_language(self) -> bool:
        """Whether the next request needs to hear which language it is."""
        return self.language is None

    def request(self, window: Window, heard: Heard | Exception) -> Request | None:
        """The request of a window, or None where a fault has taken it. Raises what `look` raises."""
        assert self.job is not None
        try:
            if isinstance(heard, Exception):
                raise heard
            return self._request_of(self.job, window, heard)
        except Exception as error:
            self.take(self._fault(self.job, window, error))
            return None

    def take(self, ended: Ended) -> None:
        """A window has ended; it may go back into the engine at another temperature."""
        decoded = self._take(ended)
        if decoded is not None:
            self._over[decoded.index] = decoded
            self.look()

    def _give_up(self, job: Job, error: ForescribeError) -> None:
        self.settle(Outcome(self.source, error=error))

    def _name(self, job: Job) -> str:
        return self.called

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.name or Outcome(self.source).name

    def look(self) -> None:
        """Says what has come to be in order, and makes the outcome if all of it has."""
        job = self.job
        if job is None or self.settled:
            return
        self._say(job)
        if job.complete:
            self.jobs = [job]
            for outcome in self._ended():
                done = sorted(job.done, key=lambda decoded: decoded.index)
                self.settle(replace(outcome, decoded=tuple(done)))

    def settle(self, outcome: Outcome | None) -> None:
        """This is what became of it. Its windows leave the engine; the first word counts."""
        if self.settled:
            return
        self.outcome, self.settled = outcome, True
        self._drop(self.tickets)
        self.untimed = []

    def _say(self, job: Job) -> None:
        for window in job.silent[self._silent :]:
            self._over[window.index] = None
            self._silent += 1
        ready = []
        while self._said in self._over:
            ready.append(self._over.pop(self._said))
            self._said += 1
        if not ready:
            return
        decoded = [one for one in ready if one is not None]
        self.listener.progressed(
            Part(
                tuple(segment for one in decoded for segment in self._segments(job, one)),
                tuple(token for one in decoded for token in self._tokens_of(one)),
                job.done_s,
            )
        )

    def _tokens_of(self, decoded: Decoded) -> Iterator[Token]:
        """Of the text that counts: what they stand for, joined, is that text."""
        if decoded.state != "decoded":
            return
        pairs = zip(decoded.tokens, decoded.result.logprobs, strict=True)
        scored = ((token, logprob) for token, logprob in pairs if token < self.special.end)
        for part in stretches(decoded.tokens, self.special, decoded.length):
            own = list(islice(scored, len(part.tokens)))
            if not self._text(part.tokens).strip():
                continue  # no segment was made of it
            for token, logprob in own:
                data = token_bytes(self.t.whisper.tokenizer.convert_ids_to_tokens(token))
                yield Token(data.decode(errors="replace"), logprob, data)


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes, backwards."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def token_bytes(spelling: str) -> bytes:
    """What a token of a byte-level vocabulary stands for."""
    return bytes(_alphabet()[letter] for letter in spelling)
