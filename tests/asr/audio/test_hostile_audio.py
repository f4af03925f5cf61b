"""Hostile recordings: what a decoder raises, and what a small file may become, harms this recording only."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np
import pytest
import soundfile

from forescribe.asr.audio import containers
from forescribe.asr.audio.containers import Pcm, Reader
from forescribe.asr.audio.opening import UNREAD_BYTES, stated_bytes, unread_bytes
from forescribe.asr.audio.reading import length_of, open_audio
from forescribe.asr.errors import AudioError
from forescribe.asr.formats.transcript_parts import Notice
from tests.asr.recordings import riff

RATE = 16_000
NOISE = (0.1 * np.random.default_rng(0).standard_normal(3 * RATE)).astype(np.float32)
DATA = (20_000 * NOISE).astype("<i2").tobytes()


def opus(container: str, packets: int, every_ms: int) -> bytes:
    """Packets of 20 ms of silence, three bytes each, at these times."""
    seed, file = io.BytesIO(), io.BytesIO()
    with av.open(seed, "w", format=container) as out:
        stream = out.add_stream("libopus", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), np.int16), "s16", "mono")
        frame.sample_rate = 48_000
        out.mux([*stream.encode(frame), *stream.encode(None)])
    seed.seek(0)
    with av.open(seed) as given, av.open(file, "w", format=container) as out:
        stream = out.add_stream_from_template(given.streams.audio[0])
        for number in range(packets):
            packet = av.Packet(b"\xf8\xff\xfe")
            packet.stream, packet.time_base = stream, Fraction(1, 1000)
            packet.pts = packet.dts = number * every_ms
            packet.duration = 20
            out.mux(packet)
    return file.getvalue()


def read(source: bytes) -> tuple[float, Sequence[Notice]]:
    with open_audio(source, name="a") as recording:
        for _ in recording.blocks():
            pass
    return recording.duration_s, recording.warnings


@contextmanager
def peak_below(most_bytes: float) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


# what a decoder raises


@pytest.mark.parametrize(
    "source",
    [
        riff(DATA, tag=0x7A21),
        riff(DATA, bits=0),
        opus("webm", 20, 20).replace(b"A_OPUS", b"A_NONE"),
        opus("matroska", 20, 20).replace(b"A_OPUS", b"A_\xff\xfeUS"),
    ],
    ids=["tag", "bits", "id", "no text"],
)
def test_an_unknown_codec_is_said_in_words(tmp_path, source) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(source)
    assert length_of(str(path)) == len(source) / 16_000
    with pytest.raises(AudioError, match="decoded .the codec of its sound is unknown") as caught:
        open_audio(path)
    assert caught.value.code == "invalid_audio"


class Raising(Reader):
    """A reader that raises after a second of sound."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self) -> Iterator[Pcm]:
        yield Pcm(NOISE[:RATE, None], RATE)
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            AttributeError("'AudioStream' object has no attribute 'channels'"),
            "invalid_audio",
            "cannot be read",
        ),
        (ZeroDivisionError("division by zero"), "invalid_audio", "cannot be read"),
        (MemoryError(), "invalid_audio", "more memory to decode than is free"),
        (OSError(22, "Invalid argument"), "invalid_audio", "cannot be read"),
        (PermissionError("refused to open 'b.wav'"), "invalid_audio", "it names another file"),
        (OSError(5, "Input/output error"), "unreadable_file", "Input/output error"),
        (AudioError("a: longer", code="audio_too_long"), "audio_too_long", "a: longer"),
    ],
)
@pytest.mark.parametrize("when", ["opening", "reading"])
def test_whatever_is_raised_is_an_error_of_the_recording(
    monkeypatch, error, code, said, when
) -> None:
    def opened(*_: object) -> Raising:
        if when == "opening":
            raise error
        return Raising(error)

    monkeypatch.setattr(containers, "_AvReader", opened)
    with pytest.raises(AudioError) as caught:
        read(b"no wav")
    assert caught.value.code == code and said in caught.value.message
    assert "AudioStream" not in caught.value.message


def test_a_packet_that_raises_is_one_damaged_packet(monkeypatch) -> None:
    """Whatever it raises; the sound around it is used."""
    # Asked once for the stream, then for each frame.
    real, calls = containers._within_limits, iter(range(1000))

    def broken(channels: int, rate: int) -> bool:
        if next(calls) in (4, 8):
            raise ValueError("Conversion from 'fltp' to array is not supported")
        return real(channels, rate)

    monkeypatch.setattr(containers, "_within_limits", broken)
    length_s, notices = read(opus("webm", 50, 20))
    assert [(n.code, n.count) for n in notices] == [("corrupt_audio", 2)]
    assert length_s == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("rate", [1, 3999, 768_001])
def test_a_frame_with_another_rate_is_damaged(rate) -> None:
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), np.int16), "s16", "mono")
    frame.sample_rate = 8000
    assert containers._pcm(frame) is not None
    frame.sample_rate = rate
    assert containers._pcm(frame) is None


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_disk_that_fails_in_the_middle_of_a_file_is_an_error(kind) -> None:
    class Failing(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if self.tell() > 50_000:
                raise OSError(5, "Input/output error")
            return super().read(count)

    written = io.BytesIO()
    soundfile.write(written, np.tile(NOISE, 4), RATE, format=kind, subtype="PCM_16")
    assert len(written.getvalue()) > 60_000
    file = Failing(written.getvalue())
    with (
        pytest.raises(AudioError, match="Input/output error") as caught,
        open_audio(file, name="a") as recording,
    ):
        list(recording.blocks())
    assert caught.value.code == "unreadable_file"


# what a byte may become


@pytest.mark.parametrize("rate", [1, 3, 7, 999, 3999, 768_001])
def test_a_rate_at_which_nobody_records_speech_is_refused(tmp_path, rate) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(riff(DATA, rate))
    match = f"1 channel at {rate} Hz; 1 to 64 channels at 4000 to"
    with peak_below(10e6), pytest.raises(AudioError, match=match):
        read(path.read_bytes())
    assert length_of(str(path)) < 10


def test_times_that_no_recording_has_are_refused(monkeypatch) -> None:
    """Gaps of 590 s, each of which is plausible, make weeks of a few kilobytes."""
    monkeypatch.setattr(containers, "FREE_S", 60.0)
    source = opus("matroska", 30, 590_000)
    most_s = len(source) / 8 + 60
    with pytest.raises(
        AudioError, match=f"more than {most_s / 3600:.1f} hours of sound in"
    ) as caught:
        read(source)
    assert caught.value.code == "invalid_audio"


def test_hours_of_silence_in_a_few_bytes_are_read_in_little_memory() -> None:
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 8000, 1, format="FLAC", subtype="PCM_16") as out:
        for _ in range(70):
            out.write(np.zeros(60 * 8000, np.int16))
    assert len(file.getvalue()) < 110_000
    with peak_below(30e6):
        length_s, notices = read(file.getvalue())
    assert length_s == 4200 and not notices


def test_a_declared_length_that_cannot_be_is_ignored(tmp_path) -> None:
    """It would reserve the whole spool, or come first in a batch."""
    path = tmp_path / "a.mkv"
    path.write_bytes(opus("matroska", 2, 599_000 * 1000))
    assert length_of(str(path)) == path.stat().st_size / 16_000


# sound that a header leaves out


LIST = b"LIST" + struct.pack("<I", 5000) + b"INFO" + 4996 * b"x"


@pytest.mark.parametrize(
    ("source", "unread"),
    [
        (riff(DATA, size=4000), len(DATA) - 4000),
        (riff(DATA, size=4001), len(DATA) - 4002),
        (riff(DATA) + riff(DATA), 44 + len(DATA)),  # cat a.wav b.wav
        (riff(DATA) + LIST, 0),
        (riff(DATA) + LIST + LIST + DATA, len(DATA)),
        (riff(DATA) + b"ID3\4\0\0" + 9000 * b"j", 0),
        (riff(DATA) + 9000 * b"\0", 0),  # space that was reserved
        (riff(DATA) + 2_000_000 * b"\0" + DATA, 2_000_000 + len(DATA)),
        (riff(DATA, size=len(DATA) - UNREAD_BYTES + 2), 0),
        (riff(DATA, size=0), 0),
        (riff(DATA, size=0xFFFFFFFF), 0),
        (riff(DATA, size=0x7FFFFFFE), 0),
        (riff(DATA, size=0x7FFFF000), 0),
        (riff(DATA, size=2 * len(DATA)), 0),
    ],
)
def test_sound_that_a_wav_header_leaves_out_is_warned_of(source, unread) -> None:
    assert unread_bytes(io.BytesIO(source)) == (unread, len(source) - unread)
    _, notices = read(source)
    found = [notice.message for notice in notices if notice.code == "unread_audio"]
    assert len(found) == (unread > 0)
    assert all(f"the {unread} bytes after it" in message for message in found)


def test_the_samples_of_an_rf64_may_be_left_out_too() -> None:
    file = io.BytesIO()
    soundfile.write(file, NOISE, RATE, format="RF64", subtype="PCM_16")
    damaged = bytearray(file.getvalue())
    at = damaged.index(b"ds64") + 16
    damaged[at : at + 8] = struct.pack("<q", 4000)
    length_s, notices = read(bytes(damaged))
    assert length_s < 0.2
    assert "unread_audio" in [notice.code for notice in notices]


def test_a_wav_of_gigabytes_that_was_cut_off_is_told() -> None:
    _, notices = read(riff(DATA, size=3_000_000_000))
    assert [notice.code for notice in notices] == ["truncated_audio"]


def test_no_header_makes_the_search_raise_or_take_long() -> None:
    random = np.random.default_rng(3)
    for head in (b"RIFF", b"RF64", b"BW64", b"FORM") * 125:
        source = bytearray(riff(DATA))
        source[:4] = head
        for at in random.integers(4, 80, size=6):
            source[at] = random.integers(256)
        count, start = unread_bytes(io.BytesIO(bytes(source)))
        assert 0 <= count <= len(source) and count + start == len(source)
        stated, held = stated_bytes(io.BytesIO(bytes(source)))
        assert 0 <= held <= min(stated, len(source))
