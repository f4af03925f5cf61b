"""Every codec in wav, w64, aiff, caf and au that PyAV or soundfile write: the whole sound without a warning,
and a wav that was cut off told as such."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import pytest
import soundfile

from forescribe.asr.audio.reading import open_audio

from .test_audio import Samples, codes, is_the_sweep, joined, sweep

SECONDS = 2.0
PADDING_S = 0.17
"""What a codec adds at most, in blocks and delay: mp3 at 8 kHz."""

BLOCK_S = 0.52
"""The longest block here, of ALAC at 8 kHz: what a cut loses at most of the sound before it."""

RATES = {"mono": 8000, "stereo": 44_100}

BIT_RATES = {"g723_1": 6300, "libopencore_amrnb": 12_200, "g726": 32_000, "g726le": 32_000}

ROUGH = {"dfpwm", "g723_1", "libopencore_amrnb"}
"""A bit for each sample, or codecs of voices: they are heard, the sweep is not recognised."""

UNREADABLE = {("wav", "aac"), ("w64", "aac")}
"""What libav writes and cannot read."""


def encoders() -> Iterator[str]:
    for name in sorted(
        {av.Codec(name, "w").name for name in av.codecs_available if _encodes(name)}
    ):
        if av.Codec(name, "w").type == "audio":
            yield name


def _encodes(name: str) -> bool:
    try:
        av.Codec(name, "w")
    except av.codec.codec.UnknownCodecError:
        return False
    return True


def written(container: str, name: str, layout: str) -> bytes | None:
    """The sweep; None where the container has no place for the codec, or the codec none for the layout."""
    rates = av.Codec(name, "w").audio_rates or [RATES[layout]]
    rate = RATES[layout] if RATES[layout] in rates else max(rates)
    samples = np.tile(sweep(rate, SECONDS), (1 + (layout == "stereo"), 1))
    return encoded(container, name, samples, rate)


def encoded(container: str, name: str, samples: Samples, rate: int, flags: int = 0) -> bytes | None:
    layout, file = ("mono", "stereo")[len(samples) - 1], io.BytesIO()
    try:
        with av.open(file, "w", format=container) as output:
            stream = output.add_stream(name, rate=rate, layout=layout)
            stream.bit_rate = BIT_RATES.get(name, 64_000)
            stream.codec_context.flags |= flags
            for start in range(0, samples.shape[1], 960):
                part = np.ascontiguousarray(samples[:, start : start + 960])
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
                frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except (av.FFmpegError, ValueError):
        return None
    return file.getvalue()


def check(data: bytes, what: str, *, rough: bool = False) -> None:
    with open_audio(data, name=what) as whole:
        samples = joined(whole)
    assert abs(whole.duration_s - SECONDS) < PADDING_S, what
    assert whole.declared_s is None or abs(whole.declared_s - whole.duration_s) < PADDING_S, what
    assert codes(whole) == [], what
    assert is_the_sweep(samples) or (rough and np.square(samples).mean() > 0.01), what
    if not data.startswith((b"RIFF", b"RF64")):
        return
    with open_audio(data[: len(data) * 6 // 10], name=what) as part:
        joined(part)
    assert 0.6 * SECONDS - BLOCK_S < part.duration_s < 0.7 * SECONDS, what
    assert "truncated_audio" in codes(part), what
    assert part.declared_s == pytest.approx(SECONDS, abs=BLOCK_S), what


@pytest.mark.parametrize(
    ("container", "layout", "count"),
    [
        ("wav", "mono", 27),
        ("wav", "stereo", 20),
        ("w64", "mono", 27),
        ("w64", "stereo", 20),
        ("aiff", "mono", 12),
        ("aiff", "stereo", 12),
        ("caf", "mono", 23),
        ("caf", "stereo", 22),
        ("au", "mono", 10),
        ("au", "stereo", 8),
    ],
)
def test_every_codec_of_libav_is_read_whole(container: str, layout: str, count: int) -> None:
    read = 0
    for name in encoders():
        data = None if (container, name) in UNREADABLE else written(container, name, layout)
        if data is not None:
            check(data, f"{name} in {container}", rough=name in ROUGH)
            read += 1
    assert read >= count


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "RF64", "W64", "AIFF", "CAF", "AU"])
@pytest.mark.parametrize("layout", RATES)
def test_every_codec_of_libsndfile_is_read_whole(kind: str, layout: str) -> None:
    rate, read = RATES[layout], 0
    samples = np.tile(sweep(rate, SECONDS)[:, None], (1, 1 + (layout == "stereo")))
    for subtype in soundfile.available_subtypes(kind):
        if subtype.startswith("DWVW"):  # soundfile cannot read its own
            continue
        for endian in ("LITTLE", "BIG"):
            file = io.BytesIO()
            try:
                soundfile.write(file, samples, rate, subtype, endian, kind)
            except (soundfile.LibsndfileError, ValueError):  # one channel, or one order of bytes
                continue
            check(file.getvalue(), f"{subtype} in {kind.lower()}")
            read += 1
    assert read >= 6


def test_an_mp3_in_a_wav_is_heard_to_its_end() -> None:
    """Its length is guessed from the first frames, and silence takes a tenth of the bytes."""
    noise = np.random.default_rng(0).normal(0, 0.2, 32_000)
    samples = np.concatenate([noise, np.zeros(8 * 16_000)]).astype(np.float32)[None]
    variable = av.codec.context.Flags.qscale
    data = encoded("wav", "libmp3lame", samples, 16_000, variable)
    assert data is not None and len(data) < 30_000
    with open_audio(data) as recording:
        joined(recording)
    assert recording.duration_s == pytest.approx(10, abs=PADDING_S) and codes(recording) == []
