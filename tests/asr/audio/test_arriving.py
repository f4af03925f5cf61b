"""Audio that is still arriving: pipes of any kind, in any pieces; a microphone; a recording at its pace."""

from __future__ import annotations

import io
import struct
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from forescribe.asr.audio.arriving import (
    BLOCK_S,
    foreign,
    input_devices,
    microphone,
    piped,
    replayed,
)
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import AudioError, UsageError

RATE = 16_000
TONE = (0.3 * np.sin(np.arange(RATE) * 0.05)).astype(np.float32)
S16 = (TONE * 32767).astype("<i2")


class Pieces(io.RawIOBase):
    """A pipe whose writer writes pieces of these sizes, in turn."""

    def __init__(self, data: bytes, sizes: tuple[int, ...]) -> None:
        self.data, self.sizes, self.turn = data, sizes, 0

    def read1(self, size: int) -> bytes:
        size = min(size, self.sizes[self.turn % len(self.sizes)])
        self.turn += 1
        piece, self.data = self.data[:size], self.data[size:]
        return piece


def heard(data: bytes, sizes: tuple[int, ...] = (65536,)):
    arrival = piped(Pieces(data, sizes))
    samples = np.concatenate([np.zeros(0, np.float32), *arrival.blocks()])
    return samples, [notice.code for notice in arrival.notices]


def wav(kind: str, samples: np.ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, kind, format="WAV")
    return file.getvalue()


@pytest.mark.parametrize("sizes", [(65536,), (1, 2, 3), (4095,), (4097, 1)], ids=str)
def test_raw_samples_in_any_pieces(sizes) -> None:
    samples, notices = heard(S16.tobytes(), sizes=sizes)
    np.testing.assert_array_equal(samples, S16 / np.float32(32768))
    assert notices == []


@pytest.mark.parametrize("kind", ["PCM_U8", "PCM_16", "PCM_32", "FLOAT", "DOUBLE"])
def test_a_wav_file_of_any_kind_is_read_as_the_file_would_be(kind) -> None:
    data = wav(kind, TONE)
    samples, notices = heard(data, sizes=(999,))
    np.testing.assert_allclose(samples, read_audio(data), atol=1e-6)
    assert notices == []


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0, 0x7FFFFFFF])
def test_the_size_of_a_wav_file_that_is_being_written_is_not_believed(size) -> None:
    head = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", size, b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16
    )
    data = head + b"LIST\x03\0\0\0abc\0" + struct.pack("<4sI", b"data", size) + S16.tobytes()
    samples, notices = heard(data)
    assert len(samples) == 2 * RATE and notices == []


def test_what_follows_a_wav_file() -> None:
    one = wav("PCM_16", TONE)
    assert len(heard(one + one)[0]) == 2 * RATE
    assert len(heard(one + b"LIST\x04\0\0\0abcd")[0]) == RATE
    samples, notices = heard(one + b"\x00\x01\x02\x03\x04\x05\x06\x07\x08")
    assert len(samples) == RATE and notices == ["unread_audio"]


COMPRESSED = io.BytesIO()
soundfile.write(COMPRESSED, TONE, RATE, format="FLAC")
NOISE = np.random.default_rng(0).bytes(9000)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "ended before any audio"),
        (COMPRESSED.getvalue(), "flac"),
        (b"ID3\x04" + bytes(300) + NOISE, "mp3"),
        (NOISE, "compressed"),
        (b"\xff\xfb\x90\x00" + bytes(400) + NOISE, "compressed"),
        (b"<html><body>404 Not Found</body></html>\n", "this is text"),
        (b"RIFF\x10\0\0\0AVI LIST", "RIFF without sound"),
        (b"RIFF\x10\0\0\0WAVEdata\x04\0\0\0abcd", "without a format"),
        (wav("PCM_16", TONE).replace(b"\x01\0\x01\0\x80", b"\x01\0\x00\0\x80", 1), "0 channels"),
        (wav("ULAW", TONE), "another coding"),
    ],
)
def test_what_is_no_audio_is_refused_with_the_remedy(data, word) -> None:
    with pytest.raises(AudioError, match=word) as refused:
        heard(data)
    assert "stdin" in str(refused.value)


def test_sound_is_not_taken_for_something_else() -> None:
    rng = np.random.default_rng(1)
    for scale in (0.0, 1e-4, 0.01, 0.3):
        hiss = (rng.normal(0, 1, 2048) * scale).clip(-1, 1)
        assert foreign((hiss * 32767).astype("<i2").tobytes()) is None, scale
    loud = np.clip(np.cumsum(rng.normal(0, 0.3, 2048)), -1, 1)
    assert foreign((loud * 32767).astype("<i2").tobytes()) is None


def test_garbage_is_known_before_anything_is_loaded() -> None:
    with pytest.raises(AudioError):
        piped(Pieces(b"no audio at all", (65536,))).check(5.0)
    piped(Pieces(S16.tobytes(), (65536,))).check(0.05)


def test_nothing_waits_for_the_end_of_a_pipe() -> None:
    release = threading.Event()

    class Open(Pieces):
        def read1(self, size: int) -> bytes:
            piece = super().read1(size)
            if not piece:
                release.wait(20)
            return piece

    blocks = piped(Open(S16.tobytes()[:6400], (6400,))).blocks()
    assert len(next(b for b in blocks if len(b))) == BLOCK_S * RATE
    while len(next(blocks)):
        pass  # an empty one: the caller is not kept waiting
    release.set()
    assert sum(map(len, blocks)) == 0


def test_a_recording_is_played_back_at_its_pace(tmp_path) -> None:
    soundfile.write(tmp_path / "a.wav", TONE, RATE)
    began = time.monotonic()
    arrival = replayed(str(tmp_path / "a.wav"), 4.0)
    assert sum(map(len, arrival.blocks())) == RATE
    assert 0.2 < time.monotonic() - began
    with pytest.raises(AudioError, match="no such file"):
        list(replayed("missing.wav", None).blocks())


class Sounds(SimpleNamespace):
    """As much of sounddevice as is used, with two devices, the first of which knows 48 kHz only."""

    class PortAudioError(Exception):
        pass

    default = SimpleNamespace(device=(0, 1))
    opened: list = []

    def query_devices(self, device=None, kind=None):
        known = [
            {"name": "Mic", "max_input_channels": 1, "default_samplerate": 48_000.0},
            {"name": "Speaker", "max_input_channels": 0, "default_samplerate": 48_000.0},
        ]
        if device not in (None, 0, "Mic") and kind:
            raise ValueError(f"No input device matching {device!r}")
        return known[0] if kind else known

    def check_input_settings(self, device, channels, samplerate):
        if samplerate != 48_000:
            raise self.PortAudioError("Invalid sample rate")

    def InputStream(self, **settings):
        class Stream:
            closed = False
            start = staticmethod(lambda: None)

            def close(self):
                self.closed = True

        self.opened.append(settings)
        return Stream()


def test_a_microphone_at_its_own_rate(monkeypatch) -> None:
    sounds = Sounds()
    monkeypatch.setitem(sys.modules, "sounddevice", sounds)
    assert input_devices() == ["*  0  Mic  (1 channels, 48000 Hz)"]
    arrival = microphone("Mic")
    settings = sounds.opened[-1]
    assert (settings["samplerate"], settings["blocksize"]) == (48_000, 4800)
    block = np.tile(TONE, 3)[:4800, None]
    for _ in range(10):
        settings["callback"](block, 4800, None, SimpleNamespace(input_overflow=False))
    settings["callback"](block, 4800, None, SimpleNamespace(input_overflow=True))
    blocks = arrival.blocks()
    got = 0
    while got < 10 * 1600:  # the rest is in the resampler
        got += len(next(blocks))
    arrival.close()
    assert sum(map(len, blocks)) == 0
    assert [notice.code for notice in arrival.notices] == ["lost_audio"]
    with pytest.raises(UsageError, match="--list-devices"):
        microphone("Nothing")


def test_a_missing_library_is_told_with_the_command_that_installs_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(UsageError, match=r"sounddevice.*live.*listen -"):
        microphone()
    monkeypatch.delitem(sys.modules, "sounddevice")
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="apt-get install libportaudio2"):
        microphone()
