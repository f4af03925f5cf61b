"""Mutated headers and damaged files: each is sound or an AudioError in words, at every entry, and in the
child that reads uploads."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.reading import length_of, open_audio
from forescribe.asr.errors import AudioError

from .test_every_codec import encoded

RATE = 16_000
COUNT = 40
HEAD = 600
"""Bytes that hold the headers of a file of one second, from its start; in an mp4 from its index."""

ENDS = {"read", "invalid_audio", "no_audio_stream", "audio_too_long", "empty_file"}
BOUNDS = Bounds(max_s=3600.0, wall_s=60.0, cpu_s=30)

INTERNAL = re.compile(r"[A-Z][a-z]+Error|object has no|NoneType|Traceback")
"""Words of a programming error; a message has none."""


def uncompressed(kind: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, RATE), RATE, format=kind)
    return file.getvalue()


def compressed(container: str, codec: str) -> bytes:
    tone = (0.25 * np.sin(np.arange(48_000) * 0.05)).astype(np.float32)
    data = encoded(container, codec, tone[None], 48_000)
    assert data is not None
    return data


MAKE: dict[str, Callable[[], bytes]] = {
    "wav": partial(uncompressed, "WAV"),
    "wavex": partial(uncompressed, "WAVEX"),
    "aiff": partial(uncompressed, "AIFF"),
    "flac": partial(uncompressed, "FLAC"),
    "ogg": partial(compressed, "ogg", "libopus"),
    "mkv": partial(compressed, "matroska", "libopus"),
    "mp4": partial(compressed, "mp4", "aac"),
}
whole = cache(lambda kind: MAKE[kind]())


def mutated(kind: str, number: int) -> bytes:
    """One to six bytes of the head changed: to anything, by one bit, or to an end of the range."""
    random = np.random.default_rng([number, *kind.encode()])
    data = bytearray(whole(kind))
    start = max(0, data.find(b"moov"))
    for _ in range(random.integers(1, 7)):
        at = int(random.integers(start, min(start + HEAD, len(data))))
        data[at] = [random.integers(256), data[at] ^ (1 << random.integers(8)), 0, 255][
            random.integers(4)
        ]
    return bytes(data)


def outcome(path: str) -> str:
    """How a file ends at each entry: its length, and reading it. Raises what is no AudioError."""
    assert 0 <= length_of(path) < 1e8
    try:
        with open_audio(path, name="a", max_s=3600) as recording:
            for block in recording.blocks():
                assert np.isfinite(block).all()
    except AudioError as error:
        assert not INTERNAL.search(error.message), error.message
        assert len(error.message) < 400
        return error.code
    assert len(recording.warnings) <= 32
    return "read"


@pytest.mark.parametrize("count", [COUNT, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", MAKE)
def test_a_mutated_header_is_sound_or_an_error_in_words(tmp_path, kind, count) -> None:
    path, ends = tmp_path / "a", dict[str, int]()
    for number in range(count):
        path.write_bytes(mutated(kind, number))
        end = outcome(str(path))
        ends[end] = ends.get(end, 0) + 1
    assert sum(ends.values()) == count
    assert ends.keys() <= ENDS
    assert ends.get("read", 0) < count, "no mutation was damage"


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A file of a container with the wounds that disks and networks make, and those that people think of."""
    kind = draw(st.sampled_from([*MAKE]))
    data = bytearray(
        mutated(kind, draw(st.integers(0, 10_000))) if draw(st.booleans()) else whole(kind)
    )
    for _ in range(draw(st.integers(0, 4))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(1, 2000))
        wound = draw(st.sampled_from(["cut off", "lost", "doubled", "zeroed", "foreign", "noise"]))
        if wound == "cut off":
            del data[max(at, 1) :]
        elif wound == "lost":
            del data[at : at + size]
        elif wound == "doubled":
            data[at:at] = data[at : at + size]
        elif wound == "zeroed":
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif wound == "foreign":
            data[at:at] = whole(draw(st.sampled_from([*MAKE])))[:size]
        else:
            data[at : at + size] = draw(st.randoms(use_true_random=False)).randbytes(size)
    return bytes(data or b"\0")


@pytest.mark.parametrize("examples", [50, pytest.param(4000, marks=pytest.mark.nightly)])
def test_a_damaged_upload_is_sound_or_an_error_in_words(decoders, examples) -> None:
    """In its child, whose death ends that upload alone."""
    ends, sound = dict[str, int](), whole("flac")

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples == 50,  # CI's are always the same
        suppress_health_check=list(HealthCheck),
    )
    @given(data=damaged())
    def look(data: bytes) -> None:
        try:
            with closing(decoders.decode(data, BOUNDS, name="upload")) as file:
                assert 0 <= file.duration_s <= BOUNDS.max_s
            end = "read"
        except AudioError as error:
            assert not INTERNAL.search(error.message), error.message
            assert len(error.message) < 400
            end = error.code
        assert end in ENDS
        ends[end] = ends.get(end, 0) + 1

    look()
    assert ends["read"] and len(ends) > 1, ends
    with closing(decoders.decode(sound, BOUNDS, name="sound")) as file:
        assert abs(file.duration_s - 1.0) < 0.01
