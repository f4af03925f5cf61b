"""Recordings: every container to the same samples, and one clear answer for what is no
recording."""

from __future__ import annotations

import io
import struct
import sys
import wave
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, cast

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forescribe.asr.audio.containers import Pcm, Reader
from forescribe.asr.audio.reading import (
    CANCELLED,
    INAUDIBLE,
    Recording,
    Resampler,
    open_audio,
    read_audio,
)
from forescribe.asr.errors import AudioError
from tests.asr.recordings import from_array

Samples = NDArray[np.float32]
RATE = 16_000


# every container


CODECS = {
    "m4a": ("ipod", "aac"),
    "mp4": ("mp4", "aac"),
    "mov": ("mov", "pcm_s16le"),
    "aac": ("adts", "aac"),
    "webm": ("webm", "libopus"),
    "mkv": ("matroska", "flac"),
    "opus": ("ogg", "libopus"),
    "mp3": ("mp3", "libmp3lame"),
    "flac": ("flac", "flac"),
    "avi": ("avi", "pcm_s16le"),
    "wma": ("asf", "wmav2"),
    "wav": ("wav", "pcm_s16le"),
    "ts": ("mpegts", "aac"),
}


@pytest.mark.parametrize("kind", CODECS)
def test_any_container_gives_the_same_sound(tmp_path: Path, kind: str) -> None:
    path = encode(tmp_path / f"sound.{kind}", *CODECS[kind], rate=48_000)
    samples = read_audio(path)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert abs(len(samples) - 3 * RATE) < 0.15 * RATE
    assert is_the_sweep(samples)


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", sweep(RATE), RATE)
    odd = (tmp_path / "a.wav").rename(tmp_path / "a.mp4")
    assert is_the_sweep(read_audio(odd))
    raw = odd.rename(tmp_path / "a.raw")
    assert is_the_sweep(read_audio(raw))


@pytest.mark.parametrize("kind", ["wav", "mp3", "m4a"])
def test_bytes_files_and_pipes_are_read_like_paths(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(tmp_path / f"a.{kind}", *CODECS[kind], rate=RATE)
    expected, data = read_audio(path), path.read_bytes()
    assert np.array_equal(read_audio(data), expected)
    with path.open("rb") as file:
        assert np.array_equal(read_audio(file), expected)
        assert not file.closed
    assert np.array_equal(read_audio(cast(BinaryIO, Pipe(data))), expected)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": Pipe(data)}))
    assert np.array_equal(read_audio("-"), expected)


# samples: rate, channels, blocks


RATES = [8000, 11_025, 22_050, 32_000, 44_099, 44_100, 48_000, 96_000]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("extra", [0, 1, 17])
def test_resampling_in_blocks_equals_resampling_at_once(rate: int, extra: int) -> None:
    sound = np.random.default_rng(rate).normal(size=5 * rate + extra).astype(np.float32)
    found = []
    for size in (len(sound), rate // 50, 1000):
        made = Resampler(rate)
        pieces = [made.push(sound[at : at + size]) for at in range(0, len(sound), size)]
        found.append(np.concatenate([*pieces, made.finish()]))
    assert len(found[0]) == -(-len(sound) * RATE // rate)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    assert np.array_equal(joined(from_array(sound, rate, block_s=0.7)), found[0])


@pytest.mark.parametrize("rate", RATES)
def test_tones_that_16_khz_can_hold_stay_and_others_vanish(rate: int) -> None:
    heard = np.arange(2 * RATE) / RATE
    for hertz in (100, 1000, 3500, 7000, 9000, 15_000):
        if 2 * hertz >= rate:
            continue
        tone = np.sin(2 * np.pi * hertz * np.arange(2 * rate) / rate).astype(np.float32)
        got = joined(from_array(tone, rate))[RATE // 4 : -RATE // 4]
        wanted = np.sin(2 * np.pi * hertz * heard) if 2 * hertz < RATE else np.zeros(2 * RATE)
        assert np.abs(got - wanted[RATE // 4 : -RATE // 4]).max() < 2e-3, hertz


def test_channels_are_mixed_by_their_mean(tmp_path: Path) -> None:
    channels = np.stack([sweep(RATE), np.zeros(3 * RATE, np.float32), 0.5 * sweep(RATE)], axis=1)
    soundfile.write(tmp_path / "a.wav", channels, RATE, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), channels.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("layout", ["7.1", "5.1", "stereo"])
def test_each_channel_of_a_planar_codec_is_read_once(layout: str) -> None:
    """PyAV lists more planes than eight channels have; whoever reads those ends the process."""
    file, sound = io.BytesIO(), sweep(48_000)
    with av.open(file, "w", format="ogg") as output:
        stream: Any = output.add_stream("libopus", rate=48_000, layout=layout)
        for start in range(0, len(sound), 960):
            part = np.repeat(sound[start : start + 960], stream.channels)[None]
            frame = av.AudioFrame.from_ndarray(part, format="flt", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = 48_000, start, Fraction(1, 48_000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with open_audio(file.getvalue(), name="a.opus") as recording:
        assert is_the_sweep(joined(recording))


@settings(deadline=None, max_examples=100)
@given(
    loudness=st.sampled_from([0.0, 1e-30, 1e-6, 0.1, 1.0, 9e5]),
    opposed=st.floats(0.3, 1.1),
    channels=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    planar=st.booleans(),
)
def test_channels_are_mixed_and_judged_as_in_float64(loudness, opposed, channels, seed, planar):
    """To the bit, and near the limit of channels that cancel each other too."""
    noise = np.random.default_rng(seed).uniform(-1, 1, 500).astype(np.float32)
    samples = np.float32(loudness) * np.stack(
        [noise, *[-np.float32(opposed) * noise] * (channels - 1)]
    )
    samples = samples.T if planar else np.ascontiguousarray(samples.T)
    mixed, powers = samples.mean(axis=1), np.square(samples, dtype=np.float64).mean(axis=0)
    power = np.square(mixed, dtype=np.float64).mean()
    if powers.mean() > INAUDIBLE and power < CANCELLED * powers.mean() / channels:
        mixed = samples[:, powers.argmax()]

    class Given(Reader):
        def read(self):
            yield Pcm(samples, RATE)

    assert np.array_equal(joined(Recording(Given(), name="a")), mixed)


@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 50_000), block=st.integers(1, 30_000))
def test_blocks_are_whole_but_for_the_last_and_never_empty(count: int, block: int) -> None:
    sound = np.arange(count, dtype=np.float32) / 50_000
    recording = from_array(sound, block_s=block / RATE)
    blocks = list(recording.blocks())
    assert all(len(part) == block for part in blocks[:-1]) and all(len(part) for part in blocks)
    assert np.array_equal(np.concatenate([np.zeros(0, np.float32), *blocks]), sound)
    assert recording.sample_count == count


def test_a_long_recording_is_never_whole_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "a.wav"
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        for _ in range(30):
            file.write(np.zeros(60 * RATE, np.int16))
    tracemalloc.start()
    with open_audio(path, block_s=30) as recording:
        assert sum(len(block) for block in recording.blocks()) == 1800 * RATE
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 180 * RATE * 4, "six blocks, of sixty"


def test_a_recording_is_read_once() -> None:
    recording = from_array(np.zeros(10))
    joined(recording)
    with pytest.raises(RuntimeError, match="open it again"):
        joined(recording)


def test_a_recording_beyond_the_limit_stops_and_is_not_cropped() -> None:
    path = wav_bytes(np.zeros(10 * RATE))
    with open_audio(path, block_s=1, max_s=5) as recording:
        with pytest.raises(AudioError, match="longer than 5 s") as caught:
            list(recording.blocks())
        assert recording.sample_count < 7 * RATE
    assert caught.value.code == "audio_too_long"


# odd recordings: used, with a warning


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_no_sound_becomes_silence_with_a_warning(tmp_path: Path, value: float) -> None:
    sound = sweep(44_100)
    sound[1000:1010] = value
    soundfile.write(tmp_path / "a.wav", sound, 44_100, subtype="FLOAT")
    recording = open_audio(tmp_path / "a.wav")
    samples = joined(recording)
    assert np.isfinite(samples).all() and is_the_sweep(samples)
    assert (
        codes(recording) == ["non_finite_samples"] and "10 samples" in recording.warnings[0].message
    )


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac", "webm", "mkv", "mp4", "ts"])
def test_a_file_that_was_cut_off_is_used_as_far_as_it_goes(tmp_path: Path, kind: str) -> None:
    path = encode(tmp_path / f"a.{kind}", *CODECS[kind], rate=RATE, faststart=True)
    data = path.read_bytes()
    recording = open_audio(data[: len(data) * 6 // 10])
    samples = joined(recording)
    assert RATE < len(samples) < 2.2 * RATE
    assert is_the_sweep(samples)
    if kind != "ts":  # a transport stream does not say how long it is
        assert recording.declared_s == pytest.approx(3, abs=0.1)
        assert "truncated_audio" in codes(recording)
        assert "declared" in recording.warnings[-1].message
    for warning in recording.warnings:
        assert "1 damaged packets" not in warning.message


@pytest.mark.parametrize("endian", ["BIG", "LITTLE"])
@pytest.mark.parametrize("kind", ["AIFF", "AU", "CAF", "W64", "WAV", "RF64"])
def test_a_file_of_samples_that_was_cut_off_says_how_long_it_was(kind: str, endian: str) -> None:
    whole = io.BytesIO()
    known = soundfile.check_format(kind, "PCM_16", endian)
    endian = endian if known else "FILE"
    soundfile.write(whole, sweep(RATE), RATE, format=kind, subtype="PCM_16", endian=endian)
    data = whole.getvalue()
    recording = open_audio(data[: len(data) * 6 // 10])
    assert len(joined(recording)) == pytest.approx(1.8 * RATE, rel=0.05)
    assert recording.declared_s == pytest.approx(3, abs=0.05)
    assert codes(recording) == ["truncated_audio"]
    complete = open_audio(data)
    assert is_the_sweep(joined(complete)) and codes(complete) == []


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_an_mp4_whose_index_was_cut_off_says_so(tmp_path: Path, share: float) -> None:
    data = encode(tmp_path / "a.mp4", *CODECS["mp4"], rate=RATE).read_bytes()
    assert data.index(b"mdat") < data.index(b"moov")
    with pytest.raises(AudioError, match=r"^v\.m4a: cut off: the index .* download it again$"):
        open_audio(data[: int(len(data) * share)], name="v.m4a")


@pytest.mark.parametrize(("left", "right"), [(1.0, -1.0), (0.4, -0.5)], ids=["equal", "unequal"])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_channels_that_cancel_each_other_are_heard_all_the_same(
    left: float, right: float, rate: int
) -> None:
    sound = sweep(rate)
    recording = from_array(np.stack([left * sound, right * sound], axis=1), rate)
    alone = joined(from_array(sound * (left if left >= -right else right), rate))
    assert np.allclose(joined(recording), alone, atol=1e-6)
    assert codes(recording) == ["inverted_channels"]
    assert "polarity reversed" in recording.warnings[0].message


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32])
def test_integers_are_scaled_by_their_range(dtype) -> None:
    info = np.iinfo(dtype)
    low, middle, high = joined(from_array(np.array([info.min, 0, info.max], dtype)))
    assert low == -1 and 0.99 <= high <= 1
    assert middle == (0 if info.min else -1)


def test_rate_and_channels_may_change_midway() -> None:
    class Changing(Reader):
        def read(self):
            for rate, channels in ((RATE, 1), (48_000, 2), (8_000, 3), (RATE, 1)):
                yield Pcm(np.repeat(sweep(rate)[:, None], channels, axis=1), rate)

    samples = joined(Recording(Changing(), name="a"))
    assert len(samples) == 4 * len(sweep(RATE))
    for part in np.split(samples, 4)[:2]:  # 8 kHz holds a part of it only
        assert is_the_sweep(part)


def test_an_mp3_without_a_length_is_heard_to_its_end(tmp_path: Path) -> None:
    """Readers that trust the length guessed from the first frames lose most of this file."""
    loud_then_quiet = np.concatenate(
        [np.random.default_rng(0).normal(size=2 * RATE) / 5, np.zeros(8 * RATE)]
    )
    path = tmp_path / "a.mp3"
    with soundfile.SoundFile(
        path, "w", RATE, 1, "MPEG_LAYER_III", format="MP3", bitrate_mode="VARIABLE"
    ) as file:
        file.write(loud_then_quiet)
    data = path.read_bytes()
    start = data.index(data[:2], 4)  # the second frame: the first one carried the length
    recording = open_audio(data[start:])
    assert len(joined(recording)) == pytest.approx(10 * RATE, abs=0.2 * RATE)
    assert recording.declared_s is None and codes(recording) == []


@pytest.mark.parametrize("kind", ["mp3", "opus"])
def test_two_files_joined_are_both_heard(tmp_path: Path, kind: str) -> None:
    data = encode(tmp_path / f"a.{kind}", *CODECS[kind], rate=48_000).read_bytes()
    assert len(read_audio(data + data)) == pytest.approx(6 * RATE, abs=0.3 * RATE)


def test_a_flac_of_unknown_length_is_heard_to_its_end(tmp_path: Path) -> None:
    data = bytearray(encode(tmp_path / "a.flac", "flac", "flac", rate=RATE).read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    recording = open_audio(bytes(data))
    assert len(joined(recording)) == 3 * RATE
    assert recording.declared_s is None


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_from_a_pipe_states_no_length_and_is_heard(size: int) -> None:
    data = bytearray(wav_bytes(sweep(RATE)))
    data[40:44] = size.to_bytes(4, "little")
    recording = open_audio(bytes(data))
    assert len(joined(recording)) == 3 * RATE
    assert codes(recording) == []


def test_missing_packets_become_silence_so_that_times_stay_true(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mkv", "matroska", "pcm_s16le", rate=RATE, skip=(1.0, 2.0))
    recording = open_audio(path)
    samples = joined(recording)
    assert len(samples) == pytest.approx(3 * RATE, abs=0.1 * RATE)
    assert np.abs(samples[int(1.2 * RATE) : int(1.8 * RATE)]).max() == 0
    np.testing.assert_allclose(
        samples[int(2.2 * RATE) :], sweep(RATE)[int(2.2 * RATE) :], atol=1e-3
    )
    assert codes(recording) == ["audio_gap"]


@pytest.mark.parametrize("count", [0, 1, 320, 1279])
def test_a_moment_of_audio_is_valid_and_comes_with_a_warning(count: int) -> None:
    recording = open_audio(wav_bytes(np.zeros(count)))
    assert len(joined(recording)) == count
    assert codes(recording) == ["short_audio"]


def test_the_second_sound_track_is_mentioned(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mkv", "matroska", "flac", rate=RATE, tracks=2)
    recording = open_audio(path)
    assert is_the_sweep(joined(recording)) and codes(recording) == ["several_audio_streams"]


def test_tags_that_are_not_utf8_do_not_fail_a_recording(tmp_path: Path) -> None:
    path = encode(tmp_path / "tagged.flac", "flac", "flac")
    path.write_bytes(tagged(path.read_bytes(), b"TITLE=caf\xe9 \xff"))
    assert is_the_sweep(read_audio(path))


# no recordings: refused, with one line and a code


@pytest.mark.parametrize(
    "data",
    [
        bytes(5000),
        np.random.default_rng(0).bytes(50_000),
        b"\x89PNG\r\n\x1a\n" + bytes(500),
        b"%PDF-1.7\n" + bytes(500),
        b"PK\x03\x04" + bytes(500),
        b"RIFF\x24\x00\x00\x00WAVE",
        b"ID3\x04\x00\x00\x00\x00\x00\x00",
        b"OggS" + bytes(100),
        b"x",
    ],
    ids=["zeros", "noise", "png", "pdf", "zip", "wav header", "id3 only", "ogg header", "one byte"],
)
def test_bytes_that_are_no_sound_are_refused(data: bytes) -> None:
    with pytest.raises(AudioError) as caught:
        open_audio(data)
    assert caught.value.code == "invalid_audio"


def test_permission_denied_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path / "a.wav", b"x")
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(AudioError, match="Permission denied") as caught:
        open_audio(path)
    assert caught.value.code == "unreadable_file"


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n{path}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{path}'\n",
    "dash": '<?xml version="1.0"?><MPD><Period><BaseURL>{path}</BaseURL></Period></MPD>',
    "sdp": "v=0\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_playlist_opens_nothing(tmp_path: Path, kind: str) -> None:
    secret = encode(tmp_path / "secret.ts", "mpegts", "aac", rate=RATE)
    playlist = written(tmp_path / "list.wav", PLAYLISTS[kind].format(path=secret).encode())
    with pytest.raises(AudioError) as caught:
        open_audio(playlist)
    assert caught.value.code == "invalid_audio"


def test_what_was_opened_is_closed_again(tmp_path: Path) -> None:
    """pytest turns an unclosed file into an error, if it is collected within a test."""
    import gc

    path = written(tmp_path / "a.wav", wav_bytes(np.zeros(RATE)))
    with open_audio(path) as recording:
        pass
    recording = open_audio(path)
    joined(recording)
    next(open_audio(path).blocks())
    with pytest.raises(AudioError):
        open_audio(written(tmp_path / "b.wav", b"nonsense"))
    del recording
    gc.collect()


class Pipe(io.RawIOBase):
    """Bytes that can be read once and not be searched."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer: Any) -> int:
        return self.inner.readinto(buffer)


def sweep(rate: int, seconds: float = 3.0) -> Samples:
    """A tone that rises from 200 to 2000 Hz: cheap to recognise, at any place."""
    time = np.arange(round(seconds * rate)) / rate
    return (0.4 * np.sin(2 * np.pi * (200 * time + 300 * time**2))).astype(np.float32)


def is_the_sweep(samples: Samples) -> bool:
    """Whether the tone rises as it should and is as loud, wherever a codec's delay put it (50 ms at
    most)."""
    reference = sweep(RATE)[: len(samples)]
    for start in range(RATE // 4, len(reference) - RATE // 2, RATE // 2):
        piece = reference[start : start + RATE // 4]
        near = samples[max(0, start - 2400) : start + RATE // 4 + 2400]
        match = np.correlate(near, piece).max() / np.dot(piece, piece)
        if not 0.85 < match < 1.15:
            return False
    return True


def encode(
    path: Path,
    container: str,
    codec: str,
    *,
    rate: int = RATE,
    skip: tuple[float, float] | None = None,
    tracks: int = 1,
    faststart: bool = False,
) -> Path:
    """A file with the sweep; `skip`: seconds left out."""
    options = {"movflags": "faststart"} if faststart and container in ("mp4", "ipod") else {}
    with av.open(str(path), "w", format=container, options=options) as output:
        sounds: list[Any] = [
            output.add_stream(codec, rate=rate, layout="mono") for _ in range(tracks)
        ]
        samples = sweep(rate)[None]
        for sound in sounds:
            sound.bit_rate = 64_000  # some codecs have no default
            for start in range(0, samples.shape[1], 960):
                if skip and skip[0] <= start / rate < skip[1]:
                    continue
                part = np.ascontiguousarray(samples[:, start : start + 960])
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
                frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
                output.mux(sound.encode(frame))
            output.mux(sound.encode(None))
    return path


def wav_bytes(samples: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def joined(recording: Recording) -> Samples:
    return np.concatenate([np.zeros(0, np.float32), *recording.blocks()])


def codes(recording: Recording) -> list[str]:
    return [notice.code for notice in recording.warnings]


def tagged(flac: bytes, comment: bytes) -> bytes:
    """With its first tag (a Vorbis comment) in these bytes."""
    end = 4 + 4 + 34  # the marker, and STREAMINFO behind the head of its block
    fields = bytes(4) + struct.pack("<II", 1, len(comment)) + comment
    return flac[:end] + b"\x04" + len(fields).to_bytes(3, "big") + fields + flac[end:]
