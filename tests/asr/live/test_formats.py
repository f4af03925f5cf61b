"""Bytes to samples: G.711 against its law, odd bytes, and resampling in pieces as in one."""

from __future__ import annotations

import numpy as np
import pytest

from forescribe.asr.live.formats import AudioInput, g711

RNG = np.random.default_rng(0)
PCM = RNG.integers(-30_000, 30_000, 4801).astype("<i2")


def encoded(samples: np.ndarray, kind: str) -> bytes:
    """16-bit samples in G.711: of each the code whose sample is the nearest."""
    table = g711(kind) * 32768
    order = np.argsort(table, kind="stable")
    sorted_table = table[order]
    at = np.clip(np.searchsorted(sorted_table, samples), 1, 255)
    nearer = samples - sorted_table[at - 1] < sorted_table[at] - samples
    return order[at - nearer].astype(np.uint8).tobytes()


@pytest.mark.parametrize(
    ("kind", "samples"),
    [
        # Of ITU-T G.711, tables 1 and 2, scaled to 16 bits: code, sample.
        ("audio/pcmu", {0x00: -32124, 0x80: 32124, 0x7F: 0, 0xFF: 0, 0xEF: 132, 0x8F: 16764}),
        ("audio/pcma", {0x2A: -32256, 0xAA: 32256, 0xD5: 8, 0x55: -8, 0x80: 5504, 0x25: -16896}),
    ],
)
def test_codes_of_g711(kind, samples) -> None:
    found = g711(kind) * 32768
    assert {code: round(float(found[code])) for code in samples} == samples


@pytest.mark.parametrize("size", [1, 7, 333, 100_000])
@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000])
def test_pieces_are_the_whole(rate, size) -> None:
    """Whatever the sizes of pieces, torn samples included."""
    data, whole, audio = PCM.tobytes(), AudioInput("audio/pcm", rate), AudioInput("audio/pcm", rate)
    expected = np.concatenate([whole.push(data), whole.flush()])
    pieces = [audio.push(data[at : at + size]) for at in range(0, len(data), size)]
    got = np.concatenate([*pieces, audio.flush()])
    assert len(got) == -(-len(PCM) * 16_000 // rate)
    assert np.allclose(got, expected, atol=1e-4)
