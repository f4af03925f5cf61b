"""ParallelWindows: recordings cut in their pauses, whose windows are decoded in parallel.

Windows of several recordings are encoded together, up to a batch at a time where that is faster. Knows
nothing of results.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from forescribe.speculative.requests import Request

from ...audio.reading import Input, Recording
from ...segment.cut_plan import Plan, planned_windows
from ...segment.windows import Window, cut
from ..accounting import internal
from ..decoding_context import DecodingContext
from ..encoding import EncodedWindow, encode_windows
from ..options import Options
from ..outcome import Decoded
from .call import Call
from .recording_state import RecordingState, WindowTag
from .window_decoder import WindowDecoder
from .window_requests import language_in, pauses_for

Ready = tuple[RecordingState, Window]
"""A window that waits to be encoded."""


class ParallelWindows:
    """The `WindowSource` of independent windows."""

    def __init__(self, call: Call) -> None:
        self.call, self.context = call, call.context

    def requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
        """Requests of all recordings in order, encoded in batches; parts of windows that have been begun go
        first."""
        windows, rests = self._spoken_windows(sources), self.call.decoder.rests
        while True:
            ready: list[Ready] = []
            while len(ready) < self.context.encoded_together:
                window = rests.popleft() if rests else next(windows, None)
                if window is None:
                    break
                ready.append(window)
            if not ready:
                return
            yield from self._encoded(ready)

    def following(self, tag: WindowTag, decoded: Decoded) -> Request | None:
        """None: what is left of a window waits with the others to be encoded."""
        return None

    def _spoken_windows(self, sources: Iterable[Input]) -> Iterator[Ready]:
        for source in sources:
            recording: RecordingState | None = None
            try:
                with self.call.open(source) as audio:
                    recording = self.call.begin(source, audio)
                    windows = self._cut(audio)
                    for window in recording.spoken_windows(windows):
                        yield recording, window
            except Exception as error:  # of a decoder or our own: the other recordings go on
                # A recording that has been read is complete, even if closing it fails.
                if recording is None or not recording.fully_read:
                    self.call.fail(source, recording, internal(source, error))

    def _cut(self, audio: Recording) -> Iterator[Window]:
        windows = cut_windows(self.context, self.call.bound.options, audio)
        while True:
            self.context.watch.start()
            window = next(windows, None)
            self.context.watch.mark("audio")
            if window is None:
                return
            yield window

    def _encoded(self, ready: list[Ready]) -> Iterator[Request]:
        ready = [(recording, window) for recording, window in ready if not recording.failed]
        if not ready:
            return
        self.context.watch.start()
        detect = [self.call.decoder.detects_language(window) for _, window in ready]
        encoded = encode_windows(self.context, [window.samples for _, window in ready], detect)
        self.context.watch.mark("encode")
        for (recording, window), result in zip(ready, encoded, strict=True):
            request = None if recording.failed else self._request(recording, window, result)
            if request is not None:
                yield request

    def _request(
        self, recording: RecordingState, window: Window, encoded: EncodedWindow | Exception
    ) -> Request | None:
        """The request for a window; None where an exception has ended it."""
        decoder = self.call.decoder
        try:
            return request_for(decoder, recording, window, encoded)
        except Exception as error:
            decoder.fail(tag_of(decoder, recording, window), error)
            return None


def cut_windows(context: DecodingContext, options: Options, audio: Recording) -> Iterator[Window]:
    """The windows of a recording: those it was cut into before; else cut in its pauses."""
    if audio.spans is not None:
        return planned_windows(audio.blocks(), Plan(audio.spans))
    detector = context.voice_detector()
    return cut(audio.blocks(), detector, options.windows, skip_silence=options.vad)


def request_for(
    decoder: WindowDecoder,
    recording: RecordingState,
    window: Window,
    encoded: EncodedWindow | Exception,
) -> Request:
    """The request for an encoded window. Raises the exception that encoding ended with."""
    if isinstance(encoded, Exception):
        raise encoded
    bound = decoder.bound
    tag = WindowTag(
        recording,
        window.index,
        window.start,
        window.end,
        bound.language or window.language or language_in(recording, encoded),
        pauses_for(bound.options, encoded.features, window.length),
        window.voiced,
        window,
    )
    return decoder.request(tag, encoded.encoder_states, bound.previous)


def tag_of(decoder: WindowDecoder, recording: RecordingState, window: Window) -> WindowTag:
    """The tag of a window that failed before its request was made."""
    language = decoder.bound.language or window.language or recording.language or ""
    return WindowTag(
        recording, window.index, window.start, window.end, language, voiced=window.voiced
    )
