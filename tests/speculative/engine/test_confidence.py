"""Drafts that end where the drafter doubts: the same text, fewer drafted tokens."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative import (
    Device,
    Engine,
    Fixed,
    Goodput,
    ModelDrafter,
    NgramDrafter,
    Request,
    Result,
)
from forescribe.speculative.drafters.model_drafter import confidence_for
from forescribe.speculative.engine.schedule import expected_tokens, schedule_for
from forescribe.speculative.protocols import Poll
from tests.speculative.tiny import TinyModel

EOS, NEVER = 10, 99


def decoded(
    work: list[Request], confidence: float, *, gamma: int = 6, batch: int = 3, eos: int = NEVER
) -> tuple[dict[int, Result], Engine]:
    drafter = ModelDrafter(TinyModel(blur=0.3), confidence=confidence)
    engine = Engine(TinyModel(), drafter, batch=batch, eos=(eos,), schedule=Fixed(gamma))
    return {r.request.tag: r for r in engine.run(work)}, engine


def texts(count: int, **fields) -> list[Request]:
    return [
        Request(prompt=tuple(range(1, n)), encoder_states=n % 8, tag=n, **fields)
        for n in range(2, 2 + count)
    ]


def test_it_ends_where_the_drafts_own_probability_falls_below():
    draft, confidence, gamma = TinyModel(blur=0.3), 0.05, 9
    for request in texts(8):
        engine = Engine(
            TinyModel(),
            ModelDrafter(draft, confidence=confidence),
            batch=1,
            eos=(NEVER,),
            schedule=Fixed(gamma),
        )
        engine.submit(request)
        engine.step()
        known, belief, expected = list(request.prompt), 1.0, 0
        while expected < gamma and belief >= confidence:
            scores = draft.forward(torch.tensor(known), request.encoder_states)[-1].softmax(-1)
            belief *= float(scores.max())
            known.append(int(scores.argmax()))
            expected += 1
        assert engine.stats.drafted == expected


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_sampled_drafts_end_early_too_and_seeds_hold(temperature):
    work = texts(6, temperature=temperature, seed=7)
    doubtful, engine = decoded(work, 0.9)
    whole, other = decoded(work, 0.0)
    assert {n: r.tokens for n, r in doubtful.items()} == {n: r.tokens for n, r in whole.items()}
    assert 0 < engine.stats.drafted < 0.8 * other.stats.drafted


def test_a_device_of_static_shapes_refuses_it():
    drafter = ModelDrafter(TinyModel(), confidence=0.4)
    with pytest.raises(ValueError, match=r"ends its drafts early.*cuda"):
        Engine(TinyModel(), drafter, batch=1, eos=(1,), device=Device("cuda", torch.float32))


def test_only_a_length_that_is_left_open_ends_early_and_only_on_processors():
    cpu, cuda = Device("cpu", torch.float32), Device("cuda", torch.float32)
    assert confidence_for(None, cpu) > 0
    assert confidence_for(5, cpu) == confidence_for(None, cuda) == 0
    early = schedule_for(None, ModelDrafter(TinyModel(), confidence=0.3))
    assert isinstance(early, Goodput) and early.early
    open_ = schedule_for(None, NgramDrafter())
    assert isinstance(open_, Goodput) and not open_.early
    assert schedule_for(None, None) == schedule_for(4, None) == Fixed(0)
    assert schedule_for(4, NgramDrafter()) == Fixed(4)


def world(schedule: Goodput, kept: float, cost: float, rounds: int) -> list[int]:
    """Every draft is half doubted away: nine in ten of what is left are kept, `kept` a round."""
    chosen = []
    for _ in range(rounds):
        gamma = schedule.choose()
        chosen.append(gamma)
        got = min(kept, expected_tokens(0.9, gamma) - 1)
        price = 1 + cost * min(gamma, 4)
        schedule.learn(Poll(gamma, 1, 1000, round(1000 * got / 0.9), round(1000 * got), price))
    return chosen


@pytest.mark.parametrize(("kept", "cost", "drafts"), [(0.7, 0.75, False), (0.7, 0.2, True)])
def test_goodput_goes_by_what_was_written_not_by_what_the_formula_hopes(kept, cost, drafts):
    """At the acceptance seen, the formula promises 2.7 tokens of two drafts; 1.7 are written."""
    chosen = world(Goodput(early=True), kept, cost, 300)
    assert (chosen[-50:].count(0) < 5) == drafts
    if not drafts:
        assert (
            world(Goodput(), kept, cost, 300)[-50:].count(0) < 5
        )  # without the correction it drafts on
