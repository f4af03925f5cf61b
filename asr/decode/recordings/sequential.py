"""SequentialWindows: Whisper's own long-form decoding, one window of a recording after the other.

A window starts where the last closed segment of the previous window ended, and its prompt holds the
text of that window. Slower than windows cut in pauses, because the windows of a recording cannot share
a batch (recordings can); token for token what openai/whisper and transformers' long-form `generate` do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

from forescribe.speculative.requests import Request

from ...audio.features import LogMel
from ...audio.reading import Input
from ...audio.seekable import SeekableAudio
from ...formats.transcript import State
from ...model.special_tokens import SpecialTokens
from ...segment.windows import Run, VoiceRuns, within
from ..accounting import internal
from ..encoding import encode_features
from ..outcome import Decoded
from .call import Call
from .recording_state import RecordingState, WindowTag
from .seeking import advance, previous_text
from .window_requests import language_in, pauses_for, prompt_room, settled_language
from .window_results import Extent

# Above this temperature the text so far, that of the window included, is no context (openai/whisper).
FORGET_ABOVE = 0.5


@dataclass
class Position:
    """How far a recording has been decoded: where its next window starts, and the text before it."""

    audio: SeekableAudio
    voiced: tuple[Run, ...]  # of the whole recording
    previous: tuple[int, ...]
    frame: int = 0
    hypothesis: tuple[int, ...] = ()  # what the previous window has written of the next one

    @property
    def at_end(self) -> bool:
        return not self.audio.sample_count or self.frame >= self.audio.frames


@dataclass(frozen=True, eq=False, kw_only=True)
class SequentialTag(WindowTag):
    """A window's tag with the position that it was taken from."""

    position: Position


def sequential_extent(mel: LogMel, special: SpecialTokens) -> Extent:
    """The extent of windows that end where their last closed segment ends."""

    def extent(
        tag: WindowTag, tokens: tuple[int, ...], state: State
    ) -> tuple[int, tuple[int, ...]]:
        assert isinstance(tag, SequentialTag)
        audio, first = tag.position.audio, tag.start // mel.hop
        whole = min(mel.frames, audio.frames - first)
        step = advance(tokens, special, whole)
        frames = step.frames if state == "decoded" else whole
        # Samples after the last whole frame belong to the last window.
        at_end = first + frames >= audio.frames
        return (audio.sample_count if at_end else tag.start + frames * mel.hop), step.tokens

    return extent


class SequentialWindows:
    """The `WindowSource` of windows that depend on each other: one per recording is in the engine."""

    def __init__(self, call: Call) -> None:
        self.call, self.context, self.mel = call, call.context, call.context.mel

    def requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
        """The first request of each recording."""
        for source in sources:
            request = self._first(source)
            if request is not None:
                yield request

    def following(self, tag: WindowTag, decoded: Decoded) -> Request | None:
        """The request of the next window, after the result of this one."""
        assert isinstance(tag, SequentialTag)
        self._move(tag.position, decoded)
        return self._next(tag.recording, tag.position)

    def _first(self, source: Input) -> Request | None:
        """The first request of a recording, which is read to its end; None where there is none."""
        recording: RecordingState | None = None
        try:
            with self.call.open(source) as audio:
                recording = self.call.begin(source, audio)
                self.context.watch.start()
                voice = VoiceRuns(self.context.voice_detector())
                seekable = SeekableAudio(voice.through(audio.blocks()), *self.context.mels)
                recording.resources.callback(seekable.close)
                self.context.watch.mark("audio")
            position = Position(seekable, voice.runs(), self.call.bound.previous)
            return self._next(recording, position)
        except Exception as error:  # of a decoder or our own: the other recordings go on
            self.call.fail(source, recording, internal(source, error))
        return None

    def _next(self, recording: RecordingState, position: Position) -> Request | None:
        """The request of the next window that can be encoded; None where the recording ends. Windows
        that cannot be encoded fail and are passed over."""
        while not recording.failed and not position.at_end:
            tag = self._tag(recording, position)
            recording.window_count += 1
            try:
                return self._request(tag)
            except Exception as error:
                decoded = self.call.decoder.fail(tag, error)
                if decoded is not None:
                    self._move(position, decoded)
        if not recording.failed:
            recording.fully_read = True
            recording.resources.close()
        return None

    def _tag(self, recording: RecordingState, position: Position) -> SequentialTag:
        start = position.frame * self.mel.hop
        end = min(start + self.mel.samples, position.audio.sample_count)
        language = self.call.bound.language or recording.language or ""
        return SequentialTag(
            recording,
            recording.window_count,
            start,
            end,
            language,
            voiced=within(position.voiced, start, end),
            position=position,
        )

    def _request(self, tag: SequentialTag) -> Request:
        self.context.watch.start()
        features = tag.position.audio.all_features(tag.position.frame)
        known = self.call.bound.language or settled_language(tag.recording)
        rows = [each[None] for each in features]
        (encoded,) = encode_features(self.context.whisper, rows, [known is None])
        self.context.watch.mark("encode")
        if isinstance(encoded, Exception):
            raise encoded
        pauses = pauses_for(self.call.bound.options, features[0], tag.end - tag.start)
        language = known or language_in(tag.recording, encoded)
        tag = replace(tag, language=language, pauses=pauses)
        position = tag.position
        return self.call.decoder.request(
            tag, encoded.encoder_states, position.previous, position.hypothesis
        )

    def _move(self, position: Position, decoded: Decoded) -> None:
        """Go on behind a window that has ended."""
        at_end = decoded.end == position.audio.sample_count
        position.frame = position.audio.frames if at_end else decoded.end // self.mel.hop
        end = self.context.whisper.tokens.end
        discarded = decoded.result.tokens[len(decoded.tokens) :]
        position.hypothesis = tuple(token for token in discarded if token < end)
        if decoded.state != "decoded" or not self.call.bound.options.condition_on_previous_text:
            return
        if decoded.tried > FORGET_ABOVE:
            position.previous = ()
            return
        text = previous_text(decoded.tokens, self.context.whisper.tokens)
        position.previous = (*position.previous, *text)[-prompt_room(self.context.whisper) :]
