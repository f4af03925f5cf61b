"""The forms in which callers have a recording: files in any form, samples in memory, and decoded files.

`as_input` checks samples in memory and gives them one shape, `Sound`. A `DecodedFile` holds what a child
process has decoded (`asr.audio.sandbox`): mono float32 at 16 kHz in a file without a name, 64 kB per second
of audio, with the recording's windows where the child cut it as well. It is read by position, so that several
readers may read at a time.

Knows shapes, types and rates of samples; nothing of containers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, UsageError
from ..formats.transcript_parts import SAMPLE_RATE, Notice, seconds
from ..segment.windows import WindowSpan
from .containers import MAX_CHANNELS, MAX_RATE, MIN_RATE, Pcm, Reader, scaled

ARRAY = "<array>"
"""The name of a recording that was given as samples."""

LOUDEST_FLOAT = 100.0
"""Louder samples are integers that were converted without being scaled; words would be wrong in silence."""

WIDTH = np.dtype(np.float32).itemsize
"""Bytes of a sample."""

READ_SAMPLES = 1 << 16
"""Samples of one read."""


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples in memory: [T] or [T, C], floats nominally from -1 to 1 or integers, at `rate` Hz."""

    samples: NDArray[Any]
    rate: int

    def reader(self) -> _SoundReader:
        return _SoundReader(self)


@dataclass(frozen=True, eq=False)
class DecodedFile:
    """A decoded recording; a source like the recording's own file. The caller of the decoder closes it.

    `notices` say what was wrong with the recording. `spans` are its windows, where the child cut it as well.
    """

    name: str
    file: BinaryIO
    sample_count: int
    notices: tuple[Notice, ...] = ()
    spans: Sequence[WindowSpan] | None = None

    @property
    def duration_s(self) -> float:
        return seconds(self.sample_count)

    def reader(self) -> _DecodedFileReader:
        return _DecodedFileReader(self)

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True)
class Resumable(os.PathLike[str]):
    """A file of this machine whose windows are kept in another one while it is decoded, so that a later run
    goes on. A line of JSON is a window `of` this content and these settings."""

    path: str
    kept: Path
    of: str

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path

    def windows(self) -> list[dict[str, Any]]:
        """Those that were kept, with their `samples`; half a line, of a process that was killed, is none."""
        found = []
        with suppress(OSError), self.kept.open("rb") as lines:
            for line in lines:
                with suppress(ValueError, TypeError, KeyError):
                    kept = json.loads(line)
                    if kept["of"] == self.of and isinstance(kept["k"], int):
                        lasts = sum(part["end"] - part["start"] for part in kept["windows"])
                        found.append({**kept, "samples": lasts})
        return found

    def keep(self, window: Mapping[str, Any]) -> None:
        """Keep one more. Where that cannot be written, a later run has more to decode."""
        with suppress(OSError), self.kept.open("ab") as lines:
            lines.write(b"\n" + json.dumps({"of": self.of, **window}).encode() + b"\n")


Input: TypeAlias = (
    str
    | os.PathLike[str]
    | bytes
    | BinaryIO
    | DecodedFile
    | Sound
    | tuple[Any, Any]  # (samples, rate)
    | Mapping[str, Any]  # of Hugging Face's datasets
)
"""A recording, see `as_input`."""


def as_input(audio: Any, rate: float | None = None) -> Input:
    """A recording in any form that callers have it in: what is read from a file is unchanged, samples in
    memory become a `Sound`.

    Samples are an array of numpy, a tensor of torch, or a list: [T], [T, C] or [C, T], where the shorter
    axis is that of channels. Their rate is `rate`, or comes with them: `(samples, rate)`, the other way round
    as scipy has it, a mapping with `array` and `sampling_rate`, or with `bytes` or `path`, as of Hugging
    Face's datasets, or a decoder of torchcodec.

    Raises UsageError for samples without a rate, of another shape or type; AudioError for samples that are
    none (`empty_file`) or are not finite (`invalid_audio`).
    """
    if isinstance(audio, Mapping):
        return _from_mapping(audio, rate)
    if hasattr(audio, "get_all_samples"):  # torchcodec.decoders.AudioDecoder
        whole = audio.get_all_samples()
        return _sound(whole.data, whole.sample_rate, rate)
    if isinstance(audio, tuple):
        if len(audio) != 2 or all(isinstance(one, str | os.PathLike) for one in audio):
            raise UsageError(
                "a tuple: samples are (samples, rate), and several recordings are a list"
            )
        samples, own = audio if not _is_number(audio[0]) else audio[::-1]
        return _sound(samples, own, rate)
    if isinstance(audio, list) or hasattr(audio, "__array__"):
        return _sound(audio, rate, None)
    if rate is not None and not isinstance(audio, Sound):
        raise UsageError(
            "sample_rate is that of samples in memory; a file says its own: leave it out"
        )
    if isinstance(audio, bytearray | memoryview):
        return bytes(audio)
    known = isinstance(audio, str | os.PathLike | bytes | DecodedFile | Sound)
    if not known and not hasattr(audio, "read"):
        raise UsageError(
            f"{type(audio).__name__} is no recording: give a path, the bytes of a file, a binary file "
            "object, or samples with their rate"
        )
    return cast(Input, audio)


class _SoundReader(Reader):
    """Of samples in memory."""

    def __init__(self, sound: Sound) -> None:
        self.sound, self.declared_s = sound, len(sound.samples) / sound.rate

    def read(self) -> Iterator[Pcm]:
        samples = scaled(self.sound.samples.copy())  # the caller may use its buffer again
        frames = samples[:, None] if samples.ndim == 1 else samples
        for start in range(0, len(frames), READ_SAMPLES):
            yield Pcm(frames[start : start + READ_SAMPLES], self.sound.rate)


class _DecodedFileReader(Reader):
    """Of a decoded file, which stays open: a container of one channel. Its notices say what was missing."""

    decoded = True

    def __init__(self, file: DecodedFile) -> None:
        self.file, self.notices, self.spans = file, file.notices, file.spans

    def read(self) -> Iterator[Pcm]:
        return read_samples(self.file.file, 0, self.file.sample_count)


def read_samples(file: BinaryIO, start: int, end: int) -> Iterator[Pcm]:
    """Decoded samples, by position. Raises AudioError where the file ends before."""
    for at in range(start, end, READ_SAMPLES):
        count = min(READ_SAMPLES, end - at)
        data = os.pread(file.fileno(), count * WIDTH, at * WIDTH)
        if len(data) < count * WIDTH:
            raise AudioError("the decoder wrote fewer samples than it reported")
        yield Pcm(np.frombuffer(data, np.float32)[:, None], SAMPLE_RATE)


def _from_mapping(audio: Mapping[str, Any], rate: float | None) -> Input:
    if audio.get("array") is not None:
        return _sound(audio["array"], audio.get("sampling_rate"), rate)
    for key in ("bytes", "path"):
        if audio.get(key) is not None:
            return as_input(audio[key], rate)
    raise UsageError(
        f"a mapping with {', '.join(map(repr, audio)) or 'nothing'}; one of a recording has 'array' and "
        "'sampling_rate', or 'bytes', or 'path'"
    )


def _sound(samples: Any, own: Any, rate: float | None) -> Sound:
    """Checked samples; `own` is the rate that came with them, `rate` the one that was named."""
    if own is not None and rate is not None and own != rate:
        raise UsageError(f"sample_rate is {rate}, and the samples come with {own}: leave it out")
    hertz = own if own is not None else rate
    if hertz is None:
        raise UsageError("samples need their rate: sample_rate=16000, or (samples, 16000)")
    if not _is_number(hertz) or hertz != int(hertz) or not MIN_RATE <= hertz <= MAX_RATE:
        raise UsageError(
            f"sample_rate is {hertz!r}; a whole number from {MIN_RATE} to {MAX_RATE} Hz is needed"
        )
    array = _array(samples)
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        array = array.T  # [C, T]
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] > MAX_CHANNELS):
        raise UsageError(
            f"samples of shape {list(array.shape)}; expected [T], [T, C] or [C, T], with up to "
            f"{MAX_CHANNELS} channels"
        )
    if not array.size:
        raise AudioError(f"{ARRAY}: there are no samples", code="empty_file")
    if array.dtype.kind == "f":
        _check_floats(array)
    return Sound(array, int(hertz))


def _array(samples: Any) -> NDArray[Any]:
    try:
        if hasattr(samples, "detach"):  # a tensor of torch, in a format that numpy may lack
            samples = samples.detach().cpu()
            samples = (samples.float() if samples.is_floating_point() else samples).numpy()
        array = np.asarray(samples)
    except (ValueError, TypeError, RuntimeError) as error:  # sparse, on `meta`, of unequal lengths
        raise UsageError(f"samples that cannot be read: {error}") from error
    if array.dtype.kind not in "fiu" or (array.dtype.kind in "iu" and array.dtype.itemsize > 4):
        raise UsageError(
            f"samples of type {array.dtype}; expected floats from -1 to 1, or integers of 8, 16 or 32 bits"
        )
    return array


def _check_floats(array: NDArray[Any]) -> None:
    wrong = array.size - int(np.isfinite(array).sum())
    if wrong:
        raise AudioError(
            f"{ARRAY}: {wrong} of {array.size} samples are not finite (NaN or infinite)"
        )
    peak = float(np.abs(array).max())
    if peak > LOUDEST_FLOAT:
        raise UsageError(
            f"floating-point samples up to {peak:g}; they are from -1 to 1: divide those of 16-bit "
            "integers by 32768"
        )


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating)
    return number and not isinstance(value, bool) and math.isfinite(value)
