"""Audio that is still arriving: a pipe, a microphone, or a recording that is played back at its own pace.

A thread reads ahead, `AHEAD_S` at most: a sender that is faster waits then. A microphone cannot wait, so what
does not fit is lost, and told. A pipe holds raw samples or a wav file, which is read while it is being
written: nothing waits for its end, and its sizes are not believed. What is neither is refused with the way
to convert it, because it would be decoded as noise. Knows nothing of speech.
"""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, UsageError, how_to_install
from ..formats.transcript_parts import Notice
from .containers import Pcm, Reader, check_format, scaled
from .opening import NAME, is_known
from .reading import Recording, open_audio

Samples = NDArray[np.float32]

BLOCK_S = 0.1
"""Seconds of a block, and the longest wait for one."""

AHEAD_S = 60.0
"""Seconds that may wait to be used."""

HEAD = 4096
"""Bytes by which a pipe's content is recognised."""

READ_BYTES = 1 << 16

REMEDY = "`ffmpeg -i FILE -f s16le -ac 1 -ar 16000 - | forescribe listen -`"

KINDS = (
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (4, b"ftyp", "mp4 or m4a"),
    (0, b"\x1aE\xdf\xa3", "webm or mkv"),
    (0, b"FORM", "aiff"),
    (0, b"caff", "caf"),
    (0, b"RIFF", "RIFF without sound"),
    (0, b"RF64", "wav of more than 4 GB"),
)
"""First bytes of what is no wav file and no samples, with their place."""


class ByteSource(Protocol):
    """What of a binary file is used: `read1` returns what is there, and waits only where nothing is."""

    def read1(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class PcmFormat:
    """How samples stand in bytes: numpy's type, the rate in Hz, and the channels, which alternate."""

    rate: int = 16_000
    channels: int = 1
    kind: str = "<i2"

    @property
    def frame(self) -> int:
        """Bytes of a sample of all channels."""
        return self.channels * np.dtype(self.kind).itemsize

    def samples(self, data: bytes) -> NDArray[np.float32]:
        """The samples [T, C] in whole frames, -1 to 1."""
        return scaled(np.frombuffer(data, self.kind)).reshape(-1, self.channels)


WAV_KINDS = {(1, 8): "u1", (1, 16): "<i2", (1, 32): "<i4", (3, 32): "<f4", (3, 64): "<f8"}
"""By format tag and bits per sample."""


class Arrival:
    """Blocks of a recording that is read in a thread. `notices` say what was wrong with it so far."""

    def __init__(
        self,
        open: Callable[[], Recording],
        *,
        speed: float | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._open, self._speed, self._end = open, speed, end
        self._recording: Recording | None = None
        self._blocks: queue.Queue[Samples | BaseException | None] = queue.Queue(
            round(AHEAD_S / BLOCK_S)
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="arriving audio", daemon=True)
        self._began_s = time.monotonic()

    @property
    def played_s(self) -> float:
        """Seconds of sound that could be spoken, or played back, since it began."""
        return (time.monotonic() - self._began_s) * (self._speed or 1.0)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return () if self._recording is None else self._recording.warnings

    def start(self) -> None:
        """Begin to read, if that has not begun. A recording that is played back begins now."""
        if self._thread.ident is None:
            self._began_s = time.monotonic()
            self._thread.start()

    def check(self, wait_s: float) -> None:
        """Raise at once what is wrong with the beginning, if that is known within `wait_s` seconds."""
        self.start()
        self._thread.join(wait_s)
        if not self._thread.is_alive() and self._blocks.qsize() == 1:
            first = self._blocks.queue[0]
            if isinstance(first, BaseException):
                raise first

    def blocks(self) -> Iterator[Samples]:
        """Yield the samples until the end or `close`: blocks of `BLOCK_S` seconds; empty ones while nothing
        comes, so that the caller can look after other things. Raises AudioError for what is no audio."""
        self.start()
        while True:
            try:
                block = self._blocks.get(timeout=BLOCK_S)
            except queue.Empty:
                if self._stopped.is_set():
                    return
                yield np.zeros(0, np.float32)
                continue
            if block is None:
                return
            if isinstance(block, BaseException):
                raise block
            yield block

    def close(self) -> None:
        """Read no more; `blocks` ends behind what has come. What the thread waits for is not interrupted."""
        self._stopped.set()
        self._end()

    def _read(self) -> None:
        try:
            with self._open() as recording:
                self._recording = recording
                done_s = 0.0
                for block in recording.blocks():
                    if self._speed:
                        done_s += BLOCK_S / self._speed
                        self._stopped.wait(max(0.0, self._began_s + done_s - time.monotonic()))
                    self._put(block)
                    if self._stopped.is_set():
                        return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, block: Samples | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._blocks.put(block, timeout=1.0)
                return
            except queue.Full:
                continue


def piped(file: ByteSource, name: str = "stdin") -> Arrival:
    """What comes through a pipe: a wav file, or samples of 16 bits at 16 kHz, mono."""
    return Arrival(lambda: Recording(_PipeReader(file, name), name=name, block_s=BLOCK_S))


def replayed(path: str, speed: float | None) -> Arrival:
    """A recording, `speed` times as fast as it was spoken; None for as fast as it is used."""
    return Arrival(lambda: open_audio(path, block_s=BLOCK_S), speed=speed)


def microphone(device: int | str | None = None) -> Arrival:
    """An input device by number or by a part of its name; None for the system's. Raises UsageError where it
    cannot be used."""
    reader = _Microphone(device)
    return Arrival(lambda: Recording(reader, name="microphone", block_s=BLOCK_S), end=reader.close)


def input_devices() -> list[str]:
    """The input devices, a line for each: number, name, channels and rate. Raises UsageError where devices
    cannot be used at all."""
    sounddevice = _sounddevice()
    chosen = sounddevice.default.device[0]
    return [
        f"{'*' if number == chosen else ' '}{number:3}  {device['name']}  "
        f"({device['max_input_channels']} channels, {device['default_samplerate']:.0f} Hz)"
        for number, device in enumerate(sounddevice.query_devices())
        if device["max_input_channels"] > 0
    ]


class _PipeReader(Reader):
    """A pipe, which belongs to the caller, as a container of one stream."""

    def __init__(self, file: ByteSource, name: str) -> None:
        self._file, self._name = file, name
        self._held = b""

    def read(self) -> Iterator[Pcm]:
        head = self._held = self._take(HEAD)
        if not head:
            raise AudioError(
                f"{self._name}: it ended before any audio came; see what the program before the pipe says",
                code="empty_file",
            )
        if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b""):
            yield from self._wav()
            return
        kind = foreign(head)
        if kind is not None:
            raise AudioError(
                f"{self._name}: this is {kind}, and raw samples (s16le) or a wav file are read from a pipe: "
                f"convert it with {REMEDY}, or transcribe the file with `forescribe transcribe`"
            )
        yield from self._samples(PcmFormat(), None)

    def _wav(self) -> Iterator[Pcm]:
        """The samples of a wav file, and of others that follow it."""
        form: PcmFormat | None = None
        self._take(12)
        while len(head := self._take(8)) == 8:
            name, size = head[:4], struct.unpack("<I", head[4:])[0]
            if name == b"data":
                if form is None:
                    raise AudioError(f"{self._name}: a wav file without a format")
                known = is_known(size)
                yield from self._samples(form, size if known else None)
                self._take(size % 2 if known else 0)
            elif name == b"fmt ":
                form = self._format(self._take(min(size, HEAD)))
                self._skip(max(0, size - HEAD) + size % 2)
            elif name == b"RIFF":
                self._take(4)
            elif NAME.fullmatch(name):
                self._skip(size + size % 2)
            else:
                text = f"{self._name}: what follows the samples of the wav file is not read"
                self.warn("unread_audio", text)
                return

    def _format(self, chunk: bytes) -> PcmFormat:
        if len(chunk) < 16:
            raise AudioError(f"{self._name}: a wav file whose format is cut off")
        tag, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", chunk[:16])
        if tag == 0xFFFE and len(chunk) >= 26:  # the format is in the first bytes of its GUID
            tag = struct.unpack("<H", chunk[24:26])[0]
        check_format(self._name, channels, rate)
        form = PcmFormat(rate, channels, WAV_KINDS.get((tag, bits), ""))
        if not form.kind or frame != form.frame:
            raise AudioError(
                f"{self._name}: a wav file of another coding (format {tag}, {bits} bits): convert it "
                f"with {REMEDY}"
            )
        return form

    def _samples(self, form: PcmFormat, size: int | None) -> Iterator[Pcm]:
        """The samples in the next `size` bytes; None: to the end."""
        rest, left = b"", size
        while left is None or left > 0:
            data = self._some(READ_BYTES if left is None else min(left, READ_BYTES))
            if not data:
                break
            left = None if left is None else left - len(data)
            data = rest + data
            whole = len(data) - len(data) % form.frame
            rest = data[whole:]
            if whole:
                yield Pcm(form.samples(data[:whole]), form.rate)
        if rest:
            text = (
                f"{self._name}: it ended within a sample ({len(rest)} of {form.frame} bytes): if the words "
                "are wrong, so is the format: 16 kHz, mono"
            )
            self.warn("truncated_audio", text)

    def _some(self, size: int) -> bytes:
        """What is there, at most `size` bytes; nothing at the end only."""
        if self._held:
            data, self._held = self._held[:size], self._held[size:]
            return data
        return self._file.read1(size)

    def _take(self, size: int) -> bytes:
        """`size` bytes, fewer at the end."""
        data = b""
        while len(data) < size and (more := self._some(size - len(data))):
            data += more
        return data

    def _skip(self, size: int) -> None:
        while size > 0 and (data := self._some(min(size, READ_BYTES))):
            size -= len(data)


def foreign(head: bytes) -> str | None:
    """What the first bytes of a pipe are, if they are no samples of 16 bits; None where they may be."""
    for at, magic, name in KINDS:
        if head[at : at + len(magic)] == magic:
            return f"a file ({name})"
    if head.isascii() and b"\0" not in head:
        return "text"
    if len(head) >= HEAD // 4 and _is_noise(head):
        return "compressed or encrypted data, as of a file"
    return None


def _is_noise(head: bytes) -> bool:
    """Whether all values are equally frequent, and neighbours independent: sound is neither. Measured on mp3,
    aac, ogg and webm: an entropy above 7.7 bits, a kurtosis of 1.8 to 2.0 (of white noise 3, of voices
    more)."""
    data = head[len(head) % 2 :][-HEAD // 2 :]  # a file may begin with a header
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    shares = counts[counts > 0] / counts.sum()
    if -(shares * np.log2(shares)).sum() < 7.6:  # of 8 bits; 2048 random bytes have 7.9
        return False
    samples = np.frombuffer(data, "<i2").astype(np.float64)
    centred = samples - samples.mean()
    power = float(np.square(centred).mean())
    alike = float((centred[:-1] * centred[1:]).mean()) / power
    return abs(alike) < 0.15 and float((centred**4).mean()) / power**2 < 2.3


class _Microphone(Reader):
    """An input device as a container that does not end before `close`."""

    def __init__(self, device: int | str | None) -> None:
        self._sounddevice = _sounddevice()
        self._blocks: queue.Queue[Samples | None] = queue.Queue(round(AHEAD_S / BLOCK_S))
        self._stream, self._rate = self._opened(device)

    def read(self) -> Iterator[Pcm]:
        while (samples := self._blocks.get()) is not None:
            yield Pcm(samples, self._rate)

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            with suppress(queue.Full):  # nobody waits for it
                self._blocks.put_nowait(None)

    def _opened(self, device: int | str | None) -> tuple[Any, int]:
        """A stream of the device at 16 kHz or, where it refuses that, at its own rate."""
        sounddevice, rate = self._sounddevice, 16_000
        try:
            own = round(sounddevice.query_devices(device, "input")["default_samplerate"])
            try:
                sounddevice.check_input_settings(device, channels=1, samplerate=rate)
            except sounddevice.PortAudioError:
                rate = own
            stream = sounddevice.InputStream(
                samplerate=rate,
                blocksize=round(rate * BLOCK_S),
                device=device,
                channels=1,
                dtype="float32",
                callback=self._arrived,
            )
            stream.start()
        except (sounddevice.PortAudioError, ValueError) as error:
            which = "no microphone" if device is None else f"--input {device}"
            raise UsageError(
                f"{which}: {error}; see `forescribe listen --list-devices`, or pipe audio in: "
                "`... | forescribe listen -`"
            ) from error
        return stream, rate

    def _arrived(self, samples: Samples, frames: int, times: Any, status: Any) -> None:
        """On the thread of the sound system, which must not wait."""
        if status.input_overflow:
            self.warn("lost_audio", "the microphone lost samples: the machine is busy")
        try:
            self._blocks.put_nowait(samples.copy())
        except queue.Full:
            text = f"{BLOCK_S} s of the microphone were lost: nothing took them for {AHEAD_S:.0f} s"
            self.warn("lost_audio", text)


def _sounddevice() -> Any:
    """Raises UsageError where it, or its library, is missing."""
    pipe = "; without it, pipe audio in: `... | forescribe listen -`"
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a microphone needs {error.name}: {how_to_install('live')}{pipe}"
        ) from error
    except OSError as error:  # it looks for the library when it is imported
        raise UsageError(
            f"a microphone needs the library PortAudio: as root `apt-get install libportaudio2`{pipe}"
        ) from error
    return sounddevice
