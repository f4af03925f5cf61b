"""Guesses: verified with the prompt; whatever they are, the text is that of plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request, Source
from forescribe.speculative.errors import RequestError
from forescribe.speculative.protocols import Needs
from forescribe.speculative.requests import Finish, Probe, Sampling
from forescribe.speculative.types import Prefix
from tests.speculative.graphs.workloads import Pretend
from tests.speculative.tiny import TinyModel

from .test_engine import DRAFTERS, EOS, NEVER, Planned, oracle


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Requests some of which bring a guess: right, right up to a place, or anything; some too long."""
    made = []
    for tag in range(draw(st.integers(1, 6))):
        request = Request(
            prompt=tuple(draw(st.lists(st.integers(1, 10), min_size=1, max_size=12))),
            encoder_states=draw(st.integers(0, 7)),
            max_new_tokens=draw(st.one_of(st.none(), st.integers(0, 30))),
            gamma=draw(st.one_of(st.none(), st.integers(0, 3))),
            tag=tag,
        )
        right = oracle(request)
        anything = st.lists(st.integers(0, 10), max_size=60).map(tuple)
        guess = draw(
            st.one_of(
                st.just(()),
                anything,
                st.just(right),
                st.integers(0, 40).map(lambda n, right=right: right[:n]),
                st.tuples(st.integers(0, 40), anything).map(
                    lambda t, right=right: right[: t[0]] + t[1]
                ),
            )
        )
        made.append(replace(request, guess=guess))
    return made


@settings(max_examples=40)
@given(requests(), st.sampled_from([*DRAFTERS]), st.integers(1, 4), st.booleans())
def test_a_guess_changes_no_token(work, kind, batch, pauses):
    drafter = DRAFTERS[kind]()
    schedule = Planned(0, 3, 0) if pauses and drafter is not None else Fixed(3 if drafter else 0)
    if drafter is None:
        work = [replace(r, gamma=None) for r in work]
    engine = Engine(TinyModel(), drafter, batch=batch, eos=(EOS,), schedule=schedule)
    results = {r.request.tag: r for r in engine.run(work)}
    assert sorted(results) == list(range(len(work)))
    for request in work:
        result, right = results[request.tag], oracle(request)
        assert result.tokens == right and result.draft_error is None
        kept = sum(source is Source.GUESSED for source in result.sources)
        same = [a == b for a, b in zip(request.guess, right, strict=False)]
        most = same.index(False) if False in same else len(same)
        # The last token of a full row, or of a budget, is the target's own.
        assert kept <= most and kept >= min(most, max(0, len(right) - 1))
        assert result.sources[:kept] == (Source.GUESSED,) * kept
        assert result.logprobs == pytest.approx(plain(request).logprobs, abs=1e-4)


def plain(request: Request):
    engine = Engine(TinyModel(), batch=1, eos=(EOS,))
    (result,) = engine.run([replace(request, guess=(), gamma=None)])
    return result


def test_a_right_guess_costs_no_round():
    request = Request((3, 1, 4), max_new_tokens=30)
    right = oracle(request, eos=NEVER)
    engine = Engine(TinyModel(), batch=1, eos=(NEVER,))
    (result,) = engine.run([replace(request, guess=right)])
    assert result.tokens == right and result.finish is Finish.LENGTH
    assert result.rounds == engine.stats.rounds == 0 and engine.stats.target_forwards == 1
    assert result.sources == (Source.GUESSED,) * 29 + (Source.PLAIN,)


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_the_token_in_place_of_a_wrong_one_is_the_targets_own(kept):
    request = Request((3, 1, 4), max_new_tokens=8)
    right = oracle(request, eos=NEVER)
    wrong = (*right[:kept], (right[kept] + 1) % 11, *right[kept + 1 :])
    engine = Engine(TinyModel(), batch=1, eos=(NEVER,))
    (result,) = engine.run([replace(request, guess=wrong)])
    assert result.tokens == right
    assert result.sources == (Source.GUESSED,) * kept + (Source.PLAIN,) * (8 - kept)


def test_a_guess_with_the_end_of_the_text_ends_the_row():
    request = next(
        r
        for r in (Request((n, 2), encoder_states=n % 8) for n in range(1, 11))
        if 4 < len(oracle(r)) < 30 and oracle(r)[-1] == EOS
    )
    right = oracle(request)
    engine = Engine(TinyModel(), batch=2, eos=(EOS,))
    (result,) = engine.run([replace(request, guess=(*right, 1, 2, 3))])
    assert result.tokens == right and result.finish is Finish.STOP and result.rounds == 0


def test_a_guess_is_verified_under_processors_and_penalties():
    def no_sevens(logits: torch.Tensor, prefix: Prefix) -> torch.Tensor:
        """Forbids 7 after an even number of tokens, so the position must be right."""
        even = (prefix.last + 1 - prefix.begin[:, None]) % 2 == 0
        out = logits.clone()
        out[..., 7] = torch.where(even, -torch.inf, out[..., 7])
        return out

    for sampling in (Sampling(), Sampling(repetition=1.3, presence=0.4)):
        work = [
            Request((n, 5), encoder_states=n, max_new_tokens=25, sampling=sampling, tag=n)
            for n in range(1, 8)
        ]
        options = {"eos": (NEVER,), "processors": (no_sevens,)}
        expected = {
            r.request.tag: r.tokens for r in Engine(TinyModel(), batch=3, **options).run(work)
        }
        guessing = [replace(r, guess=expected[r.tag][: 3 * r.tag]) for r in work]
        engine = Engine(TinyModel(), batch=3, **options)
        for result in engine.run(guessing):
            assert result.tokens == expected[result.request.tag]
            kept = sum(source is Source.GUESSED for source in result.sources)
            assert kept == min(3 * result.request.tag, 24)


def test_probes_and_guesses_are_read_together():
    probe = Probe(1, (2, 3))
    work = [
        Request((4, 5, 6), encoder_states=n, probe=probe, max_new_tokens=9, tag=n) for n in (0, 1)
    ]
    engine = Engine(TinyModel(), batch=2, eos=(NEVER,))
    alone = {r.request.tag: r for r in engine.run(work)}
    guessing = [replace(work[0], guess=alone[0].tokens), work[1]]
    engine = Engine(TinyModel(), batch=2, eos=(NEVER,))
    for result in engine.run(guessing):
        assert result.tokens == alone[result.request.tag].tokens
        assert result.probe == pytest.approx(alone[result.request.tag].probe)


def test_static_shapes_take_guesses_of_any_length_in_few_shapes():
    device, shapes = Pretend("hpu", torch.float32), set()
    engine = Engine(
        TinyModel(),
        ModelDrafter(TinyModel(blur=0.3)),
        batch=2,
        eos=(NEVER,),
        device=device,
        schedule=Fixed(2),
    )
    real = engine.target.prefill

    def prefill(rows, tokens, states, nodes):
        shapes.add((tuple(tokens.shape), None if nodes is None else tuple(nodes.shape)))
        return real(rows, tokens, states, nodes)

    engine.target.prefill = prefill  # type: ignore[method-assign]
    work = []
    for n in range(1, 20):
        request = Request((1 + n % 9, 2), max_new_tokens=30, tag=n)
        work.append(replace(request, guess=oracle(request, eos=NEVER)[:n]))
    for result in engine.run(work):
        assert result.tokens == oracle(result.request, eos=NEVER)
    assert {nodes[1] for _, nodes in shapes if nodes} <= {1 + 4 + 1, 1 + 8 + 1, 1 + 32 + 1}
    assert {k for (k, _), _ in shapes} <= {1, 2}


def test_partial_texts_begin_with_the_guess():
    request = Request((3, 1, 4), max_new_tokens=40, tag="a")
    right = oracle(request, eos=NEVER)
    engine = Engine(TinyModel(), batch=2, eos=(NEVER,))
    engine.submit(replace(request, guess=right[:10]))
    seen = []
    while not engine.idle:
        engine.step()
        seen += [partial.tokens for partial in engine.peek()]
    assert seen and len(seen[0]) >= 11 and all(right[: len(t)] == t for t in seen)


def test_what_a_guess_cannot_be_is_refused():
    with pytest.raises(RequestError, match="temperature 0 only, and the temperature is 0.5"):
        Request((1,), guess=(2,), temperature=0.5)
    engine = Engine(TinyModel(), batch=1, eos=(EOS,))
    with pytest.raises(RequestError, match="the guess"):
        engine.submit(Request((1,), guess=(11,)))

    class Head(ModelDrafter):
        needs = Needs(taps=(-1,), prompt=True, vocab=11)

    engine = Engine(TinyModel(), Head(TinyModel()), batch=1, eos=(EOS,))
    with pytest.raises(RequestError, match="does not take a guess"):
        engine.submit(Request((1,), guess=(2,)))
