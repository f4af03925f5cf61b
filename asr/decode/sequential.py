"""SequentialWindows: Whisper's own long-form decoding, one window of a recording after the other.

A window starts where the last closed segment of the previous window ended: text after it is discarded, and
its audio is decoded again with the next window (Radford et al. 2022, section 3.8; openai/whisper
`transcribe.py`). Its prompt holds the text of the previous window. Slower than windows cut in pauses, because
the windows of a recording cannot share a batch (recordings can); token for token what openai/whisper and
transformers' long-form `generate` do.

Some audio is read twice, and Whisper scales its features by the loudest sound of the whole recording. So the
samples go to a temporary file first (`SeekableAudio`): 230 MB per hour on disk, one window in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..audio.reading import Samples
from ..formats.transcript_parts import State
from ..model.tokens import SpecialTokens
from ..model.whisper import LogMel, attending
from ..segment.cutter import VoiceRuns
from ..segment.windows import Window, within
from .context import DecodingContext
from .options import Decoded
from .recording import RecordingState, WordTimer
from .requests import BoundOptions, previous_text, settled_language
from .submission import CutWindows

FRAMES_PER_STEP = 2
"""Mel frames of 0.01 s in a timestamp's step of 0.02 s."""

NO_SAMPLES = np.zeros(0, np.float32)

FORGET_ABOVE = 0.5
"""Above this temperature the text so far, that of the window included, is no context (openai/whisper)."""


class SequentialWindows(CutWindows):
    """The windows of a recording that depend on each other: one of them is in the engine."""

    independent = False

    def __init__(self, context: DecodingContext, bound: BoundOptions) -> None:
        super().__init__(context, bound)
        self.whisper = attending(context.whisper, "long form sequential")
        self.mel = self.whisper.mel
        self._frame = 0  # where the next window starts

    def read(self, recording: RecordingState, blocks: Iterator[Samples]) -> Iterator[Window]:
        """The first window, once the recording has been read to its end; none if it is empty."""
        voice = VoiceRuns(self.context.voice_detector())
        self._audio = SeekableAudio(voice.through(blocks), *self.whisper.mels)
        recording.resources.callback(self._audio.close)
        self._voiced = voice.runs()
        recording.fully_read = True
        yield from self._next(recording)

    def ended(
        self, recording: RecordingState, decoded: Decoded, timer: WordTimer
    ) -> Iterable[Window]:
        """The window behind one that has ended."""
        at_end = decoded.end == self._audio.sample_count
        self._frame = self._audio.frames if at_end else decoded.end // self.mel.hop
        discarded = decoded.result.tokens[len(decoded.tokens) :]
        self.hypothesis = tuple(filter(self.context.whisper.tokens.is_text, discarded))
        if decoded.state == "decoded" and self.bound.options.condition_on_previous_text:
            heard = decoded.tokens if decoded.spoken is None else decoded.spoken
            text = previous_text(heard, self.context.whisper.tokens)
            room = self.context.whisper.prompt_room
            forgotten = decoded.tried > FORGET_ABOVE
            self.previous = () if forgotten else (*self.previous, *text)[-room:]
        return self._next(recording)

    def extent(
        self, window: Window, tokens: tuple[int, ...], state: State
    ) -> tuple[int, tuple[int, ...]]:
        """A window ends where its last closed segment ends."""
        audio, first = self._audio, window.start // self.mel.hop
        whole = min(self.mel.frames, audio.frames - first)
        step = advance(tokens, self.whisper.tokens, whole)
        frames = step.frames if state == "decoded" else whole
        # Samples after the last whole frame belong to the last window.
        at_end = first + frames >= audio.frames
        end = audio.sample_count if at_end else window.start + frames * self.mel.hop
        return end, step.tokens

    def _next(self, recording: RecordingState) -> Iterator[Window]:
        """The window at the place that has been reached; none at the end."""
        audio, frame = self._audio, self._frame
        if not audio.sample_count or frame >= audio.frames:
            return
        start = frame * self.mel.hop
        end = min(start + self.mel.samples, audio.sample_count)
        recording.window_count += 1
        yield Window(
            recording.window_count - 1,
            start,
            end,
            speech=True,
            samples=NO_SAMPLES,
            voiced=within(self._voiced, start, end),
            language=settled_language(recording),
            features=partial(audio.all_features, frame),
        )


class SeekableAudio:
    """The samples of a recording, [N] at 16 kHz, and its features.

    Frames are counted from 0, 0.01 s each. A recording shorter than a window is padded with zeros to
    a full window, as Whisper's extractor does. `others` make further features of the same frames, for models
    that read those. Close it after use.
    """

    def __init__(self, blocks: Iterable[Samples], mel: LogMel, *others: LogMel) -> None:
        self.mel, self._mels = mel, (mel, *others)
        self._file = tempfile.TemporaryFile()
        try:
            self.sample_count = 0
            for block in blocks:
                self._file.write(np.ascontiguousarray(block, np.float32).tobytes())
                self.sample_count += len(block)
            self._file.flush()
            self._loudest = [self._measure(mel) for mel in self._mels]
        except BaseException:
            self._file.close()
            raise

    @property
    def frames(self) -> int:
        """Whole frames of the recording itself, at least 1."""
        return max(1, self.sample_count // self.mel.hop)

    def features(self, frame: int) -> Tensor:
        """Features [M, F] of the window that starts at `frame`; zeros after the end of the recording."""
        return self._features(frame, 0)

    def all_features(self, frame: int) -> tuple[Tensor, ...]:
        """Those of `mel`, then of all others."""
        return tuple(self._features(frame, index) for index in range(len(self._mels)))

    def _features(self, frame: int, index: int) -> Tensor:
        power = self._log(self._mels[index], frame, min(self.mel.frames, self._total - frame))
        scaled = self.mel.scaled(power, self._loudest[index])
        return torch.nn.functional.pad(scaled, (0, self.mel.frames - scaled.shape[1]))

    def close(self) -> None:
        self._file.close()

    @property
    def _length(self) -> int:
        """Samples, with the padding of a short recording."""
        return max(self.sample_count, self.mel.samples)

    @property
    def _total(self) -> int:
        return self._length // self.mel.hop

    def _measure(self, mel: LogMel) -> float:
        """The largest log mel power, computed window by window."""
        step = self.mel.frames
        return max(
            float(self._log(mel, frame, min(step, self._total - frame)).max())
            for frame in range(0, self._total, step)
        )

    def _log(self, mel: LogMel, frame: int, count: int) -> Tensor:
        """[M, count] log10 mel power. Frame t starts at sample t * hop - n_fft / 2."""
        hop, size = mel.hop, mel.n_fft
        begin = frame * hop - size // 2
        return mel.frames_of(self._read(begin, begin + (count - 1) * hop + size))

    def _read(self, begin: int, end: int) -> NDArray[np.float32]:
        """Samples begin..end; the recording is mirrored at both ends, as in a centred STFT."""
        before, after = max(0, -begin), max(0, end - self._length)
        inside = self._stored(begin + before, end - after)
        left = self._stored(1, before + 1)[::-1]
        right = self._stored(self._length - 1 - after, self._length - 1)[::-1]
        return np.concatenate([left, inside, right])

    def _stored(self, begin: int, end: int) -> NDArray[np.float32]:
        """Samples begin..end from the file, with zeros after its end."""
        count = max(0, min(end, self.sample_count) - begin)
        self._file.seek(4 * begin)
        stored = np.frombuffer(self._file.read(4 * count), np.float32)
        return np.pad(stored, (0, end - begin - len(stored)))


@dataclass(frozen=True)
class Advance:
    """The tokens of a window's answer that count, and the mel frames up to the next window."""

    tokens: tuple[int, ...]
    frames: int


def advance(tokens: Sequence[int], special: SpecialTokens, frames: int) -> Advance:
    """The step after an answer to a window of `frames` mel frames.

    Two timestamps in a row close a segment and open the next. If the answer ends with a single one,
    no speech follows, and the whole window is done; otherwise everything after the last pair is
    discarded and decoded again. Without a pair the whole answer counts. A pair that would not advance
    at all advances by the whole window, where openai/whisper and transformers would repeat the same
    window forever.
    """
    written = [token for token in tokens if token != special.end]
    stamps = [token >= special.timestamp_begin for token in written]
    pairs = [i for i in range(len(stamps) - 1) if stamps[i] and stamps[i + 1]]
    if not pairs or stamps[-2:] == [False, True]:
        return Advance(tuple(written), frames)
    last = pairs[-1]
    moved = (written[last] - special.timestamp_begin) * FRAMES_PER_STEP
    if moved == 0:
        return Advance(tuple(written), frames)
    return Advance(tuple(written[: last + 2]), min(moved, frames))
