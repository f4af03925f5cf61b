"""WindowDecoder: windows of one or more recordings on their way through the engine.

Creates their requests, judges the answers, repeats a window at the next temperature where the guards
reject its answer, and records how each window ended. Where an answer ends before the voice in its window
does, the rest becomes the next part of the window. A fault ends the window that it happened in. Knows
nothing of where windows come from, or of what is done with a finished recording.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from forescribe.speculative.engine.context import release
from forescribe.speculative.requests import Request, Result

from ...errors import ForescribeError, out_of_memory
from ...model.loading import EncoderStates
from ...segment.windows import Window
from ..accounting import fault
from ..decoding_context import DecodingContext
from ..guards import Judgement
from ..isolation import Ended, Fault
from ..outcome import Decoded
from .recording_state import RecordingState, WindowTag
from .window_requests import BoundOptions, retry_of, window_request
from .window_results import (
    Attempt,
    Extent,
    accounted,
    attempt_of,
    decoded_of,
    failed_window,
    rest_of,
    segments_of,
    whole_window,
)
from .word_timer import WordTimer

GiveUp = Callable[[RecordingState, ForescribeError], None]


class WindowDecoder:
    """The windows of a call that are in the engine.

    `in_engine` holds their tags, `rests` the parts of windows that are to be encoded next. `give_up` is
    called with a recording that cannot be continued: running out of memory may not happen with a smaller
    batch, so it must not look like a transcript.
    """

    def __init__(
        self,
        context: DecodingContext,
        bound: BoundOptions,
        timer: WordTimer,
        give_up: GiveUp,
        *,
        extent: Extent = whole_window,
    ) -> None:
        self.context, self.bound, self.timer = context, bound, timer
        self._give_up, self._extent = give_up, extent
        self.in_engine: set[WindowTag] = set()
        self._rejected: dict[
            WindowTag, Attempt
        ] = {}  # the best answer of a window that is repeated
        self.rests: deque[tuple[RecordingState, Window]] = deque()

    def detects_language(self, window: Window) -> bool:
        """Whether the language of a window is to be detected when it is encoded."""
        return self.bound.language is None and window.language is None

    def request(
        self,
        tag: WindowTag,
        encoder_states: EncoderStates,
        previous: tuple[int, ...],
        hypothesis: tuple[int, ...] = (),
    ) -> Request:
        """The request for a window, which the caller submits; `previous` are the tokens before it,
        `hypothesis` what an earlier window has written of it."""
        request = window_request(
            self.context, self.bound, tag, encoder_states, previous, hypothesis
        )
        self.in_engine.add(tag)
        return request

    def finish(self, ended: Ended) -> Decoded | None:
        """Record what the engine returned.

        None for a window that is decoded again, that was dropped, or whose recording was given up.
        """
        tag: WindowTag = ended.request.tag
        if tag not in self.in_engine:
            return None
        if isinstance(ended, Fault):
            return self.fail(tag, ended.error)
        try:
            decoded = self._accepted(tag, ended)
        except Exception as error:
            return self.fail(tag, error)
        if decoded is not None:
            self._keep(tag, decoded)
            if self.bound.options.words:
                self.timer.add(tag, decoded, ended.request.encoder_states)
        return decoded

    def fail(self, tag: WindowTag, error: Exception) -> Decoded | None:
        """Record that an exception ended a window; None where its recording is given up."""
        recording = tag.recording
        release(error)
        self.drop([tag])
        if out_of_memory(error):
            self._give_up(recording, fault(recording.name, error))
            return None
        decoded = failed_window(self.context.whisper, tag, error, self._extent)
        decoded = accounted(decoded, tag.voiced, ())
        recording.faults[tag.start] = error
        recording.segments[tag.start] = ()
        self._keep(tag, decoded)
        return decoded

    def forget(self, recording: RecordingState) -> None:
        """Drop all windows of a recording, wherever they are."""
        self.drop([tag for tag in self.in_engine if tag.recording is recording])
        self.rests = deque(item for item in self.rests if item[0] is not recording)
        self.timer.forget(recording)

    def drop(self, tags: Iterable[WindowTag]) -> None:
        """Remove windows from the engine; their rows are free at once."""
        for tag in list(tags):
            self.in_engine.discard(tag)
            self._rejected.pop(tag, None)
            self.context.slots.cancel(tag)

    def _accepted(self, tag: WindowTag, result: Result) -> Decoded | None:
        """The decoded window, with its segments; None where it is queued again."""
        options = self.bound.options
        attempt = attempt_of(self.context.whisper, options.guards, result, heard=tag.heard)
        best = self._rejected.pop(tag, attempt)
        if attempt.judgement is not Judgement.RETRY or attempt.rank > best.rank:
            best = attempt
        # Without a voice nothing is sampled: a text that passes at last would be invented.
        if attempt.judgement is Judgement.RETRY and tag.heard:
            retry = retry_of(result.request, options.guards)
            if retry is not None:
                self._rejected[tag] = best
                self.context.slots.submit(retry)  # behind the windows that wait
                return None
        decoded = decoded_of(
            self.context,
            tag,
            best,
            tried=result.request.temperature,
            extent=self._extent,
            keep_encoder_states=options.keep_encoder_states,
        )
        return self._followed(tag, decoded, result.request.encoder_states)

    def _followed(self, tag: WindowTag, decoded: Decoded, states: EncoderStates) -> Decoded:
        """The decoded window with its segments and the voice that they leave out; what the answer leaves
        of its window is queued as the next part."""
        whisper = self.context.whisper
        decoded, rest = rest_of(whisper, self.bound.options, tag, decoded, states)
        if rest is not None:
            self.rests.append((tag.recording, rest))
        segments = segments_of(whisper, decoded)
        tag.recording.segments[tag.start] = segments
        return accounted(decoded, tag.voiced, segments)

    def _keep(self, tag: WindowTag, decoded: Decoded) -> None:
        self.in_engine.discard(tag)
        tag.recording.add(decoded)
