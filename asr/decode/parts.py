"""What is told of recordings while they are decoded: parts to a listener, progress to a hook.

A session's listener receives parts, in order and final. A call's hook is told of each window that ends and,
if it asks, of text that is being decoded, which may change. Changes nothing but its own counters; knows
nothing of threads or requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ..formats.transcript_parts import Segment
from ..model.vocabulary import bytes_of
from ..model.whisper import Whisper
from ..segment.windows import Window
from ..words.splitting import stretches
from .answers import text_of, timed_segments
from .context import DecodingContext
from .options import Decoded, Follows, Hook, Partial, Progress
from .recording import RecordingState


@dataclass(frozen=True)
class Part:
    """The next windows of a recording that have ended, in order and without gaps. Never retracted."""

    segments: tuple[Segment, ...]  # `id` is 0 and words are missing: both come with the outcome
    tokens: tuple[Token, ...]
    done_s: float  # of the recording, silence included

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class Token:
    """A token of the text. `data` are the bytes that it stands for, which may be part of a character."""

    text: str
    logprob: float
    data: bytes


class PartQueue:
    """Puts the windows of a recording, which end in any order, into the order of the recording."""

    def __init__(self, whisper: Whisper) -> None:
        self.whisper = whisper
        self._ended: dict[int, Decoded | Window] = {}  # not delivered yet, by their first sample
        self._next = 0  # the first sample that has not been delivered
        self._silent = 0  # silent windows that have been counted

    def add(self, decoded: Decoded) -> None:
        """A window has ended, or a part of one."""
        self._ended[decoded.start] = decoded

    def next_part(self, recording: RecordingState) -> Part | None:
        """What follows the part delivered before; None where the next window has not ended."""
        decoded = self.next_windows(recording)
        if decoded is None:
            return None
        return Part(
            tuple(s for d in decoded for s in timed_segments(self.whisper, recording, d)),
            tuple(token for d in decoded for token in tokens_of(self.whisper, d)),
            recording.done_s,
        )

    def next_windows(self, recording: RecordingState) -> list[Decoded] | None:
        """The windows that follow those delivered before, without silent ones; None where the next one has
        not ended."""
        for window in recording.silent[self._silent :]:
            self._ended[window.start] = window
            self._silent += 1
        first, decoded = self._next, list[Decoded]()
        while self._next in self._ended:
            ended = self._ended.pop(self._next)
            if isinstance(ended, Decoded):
                decoded.append(ended)
            self._next = ended.end
        return None if self._next == first else decoded


class ProgressReporter:
    """Calls `hook` for each window that ends, and shows it text that is being decoded if it asks."""

    def __init__(self, context: DecodingContext, hook: Hook) -> None:
        self.context, self.hook = context, hook
        self._stats_before = context.engine.stats

    def window_ended(self, recording: RecordingState, decoded: Decoded, parts: PartQueue) -> None:
        """Report a window, and the segments that are complete in order now; those without words."""
        spoken = parts.next_windows(recording) or ()
        progress = Progress(
            recording.source,
            recording.done_s,
            recording.audio.declared_s,
            tuple(timed_segments(self.context.whisper, recording, decoded)),
            self.context.engine.stats - self._stats_before,
            tuple(s for d in spoken for s in recording.segments.get(d.start, ())),
        )
        self.hook(progress)

    def show_partial(self, recording: RecordingState | None) -> None:
        """Show the text of the first window of a recording that is being decoded."""
        hook = self.hook
        if recording is None or not isinstance(hook, Follows) or not hook.wants:
            return
        try:
            partials = [
                partial
                for partial in self.context.engine.peek()
                if getattr(partial.request.tag, "recording", None) is recording
            ]
            if not partials:
                return
            earliest = min(partials, key=lambda partial: partial.request.tag.start)
            text = text_of(self.context.whisper, earliest.tokens)
        except Exception:  # partial text is only for display: decoding goes on without it
            return
        hook.follow(Partial(recording.source, text.rstrip("\ufffd")))  # an incomplete character


def tokens_of(whisper: Whisper, decoded: Decoded) -> Iterator[Token]:
    """The tokens of a window's text; their bytes joined are that text."""
    if decoded.state != "decoded":
        return
    # There are more probabilities than tokens where only the first tokens of an answer count.
    pairs = zip(decoded.tokens, decoded.result.logprobs, strict=False)
    scored = ((token, logprob) for token, logprob in pairs if token < whisper.tokens.end)
    for part in stretches(decoded.tokens, whisper.tokens, decoded.length):
        own = list(islice(scored, len(part.tokens)))
        if not text_of(whisper, part.tokens).strip():
            continue  # it became no segment
        for token, logprob in own:
            data = bytes_of(whisper.tokenizer.convert_ids_to_tokens(token))
            yield Token(data.decode(errors="replace"), logprob, data)
