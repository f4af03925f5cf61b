"""Mutated headers: each is sound or an AudioError in words, at every entry.

FORESCRIBE_TEST_HEADERS=2000 tries more for each container than the suite does.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import soundfile

from forescribe.asr.audio.reading import length_of, open_audio
from forescribe.asr.errors import AudioError

from .test_every_codec import encoded

RATE = 16_000
COUNT = int(os.environ.get("FORESCRIBE_TEST_HEADERS", "40"))
HEAD = 600
"""Bytes that hold the headers of a file of one second, from its start; in an mp4 from its index."""

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


@pytest.mark.parametrize("kind", MAKE)
def test_a_mutated_header_is_sound_or_an_error_in_words(tmp_path, kind) -> None:
    path, ends = tmp_path / "a", dict[str, int]()
    for number in range(COUNT):
        path.write_bytes(mutated(kind, number))
        end = outcome(str(path))
        ends[end] = ends.get(end, 0) + 1
    assert sum(ends.values()) == COUNT
    assert ends.keys() <= {"read", "invalid_audio", "no_audio_stream", "audio_too_long"}
    assert ends.get("read", 0) < COUNT, "no mutation was damage"
