"""The noise of sampled tokens: Gumbel's, and a function of seed, slot and token id alone."""

from __future__ import annotations

import math

import torch

from forescribe.speculative.rounds import sampling


def waits(seeds: torch.Tensor, slots: torch.Tensor, vocab: int = 40) -> torch.Tensor:
    """Exponentially distributed numbers `[B, N, V]`."""
    keys = sampling._keys(seeds[:, None], slots.expand(len(seeds), -1))
    ids = torch.arange(vocab, dtype=torch.int32) * sampling._WEYL
    return sampling._log_waits(keys[..., None] ^ ids).double().exp()


def grid() -> torch.Tensor:
    return waits(torch.arange(300), torch.arange(100))  # 1.2 million numbers


def test_the_noise_is_exponential_down_to_what_rare_tokens_need():
    found = grid()
    assert float(found.min()) > 0 and bool(found.isfinite().all())
    assert abs(float(found.mean()) - 1) < 0.005 and abs(float(found.var()) - 1) < 0.02
    for least in (1e-5, 1e-4, 1e-3, 0.0039, 0.01, 0.1, 1.0, 5.0, 12.0):
        expected = found.numel() * (1 - math.exp(-least))
        spread = math.sqrt(expected * math.exp(-least))
        assert abs(int((found < least).sum()) - expected) < 4 * spread + 1
    # The least differences are not those of 24 bits below 1.
    few = found.flatten().sort().values[:50]
    assert len(few.unique()) == 50 and float(few[0]) < 1e-5


def test_seeds_slots_and_tokens_are_uncorrelated():
    found = grid().neg().exp()  # uniform from 0 to 1
    pairs = [
        (found[1:], found[:-1]),
        (found[:, 1:], found[:, :-1]),
        (found[..., 1:], found[..., :-1]),
        (found[1:, :-1], found[:-1, 1:]),  # seed and slot do not add up
        (found[:, 1:, :-1], found[:, :-1, 1:]),
    ]
    for x, y in pairs:
        correlation = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.005  # 5 standard deviations


def test_large_seeds_differ_in_their_high_bits():
    seeds = torch.tensor([7, 7 + 2**32, 7 + 2**40, -7])
    assert len(set(waits(seeds, torch.tensor([3]))[:, 0, 0].tolist())) == 4


def test_a_seed_has_the_same_noise_in_every_version():
    """A sampled text can be made again from its seed: changed constants would be as good, and break that."""
    found = waits(torch.tensor([0, 1, 2**40 + 7]), torch.tensor([5]))[:, 0, 3]
    known = torch.tensor([0.20629243, 0.28689709, 0.77522654], dtype=torch.float64)
    torch.testing.assert_close(found, known, rtol=1e-4, atol=0)


def test_all_bits_of_a_key_unset_or_set_give_a_number():
    for bits in (0, -1):
        sample = sampling._log_waits(torch.tensor([bits], dtype=torch.int32))
        assert bool(sample.isfinite().all())
