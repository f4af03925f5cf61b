"""Any recording to mono float32 at 16 kHz, in blocks, so that ten hours are never in memory as a whole.

    with open_audio("meeting.m4a") as recording:
        for block in recording.blocks():
            ...

Channels are mixed down to their mean, unless they cancel each other; other rates are resampled, and
values that are not finite are replaced by 0. What a reader of the transcript has to know about the
recording is in `recording.warnings`. A path is only a path: nothing is fetched, and no `file:`,
`concat:` or `http:` is interpreted.

Blocks are resampled by libsoxr as a stream, whose samples do not depend on the sizes of the blocks.

`length_of` is the length of a file by its header, for scheduling and progress bars, without decoding. A wrong
one costs some speed, but no words. Knows nothing of speech.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, ForescribeError, visible
from ..formats.transcript_parts import SAMPLE_RATE, Notice, merged, seconds
from .containers import DEMUXERS, Pcm, Reader, open_container
from .inputs import ARRAY, DecodedFile, Input, Sound, as_input
from .opening import empty, seekable_file

Samples = NDArray[np.float32]

LOUDEST = 1e6
"""A larger sample is damage, not sound: its square would overflow in the spectrum and spoil the whole
window."""

CANCELLED = 0.1
"""Channels cancel each other if their mean has less than this part of the power that independent
channels would leave in it. Reversed polarity leaves nothing, or little where loudness differs."""

INAUDIBLE = 1e-9
"""Mean power, -90 dB: the result for silence must not depend on its last bit."""

SHORT_S = 0.08
"""Shorter audio holds no speech: it is valid, with an empty transcript and a warning."""

TRUNCATED_S = 0.25
"""Codec delay and rounding make the declared and the decoded length differ by up to this; beyond it
audio is missing."""

BYTES_PER_S = 16_000
"""128 kbit/s, for files whose header gives no duration."""


def open_audio(
    source: Input,
    *,
    block_s: float = 30.0,
    max_s: float | None = None,
    name: str | None = None,
    demuxers: str = DEMUXERS,
) -> Recording:
    """Open a recording: a path, "-" for standard input, the bytes of a file, a binary file object, a
    `DecodedFile`, or samples in memory, in any of the forms of `as_input`.

    Its content decides how it is read, not its name. `max_s` limits the decoded length, `name` is for
    messages, `demuxers` are the formats that libav may open. Raises AudioError: `missing_file`,
    `unreadable_file`, `empty_file`, `invalid_audio`, `no_audio_stream`; UsageError for samples in another
    form.
    """
    if not isinstance(source, str | os.PathLike):
        source = as_input(source)
        assert not isinstance(source, tuple | Mapping)  # those are samples by now
    name = name or name_of(source)
    if isinstance(source, Sound | DecodedFile):
        return Recording(source.reader(), name=name, block_s=block_s, max_s=max_s)
    with ExitStack() as opened:
        file, owned = seekable_file(source, name)
        if owned:
            opened.callback(file.close)
        if not file.read(1):
            raise empty(name)
        reader = open_container(file, name, demuxers)
        opened.callback(reader.close)
        return Recording(reader, name=name, block_s=block_s, max_s=max_s, opened=opened)


class Recording(AbstractContextManager["Recording"]):
    """An opened recording, to be read once.

    `spans` are those of its reader. `sample_count` and `warnings` are complete when `blocks()` is exhausted.
    What was `opened` for it is closed with it.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        name: str,
        block_s: float = 30.0,
        max_s: float | None = None,
        opened: ExitStack | None = None,
    ) -> None:
        self.name = name
        self.spans = reader.spans
        self.sample_count = 0
        self._reader = reader
        self._block = round(block_s * SAMPLE_RATE)
        self._max_s = max_s
        self._warnings: list[Notice] = []
        self._replaced = 0
        self._rate = SAMPLE_RATE
        self._kept: int | None = None  # the channel used where they cancel each other
        self._cancelled_s = 0.0
        # The first samples are decoded at once, so that a file without audio fails when it is opened, not in
        # the middle of a batch.
        pcm = reader.read()
        first = next(pcm, None)
        if first is None and reader.notices and not reader.decoded:
            raise AudioError(f"{name}: no sound could be decoded ({reader.notices[-1].message})")
        self._pcm: Iterator[Pcm] | None = pcm if first is None else chain([first], pcm)
        self._opened = ExitStack() if opened is None else opened.pop_all()

    @property
    def warnings(self) -> tuple[Notice, ...]:
        """Problems of the recording found so far; equal ones are one."""
        return merged((*self._reader.notices, *self._warnings))

    @property
    def declared_s(self) -> float | None:
        """The length that the container declares, in seconds; None where it declares none."""
        return self._reader.declared_s

    @property
    def duration_s(self) -> float:
        """Seconds read so far."""
        return seconds(self.sample_count)

    def blocks(self) -> Iterator[Samples]:
        """Yield the samples: blocks [block_s * 16000] float32, the last one shorter, none empty. Closes
        the recording at the end.

        Raises AudioError `audio_too_long` once more than `max_s` seconds were read, RuntimeError on
        a second call.
        """
        pcm, self._pcm = self._pcm, None
        if pcm is None:
            raise RuntimeError(f"{self.name} was read already; open it again")
        try:
            for block in _reblock(self._resampled(pcm), self._block):
                self.sample_count += len(block)
                if self._max_s is not None and self.duration_s > self._max_s:
                    message = f"{self.name}: longer than {self._max_s:g} s"
                    raise AudioError(message, code="audio_too_long")
                yield block
            self._conclude()
        finally:
            self.close()

    def close(self) -> None:
        """Close what was opened for it. A file object that was passed in stays open."""
        self._reader.close()
        self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resampled(self, pcm: Iterator[Pcm]) -> Iterator[Samples]:
        """Samples [T] at 16 kHz. A container may change its rate; each part has its own resampler."""
        rate = 0
        chosen: Resampler | None = None
        for block in pcm:
            if chosen is None or block.rate != rate:
                if chosen is not None:
                    yield chosen.finish()
                rate, chosen = block.rate, Resampler(block.rate)
                self._rate = rate
            yield chosen.push(self._mono(block.samples))
        if chosen is not None:
            yield chosen.finish()

    def _mono(self, samples: NDArray[np.float32]) -> Samples:
        # Comparisons with NaN are false.
        if not (samples.max(initial=0.0) < LOUDEST and samples.min(initial=0.0) > -LOUDEST):
            valid = np.abs(samples) < LOUDEST
            self._replaced += int(valid.size - valid.sum())
            samples = np.where(valid, samples, np.float32(0))
        mono = samples[:, 0] if samples.shape[1] == 1 else self._mixed(samples)
        return np.ascontiguousarray(mono)

    def _mixed(self, samples: NDArray[np.float32]) -> Samples:
        """The mean of the channels or, where they cancel each other, the loudest of them."""
        if samples.shape[1] == 2:  # the mean, to the bit, in half the time
            mixed: Samples = (samples[:, 0] + samples[:, 1]) * np.float32(0.5)
        else:
            mixed = samples.mean(axis=1)
        # In float32 where that is beyond doubt: the same decision in a third of the time.
        energy = sum(float(np.einsum("t,t->", channel, channel)) for channel in samples.T)
        if np.einsum("t,t->", mixed, mixed) > 2 * CANCELLED * energy / samples.shape[1] ** 2:
            return mixed
        powers = np.square(samples, dtype=np.float64).mean(axis=0)  # [C]
        power = float(np.square(mixed, dtype=np.float64).mean())
        # Equal channels keep all of their power, independent ones 1 / C of it.
        if not powers.mean() > INAUDIBLE or power >= CANCELLED * powers.mean() / len(powers):
            return mixed
        if self._kept is None or self._kept >= len(powers):
            self._kept = int(powers.argmax())  # the same channel to the end
        self._cancelled_s += len(samples) / self._rate
        return samples[:, self._kept]

    def _conclude(self) -> None:
        if self._replaced:
            text = f"{self._replaced} samples were not finite numbers and count as silence"
            self._warnings.append(Notice("non_finite_samples", text))
        if self._kept is not None:
            text = (
                f"the channels cancel each other for {self._cancelled_s:.1f} s (one has its polarity "
                f"reversed); there only channel {self._kept + 1} is used"
            )
            self._warnings.append(Notice("inverted_channels", text))
        if self.declared_s is not None and self.duration_s < self.declared_s - TRUNCATED_S:
            text = (
                f"{self.duration_s:.2f} s could be decoded of {self.declared_s:.2f} s declared: "
                "the file is cut off or damaged"
            )
            self._warnings.append(Notice("truncated_audio", text))
        elif self.duration_s < SHORT_S and not any(
            notice.code == "truncated_audio" for notice in self._reader.notices
        ):
            text = f"{1000 * self.duration_s:.0f} ms of audio are too short for speech"
            self._warnings.append(Notice("short_audio", text))


Open = Callable[[Input], Recording]
"""How a call opens its recordings: `open_audio`, or those that were read ahead."""


def read_audio(source: Input) -> Samples:
    """Read a whole recording, [T] float32 at 16 kHz. Raises what `open_audio` raises."""
    with open_audio(source) as recording:
        return np.concatenate([np.zeros(0, np.float32), *recording.blocks()])


def name_of(source: Input) -> str:
    """The name of a recording for messages: a path as it was given, else what it is."""
    if isinstance(source, Sound | tuple | Mapping):
        return ARRAY
    if isinstance(source, str | os.PathLike):
        return "<stdin>" if source == "-" else visible(str(source))
    return "<bytes>" if isinstance(source, bytes) else str(getattr(source, "name", "<file>"))


def length_of(path: str) -> float:
    """The duration of a file in seconds: from its header, or estimated from its size; 0 where nothing is
    known, as for a pipe. Does not raise for a bad file."""
    try:
        entry = os.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return 0.0
    if not stat.S_ISREG(entry.st_mode) or not entry.st_size:
        return 0.0
    declared: float | None = None
    with suppress(ForescribeError, OSError):  # reading the file will report the error
        with open(path, "rb") as file, closing(open_container(file, path)) as reader:
            declared = reader.declared_s
    return declared or entry.st_size / BYTES_PER_S


def _reblock(pieces: Iterator[Samples], size: int) -> Iterator[Samples]:
    held: list[Samples] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count < size:
            continue
        joined = np.concatenate(held)
        held = []
        whole = count - count % size
        for start in range(0, whole, size):
            yield joined[start : start + size].copy()  # a view would keep its neighbours alive
        held, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(held)


class Resampler:
    """Converts mono samples of a rate in Hz to 16 kHz: n samples become ceil(n * 16000 / rate)."""

    def __init__(self, rate: int) -> None:
        if rate <= 0:
            raise ValueError(f"sample rate of {rate} Hz")
        import soxr

        self.rate = rate
        self._taken = self._given = 0  # samples
        self._stream = None
        if rate != SAMPLE_RATE:
            self._stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")

    def push(self, samples: Samples) -> Samples:
        """Add samples; returns those that are ready, which may be none."""
        if self._stream is None:
            return samples
        self._taken += len(samples)
        ready = np.asarray(self._stream.resample_chunk(samples), np.float32)
        self._given += len(ready)
        return ready

    def finish(self) -> Samples:
        """Return the rest. The resampler cannot be used again."""
        rest = np.zeros(0, np.float32)
        if self._stream is None:
            return rest
        rest = np.asarray(self._stream.resample_chunk(rest, last=True), np.float32)
        due = max(0, -(-self._taken * SAMPLE_RATE // self.rate) - self._given)
        return np.pad(rest, (0, max(0, due - len(rest))))[:due]
