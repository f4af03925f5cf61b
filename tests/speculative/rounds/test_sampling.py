"""How rows are sampled: against transformers' own processors, and with drafts as without."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.requests import Mode, Sampling
from forescribe.speculative.rounds import sampling as thresholds
from forescribe.speculative.rounds.sampling import bound, penalise, perturbed
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Prefix
from tests.speculative.plain import decode
from tests.speculative.tiny import TinyModel

CPU = torch.device("cpu")

samplings = st.builds(
    Sampling,
    top_k=st.sampled_from([0, 1, 3, 8, 500]),
    top_p=st.sampled_from([1.0, 0.95, 0.6, 0.1]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    presence=st.sampled_from([0.0, 0.7, -0.5]),
    frequency=st.sampled_from([0.0, 0.4, -0.2]),
)


def rows_of(requests: list[Request], slots: int = 24, mode: Mode | None = None) -> Rows:
    rows = Rows.empty(len(requests), slots, CPU)
    rows.mode = mode or Mode.of(requests)
    rows.sample_as(requests)
    return rows


def law(rows: Rows, logits: Tensor) -> Tensor:
    """The probabilities that rows above temperature 0 draw from."""
    slots = torch.zeros(logits.shape[:2], dtype=torch.int64)
    with mock.patch.object(thresholds, "_log_waits", lambda keys: torch.zeros(keys.shape)):
        quiet = perturbed(rows, logits, slots)
    return (quiet / rows.temperature[:, None, None]).softmax(-1)


def prefix(tokens: Tensor, last: Tensor, begin: Tensor) -> Prefix:
    """`tokens [B, L]` in strips that are longer, with a dump at the end."""
    strips = torch.cat([tokens, torch.zeros(len(tokens), 3, dtype=torch.int64)], dim=1)
    return Prefix(strips, last, begin)


@settings(max_examples=30)
@given(st.lists(st.tuples(samplings, st.sampled_from([0.3, 1.0, 1.7])), min_size=1, max_size=4),
       st.integers(0, 10_000))  # fmt: skip
def test_a_law_is_what_transformers_makes_of_the_same_logits(settings_, seed):
    """One row, one position at a time there; all rows and positions at once here."""
    generator = torch.Generator().manual_seed(seed)
    batch, nodes, length, vocab = len(settings_), 3, 9, 20
    logits = 4 * torch.randn(batch, nodes, vocab, generator=generator)
    tokens = torch.randint(vocab, (batch, length), generator=generator)
    first = torch.randint(1, length - nodes, (batch, 1), generator=generator)
    last = first + torch.arange(nodes)
    begin = (torch.rand(batch, generator=generator) * (first[:, 0] + 1)).long() + 1
    work = [Request((1,), temperature=t, sampling=s) for s, t in settings_]
    rows = rows_of(work, mode=Mode(True, True, True, True))
    got = law(rows, penalise(rows, logits, prefix(tokens, last, begin)))

    for b, n in itertools.product(range(batch), range(nodes)):
        asked, t = settings_[b]
        ids = tokens[b, : int(last[b, n]) + 1]
        scores = RepetitionPenaltyLogitsProcessor(asked.repetition)(ids[None], logits[b, n][None])
        times = ids[int(begin[b]) :].bincount(minlength=vocab)
        scores = scores - asked.presence * (times > 0) - asked.frequency * times
        chain: list[Any] = [TemperatureLogitsWarper(t)]
        chain += [TopKLogitsWarper(asked.top_k)] if asked.top_k else []
        chain += [TopPLogitsWarper(asked.top_p)] if asked.top_p < 1 else []
        chain += [MinPLogitsWarper(asked.min_p)] if asked.min_p else []
        for processor in chain:
            scores = processor(ids[None], scores)
        assert torch.allclose(got[b, n], scores[0].softmax(-1), atol=1e-6)
        assert torch.equal(got[b, n] > 0, scores[0].softmax(-1) > 0)


def test_a_row_that_asks_for_nothing_is_bit_for_bit_itself_beside_one_that_does():
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(2, 4, 50, generator=generator)
    tokens = torch.randint(50, (2, 12), generator=generator)
    view = prefix(tokens, torch.arange(4, 8).expand(2, 4), torch.tensor([2, 2]))
    plain = Request((1,), temperature=0.8)
    busy = Request((1,), temperature=0.8, sampling=Sampling(5, 0.5, 0.1, 1.5, 0.3, 0.2))
    both = rows_of([plain, busy])
    assert both.mode == Mode(True, True, True, False)
    shaped = penalise(both, logits, view)
    assert torch.equal(shaped[0], logits[0]) and not torch.equal(shaped[1], logits[1])
    alone = rows_of([plain])
    assert not alone.mode.bounded
    assert torch.equal(law(both, shaped)[0], law(alone, logits[:1])[0])


def test_bounds_keep_the_likeliest_token_and_all_that_tie_with_the_last():
    rows = rows_of([Request((1,), temperature=1.0, sampling=Sampling(top_k=2))])
    ties = bound(rows, torch.tensor([[[1.0, 3.0, 1.0, 0.0]]]))
    assert ties.isfinite().tolist() == [[[True, True, True, False]]]
    for least in (Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0)):
        rows = rows_of([Request((1,), temperature=1.0, sampling=least)])
        kept = bound(rows, torch.tensor([[[1.0, 3.0, 2.0]]])).isfinite()
        assert kept.tolist() == [[[False, True, False]]]


def sorted_bound(rows: Rows, logits: Tensor) -> Tensor:
    """`bound` by sorting the vocabulary, in float64."""
    lowest, vocab, logits = float("-inf"), logits.shape[-1], logits.double()
    down = logits.sort(-1, descending=True).values
    most = torch.where(rows.top_k > 0, rows.top_k, vocab).clamp_max(vocab)
    by_k = down.gather(-1, (most - 1)[:, None, None].expand(-1, down.shape[1], 1))
    mass = down.masked_fill(down < by_k, lowest).softmax(-1)
    before = mass.cumsum(-1) - mass
    top_p = rows.top_p[:, None, None].double()
    held = (before < top_p).sum(-1, keepdim=True).clamp_min(1)
    by_p = torch.where(top_p < 1, down.gather(-1, held - 1), lowest)
    by_min = (down[..., :1].float() + rows.min_p[:, None, None].log()).double()
    least = torch.maximum(torch.maximum(by_k, by_p), by_min)
    return logits.masked_fill(logits < least, lowest)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Sampling,
            top_k=st.sampled_from([0, 1, 2, 7, 40, 2000, 10**6]),
            top_p=st.sampled_from([1.0, 0.999, 0.9, 0.51, 0.07, 1e-6]),
            min_p=st.sampled_from([0.0, 0.003, 0.3, 1.0]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1, 2, 37, 1000, 70_001]),
    st.sampled_from([0.01, 1.0, 4.0, 300.0]),
    st.sampled_from([None, 0.25, 2.0]),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
def test_bounds_keep_what_they_keep_of_a_sorted_vocabulary(asked, vocab, scale, step, banned, seed):
    """All scales and signs; with `step` most tokens tie with others; `banned` are at -inf."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(asked), 2, vocab)
    logits = scale * torch.randn(shape, generator=generator)
    if step is not None:
        logits = (logits / step).round() * step  # with zeros of both signs
    logits[torch.rand(shape, generator=generator) < banned] = float("-inf")
    logits[..., 0] = 0.5
    rows = rows_of([Request((1,), temperature=1.0, sampling=s) for s in asked])
    kept = bound(rows, logits)
    assert torch.equal(kept.double(), sorted_bound(rows, logits))


def test_bounds_of_flat_distributions_and_of_broken_logits():
    rows = rows_of([Request((1,), temperature=1.0, sampling=Sampling(top_p=0.5, top_k=9))])
    flat = torch.zeros(1, 1, 50_000)
    assert torch.equal(bound(rows, flat), flat)
    for vocab in (50, 2048):
        assert bound(rows, torch.full((1, 1, vocab), float("-inf"))).isneginf().all()
        assert bound(rows, torch.full((1, 1, vocab), float("nan"))).shape == (1, 1, vocab)
    assert torch.equal(bound(rows, flat + 3e38), flat + 3e38)


def engine(drafter: str, batch: int, gamma: int, *, eos=(0,), **options: Any) -> Engine:
    made = {
        "none": lambda: None,
        "near": lambda: ModelDrafter(TinyModel(blur=0.3)),
        "equal": lambda: ModelDrafter(TinyModel()),
        "ngram": lambda: NgramDrafter(answers=3),
        "ngram, early": lambda: NgramDrafter(answers=3, early=True),
    }[drafter]()
    schedule = Fixed(gamma if made else 0)
    return Engine(TinyModel(), made, batch=batch, eos=eos, schedule=schedule, **options)


requests = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(1, 10), min_size=1, max_size=8).map(tuple),
        temperature=st.sampled_from([0.0, 0.7, 1.2]),
        sampling=samplings,
        ranks=st.integers(0, 3),
        seed=st.integers(0, 2**40),
        max_new_tokens=st.integers(0, 25),
    ),
    min_size=1,
    max_size=5,
)


def tagged(work: list[Request]) -> list[Request]:
    return [replace(request, tag=i) for i, request in enumerate(work)]


@settings(max_examples=12)
@given(requests, st.sampled_from(["near", "ngram", "ngram, early"]), st.integers(1, 4))
def test_a_row_depends_on_its_seed_and_settings_alone(work, drafter, gamma):
    """Not on drafts, nor on the other rows; the tokens are the oracle's."""
    work = tagged(work)
    together = {r.request.tag: r for r in engine(drafter, 3, gamma, ranks=3).run(work)}
    for request in work:
        (alone,) = engine("none", 1, 0, ranks=3).run([request])
        found = together[request.tag]
        assert (alone.tokens, alone.finish) == (found.tokens, found.finish)
        assert alone.tokens == decode(TinyModel().forward, request, eos=(0,), max_tokens=48)
        assert alone.logprobs == pytest.approx(found.logprobs, abs=1e-5)
        assert len(found.ranked) == (len(found.tokens) if request.ranks else 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_equal_draft_is_never_rejected_so_it_is_shaped_as_its_target(temperature):
    shaped = Sampling(6, 0.9, 0.05, 1.4, 0.3, 0.2)
    made = engine("equal", 3, 4, eos=())
    work = [Request((n + 1, 3), temperature=temperature, sampling=shaped, seed=n) for n in range(4)]
    assert len(list(made.run(work))) == 4
    assert made.stats.accepted >= made.stats.drafted - 2 > 50  # rounding may reject a sure token


def test_ranked_tokens_are_the_likeliest_of_the_processed_logits():
    request = Request((3, 5), ranks=3, max_new_tokens=4, sampling=Sampling(frequency=0.5), tag=0)
    (result,) = engine("near", 1, 3, ranks=5).run([request])
    assert [len(best) for best in result.ranked] == [3] * len(result.tokens)
    for token, logprob, best in zip(result.tokens, result.logprobs, result.ranked, strict=True):
        assert best[0] == (token, pytest.approx(logprob))  # greedy: it is the likeliest
        assert [p for _, p in best] == sorted((p for _, p in best), reverse=True)
    with pytest.raises(ValueError, match="6 ranked tokens; this engine keeps 5"):
        engine("none", 1, 0, ranks=5).submit(Request((1,), ranks=6))


def test_a_peek_is_the_beginning_of_the_result():
    work = [Request((n + 1, 4), temperature=0.9, seed=n, tag=n, ranks=1) for n in range(3)]
    made = engine("near", 2, 3, eos=(), ranks=1)
    for request in work:
        made.submit(request)
    seen: dict[int, list] = {n: [] for n in range(3)}
    results = {}
    while not made.idle:
        results |= {r.request.tag: r for r in made.step()}
        for partial in made.peek():
            seen[partial.request.tag].append(partial)
    for tag, partials in seen.items():
        assert len(partials) > 2
        for partial in partials:
            count = len(partial.tokens)
            assert partial.tokens == results[tag].tokens[:count]
            assert partial.logprobs == results[tag].logprobs[:count]
            assert partial.ranked == results[tag].ranked[:count]


def test_a_peek_tells_what_is_new():
    made = engine("none", 1, 0, eos=())
    made.submit(Request((1, 4), tag="a", max_new_tokens=20))
    told: list[int] = []
    while not made.idle:
        (result,) = made.step() or [None]
        for partial in made.peek({"a": len(told)}):
            assert partial.begin == len(told) and len(partial.tokens) == 1
            told += partial.tokens
    assert len(told) > 3 and tuple(told) == result.tokens[:-1]
