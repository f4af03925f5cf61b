"""A fault stays with the request that causes it: injected at every stage, for every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.device import Device
from forescribe.speculative.errors import BrokenError, DecodingError
from forescribe.speculative.protocols import Poll
from forescribe.speculative.requests import Beams, Finish, Result, Source
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft, Prefilled, Prefix, Scores, Verdict
from tests.speculative.tiny import TinyModel

pytestmark = pytest.mark.failing_drafts

BATCH, NEVER = 3, 99
MARK = 9
"""The first token of the prompt that shall fail."""

STAGES = {
    "target prefill": "prefill",
    "admit": "the drafter's reading",
    "catch up": "the drafter's reading",
    "propose": "drafting",
    "score": "scoring",
    "processor": "scoring",
    "observe": "the drafter's learning",
    "commit": "committing",
}
DRAFTERS = {"admit", "catch up", "propose", "observe"}


class Injected(Exception):
    """What the parts below raise."""


@dataclass
class Plan:
    """At which stages a fault is due, and from which of its calls on; for rows that begin with MARK, or
    for all."""

    stages: frozenset[str] = frozenset()
    call: int = 1
    everyone: bool = False
    times: int | None = None  # so often; None: always
    seen: dict[str, int] = field(default_factory=dict)
    rows: Rows | None = None

    def reach(self, stage: str, concerned: Callable[[], bool]) -> None:
        """Raises if it is due."""
        if stage not in self.stages or not (self.everyone or concerned()):
            return
        self.seen[stage] = self.seen.get(stage, 0) + 1
        late = self.times is not None and self.seen[stage] >= self.call + self.times
        if self.seen[stage] >= self.call and not late:
            raise Injected(stage)

    def active(self) -> bool:
        """Whether an active row is marked."""
        assert self.rows is not None
        return bool((self.rows.active & (self.rows.tokens[:, 0] == MARK)).any())


class Target(TinyModel):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def prefill(self, rows: Tensor, tokens: Tensor, *others: Any) -> Prefilled:
        self.plan.reach("target prefill", lambda: bool((tokens[:, 0] == MARK).any()))
        return super().prefill(rows, tokens, *others)

    def score(self, *args: Any, **options: Any) -> Scores:
        self.plan.reach("score", self.plan.active)
        return super().score(*args, **options)


class Drafts(ModelDrafter):
    def __init__(self, plan: Plan) -> None:
        super().__init__(TinyModel(blur=0.3))
        self.plan = plan

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        self.plan.reach("admit", lambda: any(r.prompt[0] == MARK for r in requests))
        super().admit(rows, tokens, requests, taps)

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        self.plan.reach("catch up", self.plan.active)
        super().catch_up(rows, start, count)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        self.plan.reach("propose", self.plan.active)
        return super().propose(rows, gamma)

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.plan.reach("observe", self.plan.active)


@dataclass
class Counters:
    """The engine's, of which every commit asks."""

    plan: Plan
    inner: Any

    def add(self, *args: Any) -> None:
        self.plan.reach("commit", self.plan.active)
        self.inner.add(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Sometimes:
    """A schedule that drafts in every second round, so that the drafter has to catch up."""

    def __init__(self, gamma: int) -> None:
        self.buckets, self.rounds = tuple(sorted({0, gamma})), 0
        self.polls: list[Poll] = []

    def choose(self) -> int:
        self.rounds += 1
        return self.buckets[-1] if self.rounds % 2 else 0

    def learn(self, poll: Poll) -> None:
        self.polls.append(poll)


def build(plan: Plan, *, gamma: int, temperature: float, schedule: Any = None) -> Engine:
    def processor(logits: Tensor, prefix: Prefix) -> Tensor:
        plan.reach("processor", lambda: bool((prefix.tokens[:, 0] == MARK).any()))
        return logits

    engine = Engine(
        Target(plan),
        Drafts(plan) if gamma else None,
        batch=BATCH,
        eos=(NEVER,),
        schedule=Fixed(gamma) if schedule is None else schedule,
        processors=(processor,),
    )
    plan.rows = engine.rows
    table = engine._texts.table
    table.counters = Counters(plan, table.counters)  # type: ignore[assignment]
    return engine


def texts(marked: int | None, temperature: float, sometimes: bool = False) -> list[Request]:
    """Requests of different lengths, longer ones where drafts are `sometimes` only; the one of number
    `marked` is the one that shall fail."""
    return [
        Request(
            prompt=(MARK if i == marked else 1 + i % 8, 2 + i % 6, *range(1, 1 + i % 3)),
            encoder_states=i % 8,
            max_new_tokens=(24 if sometimes else 9) - i % 3,
            temperature=temperature,
            seed=i,
            tag=i,
        )
        for i in range(5)
    ]


@cache
def undisturbed(marked: int, gamma: int, temperature: float, sometimes: bool) -> dict[int, Any]:
    schedule = Sometimes(gamma) if sometimes else None
    engine = build(Plan(), gamma=gamma, temperature=temperature, schedule=schedule)
    return {r.request.tag: r.tokens for r in engine.run(texts(marked, temperature, sometimes))}


def check_clean(engine: Engine) -> None:
    """Nothing is left of anybody."""
    assert engine.idle and engine.free == BATCH
    assert not engine._texts.table.unread_prompts and not engine.rows.active.any()


def check_counts(engine: Engine, results: Iterable[Result]) -> None:
    """The figures are those of the results."""
    stats, results = engine.stats, list(results)
    assert stats.emitted == sum(len(r.tokens) for r in results)
    assert stats.row_rounds == sum(r.rounds for r in results)
    assert (stats.drafted, stats.accepted) == (
        sum(r.drafted for r in results),
        sum(r.accepted for r in results),
    )


ONCE = {"target prefill", "admit"}
"""A request gets there once."""

CASES = [
    (stage, marked, gamma, temperature, call)
    for stage in STAGES
    for gamma, temperature in ((2 if stage in DRAFTERS else 0, 0.0), (4, 0.0), (4, 1.0))
    for marked, call in [(0, 1), (1, 1), (4, 1), *([] if stage in ONCE else [(1, 2)])]
]


@pytest.mark.parametrize(("stage", "marked", "gamma", "temperature", "call"), CASES)
def test_a_fault_stays_with_its_request(stage, marked, gamma, temperature, call):
    """Number 4 comes in when the others are under way."""
    sometimes = stage == "catch up"
    expected = undisturbed(marked, gamma, temperature, sometimes)
    plan = Plan(frozenset({stage}), call)
    schedule = Sometimes(gamma) if sometimes else None
    engine = build(plan, gamma=gamma, temperature=temperature, schedule=schedule)
    work = texts(marked, temperature, sometimes)
    results = {r.request.tag: r for r in engine.run(work)}

    assert sorted(results) == [0, 1, 2, 3, 4] and plan.seen
    for tag, result in results.items():
        if tag != marked:
            assert result.tokens == expected[tag] and result.error is None
            assert result.draft_error is None or stage in DRAFTERS
    hit = results[marked]
    if stage in DRAFTERS:
        assert hit.finish is Finish.LENGTH and isinstance(hit.draft_error, DecodingError)
        assert hit.draft_error.stage == STAGES[stage]
        assert temperature or hit.tokens == expected[marked]
        assert len(hit.tokens) == len(expected[marked])
    else:
        assert hit.finish is Finish.FAILED and isinstance(hit.error, DecodingError)
        assert hit.error.stage == STAGES[stage]
        assert isinstance(hit.error.__cause__, Injected)
        assert hit.tokens == expected[marked][: len(hit.tokens)]  # what came before is told
    # Together and alone, and never again: what made it fail is not in the rounds of the others.
    assert 1 <= engine.stats.faults <= 2 and engine.faults
    if stage != "commit":  # whose counts are lost
        check_counts(engine, results.values())

    plan.stages = frozenset()
    check_clean(engine)
    again = {r.request.tag: r.tokens for r in engine.run(work)}
    assert sometimes or again == expected
    check_clean(engine)


@pytest.mark.parametrize("gamma", [0, 4])
@pytest.mark.parametrize("stage", sorted(STAGES.keys() - {"catch up"}))
def test_a_fault_of_all_rows_fails_them_and_leaves_the_engine_usable(stage, gamma):
    gamma = gamma or (2 if stage in DRAFTERS else 0)
    expected = undisturbed(1, gamma, 0.0, False)
    plan = Plan(frozenset({stage}), everyone=True)
    engine = build(plan, gamma=gamma, temperature=0.0)
    results = {r.request.tag: r for r in engine.run(texts(1, 0.0))}
    if stage in DRAFTERS:  # all go on without drafts
        assert {tag: r.tokens for tag, r in results.items()} == expected
        assert all(r.draft_error is not None for r in results.values())
    else:
        assert {r.finish for r in results.values()} == {Finish.FAILED}
    plan.stages = frozenset()
    check_clean(engine)
    assert {r.request.tag: r.tokens for r in engine.run(texts(1, 0.0))} == expected


@pytest.mark.parametrize("stage", sorted(STAGES.keys() - {"catch up"}))
def test_a_fault_that_passes_costs_nobody_a_token(stage):
    """Repeated alone, every row gets on; without drafts where it was the drafter's."""
    expected = undisturbed(1, 4, 1.0, False)
    engine = build(Plan(frozenset({stage}), everyone=True, times=1), gamma=4, temperature=1.0)
    results = {r.request.tag: r for r in engine.run(texts(1, 1.0))}
    assert {tag: r.tokens for tag, r in results.items()} == expected
    assert all(r.error is None for r in results.values())
    assert stage in DRAFTERS or all(r.draft_error is None for r in results.values())
    assert engine.stats.faults == 1


# Drafts that are no drafts


class Wrong(ModelDrafter):
    """Proposes what the target has not."""

    def __init__(self, change: Callable[[Draft], Draft]) -> None:
        super().__init__(TinyModel(blur=0.3))
        self.change = change

    def propose(self, rows: Rows, gamma: int) -> Draft:
        return self.change(super().propose(rows, gamma))


CHANGES = {
    "unknown": lambda d: replace(d, tokens=d.tokens + 11),
    "negative": lambda d: replace(d, tokens=d.tokens - 11),
    "wide": lambda d: replace(d, tokens=torch.cat([d.tokens, d.tokens], 1)),
    "few rows": lambda d: replace(d, tokens=d.tokens[:1]),
    "many valid": lambda d: replace(d, valid=d.valid + 7),
    "none valid": lambda d: replace(d, valid=d.valid - 7),
}


@pytest.mark.parametrize("change", CHANGES)
def test_drafts_that_make_no_sense_change_no_text(change):
    engine = Engine(
        TinyModel(), Wrong(CHANGES[change]), batch=BATCH, eos=(NEVER,), schedule=Fixed(4)
    )
    found = {r.request.tag: r for r in engine.run(texts(1, 0.0))}
    assert {tag: r.tokens for tag, r in found.items()} == undisturbed(1, 4, 0.0, False)
    refused = change in ("wide", "few rows")
    assert all((r.draft_error is not None) == refused for r in found.values())


class Forgetful(Sometimes):
    """A schedule that fails."""

    def __init__(self, where: str) -> None:
        super().__init__(4)
        self.where = where

    def choose(self) -> int:
        if self.where == "choose":
            raise Injected(self.where)
        return 17 if self.where == "unknown" else super().choose()

    def learn(self, poll: Poll) -> None:
        if self.where == "learn":
            raise Injected(self.where)


@pytest.mark.parametrize("where", ["choose", "unknown", "learn"])
def test_a_schedule_that_fails_costs_drafts_at_most(where):
    engine = build(Plan(), gamma=4, temperature=0.0, schedule=Forgetful(where))
    found = {r.request.tag: r.tokens for r in engine.run(texts(1, 0.0))}
    assert found == undisturbed(1, 4, 0.0, False)
    assert {f.stage for f in engine.faults} == {"the schedule"} and engine.stats.faults > 0


# Devices


@dataclass(frozen=True)
class Failing(Device):
    """A device that one day answers nothing any more."""

    state: dict[str, bool] = field(default_factory=dict, compare=False)

    def synchronize(self) -> None:
        if self.state.get("lost"):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_an_engine_whose_device_has_failed_says_so():
    device = Failing("cpu", torch.float32)
    engine = Engine(TinyModel(), None, batch=2, eos=(NEVER,), device=device)
    for request in texts(None, 0.0):
        engine.submit(request)
    assert engine.step() == []
    known = engine.stats
    device.state["lost"] = True

    def lost(*args: Any, **options: Any) -> Scores:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine.target.score = lost  # type: ignore[method-assign]
    ended = engine.step()
    assert [r.request.tag for r in ended] == [0, 1, 2, 3, 4]
    assert {r.finish for r in ended} == {Finish.FAILED}
    assert engine.idle and engine.broken is not None and engine.step() == [] == engine.peek()
    assert replace(engine.stats, faults=0) == known  # what was read last
    with pytest.raises(BrokenError, match="the device cpu has failed: CUDA error: an illegal"):
        engine.submit(texts(None, 0.0)[0])
    with pytest.raises(BrokenError):
        list(engine.run(texts(None, 0.0)))


@pytest.mark.parametrize("beams", [None, Beams(2)])
def test_a_device_that_fails_while_prompts_are_read_leaves_no_request_without_a_result(beams):
    device = Failing("cpu", torch.float32)
    target = TinyModel()
    engine = Engine(target, None, batch=2, eos=(NEVER,), device=device, beam_target=lambda: target)

    def lost(*args: Any, **options: Any) -> Prefilled:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    target.prefill = lost  # type: ignore[method-assign]
    device.state["lost"] = True
    for request in texts(None, 0.0):
        engine.submit(replace(request, beams=beams))
    ended = engine.step()
    assert sorted(r.request.tag for r in ended) == [0, 1, 2, 3, 4]
    assert {r.finish for r in ended} == {Finish.FAILED}
    assert engine.idle and engine.broken is not None


def test_a_state_that_cannot_be_read_fails_all_rows_and_no_request_that_waits():
    engine = build(Plan(), gamma=0, temperature=0.0)
    for request in texts(None, 0.0):
        engine.submit(request)
    engine.step()
    poll, faults = engine._texts.periods.end, iter([RuntimeError("not now")])

    def fails_once() -> None:
        for error in faults:
            raise error
        poll()

    engine._texts.periods.end = fails_once  # type: ignore[method-assign]
    ended = engine.step()
    assert [(r.request.tag, r.finish) for r in ended] == [(i, Finish.FAILED) for i in range(3)]
    assert engine.broken is None and not engine.idle
    while not engine.idle:
        ended += engine.step()
    expected = undisturbed(-1, 0, 0.0, False)
    assert {r.request.tag: r.tokens for r in ended[3:]} == {3: expected[3], 4: expected[4]}


def test_a_failed_result_holds_no_tensors():
    """A traceback's frames hold a batch's activations for as long as the result is referenced."""

    class Heavy(TinyModel):
        def score(self, *args: Any, **options: Any) -> Scores:
            heavy = Big()
            raise Injected(len({heavy}))

    alive = WeakSet()

    class Big:
        """Stands for a tensor."""

        def __init__(self) -> None:
            alive.add(self)

    engine = Engine(Heavy(), None, batch=1, eos=(NEVER,))
    (result,) = engine.run([Request((1,))])
    assert result.error is not None and result.error.__cause__ is not None
    assert "test_faults.py" in result.error.__cause__.__notes__[0]  # where it was is still known
    assert not alive


def test_a_plain_row_among_drafting_ones_says_who_wrote_it():
    engine = build(Plan(frozenset({"propose"})), gamma=4, temperature=0.0)
    results = {r.request.tag: r for r in engine.run(texts(1, 0.0))}
    assert set(results[1].sources) == {Source.PLAIN} and results[1].drafted == 0
    assert all(results[tag].drafted for tag in (3, 4))
