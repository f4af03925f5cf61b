"""Cascades: free drafts beside a model's, with the same tokens as without any."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.drafters.cascade import Cascade, Trust
from forescribe.speculative.drafters.script import Breaks, ScriptDrafter
from forescribe.speculative.drafters.worth import Line
from forescribe.speculative.requests import Guarantee
from forescribe.speculative.testing import TinyModel

EOS, NEVER = 10, 99
BREAKS = Breaks(torch.arange(12) % 3 == 0, count=1)


class Clock:
    """Seconds that pass with every position that a model scores: the same prices on any machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(TinyModel):
    """A model whose forwards take `each` seconds, and a tenth of that for each position."""

    def __init__(self, clock: Clock, each: float, **options: float) -> None:
        super().__init__(**options)
        self._clock, self._each = clock, each

    def score(self, tokens, start, **fields):
        self._clock.now += self._each * (1 + 0.1 * tokens.shape[1])
        return super().score(tokens, start, **fields)


def cascade(
    *,
    adaptive: bool,
    model: bool = True,
    blur: float = 0.3,
    clock: Clock | None = None,
    breaks: Breaks | None = None,
) -> Cascade:
    """A cascade whose model takes a tenth of the time of `Timed(clock, 1.0)`."""
    clock = clock or Clock()
    own = ModelDrafter(Timed(clock, 0.1, blur=blur), confidence=0.2 if adaptive else 0.0)
    free = {
        "text": ScriptDrafter(special_from=9, breaks=breaks),
        "answer": NgramDrafter(hint_slots=1),
    }
    return Cascade(free, own if model else None, adaptive=adaptive, clock=clock)


def texts(count: int, **fields) -> list[Request]:
    return [Request((1, 2, n % 9), encoder_states=n % 8, tag=n, **fields) for n in range(count)]


def plain_texts(work: list[Request]) -> dict[int, tuple[int, ...]]:
    engine = Engine(TinyModel(), batch=4, eos=(NEVER,), schedule=Fixed(0))
    return {r.request.tag: r.tokens for r in engine.run(work)}


def hinted(work: list[Request], scripts: dict[int, tuple[int, ...]]) -> list[Request]:
    return [
        Request(r.prompt, encoder_states=r.encoder_states, tag=r.tag, hint=scripts[r.tag])
        for r in work
    ]


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_good_script_is_taken_and_a_bad_one_left_to_the_model(adaptive):
    work, clock = texts(8), Clock()
    plain = plain_texts(work)

    def tokens_per_round(scripts, drafter):
        target = Timed(clock, 1.0)
        engine = Engine(target, drafter, batch=1, eos=(NEVER,), schedule=Fixed(6))
        found = {r.request.tag: r.tokens for r in engine.run(hinted(work, scripts))}
        assert found == plain and not engine.faults
        return engine.stats.mean_acceptance_length, engine.stats.draft_forwards

    alone = ModelDrafter(TinyModel(blur=0.3), confidence=0.2 if adaptive else 0.0)
    model, _ = tokens_per_round(plain, alone)
    drafter = cascade(adaptive=adaptive, clock=clock)
    good, _ = tokens_per_round(plain, drafter)
    counts = drafter.counts()
    assert good > 1.25 * model
    assert counts["text"].kept > 0.8 * counts["text"].judged > 0
    bad, _ = tokens_per_round(
        {n: (5,) * 30 for n in plain}, cascade(adaptive=adaptive, clock=clock)
    )
    assert bad > 0.8 * model


def test_the_model_does_not_run_where_all_rows_take_the_script():
    work, clock = texts(12), Clock()
    plain = plain_texts(work)
    drafter = cascade(adaptive=True, clock=clock)
    forwards = 0
    propose = drafter.model.propose

    def counting(*args, **fields):
        nonlocal forwards
        forwards += 1
        return propose(*args, **fields)

    drafter.model.propose = counting
    engine = Engine(Timed(clock, 1.0), drafter, batch=1, eos=(NEVER,), schedule=Fixed(6))
    assert {r.request.tag: r.tokens for r in engine.run(hinted(work, plain))} == plain
    assert 0 < forwards < engine.stats.rounds / 2


def test_what_others_drafted_is_read_by_the_model_before_it_drafts():
    """A draft model that equals its target keeps all of its drafts, also behind tokens of the script."""
    work = texts(16)
    plain = plain_texts(work)
    clock = Clock()
    drafter = cascade(adaptive=True, blur=0.0, clock=clock)
    half = {n: t[: len(t) // 2] for n, t in plain.items()}
    engine = Engine(Timed(clock, 1.0), drafter, batch=2, eos=(NEVER,), schedule=Fixed(6))
    assert {r.request.tag: r.tokens for r in engine.run(hinted(work, half))} == plain
    counts = drafter.counts()
    assert counts["text"].kept > 0
    assert counts["model"].kept == counts["model"].judged > 0


def test_the_model_goes_on_behind_the_script_in_the_same_round():
    """Scripts that stop in the middle of every round: text and model draft one after the other."""
    work, clock = texts(24), Clock()
    plain = plain_texts(work)
    drafter = cascade(adaptive=True, blur=0.0, clock=clock, breaks=BREAKS)
    rounds = []
    continued = drafter._continued

    def noting(model, rows, lead, shape, began):
        draft = continued(model, rows, lead, shape, began)
        rounds.append((int(lead.valid.max()), draft.tokens.shape[1], draft.valid.tolist()))
        return draft

    drafter._continued = noting
    engine = Engine(Timed(clock, 1.0), drafter, batch=2, eos=(NEVER,), schedule=Fixed(6))
    assert {r.request.tag: r.tokens for r in engine.run(hinted(work, plain))} == plain
    assert not engine.faults
    assert len(rounds) > 10
    assert all(0 < longest < width <= 6 for longest, width, _ in rounds)
    counts = drafter.counts()
    assert counts["model"].kept == counts["model"].judged > 0  # it has read what the text drafted
    assert counts["text"].kept == counts["text"].judged > 0


def test_without_scripts_it_is_the_model():
    work = texts(8)
    own = ModelDrafter(TinyModel(blur=0.3), confidence=0.2)
    drafter = Cascade({"text": ScriptDrafter()}, own, adaptive=True)
    both = []
    for one in (drafter, ModelDrafter(TinyModel(blur=0.3), confidence=0.2)):
        engine = Engine(TinyModel(), one, batch=3, eos=(NEVER,), schedule=Fixed(5))
        both.append({r.request.tag: (r.tokens, r.accepted) for r in engine.run(work)})
    assert both[0] == both[1]


@pytest.mark.parametrize("model", [True, False])
def test_sampled_rows_are_exact_and_do_not_depend_on_what_was_learnt(model):
    work = texts(6, temperature=0.8, seed=3, hint=(3, 1, 4, 1, 5, 9, 2, 6))
    found = []
    for batch in (1, 3):
        drafter = cascade(adaptive=True, model=model)
        engine = Engine(TinyModel(), drafter, batch=batch, eos=(NEVER,), schedule=Fixed(4))
        greedy = texts(4, hint=(1, 2, 3))
        assert len(list(engine.run(greedy))) == 4  # something to learn from
        results = list(engine.run(work))
        assert all(r.guarantee is Guarantee.EXACT for r in results)
        found.append({r.request.tag: r.tokens for r in results})
    assert found[0] == found[1]


def test_a_row_whose_source_fails_is_decoded_and_the_others_are_drafted():
    class Breaks(NgramDrafter):
        def propose(self, rows, gamma):
            if bool((rows.active & (rows.tokens[:, 2] == 5)).any()):
                raise RuntimeError("broken source")
            return super().propose(rows, gamma)

    work = texts(6)
    plain = plain_texts(work)
    own = ModelDrafter(TinyModel(blur=0.3))
    drafter = Cascade({"answer": Breaks(hint_slots=1)}, own, adaptive=True)
    engine = Engine(TinyModel(), drafter, batch=3, eos=(NEVER,), schedule=Fixed(4))
    results = {r.request.tag: r for r in engine.run(work)}
    assert {n: r.tokens for n, r in results.items()} == plain
    assert [n for n, r in results.items() if r.draft_error] == [5]
    assert all(r.accepted for n, r in results.items() if n != 5)


def test_a_cascade_needs_a_source():
    with pytest.raises(ValueError, match="at least one free source"):
        Cascade({}, None, adaptive=True)


def test_trust_follows_a_row_and_starts_with_what_all_rows_know():
    trust = Trust(2, 3, torch.device("cpu"))
    for _ in range(20):
        trust.learn(0, torch.tensor([4, 0, 0]), torch.tensor([4, 1, 0]))
    good, bad, new = trust.chances(3)[0].tolist()
    assert good > 0.9 and bad < 0.3 and bad < new < good
    assert trust.chances(3)[1].tolist() == pytest.approx([0.5] * 3)
    trust.reset(torch.tensor([0]))
    assert trust.chances(3)[0, 0] == trust.chances(3)[0, 2]


def test_prices_are_a_line_that_interruptions_hardly_move():
    line = Line()
    for n in range(60):
        line.learn(1 + n % 7, 0.010 + 0.001 * (n % 7))
    assert line.slope == pytest.approx(0.001, rel=0.05)
    assert line.at(4) == pytest.approx(0.013, rel=0.05)
    line.learn(4, 10.0)
    assert line.at(4) < 0.015
