"""Cutting: the windows of a recording, while it arrives.

    for window in cut(recording.blocks(), detector, options): ...

What the detector calls speech becomes windows. Long silence needs no decoding and stays in the coverage;
what of it is loud becomes windows of its own: networks miss distant and reverberant voices, which Whisper
hears where they have a `HINT` of them (measured: docs/methods/windows.md). How the samples arrive, in blocks
of any size, changes nothing, and memory is bounded (about a minute and a half of audio).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .vad import FRAME, LEVEL_FRAMES, Detector, Loudness, Probabilities, Stream, level_of
from .windows import (
    MAX_SAMPLES,
    VOICE,
    Run,
    Samples,
    Window,
    WindowOptions,
    lookahead,
    next_piece,
    runs_of,
    within,
)

BATCH_FRAMES = 256
"""Frames per call of the detector. Always the same number, because other shapes round differently and
the size of blocks must not change windows."""

LOUD = WindowOptions(max_silence_s=6.0)
"""How the loud parts of what has no voice activity are cut into windows: long ones, as Whisper needs context
to be sure of a distant voice."""

LEAST_LOUD = 16
"""Loud frames of such a window, 0.5 s: echoes behind speech are shorter, and hold no words."""

HINT = 0.045
"""The mean probability of a voice in one second of such a window, for the window to be decoded: what is left
is told, with its level."""


def cut(
    blocks: Iterable[Samples],
    detector: Detector,
    options: WindowOptions | None = None,
    *,
    skip_silence: bool = True,
) -> Iterator[Window]:
    """Yield the windows of a recording, from blocks [any length] at 16 kHz, as soon as they are certain.

    Without `skip_silence` the detector only says where to cut: every window counts as speech, and lasts
    up to 30 s.
    """
    cutter = Cutter(detector, options or WindowOptions(), skip_silence=skip_silence)
    for block in blocks:
        # A block may be long: windows are yielded before all of it has been looked at.
        for at in range(0, len(block), BATCH_FRAMES * FRAME):
            yield from cutter.push(block[at : at + BATCH_FRAMES * FRAME])
    yield from cutter.finish()


class Cutter:
    """Cuts a recording while it arrives: the state from the start of the first undecided window on.

        for block in blocks: windows += cutter.push(block)
        windows += cutter.finish()

    The windows are those of `cut`.
    """

    def __init__(
        self, detector: Detector, options: WindowOptions, *, skip_silence: bool = True
    ) -> None:
        self.stream = detector.stream()
        self.ahead: _Ahead | None = None  # of samples in the queue
        self.options, self.skip_silence = options, skip_silence
        self.samples = _Queue()  # that the detector has not seen
        self.undecided = _Frames(0)
        self.silence: _Frames | None = None  # without a voice; what of it is loud is undecided
        self.silent_from: int | None = None
        self.loudness = Loudness()
        self.active = False
        self.index = 0

    @property
    def held(self) -> int:
        """Samples in memory."""
        silence = 0 if self.silence is None else self.silence.samples.count
        return self.samples.count + self.undecided.samples.count + silence

    def push(self, samples: Samples) -> list[Window]:
        """Takes the next samples; returns the windows that have become certain."""
        self.samples.push(samples)
        size, windows = BATCH_FRAMES * FRAME, list[Window]()
        while self.samples.count >= size:
            self.ahead = None
            self._detect(self.samples.pop(size))
            while self.undecided.count >= lookahead(self.options):
                windows += self._decide()
        return windows

    def finish(self) -> list[Window]:
        """The remaining windows, at the end of the recording."""
        self._detect(self.samples.pop(self.samples.count))
        windows = list[Window]()
        while self.undecided.count:
            windows += self._decide()
        return [*windows, *self._end_silence()]

    def so_far(self) -> list[Window]:
        """The remaining windows if the recording ended here, which it need not."""
        self.ahead = self.ahead or _Ahead(copy(self.stream))
        fork = copy(self)  # its arrays and tensors are replaced, never written
        fork.stream, fork.samples = self.ahead, self.samples.fork()
        fork.undecided, fork.loudness = self.undecided.fork(), copy(self.loudness)
        fork.silence = None if self.silence is None else self.silence.fork()
        return fork.finish()

    def _detect(self, samples: Samples) -> None:
        """Speech by hysteresis. NaN counts as speech, so that no words are lost."""
        whole = np.pad(samples, (0, -len(samples) % FRAME))
        fresh = self.stream.probabilities(whole)
        voiced = np.zeros(len(fresh), np.bool_)
        for at, probability in enumerate(fresh):
            limit = self.options.offset if self.active else self.options.onset
            voiced[at] = self.active = not probability < limit
        levels = self.loudness.hear(whole, fresh >= VOICE)
        self.undecided.push(samples, fresh, voiced, levels)

    def _decide(self) -> Iterator[Window]:
        silent = self.silence is not None or self.silent_from is not None
        piece = self.undecided.next(self.options, silent, skip_silence=self.skip_silence)
        if piece.speech:
            yield from self._end_silence()
            heard = piece.scores >= VOICE
            faint_db = self.loudness.faint_db(piece.samples, heard)
            yield self._window(piece, voiced=runs_of(heard, FRAME, piece.start), faint_db=faint_db)
            return
        self.silence = self.silence or _Frames(piece.start)
        loud = self.loudness.stands_out(piece.others)
        self.silence.push(piece.samples, piece.others, loud, piece.scores)
        while self.silence.count >= lookahead(LOUD):
            yield from self._decide_silence()

    def _decide_silence(self) -> Iterator[Window]:
        assert self.silence is not None
        piece = self.silence.next(LOUD, self.silent_from is not None)
        if piece.speech and np.count_nonzero(piece.active) >= LEAST_LOUD:
            yield from self._silent(piece.start)
            level_db, faint_db = level_of(piece.samples), self.loudness.faint_db(piece.samples)
            yield self._window(piece, level_db=level_db, faint_db=faint_db)
        elif self.silent_from is None:
            self.silent_from = piece.start

    def _end_silence(self) -> Iterator[Window]:
        while self.silence is not None and self.silence.count:
            yield from self._decide_silence()
        if self.silence is not None:
            yield from self._silent(self.silence.start)
            self.silence = None

    def _silent(self, end: int) -> Iterator[Window]:
        if self.silent_from is not None:
            yield Window(self.index, self.silent_from, end, False, np.zeros(0, np.float32), ())
            self.index, self.silent_from = self.index + 1, None

    def _window(
        self,
        piece: _Piece,
        *,
        voiced: Iterable[Run] = (),
        level_db: float | None = None,
        faint_db: float | None = None,
    ) -> Window:
        index, start, end = self.index, piece.start, piece.start + len(piece.samples)
        self.index += 1
        runs = within(voiced, start, end)
        speech = level_db is None or _hinted(piece.others)
        samples = piece.samples if speech else piece.samples[:0].copy()
        return Window(
            index, start, end, speech, samples, runs, level_db=level_db, faint_db=faint_db
        )


class _Ahead:
    """The stream of a detector that judges the samples behind a place again and again, as more of them
    arrive: whole seconds, which it amplifies alone, once. The last frame may not be full yet."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._known = stream, np.zeros(0, np.float32)

    def probabilities(self, samples: Samples) -> Probabilities:
        size = LEVEL_FRAMES * FRAME
        known, whole = len(self._known) * FRAME, max(0, len(samples) - 1) // size * size
        if known < whole:
            fresh = self._stream.probabilities(samples[known:whole])
            self._known = np.concatenate([self._known, fresh])
        rest = copy(self._stream).probabilities(samples[whole:])
        return np.concatenate([self._known, rest])


def _hinted(probabilities: Probabilities) -> bool:
    """Whether a second has a hint of a voice; NaN is one."""
    count = min(LEVEL_FRAMES, len(probabilities))
    means = np.convolve(probabilities, np.full(count, 1 / count), "valid")
    return not means.max() < HINT


class _Piece(NamedTuple):
    """Samples that were decided to be speech or silence, with the values of their frames."""

    start: int
    samples: Samples
    speech: bool
    scores: NDArray[np.float32]
    active: NDArray[np.bool_]
    others: NDArray[np.float32]


class _Frames:
    """Frames that are not decided, from sample `start` on, with their samples, their `scores` (low where a
    window may end), whether they are `active`, and `others`: their levels, of silence the probabilities of a
    voice."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.samples = _Queue()
        self.scores = self.others = np.zeros(0, np.float32)
        self.active = np.zeros(0, np.bool_)

    @property
    def count(self) -> int:
        return len(self.active)

    def fork(self) -> _Frames:
        other = copy(self)
        other.samples = self.samples.fork()
        return other

    def push(
        self,
        samples: Samples,
        scores: NDArray[np.float32],
        active: NDArray[np.bool_],
        others: NDArray[np.float32],
    ) -> None:
        self.samples.push(samples)
        self.scores = np.concatenate([self.scores, scores])
        self.active = np.concatenate([self.active, active])
        self.others = np.concatenate([self.others, others])

    def next(
        self, options: WindowOptions, after_silence: bool, *, skip_silence: bool = True
    ) -> _Piece:
        """Decide the next piece and take it out."""
        view = lookahead(options)
        piece = next_piece(
            self.scores[:view],
            self.active[:view],
            options,
            after_silence=after_silence,
            skip_silence=skip_silence,
            fits=self.samples.count <= MAX_SAMPLES,
        )
        count = piece.frames
        # At the end of the recording the last frame is not full.
        samples = self.samples.pop(count * FRAME)
        values = self.scores[:count], self.active[:count], self.others[:count]
        taken = _Piece(self.start, samples, piece.speech, *values)
        self.start += len(samples)
        self.scores, self.active = self.scores[count:], self.active[count:]
        self.others = self.others[count:]
        return taken


@dataclass
class _Queue:
    """A queue of samples. Blocks are joined only when samples are read, so that pushing many small blocks
    is cheap."""

    parts: list[Samples] = field(default_factory=list)
    count: int = 0

    def fork(self) -> _Queue:
        return _Queue([*self.parts], self.count)

    def push(self, samples: Samples) -> None:
        self.parts.append(np.array(samples, np.float32))
        self.count += len(samples)

    def pop(self, count: int) -> Samples:
        if len(self.parts) != 1:
            self.parts = [np.concatenate([np.zeros(0, np.float32), *self.parts])]
        taken = self.parts[0][:count].copy()
        self.parts = [self.parts[0][count:].copy()]
        self.count -= len(taken)
        return taken
