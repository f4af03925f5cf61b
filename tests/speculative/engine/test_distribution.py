"""Sampled texts of several rounds, through the engine: the target's own distribution, by chi-square, and one
text a seed whatever drafts it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch
from scipy.stats import chi2
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.models.vocabularies import NONE, MappedVocabulary, TokenMap, mapped
from forescribe.speculative.protocols import Drafter
from forescribe.speculative.requests import Sampling
from forescribe.speculative.rounds import sampling as noise
from tests.speculative.plain import with_ids
from tests.speculative.tiny import TinyModel

pytestmark = pytest.mark.nightly

Text = tuple[int, ...]

SAMPLINGS = {
    "plain": Sampling(),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(top_p=0.8),
    "min-p": Sampling(min_p=0.15),
    "penalties": Sampling(repetition=1.3, presence=0.5, frequency=0.4),
    "all": Sampling(3, 0.95, 0.05, 1.2, 0.3, 0.2),
}
PROMPT = (1, 2, 3, 1, 2)  # with repetitions, so that the lookup drafts from the first round
VOCAB, LENGTH, TEMPERATURE = 4, 4, 1.6
TEXTS = 1000  # of each kind
RARE = 5.0  # cells with fewer expected texts are merged
FAILS_BELOW = 1e-5
"""p-value. There are about thirty, so one run in three thousand has a lower one by chance."""


def target() -> TinyModel:
    return TinyModel(vocab=VOCAB, width=8, positions=16)


def renumbered() -> MappedVocabulary:
    """A draft of five tokens, of which the third has no partner; it lacks token 1, and reads it as its own
    token for 3."""
    model = TinyModel(vocab=VOCAB, width=8, positions=16, blur=0.5)
    ids = TokenMap(to_draft=(4, 1, 0, 1), to_target=(2, 3, NONE, NONE, 0))
    return mapped(lambda head: with_ids(model, (2, 3, 1, 1, 0), head), ids)


def drafter(name: str | None) -> Drafter | None:
    """A drafter that is right about half the time."""
    blurred: dict[str, Any] = {"vocab": VOCAB, "width": 8, "positions": 16, "blur": 0.5}
    made: dict[str | None, Any] = {
        None: lambda: None,
        "model": lambda: ModelDrafter(TinyModel(**blurred)),
        "cut head": lambda: ModelDrafter(TinyModel(**blurred, listed=(0, 2, 3))),
        "id map": lambda: ModelDrafter(renumbered()),
        "n-gram": lambda: NgramDrafter(length=LENGTH),
    }
    found: Drafter | None = made[name]()
    return found


def expected(sampling: Sampling, eos: int) -> dict[Text, float]:
    """The distribution of whole texts: `LENGTH` tokens, or fewer if end-of-text occurs."""
    found: dict[Text, float] = {}
    open_: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        grown: dict[Text, float] = {}
        for text, weight in open_.items():
            for token, chance in enumerate(next_token(text, sampling)):
                ends = token == eos or len(text) + 1 == LENGTH
                (found if ends else grown)[(*text, token)] = weight * chance
        open_ = grown
    return found


def next_token(text: Text, sampling: Sampling) -> list[float]:
    """The target's distribution after prompt and text, with transformers' logits processors."""
    prefix = torch.tensor([*PROMPT, *text])
    scores = target().forward(prefix)[-1][None]
    scores = RepetitionPenaltyLogitsProcessor(sampling.repetition)(prefix[None], scores)
    times = prefix[len(PROMPT) :].bincount(minlength=VOCAB)
    scores = scores - sampling.presence * (times > 0) - sampling.frequency * times
    scores = scores / TEMPERATURE
    chain: list[Any] = [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    chain += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    chain += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    for processor in chain:
        scores = processor(prefix[None], scores)
    found: list[float] = scores.double().softmax(-1)[0].tolist()
    return found


def fit(seen: Counter[Text], wanted: dict[Text, float]) -> tuple[float, int]:
    """Chi-square and degrees of freedom; infinite where a text of probability 0 occurred."""
    if any(wanted.get(text, 0.0) <= 0 for text in seen):
        return float("inf"), 1
    cells = [(seen[text], seen.total() * chance) for text, chance in wanted.items()]
    often = [cell for cell in cells if cell[1] >= RARE]
    rare = [cell for cell in cells if cell[1] < RARE]
    pooled = (sum(a for a, _ in rare), sum(b for _, b in rare))
    often += [pooled] if pooled[1] >= RARE else []
    return sum((a - b) ** 2 / b for a, b in often), len(often) - 1


def measure(name: str, gamma: int, *, texts: int = TEXTS, eos: int = VOCAB) -> tuple[bool, int]:
    """Decode texts of every kind in turn, by consecutive seeds. Whether all kinds fit, each alone and all
    together, and how many texts differ from those of their seeds without drafts."""
    work = [
        Request(
            PROMPT,
            temperature=TEMPERATURE,
            sampling=SAMPLINGS[kind],
            seed=seed,
            max_new_tokens=LENGTH,
            tag=kind,
        )
        for seed, kind in enumerate(itertools.islice(itertools.cycle(SAMPLINGS), texts * 6))
    ]

    def engine(name: str | None, gamma: int) -> Engine:
        return Engine(
            target(), drafter(name), batch=1024, eos=(eos,), schedule=Fixed(gamma if name else 0)
        )

    made = engine(name, gamma)
    results = {result.request.seed: result for result in made.run(work)}
    plain = engine(None, 0).run(work)
    others = sum(result.tokens != results[result.request.seed].tokens for result in plain)
    assert 0.1 < made.stats.accepted / made.stats.drafted < 0.9 and not made.stats.draft_faults
    assert sum(result.rounds for result in results.values()) > 1.3 * len(work)
    fits = []
    for kind, sampling in SAMPLINGS.items():
        seen = Counter(r.tokens for r in results.values() if r.request.tag == kind)
        fits.append(fit(seen, expected(sampling, eos)))
    fits.append((sum(value for value, _ in fits), sum(degrees for _, degrees in fits)))
    assert all(degrees > 10 for _, degrees in fits)
    return all(chi2.sf(value, degrees) >= FAILS_BELOW for value, degrees in fits), others


@pytest.mark.parametrize("name", ["model", "cut head", "id map", "n-gram"])
def test_sampled_texts_follow_the_targets_distribution_and_are_those_without_drafts(name):
    assert measure(name, 4) == (True, 0)


def test_texts_that_end_early_follow_it_too():
    """End-of-text among the drafts and behind them."""
    assert measure("model", 2, texts=2000, eos=0) == (True, 0)


def test_slots_that_share_their_noise_are_found_out():
    """The tokens of a text are then no independent draws."""
    keys = noise._keys

    def shared(seed: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return keys(seed, torch.zeros_like(slots))

    with mock.patch.object(noise, "_keys", shared):
        assert measure("model", 4) == (False, 0)
