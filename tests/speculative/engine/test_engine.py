"""The engine against the slow oracle, on a tiny model whose stale cache slots are poisoned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Probe, Request, Source
from forescribe.speculative.drafters.script import Breaks, ScriptDrafter
from forescribe.speculative.engine import admission
from forescribe.speculative.protocols import Drafter, Poll
from forescribe.speculative.requests import Finish, Result
from forescribe.speculative.types import Prefix
from tests.speculative.plain import ScriptedDrafter, decode
from tests.speculative.tiny import TinyModel

EOS = 0
NEVER = 99  # an end-of-text that no model here can write
POSITIONS = 48

prompts = st.lists(st.integers(1, 10), min_size=1, max_size=12)
requests = st.lists(
    st.builds(
        dict,
        prompt=prompts.map(tuple),
        encoder_states=st.integers(0, 7),
        max_new_tokens=st.one_of(st.none(), st.integers(0, 30)),
        seed=st.integers(0, 2**40),
        gamma=st.one_of(st.none(), st.integers(0, 6)),
        hint=st.lists(st.integers(0, 10), max_size=40).map(tuple),
    ),
    min_size=1,
    max_size=7,
)


def make(fields: list[dict], temperature: float = 0.0) -> list[Request]:
    return [Request(**f, tag=i, temperature=temperature) for i, f in enumerate(fields)]


def within(work: list[Request], gamma: int) -> list[Request]:
    """The same for an engine of `gamma` drafts: more are refused."""
    return [r if r.gamma is None else replace(r, gamma=min(r.gamma, gamma)) for r in work]


BREAKS = Breaks(torch.arange(12) % 3 == 0, count=1)


def near(confidence: float = 0.0) -> ModelDrafter:
    return ModelDrafter(TinyModel(blur=0.3), confidence=confidence)


DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "none": lambda: None,
    "equal": lambda: ModelDrafter(TinyModel()),
    "near": near,
    "doubtful": lambda: near(0.2),
    "other": lambda: ModelDrafter(TinyModel(seed=5)),
    "ngram": lambda: NgramDrafter(answers=3, length=9),
    "ngram, early": lambda: NgramDrafter(answers=3, length=9, early=True),
    "script": lambda: ScriptDrafter(special_from=9),
    "short script": lambda: ScriptDrafter(special_from=4, slots=7),
    "script, early": lambda: ScriptDrafter(special_from=9, breaks=BREAKS, early=True),
}


def oracle(request: Request, processors: tuple = (), eos: int = EOS) -> tuple[int, ...]:
    return decode(
        lambda tokens: TinyModel().forward(tokens, request.encoder_states or 0),
        request,
        eos=(eos,),
        max_tokens=POSITIONS,
        processors=processors,
    )


def run(work: list[Request], kind: str, batch: int, gamma: int, **options) -> dict[int, Result]:
    drafter = DRAFTERS[kind]()
    schedule = Fixed(gamma if drafter is not None else 0)
    engine = Engine(TinyModel(), drafter, batch=batch, eos=(EOS,), schedule=schedule, **options)
    results = {r.request.tag: r for r in engine.run(within(work, schedule.gamma))}
    assert not engine.faults
    return results


@pytest.mark.parametrize("kind", DRAFTERS)
@settings(max_examples=10)
@given(requests, st.integers(1, 4), st.integers(1, 9))
def test_every_row_equals_decoding_it_alone(kind, fields, batch, gamma):
    work = make(fields)
    results = run(work, kind, batch, gamma)
    assert sorted(results) == list(range(len(work)))
    for request in work:
        assert results[request.tag].tokens == oracle(request)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_a_drafter_equal_to_its_target_is_never_rejected(temperature, gamma):
    work = [
        Request(
            prompt=tuple(range(1, n)), encoder_states=n % 8, seed=n, temperature=temperature, tag=n
        )
        for n in range(2, 12)
    ]
    engine = Engine(
        TinyModel(), ModelDrafter(TinyModel()), batch=3, eos=(NEVER,), schedule=Fixed(gamma)
    )
    results = list(engine.run(work))
    assert len(results) == len(work)
    assert engine.stats.drafted > 50
    assert engine.stats.accepted == engine.stats.drafted
    assert all(Source.CORRECTION not in r.sources for r in results)


class Planned:
    """A schedule that goes through its plan, over and over."""

    def __init__(self, *plan: int) -> None:
        self.plan = cycle(plan)
        self.buckets = tuple(sorted({*plan}))

    def choose(self) -> int:
        return next(self.plan)

    def learn(self, poll: Poll) -> None: ...


@pytest.mark.parametrize(
    ("plan", "temperature"),
    [
        ((3, 0), 0.0),
        ((0, 2), 0.7),
        ((0, 0, 0, 1), 0.0),
        ((4, *[0] * 21), 0.7),
        ((0, 3, 2, 0, 0), 0.0),
    ],
)
@pytest.mark.parametrize("at_once", [1, 3, 32])
def test_plain_rounds_leave_no_hole_in_what_a_drafter_has_read(
    temperature, plan, at_once, monkeypatch
):
    monkeypatch.setattr(admission, "PIECE", at_once)
    work = [
        Request(
            prompt=tuple(range(1, n)), encoder_states=n % 8, seed=n, temperature=temperature, tag=n
        )
        for n in range(2, 12)
    ]
    engine = Engine(
        TinyModel(), ModelDrafter(TinyModel()), batch=3, eos=(NEVER,), schedule=Planned(*plan)
    )
    results = list(engine.run(work))
    assert {r.request.tag: len(r.request.prompt) + len(r.tokens) for r in results} == dict.fromkeys(
        range(2, 12), POSITIONS
    )
    assert engine.stats.accepted == engine.stats.drafted > 10


def test_a_drafter_that_is_not_asked_reads_nothing():
    """What a schedule that never drafts costs: not one forward, prompts included."""
    schedule = Planned(0)
    schedule.buckets = (0, 3)
    drafter = ModelDrafter(TinyModel())
    engine = Engine(TinyModel(), drafter, batch=2, eos=(NEVER,), schedule=schedule)
    assert len(list(engine.run([Request(prompt=(1, n), tag=n) for n in range(1, 6)]))) == 5
    assert engine.stats.rounds > 0 == engine.stats.draft_forwards


class Ban:
    """Forbids a token depending on the token before it, so that drafted prefixes matter."""

    def __call__(self, logits: torch.Tensor, prefix: Prefix) -> torch.Tensor:
        before = prefix.tokens.gather(1, prefix.last)  # [B, N]
        first = prefix.last + 1 == prefix.begin[:, None]
        banned = torch.where(first, 7, (before + 1) % logits.shape[-1])
        return logits.scatter(-1, banned[..., None], -torch.inf)


@settings(max_examples=20)
@given(requests, st.sampled_from([*DRAFTERS]), st.integers(1, 6))
def test_processors_see_each_position_with_its_own_drafted_prefix(fields, kind, gamma):
    work = make(fields)
    results = run(work, kind, 3, gamma, processors=(Ban(),))
    for request in work:
        assert results[request.tag].tokens == oracle(request, (Ban(),))


def scripted(text: list[int], guess: list[int], gamma: int, **fields) -> tuple[Result, Engine]:
    """Decodes a prompt whose true continuation is `text` with `guess` as the script of drafts."""
    request = Request(prompt=(5, 2, 9), tag="a", **fields)
    engine = Engine(
        TinyModel(), ScriptedDrafter({"a": guess}), batch=1, eos=(EOS,), schedule=Fixed(gamma)
    )
    (result,) = engine.run([request])
    return result, engine


def truth(**fields) -> list[int]:
    return list(oracle(Request(prompt=(5, 2, 9), **fields)))


def test_an_accept_pattern_is_what_the_script_forces():
    text = truth(max_new_tokens=12)
    guess = list(text)
    guess[2] = (guess[2] + 1) % 11  # the first round: two accepted, then a correction
    result, engine = scripted(text, guess, 4, max_new_tokens=12)
    a, c, b = Source.ACCEPTED, Source.CORRECTION, Source.BONUS
    assert result.tokens == tuple(text)
    assert result.sources[:8] == (a, a, c, a, a, a, a, b)
    assert engine.stats.drafted_at_depth[:3] == (3, 3, 3)
    assert engine.stats.accepted_at_depth[:3] == (3, 3, 2)


def test_end_of_text_inside_a_draft_ends_the_row_there():
    for encoder_states in range(8):
        text = truth(encoder_states=encoder_states)
        if text[-1] == EOS and len(text) > 3:
            break
    else:
        pytest.fail("no memory gives a text that ends early")
    # Behind the end the script goes on with what the model would say, were it asked.
    result, _ = scripted(text, [*text, 3, 4, 5], len(text) + 2, encoder_states=encoder_states)
    assert result.tokens == tuple(text)
    assert result.finish is Finish.STOP
    assert result.drafted == result.accepted == len(text)


@pytest.mark.parametrize("budget", range(8))
def test_a_budget_inside_a_draft_is_kept(budget):
    text = truth(max_new_tokens=8, encoder_states=3)
    result, _ = scripted(text, text, 5, max_new_tokens=budget, encoder_states=3)
    assert result.tokens == tuple(text[:budget])


@pytest.mark.parametrize("gamma", [0, 1, 5, 9])
@pytest.mark.parametrize("length", [POSITIONS - 2, POSITIONS - 1, POSITIONS])
def test_rows_end_on_the_models_last_position(gamma, length):
    request = Request(prompt=tuple(1 + n % 10 for n in range(length)), tag=0, encoder_states=2)
    kind = "equal" if gamma else "none"
    result = run([request], kind, 1, gamma)[0]
    assert result.tokens == oracle(request)
    assert len(request.prompt) + len(result.tokens) <= POSITIONS


def test_rows_enter_and_leave_while_others_go_on():
    engine = Engine(
        TinyModel(), ModelDrafter(TinyModel(blur=0.3)), batch=2, eos=(NEVER,), schedule=Fixed(3)
    )
    long = Request(prompt=(1, 2), encoder_states=1, tag="long", max_new_tokens=40)
    shorts = [Request(prompt=(n + 1,), tag=n, max_new_tokens=3) for n in range(6)]
    engine.submit(long)
    done: list[Result] = []
    for short in shorts:  # requests arrive between rounds
        engine.submit(short)
        done += engine.step()
    while not engine.idle:
        done += engine.step()
    assert {r.request.tag: r.tokens for r in done} == {
        r.tag: oracle(r, eos=NEVER) for r in [long, *shorts]
    }
    assert done[-1].request.tag == "long"


@pytest.mark.parametrize("gamma", [0, 3])
def test_the_row_of_a_request_that_has_ended_holds_its_text_until_the_next_step(gamma):
    target = TinyModel()
    drafter = ModelDrafter(TinyModel(blur=0.3)) if gamma else None
    engine = Engine(target, drafter, batch=2, eos=(EOS,), schedule=Fixed(gamma))
    work = [
        Request(prompt=(n + 1,) * (n + 1), tag=n, max_new_tokens=4 + 3 * (n % 3)) for n in range(6)
    ]
    for request in work:
        engine.submit(request)
    before = list[Result]()
    while not engine.idle:
        ended = engine.step()
        assert all(engine.row_of(result.request) is None for result in before)
        for result in ended:
            row, text = engine.row_of(result.request), (*result.request.prompt, *result.tokens)
            known = torch.tensor(text[:-1])
            expected = TinyModel()._embed(known, torch.arange(len(known)))
            assert row is not None and torch.equal(target.values[row, : len(known)], expected)
        before += ended
    assert len(before) == len(work) and engine.row_of(replace(work[0])) is None


def test_a_cancelled_row_is_free_within_one_step_and_others_do_not_notice():
    engine = Engine(TinyModel(), None, batch=2, eos=(NEVER,), schedule=Fixed(0))
    keep = Request(prompt=(1, 2), encoder_states=1, tag="keep", max_new_tokens=30)
    engine.submit(keep)
    engine.submit(Request(prompt=(4,), encoder_states=2, tag="drop", max_new_tokens=30))
    engine.submit(Request(prompt=(6,), tag="drop", max_new_tokens=30))
    done = engine.step()
    assert engine.cancel("drop") == 2
    done += engine.step()
    assert [r.finish for r in done] == [Finish.CANCELLED]
    while not engine.idle:
        done += engine.step()
    assert [r.tokens for r in done if r.request.tag == "keep"] == [oracle(keep, eos=NEVER)]


def test_a_probe_reads_unprocessed_prompt_probabilities():
    request = Request(
        prompt=(3, 1, 4), encoder_states=2, max_new_tokens=1, probe=Probe(1, (5, 7)), tag=0
    )
    result = run([request], "near", 1, 3, processors=(Ban(),))[0]
    expected = TinyModel().forward(torch.tensor([3, 1]), 2)[-1].softmax(-1)
    assert result.probe == pytest.approx([float(expected[5]), float(expected[7])])


def test_log_probabilities_are_those_of_the_processed_logits():
    request = Request(prompt=(3, 1, 4), encoder_states=2, max_new_tokens=9, tag=0)
    result = run([request], "near", 1, 3)[0]
    tokens = torch.tensor([*request.prompt, *result.tokens])
    logits = TinyModel().forward(tokens, 2)[2:-1].log_softmax(-1)
    expected = logits.gather(1, tokens[3:, None])[:, 0].tolist()
    assert list(result.logprobs) == pytest.approx(expected, abs=1e-5)


def test_a_row_with_gamma_zero_decodes_plainly_among_drafting_rows():
    plain = Request(prompt=(2, 3), encoder_states=1, gamma=0, max_new_tokens=12, tag=0)
    other = Request(prompt=(2, 3), encoder_states=4, max_new_tokens=12, tag=1)
    results = run([plain, other], "equal", 2, 4)
    assert set(results[0].sources) == {Source.PLAIN}
    assert results[0].drafted == 0 < results[1].drafted
    assert results[0].tokens == oracle(plain)


def test_stats_count_rounds_and_forwards():
    engine = Engine(TinyModel(), ModelDrafter(TinyModel()), batch=2, eos=(EOS,), schedule=Fixed(4))
    results = list(engine.run(make([{"prompt": (n, n + 1), "max_new_tokens": 10} for n in (1, 4)])))
    stats = engine.stats
    assert stats.emitted == sum(len(r.tokens) for r in results)
    assert stats.drafted == sum(r.drafted for r in results)
    assert stats.row_rounds == sum(r.rounds for r in results)
    assert stats.target_forwards == stats.rounds + 1  # one prefill
    assert stats.draft_forwards == 4 * stats.rounds + 1
    assert stats.mean_acceptance_length == pytest.approx(1 + stats.accepted / stats.row_rounds)
    assert set(stats.seconds) == {"prefill", "draft", "score", "accept"}
    assert (stats - stats).emitted == 0
    assert (stats + stats).accepted_at_depth == tuple(2 * a for a in stats.accepted_at_depth)


def test_parts_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="13 tokens, the target 11"):
        Engine(TinyModel(), ModelDrafter(TinyModel(vocab=13)), batch=1, eos=(0,))
    with pytest.raises(ValueError, match="no drafter"):
        Engine(TinyModel(), batch=1, eos=(0,), schedule=Fixed(3))
    engine = Engine(TinyModel(), batch=1, eos=(0,))
    with pytest.raises(ValueError, match="60 tokens"):
        engine.submit(Request(prompt=(1,) * 60))
