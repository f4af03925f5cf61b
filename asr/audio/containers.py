"""Containers and codecs: the bytes of a file to blocks of samples at their original rate.

There are two readers, chosen by the content of the file, never by its name:

- soundfile for uncompressed audio (wav, aiff, au, caf, ...): exact, every bit depth;
- PyAV, which ships its codecs, for everything else (mp3, flac, ogg, m4a, webm, video, ...).

soundfile reads mp3 (in a wav too), flac and ogg, but stops early without an error where the length in the
header is an estimate or describes only a part, and behind the samples of a w64 it reads on. PyAV reads all of
these completely and at the same speed.

Whatever a decoder raises is an AudioError of the recording, with words, and whatever it yields is within
limits: of channels, rate, and seconds per byte of the file. Knows nothing of 16 kHz, of mono, or of where the
bytes come from.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, ForescribeError
from ..formats.transcript_parts import PLACES, Notice
from .opening import (
    CallbackFile,
    clock_s,
    has_xing,
    is_known,
    lacks_index,
    size_of,
    stated_bytes,
    unread_bytes,
    unreadable,
)

if TYPE_CHECKING:
    import soundfile
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

    from ..segment.windows import WindowSpan

UNCOMPRESSED = frozenset({"WAV", "WAVEX", "RF64", "AIFF", "AU", "CAF", "NIST"})
"""soundfile's names of the formats that it reads here."""

MAGIC = (b"RIFF", b"RIFX", b"RF64", b"FORM", b".snd", b"dns.", b"caff", b"NIST")
"""The first bytes of those files. Other files are not given to libsndfile: it mistakes garbage for mp3,
and its mp3 decoder writes to stderr."""

LOGGED = re.compile(r"(?:SSND|Data Size|data|riff) *: (\d+) \(should be (\d+)\)")
"""What libsndfile notes of a size that leads beyond the end of the file: of samples, or of a whole w64."""

DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,ogg,wav,w64,aiff,au,caf,flac,mp3,aac,latm,loas,amr,amrnb,amrwb,"
    "ac3,eac3,dts,asf,avi,flv,mpeg,mpegts,ape,wv,tta,tak,mpc,mpc8,dsf,gsm,voc,nut,mxf"
)
"""What PyAV may open. This is an allowlist, because playlists, concat scripts, devices and image
sequences name further files or hosts to open: an upload could read this machine's files with them."""

TIMED = frozenset({"mov", "matroska", "mpegts", "asf", "flv"})
"""Containers that store timestamps. In the others the reader counts or estimates them."""

SIZED = TIMED | {"flac", "ogg", "avi"}
"""Containers that store their duration. That of others is estimated from a bit rate, which is exact for
uncompressed samples only."""

MAX_CHANNELS = 64
MIN_RATE, MAX_RATE = 4000, 768_000
"""Hz. More than any recorder writes: without limits, a forged header could demand gigabytes per second. A
rate of 4 kHz keeps what is below 2 kHz, with which speech is just understood; a header that states 1 Hz
would make a day of each 170 kB."""

MIN_BYTES_PER_S = 8
FREE_S = 3600.0
"""A file of n bytes may become n / MIN_BYTES_PER_S + FREE_S seconds of sound: 250 hours for 7 MB. Digital
silence takes 20 bytes a second in flac (8 kHz, blocks of 4096 samples) and 17 in opus (one packet in 120 ms).
The hour is for silence in place of gaps in short files."""

KINDS = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}  # of libav
READ_FRAMES = 1 << 16
MIN_GAP_S = 0.1
MAX_GAP_S = 600.0
"""A timestamp that jumps by less is jitter, by more invalid. In between, audio is missing, and silence
is inserted."""

_REASONS = {  # by the name of an exception of libav
    "InvalidDataError": "its data are damaged, or of an unsupported kind",
    "EOFError": "it ends too early",
    "PermissionError": "it names another file",
    "DecoderNotFoundError": "there is no decoder for it",
    "DemuxerNotFoundError": "its container format is not supported",
}


@dataclass(frozen=True)
class Pcm:
    """Samples [T, C] float32, nominally -1 to 1, at `rate` Hz."""

    samples: NDArray[np.float32]
    rate: int


class Reader:
    """An opened container."""

    declared_s: float | None = None
    """The length that the container declares, in seconds; None where it is missing or unreliable. What is
    missing of a file of samples that was cut off counts once all of it has been read."""

    notices: Sequence[Notice] = ()
    """What was wrong with the recording, as far as it was read."""

    spans: Sequence[WindowSpan] | None = None
    """Its windows where it is cut elsewhere, each of them there before the last of its samples."""

    decoded = False
    """Whether it was read elsewhere, so that it could be read, with no sample too."""

    def read(self) -> Iterator[Pcm]:
        """Yield the samples, once. Damage ends or interrupts them and adds a notice; it does not raise."""
        raise NotImplementedError

    def warn(self, code: str, text: str, count: int = 1, places: Sequence[float] = ()) -> None:
        self.notices = (*self.notices, Notice(code, text, count, tuple(places)))

    def close(self) -> None:
        """Release resources; the file itself belongs to the caller."""


def open_container(file: BinaryIO, name: str, demuxers: str = DEMUXERS) -> Reader:
    """Return the reader for a seekable binary file. `name` is for messages, `demuxers` limits PyAV.

    Raises AudioError: `invalid_audio`, `no_audio_stream`, `unreadable_file`. Reading raises `invalid_audio`
    and `unreadable_file`.
    """
    with _decoding(name):
        return _Bounded(
            _open_uncompressed(file, name) or _AvReader(file, name, demuxers), file, name
        )


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """The one place where exceptions of decoders become errors of the recording: libraries raise what they
    like for damaged headers, AttributeError among it."""
    try:
        yield
    except ForescribeError:
        raise
    except MemoryError as error:  # libav's too
        raise AudioError(
            f"{name}: needs more memory to decode than is free; its header may be damaged"
        ) from error
    except OSError as error:
        if _is_damage(error):
            raise _undecodable(name, _reason(error)) from error
        raise unreadable(name, error) from error
    except Exception as error:
        raise _undecodable(name, _reason(error)) from error


def _undecodable(name: str, reason: str) -> AudioError:
    return AudioError(
        f"{name}: not audio that can be decoded ({reason}); "
        "give a recording (wav, flac, mp3, m4a, ogg, webm, mp4, ...), no playlist or link"
    )


def _within_limits(channels: int, rate: int) -> bool:
    return 1 <= channels <= MAX_CHANNELS and MIN_RATE <= rate <= MAX_RATE


def check_format(name: str, channels: int, rate: int) -> None:
    """Raise AudioError for a header with an implausible number of channels or rate."""
    if not _within_limits(channels, rate):
        many = f"{channels} channel{'s' * (channels != 1)}"
        raise AudioError(
            f"{name}: {many} at {rate} Hz; 1 to {MAX_CHANNELS} channels at {MIN_RATE} to {MAX_RATE} Hz "
            "are read; if its header is wrong, convert it with the right values"
        )


class _Bounded(Reader):
    """A reader within the limits of what its file can hold, whose exceptions are errors of the recording."""

    def __init__(self, reader: Reader, file: BinaryIO, name: str) -> None:
        self._reader, self._file, self._name = reader, file, name
        self._most_s = size_of(file) / MIN_BYTES_PER_S + FREE_S
        declared = reader.declared_s
        plausible = declared is not None and 0 < declared <= self._most_s
        self.declared_s = declared if plausible else None

    @property
    def notices(self) -> Sequence[Notice]:  # type: ignore[override]
        return self._reader.notices

    def read(self) -> Iterator[Pcm]:
        length_s = 0.0
        with _decoding(self._name):
            for pcm in self._reader.read():
                length_s += len(pcm.samples) / pcm.rate
                if length_s > self._most_s:
                    raise AudioError(
                        f"{self._name}: more than {self._most_s / 3600:.1f} hours of sound in "
                        f"{size_of(self._file)} bytes; no recording is so small: its times are damaged"
                    )
                yield pcm
        stated, held = _stated_bytes(self._file)
        if 0 < held < stated:
            self.declared_s = length_s * stated / held
        count, start = unread_bytes(self._file)
        if count:
            text = (
                f"the header ends the sound at byte {start}; the {count} bytes after it "
                f"({count / (start + count):.0%} of the file) were not read; if they are sound, repair the "
                "header or join the recordings properly"
            )
            self._reader.warn("unread_audio", text)

    def close(self) -> None:
        self._reader.close()


def _open_uncompressed(file: BinaryIO, name: str) -> Reader | None:
    import soundfile

    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    if magic not in MAGIC:
        return None
    try:
        sound = soundfile.SoundFile(quiet := CallbackFile(file))
    except (OSError, MemoryError):
        raise
    except Exception:  # LibsndfileError, or TypeError where it found no header: PyAV may read it
        file.seek(0)
        return None
    # A header with zero samples may come from a pipe; PyAV reads to the end of the file.
    if sound.format in UNCOMPRESSED and sound.frames and not sound.subtype.startswith("MPEG"):
        check_format(name, sound.channels, sound.samplerate)
        return _SoundFileReader(sound, quiet)
    sound.close()
    file.seek(0)
    return None


def _stated_bytes(file: BinaryIO) -> tuple[int, int]:
    """The bytes of sound by the header of a wav, aiff, au or w64, and those of them in the file: fewer in one
    that was cut off."""
    import soundfile

    file.seek(0)
    if file.read(4) in (b"FORM", b".snd", b"dns.", b"RIFX", b"riff"):
        with suppress(soundfile.LibsndfileError, TypeError):  # as in `_open_uncompressed`
            with soundfile.SoundFile(CallbackFile(file)) as sound:
                for stated, held in LOGGED.findall(sound.extra_info):
                    # A w64 may be of any size.
                    if is_known(int(stated)) or 1 << 32 < int(stated) < 1 << 48:
                        return int(stated), int(held)
    return stated_bytes(file)


class _SoundFileReader(Reader):
    def __init__(self, sound: soundfile.SoundFile, file: CallbackFile) -> None:
        self.sound, self.file = sound, file
        self.declared_s = sound.frames / sound.samplerate

    def read(self) -> Iterator[Pcm]:
        import soundfile

        try:
            while len(block := self.sound.read(READ_FRAMES, dtype="float32", always_2d=True)):
                yield Pcm(block, self.sound.samplerate)
            self.file.check()
        except soundfile.LibsndfileError as error:
            self.warn("corrupt_audio", f"reading stopped at damaged data ({_reason(error)})")

    def close(self) -> None:
        self.sound.close()


class _AvReader(Reader):
    def __init__(self, file: BinaryIO, name: str, demuxers: str) -> None:
        import av

        # libav prints to stderr, over the caller's progress bar; what matters is also raised.
        av.logging.set_level(av.logging.PANIC)
        self._file = CallbackFile(file)
        # Accept tags that are not UTF-8. PyAV 19 and later always does so and has no such argument.
        old = int(av.__version__.split(".")[0]) < 19
        lenient: dict[str, Any] = {"metadata_errors": "replace"} if old else {}
        try:
            self.container: InputContainer = av.open(
                self._file,
                mode="r",
                container_options={"format_whitelist": demuxers, "protocol_whitelist": "file"},
                io_open=_refuse_to_open,
                **lenient,
            )
        except (av.FFmpegError, ValueError) as error:
            self._file.check()
            if lacks_index(file):
                raise AudioError(
                    f"{name}: cut off: the index of this kind of file (mp4, m4a, mov) stands at its end and "
                    "is missing, so nothing of it can be read; copy or download it again"
                ) from error
            raise _undecodable(name, _reason(error)) from error
        self._gaps, self._missing_s = 0, 0.0
        self._places: list[
            float
        ] = []  # of the first gaps: a hostile file has one before each packet
        self._most_packets = size_of(file) + 1000
        try:
            self.stream: AudioStream = self._choose(name)
            self.declared_s = self._declared_s(file)
        except BaseException:
            self.close()
            raise

    def _choose(self, name: str) -> AudioStream:
        streams = self.container.streams.audio
        stream: Any = self.container.streams.best("audio") if streams else None
        if streams and (stream is None or stream.codec_context is None):
            raise _undecodable(name, "the codec of its sound is unknown")
        if stream is None:
            kinds = ", ".join(sorted({other.type for other in self.container.streams}))
            message = f"{name}: no audio stream, only {kinds or 'nothing'}"
            raise AudioError(message, code="no_audio_stream")
        if len(streams) > 1:
            text = f"{len(streams)} audio streams; only the default one (number {stream.index}) is used"
            self.warn("several_audio_streams", text)
        check_format(name, stream.channels, stream.sample_rate)
        found: AudioStream = stream
        return found

    def _declared_s(self, file: BinaryIO) -> float | None:
        names = set(self.container.format.name.split(","))
        exact = names & SIZED or self.stream.codec_context.name.startswith("pcm_")
        if not exact and not (names == {"mp3"} and has_xing(file)):
            return None
        if (
            exact and names == {"caf"} and self.stream.frames
        ):  # its duration is that of what is there
            return self.stream.frames / self.stream.sample_rate
        if self.stream.duration is not None and self.stream.time_base:
            return float(self.stream.duration * self.stream.time_base)
        if (stated := clock_s(self.stream.metadata.get("DURATION", ""))) is not None:
            return stated
        sound, held = stated_bytes(file)
        if sound and not held and (bits := self.stream.codec_context.bit_rate):
            return 8 * sound / bits  # cut off behind its header
        # With a video stream the container may be longer than its sound.
        alone = len(self.container.streams) == 1
        return self.container.duration / 1e6 if alone and self.container.duration else None

    def read(self) -> Iterator[Pcm]:
        """Blocks of about a second: codecs yield 20 ms at a time, and each piece costs its consumer several
        calls."""
        held: list[NDArray[np.float32]] = []
        kind, count = (0, 0), 0  # the rate and the channels, and samples, of what is held
        for piece in self._pieces():
            own = (piece.rate, piece.samples.shape[1])
            if held and (own != kind or count >= READ_FRAMES):
                yield Pcm(np.concatenate(held), kind[0])
                held, count = [], 0
            kind = own
            held.append(piece.samples)
            count += len(piece.samples)
        if held:
            yield Pcm(np.concatenate(held), kind[0])

    def _pieces(self) -> Iterator[Pcm]:
        """The samples of each frame, and silence where some are missing."""
        position, rate, damaged = 0, 0, 0
        timed = bool(TIMED & set(self.container.format.name.split(",")))
        for frame in self._frames():
            pcm = None if frame is None else _pcm(frame)
            if frame is None or pcm is None:
                damaged += 1
                continue
            if pcm.rate != rate:
                position = round(position * pcm.rate / rate) if rate else 0
                rate = pcm.rate
            gap = self._gap(frame, position) if timed else 0
            for start in range(0, gap, READ_FRAMES):
                frames = min(READ_FRAMES, gap - start)
                yield Pcm(np.zeros((frames, pcm.samples.shape[1]), np.float32), rate)
            position += gap + len(pcm.samples)
            yield pcm
        if damaged:
            text = f"{damaged} damaged packet{'s' * (damaged > 1)} could not be decoded"
            self.warn("corrupt_audio", text, damaged)
        self._warn_of_gaps()

    def _frames(self) -> Iterator[AudioFrame | None]:
        """Yield decoded frames, and None for a packet that could not be decoded."""
        packets = self.container.demux(self.stream)
        for _ in range(self._most_packets):
            try:
                packet = next(packets)
            except StopIteration:
                self._file.check()
                return
            except Exception as error:  # the container itself ends or is damaged here
                self._file.check()
                if not _is_damage(error):
                    raise
                self.warn("corrupt_audio", f"reading stopped at damaged data ({_reason(error)})")
                return
            try:
                frames = packet.decode()
            except Exception as error:
                if not _is_damage(error):
                    raise
                if self.container.format.name != "w64" or packet.size > 7:  # else padding
                    yield None
            else:
                yield from frames
        text = "reading stopped: the container lists more packets than it has bytes"
        self.warn("corrupt_audio", text)

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
        self._gaps += 1
        self._missing_s += gap_s
        if len(self._places) < PLACES:
            self._places.append(round(position / frame.sample_rate, 3))
        return gap

    def _warn_of_gaps(self) -> None:
        listed = ", ".join(f"{at_s:.2f} s" for at_s in self._places)
        missing = f"{self._missing_s:.2f} s of sound missing"
        if self._gaps == 1:
            self.warn("audio_gap", f"{missing} at {listed}, silence instead")
        elif self._gaps:
            more = self._gaps - len(self._places)
            listed += f" and {more} more" if more else ""
            text = f"{self._gaps} gaps: {missing} in all, at {listed}; silence instead"
            self.warn("audio_gap", text, self._gaps, self._places)

    def close(self) -> None:
        self.container.close()


def _pcm(frame: AudioFrame) -> Pcm | None:
    """The samples of a frame; None where a damaged packet has spoilt its rate, channels or format."""
    channels, rate = frame.layout.nb_channels, frame.sample_rate
    try:
        if not _within_limits(channels, rate):
            return None
        # to_ndarray() and its checks take three times as long, a second for an hour of mp3.
        kind = KINDS[frame.format.name.removesuffix("p")]
        count = frame.samples * (1 if frame.format.is_planar else channels)
        # PyAV lists more planes than there are of eight channels: reading these ends the process.
        planes = [
            np.frombuffer(memoryview(plane), kind, count) for plane in frame.planes[:channels]
        ]
        samples = np.array(planes).T if frame.format.is_planar else planes[0].reshape(-1, channels)
        return Pcm(scaled(samples), rate)
    except Exception as error:
        if not _is_damage(error):
            raise
        return None


def scaled(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Samples as float32: integers by their range. A double beyond it becomes infinite; callers check."""
    if samples.dtype == np.float32:
        return samples
    if samples.dtype.kind in "iu":
        half = float(1 << (8 * samples.dtype.itemsize - 1))
        return (samples / half - (samples.dtype.kind == "u")).astype(np.float32)
    with np.errstate(over="ignore"):
        return samples.astype(np.float32, copy=False)


def _refuse_to_open(url: str, flags: int, options: dict[str, str]) -> object:
    raise PermissionError(f"refused to open {url!r} named inside a container")


def _is_damage(error: Exception) -> bool:
    """Whether an exception says something of the file's content, and not of the file system or the machine.
    libav's are subclasses of OSError and MemoryError where their numbers are the system's."""
    if any(kind.__name__ == "FFmpegError" for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError):  # EINVAL: a damaged header leads beyond the end of all files
        return error.errno in (None, errno.EINVAL, errno.EOVERFLOW)
    return not isinstance(error, MemoryError)


def _reason(error: Exception) -> str:
    """A stable description: the libraries' messages name internals and differ between versions."""
    known = (_REASONS.get(kind.__name__) for kind in type(error).__mro__)
    return next(filter(None, known), "it cannot be read")
