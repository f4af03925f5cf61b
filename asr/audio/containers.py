"""Containers and codecs: the bytes of a file to blocks of samples at their original rate.

There are two readers, chosen by the content of the file, never by its name:

- soundfile for uncompressed audio (wav, aiff, au, caf, ...): exact, every bit depth;
- PyAV, which ships its codecs, for everything else (mp3, flac, ogg, m4a, webm, video, ...).

soundfile reads mp3, flac and ogg too, but stops early without an error where the length in the header
is an estimate or describes only a part: with libsndfile 1.2.2, an mp3 without a Xing header gave 11 of
60 s, two concatenated mp3 or ogg files gave the first one, a flac of unknown length lost its end. PyAV
read all of these completely and at the same speed.

Knows nothing of 16 kHz, of mono, or of where the bytes come from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError
from ..formats.transcript import Notice

if TYPE_CHECKING:
    import soundfile
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

UNCOMPRESSED = frozenset({"WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "NIST"})
"""soundfile's names of the formats that it reads here."""

MAGIC = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"dns.", b"caff", b"NIST")
"""The first bytes of those files. Other files are not given to libsndfile: it mistakes garbage for mp3,
and its mp3 decoder writes to stderr."""

DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,ogg,wav,w64,aiff,au,caf,flac,mp3,aac,latm,loas,amr,amrnb,amrwb,"
    "ac3,eac3,dts,asf,avi,flv,mpeg,mpegts,ape,wv,tta,tak,mpc,mpc8,dsf,gsm,voc,nut,mxf"
)
"""What PyAV may open. This is an allowlist, because playlists, concat scripts, devices and image
sequences name further files or hosts to open: an upload could read this machine's files with them."""

TIMED = frozenset({"mov", "matroska", "mpegts", "asf", "flv"})
"""Containers that store timestamps. In the others the reader counts or estimates them."""

SIZED = TIMED | {"flac", "wav", "ogg", "avi"}
"""Containers that store their duration. That of a raw stream (aac, ac3, mp3 without Xing) is estimated
from its bit rate."""

MAX_CHANNELS = 64
MAX_RATE = 768_000
"""More than any recorder writes: without limits, a forged header could demand gigabytes per second."""

READ_FRAMES = 1 << 16
MIN_GAP_S = 0.1
MAX_GAP_S = 600.0
"""A timestamp that jumps by less is jitter, by more invalid. In between, audio is missing, and silence
is inserted."""

MAX_BOXES = 1000
"""The most boxes to look at on the outermost level of an mp4; a valid file has a handful."""

UNKNOWN_SIZE = 0x7FFF0000
"""Bytes. Programs that write wav to a pipe do not know the size, and write one around 2 or 4 GiB."""


@dataclass(frozen=True)
class Pcm:
    """Samples [T, C] float32, nominally -1 to 1, at `rate` Hz."""

    samples: NDArray[np.float32]
    rate: int


class Reader(Protocol):
    """An opened container."""

    declared_s: float | None
    """The length that the container declares, in seconds; None where it is missing or unreliable."""

    notices: list[Notice]

    def read(self) -> Iterator[Pcm]:
        """Yield the samples, once. Damage ends or interrupts them and adds a notice; it does not raise."""

    def close(self) -> None:
        """Release resources; the file itself belongs to the caller."""


def open_container(file: BinaryIO, name: str, demuxers: str = DEMUXERS) -> Reader:
    """Return the reader for a seekable binary file. `name` is for messages, `demuxers` limits PyAV.

    Raises AudioError: `invalid_audio`, `no_audio_stream`.
    """
    return _open_uncompressed(file, name) or _AvReader(file, name, demuxers)


def _check(name: str, channels: int, rate: int) -> None:
    """Raise AudioError for a header with an implausible number of channels or rate."""
    if channels < 1 or rate < 1:
        raise AudioError(f"{name}: {channels} channels at {rate} Hz: there is no sound in it")
    if channels > MAX_CHANNELS or rate > MAX_RATE:
        most = f"{MAX_CHANNELS} channels and {MAX_RATE} Hz"
        raise AudioError(f"{name}: {channels} channels at {rate} Hz; at most {most} are read")


def _open_uncompressed(file: BinaryIO, name: str) -> Reader | None:
    import soundfile

    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    if magic not in MAGIC:
        return None
    try:
        sound = soundfile.SoundFile(file)
    except (soundfile.LibsndfileError, TypeError):  # TypeError: it found no header
        file.seek(0)
        return None
    # A header with zero samples may come from a pipe; PyAV reads to the end of the file.
    if sound.format in UNCOMPRESSED and sound.frames:
        _check(name, sound.channels, sound.samplerate)
        return _SoundFileReader(sound, _wav_declared_s(file))
    sound.close()
    file.seek(0)
    return None


class _SoundFileReader:
    def __init__(self, sound: soundfile.SoundFile, header_s: float | None) -> None:
        self.sound = sound
        self.declared_s: float | None = header_s or sound.frames / sound.samplerate
        self.notices: list[Notice] = []

    def read(self) -> Iterator[Pcm]:
        import soundfile

        try:
            while len(block := self.sound.read(READ_FRAMES, dtype="float32", always_2d=True)):
                yield Pcm(block, self.sound.samplerate)
        except soundfile.LibsndfileError as error:
            self.notices.append(
                Notice("corrupt_audio", f"reading stopped at damaged data ({_reason(error)})")
            )

    def close(self) -> None:
        self.sound.close()


class _AvReader:
    def __init__(self, file: BinaryIO, name: str, demuxers: str) -> None:
        import av

        # libav prints to stderr, over the caller's progress bar; what matters is also raised.
        av.logging.set_level(av.logging.PANIC)
        try:
            self.container: InputContainer = av.open(
                file,
                mode="r",
                container_options={"format_whitelist": demuxers, "protocol_whitelist": "file"},
                io_open=_refuse_to_open,
                **_lenient_metadata(av.__version__),
            )
        except (av.FFmpegError, ValueError) as error:
            if _lacks_index(file):
                raise AudioError(
                    f"{name}: cut off: the index of this kind of file (mp4, m4a, mov) stands at its "
                    "end and is missing, so nothing of it can be read; copy or download it again"
                ) from error
            raise AudioError(
                f"{name}: not audio that can be decoded ({_reason(error)}); "
                "give a recording (wav, flac, mp3, m4a, ogg, webm, mp4, ...), no playlist or link"
            ) from error
        self.notices: list[Notice] = []
        self.stream: AudioStream = self._choose(name)
        self.declared_s = self._declared_s(file)

    def _choose(self, name: str) -> AudioStream:
        streams = self.container.streams.audio
        best = self.container.streams.best("audio") if streams else None
        if best is None:
            kinds = (
                ", ".join(sorted({stream.type for stream in self.container.streams})) or "nothing"
            )
            self.close()
            raise AudioError(f"{name}: no audio stream, only {kinds}", code="no_audio_stream")
        if len(streams) > 1:
            message = (
                f"{len(streams)} audio streams; only the default one (number {best.index}) is used"
            )
            self.notices.append(Notice("several_audio_streams", message))
        stream = next(stream for stream in streams if stream.index == best.index)
        _check(name, stream.channels, stream.sample_rate)
        return stream

    def _declared_s(self, file: BinaryIO) -> float | None:
        names = set(self.container.format.name.split(","))
        if not names & SIZED and not (names == {"mp3"} and _has_xing(file)):
            return None
        if self.stream.duration is not None and self.stream.time_base:
            return float(self.stream.duration * self.stream.time_base)
        if (stated := _clock_s(self.stream.metadata.get("DURATION", ""))) is not None:
            return stated
        # With a video stream the container may be longer than its sound.
        alone = len(self.container.streams) == 1
        return self.container.duration / 1e6 if alone and self.container.duration else None

    def read(self) -> Iterator[Pcm]:
        return _gathered(self._read())

    def _read(self) -> Iterator[Pcm]:
        position, rate, damaged = 0, 0, 0
        timed = bool(TIMED & set(self.container.format.name.split(",")))
        for frame in self._frames():
            if frame is None:
                damaged += 1
                continue
            if frame.sample_rate != rate:
                position = round(position * frame.sample_rate / rate) if rate else 0
                rate = frame.sample_rate
            pcm = Pcm(_float32(frame), rate)
            gap = self._gap(frame, position) if timed else 0
            yield from _silence(gap, pcm)
            position += gap + len(pcm.samples)
            yield pcm
        if damaged:
            self.notices.append(
                Notice(
                    "corrupt_audio",
                    f"{damaged} damaged packet{'s' * (damaged > 1)} could not be decoded",
                )
            )

    def _frames(self) -> Iterator[AudioFrame | None]:
        """Yield decoded frames, and None for a packet that could not be decoded."""
        import av

        packets = self.container.demux(self.stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except av.FFmpegError as error:  # the container itself ends or is damaged here
                self.notices.append(
                    Notice("corrupt_audio", f"reading stopped at damaged data ({_reason(error)})")
                )
                return
            try:
                yield from packet.decode()
            except av.FFmpegError:
                yield None

    def _gap(self, frame: AudioFrame, position: int) -> int:
        """The number of samples missing before this frame, by its timestamp: packets were dropped, the
        recorder was paused, or the sound starts late."""
        if frame.pts is None or not frame.time_base:
            return 0
        origin = (self.container.start_time or 0) / 1e6
        gap = round((float(frame.pts * frame.time_base) - origin) * frame.sample_rate) - position
        gap_s = gap / frame.sample_rate
        if not MIN_GAP_S < gap_s < MAX_GAP_S:
            return 0
        at_s = position / frame.sample_rate
        self.notices.append(
            Notice("audio_gap", f"{gap_s:.2f} s of sound missing at {at_s:.2f} s, silence instead")
        )
        return gap

    def close(self) -> None:
        self.container.close()


def _gathered(pieces: Iterator[Pcm]) -> Iterator[Pcm]:
    """Join pieces to blocks of about a second: codecs yield 20 ms at a time, and each piece costs its
    consumer several calls."""
    held: list[Pcm] = []
    count = 0
    for piece in pieces:
        same_format = not held or (
            piece.rate == held[0].rate and piece.samples.shape[1] == held[0].samples.shape[1]
        )
        if not same_format or count >= READ_FRAMES:
            yield _joined(held)
            held, count = [], 0
        held.append(piece)
        count += len(piece.samples)
    if held:
        yield _joined(held)


def _joined(pieces: list[Pcm]) -> Pcm:
    return Pcm(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate)


def _silence(count: int, like: Pcm) -> Iterator[Pcm]:
    for start in range(0, count, READ_FRAMES):
        frames = min(READ_FRAMES, count - start)
        yield Pcm(np.zeros((frames, like.samples.shape[1]), np.float32), like.rate)


def _float32(frame: AudioFrame) -> NDArray[np.float32]:
    """Samples [T, C]. Integers are scaled by their range; unsigned bytes are centred first."""
    channels = frame.layout.nb_channels
    raw = frame.to_ndarray()
    samples = raw.T if frame.format.is_planar else raw.reshape(-1, channels)
    if samples.dtype == np.uint8:
        return ((samples.astype(np.float32) - 128) / 128).astype(np.float32)
    if samples.dtype.kind == "i":
        return (samples / float(1 << (8 * samples.dtype.itemsize - 1))).astype(np.float32)
    with np.errstate(
        over="ignore"
    ):  # a double beyond float32 becomes infinite, which the caller checks
        return samples.astype(np.float32, copy=False)


def _lenient_metadata(version: str) -> dict[str, Any]:
    """Arguments of `av.open` that make it accept tags that are not UTF-8. PyAV 19 and later always does
    so and has no such argument."""
    return {"metadata_errors": "replace"} if int(version.split(".")[0]) < 19 else {}


def _refuse_to_open(url: str, flags: int, options: dict[str, str]) -> object:
    raise PermissionError(f"refused to open {url!r} named inside a container")


_REASONS = {
    "InvalidDataError": "its data are damaged, or of an unsupported kind",
    "EOFError": "it ends too early",
    "PermissionError": "it names another file",
    "DecoderNotFoundError": "there is no decoder for it",
    "DemuxerNotFoundError": "its container format is not supported",
}


def _reason(error: Exception) -> str:
    """A stable description: the libraries' messages name internals and differ between versions."""
    known = (_REASONS.get(kind.__name__) for kind in type(error).__mro__)
    return next(filter(None, known), "it cannot be read")


def _wav_declared_s(file: BinaryIO) -> float | None:
    """The duration in seconds by a RIFF header; soundfile silently reduces it to what a truncated file
    holds.

    Source: Multimedia Programming Interface and Data Specifications 1.0 (IBM, Microsoft, 1991),
    chunk layout.
    """
    here = file.tell()
    try:
        file.seek(0)
        if file.read(4) != b"RIFF" or len(file.read(8)) != 8:
            return None
        byte_rate = 0
        while len(header := file.read(8)) == 8:
            tag, size = header[:4], struct.unpack("<I", header[4:])[0]
            if tag == b"data":
                return size / byte_rate if byte_rate and 0 < size < UNKNOWN_SIZE else None
            if tag == b"fmt ":
                byte_rate = struct.unpack("<I", file.read(16)[8:12])[0]
                size -= 16
            file.seek(size + size % 2, 1)
        return None
    except struct.error:
        return None
    finally:
        file.seek(here)


def _lacks_index(file: BinaryIO) -> bool:
    """Whether this is an mp4 without its `moov` box, as after an interrupted download or recording.

    Source: ISO/IEC 14496-12, section 4.2: boxes of 4 bytes of size and 4 of type, then 8 for a size of 1.
    """
    here = file.tell()
    try:
        file.seek(0, 2)
        end, at, kinds = file.tell(), 0, list[bytes]()
        while at + 8 <= end and len(kinds) < MAX_BOXES:
            file.seek(at)
            head = file.read(16)
            size, kind = struct.unpack(">I", head[:4])[0], head[4:8]
            if size == 1 and len(head) == 16:
                size = struct.unpack(">Q", head[8:])[0]
            kinds.append(kind)
            if size < 8:  # 0: up to the end of the file
                break
            at += size
        return kinds[:1] == [b"ftyp"] and b"mdat" in kinds and b"moov" not in kinds
    finally:
        file.seek(here)


def _has_xing(file: BinaryIO) -> bool:
    """Whether an mp3 states its length: a Xing, Info or VBRI header in its first frame, after any
    ID3v2 tag."""
    here = file.tell()
    file.seek(0)
    head = file.read(10)
    skip = 0
    if head[:3] == b"ID3" and len(head) == 10:
        skip = 10 + sum(
            (byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True)
        )
    file.seek(skip)
    start = file.read(2048)
    file.seek(here)
    return any(tag in start for tag in (b"Xing", b"Info", b"VBRI"))


def _clock_s(text: str) -> float | None:
    """The seconds in Matroska's format `00:01:02.500000000`."""
    try:
        hours, minutes, rest = text.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)
    except ValueError:
        return None
