"""Keyed noise: a function of (seed, start of the round, slot, stream) and of nothing else, and uniform."""

from __future__ import annotations

import torch

from forescribe.speculative.rounds import accept
from forescribe.speculative.rounds.accept import Stream, uniform


def grid(stream: Stream) -> torch.Tensor:
    slots = torch.arange(448)
    return uniform(torch.arange(300)[:, None], slots, slots, stream)


def test_noise_lies_in_the_unit_interval_and_is_flat():
    u = grid(Stream.ACCEPT)
    assert 0 <= float(u.min()) < 1e-4
    assert 1 - 1e-4 < float(u.max()) < 1
    counts = torch.histc(u, bins=20, min=0, max=1)
    expected = u.numel() / 20
    # Chi-square with 19 degrees of freedom; 50 is passed by chance with p = 1e-4, and seeds are fixed.
    assert float(((counts - expected) ** 2 / expected).sum()) < 50


def test_seeds_starts_slots_and_streams_are_uncorrelated():
    a, b = grid(Stream.ACCEPT), grid(Stream.EXTRA)
    slots = torch.arange(448)
    later = uniform(torch.arange(300)[:, None], slots - 1, slots, Stream.ACCEPT)
    pairs = [(a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a, later)]
    for x, y in pairs:
        correlation = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.015  # 5 standard deviations for 134,000 pairs


def test_large_seeds_differ_in_their_high_bits():
    seeds = torch.tensor([7, 7 + 2**32, 7 + 2**40, -7])
    assert len(set(uniform(seeds, torch.tensor(3), torch.tensor(3), Stream.DRAFT).tolist())) == 4


def test_a_seed_has_the_same_noise_in_every_version():
    """A sampled text can be made again from its seed: changed constants would be as good, and break that."""
    seeds = torch.tensor([0, 1, 2**40 + 7])
    found = uniform(seeds, torch.tensor(3), torch.tensor(5), Stream.EXTRA)
    assert found.tolist() == [0.27565544843673706, 0.5590373277664185, 0.3164423704147339]


def test_the_ends_of_the_range_are_zero_and_less_than_one(monkeypatch):
    """All bits of a key unset, or set: 1 would accept nothing, and draw a token of zero weight."""
    zero = torch.tensor(0)
    for bits, expected in ((0, 0.0), (0xFFFFFFFF, 1 - 2**-24)):
        monkeypatch.setattr(accept, "_mix", lambda key, bits=bits: torch.full_like(key, bits))
        assert float(uniform(zero, zero, zero, Stream.EXTRA)) == expected
