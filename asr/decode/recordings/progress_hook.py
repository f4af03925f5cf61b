"""ProgressReporter: tells the hook of a call how far it has come.

Knows what has been decoded and in which order a reader wants it; changes nothing but its own counters.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...formats.transcript import Segment
from ..decoding_context import DecodingContext
from ..outcome import Decoded, Follows, Hook, Partial, Progress
from .recording_state import RecordingState
from .window_results import text_of, timed_segments


class ProgressReporter:
    """Calls `hook` for each window that ends, and shows it text that is being decoded if it asks."""

    def __init__(self, context: DecodingContext, hook: Hook | None) -> None:
        self.context, self.hook = context, hook
        self._stats_before = context.engine.stats
        self._reported: dict[RecordingState, int] = {}  # samples reported in order, by recording

    def window_ended(self, recording: RecordingState, decoded: Decoded) -> None:
        """Report a window."""
        if self.hook is None or recording.failed:
            return
        segments = timed_segments(self.context.whisper, recording, decoded)
        progress = Progress(
            recording.source,
            recording.done_s,
            recording.audio.declared_s,
            tuple(segments),
            self.context.engine.stats - self._stats_before,
            tuple(self._next_in_order(recording)),
        )
        self.hook(progress)

    def recording_ended(self, recording: RecordingState) -> None:
        """Forget a recording."""
        self._reported.pop(recording, None)

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

    def _next_in_order(self, recording: RecordingState) -> Iterator[Segment]:
        """Segments that were not reported yet, without words, up to the first window or part that has not
        ended."""
        ended = {decoded.start: decoded.end for decoded in recording.decoded}
        ended |= {window.start: window.end for window in recording.silent}
        at = self._reported.get(recording, 0)
        while at in ended:
            yield from recording.segments.get(at, ())
            at = ended[at]
        self._reported[recording] = at
