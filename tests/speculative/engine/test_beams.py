"""Beam search against a plain one, on a tiny model whose stale cache slots are poisoned, and on tiny Whispers
by every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative import Engine, Fixed, ModelDrafter
from forescribe.speculative.drafters.model_drafter import TreeDrafter
from forescribe.speculative.errors import DecodingError, RequestError
from forescribe.speculative.model_engines import ModelEngine, causal_decoder, whisper_decoder
from forescribe.speculative.requests import Beams, Finish, Probe, Request, Result, Sampling
from forescribe.speculative.types import Prefix
from tests.speculative.graphs.workloads import Changing
from tests.speculative.models import causal_lms, whispers
from tests.speculative.plain_beams import searched_plainly
from tests.speculative.tiny import TinyModel

EOS = 0
LONGEST = 12
POSITIONS = 24

prompts = st.lists(st.integers(1, 10), min_size=1, max_size=9)
fields = st.builds(
    dict,
    prompt=prompts.map(tuple),
    encoder_states=st.integers(0, 7),
    max_new_tokens=st.one_of(st.none(), st.integers(1, 9)),
)
options = st.builds(
    dict,
    patience=st.sampled_from([0.6, 1.0, 1.7]),
    length_penalty=st.sampled_from([None, 0.0, 0.6, 1.0]),
)


def forbids(logits: torch.Tensor, prefix: Prefix) -> torch.Tensor:
    """No token twice in a row, and no end at the beginning: depends on each beam's own text."""
    last = prefix.tokens.gather(1, prefix.last)
    out = logits.scatter(2, last[..., None], float("-inf"))
    first = (prefix.last + 1 == prefix.begin[:, None])[..., None]
    ends = torch.arange(logits.shape[2]) == EOS
    return out.masked_fill(first & ends, float("-inf"))


def plainly(request: Request) -> tuple[tuple[int, ...], float]:
    return searched_plainly(
        lambda text: TinyModel(positions=POSITIONS).forward(text, request.encoder_states or 0),
        request,
        eos=EOS,
        longest=LONGEST,
        positions=POSITIONS,
        processors=(forbids,),
    )


def engine_of(
    batch: int,
    made: type[TinyModel] = TinyModel,
    rules: Sequence[Any] = (forbids,),
    gamma: int = 0,
    levels: Sequence[int] = (),
    blur: float = 0.3,
) -> Engine:
    def drafter() -> TreeDrafter:
        return TreeDrafter(TinyModel(positions=POSITIONS, blur=blur))

    return Engine(
        TinyModel(positions=POSITIONS),
        ModelDrafter(TinyModel(positions=POSITIONS, blur=0.3)) if gamma else None,
        batch=batch,
        eos=(EOS,),
        schedule=Fixed(gamma),
        processors=rules,
        beam_target=lambda: made(positions=POSITIONS),
        beam_drafter=drafter if levels else None,
        beam_schedule=Changing(*levels) if levels else None,
    )


def searched(
    work: list[Request], batch: int, gamma: int = 0, levels: Sequence[int] = (), blur: float = 0.3
) -> dict[int, Result]:
    engine = engine_of(batch, gamma=gamma, levels=levels, blur=blur)
    found = {result.request.tag: result for result in engine.run(work)}
    assert not engine.faults and engine.free == batch and engine.idle
    assert engine.stats.emitted == sum(len(result.tokens) for result in found.values())
    assert engine.stats.row_rounds == sum(result.rounds for result in found.values())
    groups = [result for result in found.values() if result.request.beams is not None]
    assert levels or all(result.drafted == result.accepted == 0 for result in groups)
    return found


@settings(max_examples=40, deadline=None)
@given(
    work=st.lists(fields, min_size=1, max_size=6),
    given=options,
    size=st.integers(1, 6),
    batch=st.integers(1, 4),
    levels=st.sampled_from([(), (1,), (2,), (4,), (0, 3), (0, 0, 1, 2)]),
    blur=st.sampled_from([0.0, 0.3, 3.0]),
)
def test_texts_are_those_of_plain_beam_search_in_any_batch(
    work, given, size, batch, levels, blur
) -> None:
    requests = [Request(**one, beams=Beams(size, **given), tag=i) for i, one in enumerate(work)]
    found = searched(requests, batch, levels=levels, blur=blur)
    for request in requests:
        result, (text, total) = found[request.tag], plainly(request)
        assert result.tokens == text
        assert sum(result.logprobs) == pytest.approx(total, abs=1e-4)
        assert (result.finish is Finish.STOP) == (text[-1] == EOS)


@settings(max_examples=20, deadline=None)
@given(
    work=st.lists(st.tuples(fields, st.integers(0, 3)), min_size=2, max_size=7),
    batch=st.integers(1, 3),
    gamma=st.sampled_from([0, 3]),
)
def test_groups_of_different_sizes_and_single_texts_do_not_notice_each_other(work, batch, gamma):
    requests = [
        Request(**one, beams=Beams(size) if size else None, tag=i)
        for i, (one, size) in enumerate(work)
    ]
    found = searched(requests, batch, gamma)
    for request in requests:
        if request.beams is None:
            (alone,) = engine_of(1).run([request])
            assert found[request.tag].tokens == alone.tokens
        else:
            assert found[request.tag].tokens == plainly(request)[0]


@pytest.mark.parametrize(
    "engine", ["modules", "lean", pytest.param("native", marks=pytest.mark.native)]
)
@settings(max_examples=6)
@given(
    work=st.lists(
        st.tuples(st.lists(st.integers(6, 48), max_size=6), st.integers(0, 5)),
        min_size=1,
        max_size=5,
    ),
    size=st.sampled_from([2, 5]),
    batch=st.integers(1, 3),
    levels=st.integers(0, 3),
)
def test_every_engine_searches_alike(engine, work, size, batch, levels) -> None:
    target = whispers.whisper()
    rules = whisper_rules(target.generation_config, target.config)
    adapter, draft = (
        whisper_decoder(
            model, lambda states: states, engine=ModelEngine.of(engine), stored=torch.float32
        )
        for model in (target, whispers.decoder_only())
    )
    engine_ = Engine(
        TinyModel(vocab=adapter.vocab_size),
        batch=batch,
        eos=(whispers.EOS,),
        processors=rules,
        beam_target=lambda: adapter,
        beam_drafter=lambda: TreeDrafter(draft),
        beam_schedule=Fixed(levels),
    )
    asked = [
        Request((whispers.SOT, *text), whispers.encoder_states(seed), beams=Beams(size), tag=tag)
        for tag, (text, seed) in enumerate(work)
    ]
    found = list(engine_.run(asked))
    assert len(found) == len(work)
    assert bool(engine_.stats.drafted) is bool(levels)
    for result in found:
        assert result.error is None
        text, total = searched_plainly(
            lambda tokens, states=result.request.encoder_states: whispers.forward(
                target, states, tokens
            ),
            result.request,
            eos=whispers.EOS,
            longest=20,
            positions=40,
            processors=rules,
        )
        assert result.tokens == text
        assert sum(result.logprobs) == pytest.approx(total, abs=1e-3)


def test_drafts_of_the_target_itself_are_kept_also_behind_rounds_without() -> None:
    """What the draft model has not read, it reads before it drafts: of any number of plain rounds."""
    work = [Request((3, i % 5 + 1), i, beams=Beams(5), max_new_tokens=9, tag=i) for i in range(8)]
    rounds = []
    for levels in ((1,), (0, 1), (0, 0, 0, 0, 1), (0,)):
        engine = engine_of(3, levels=levels, blur=0.0, rules=())
        for result in engine.run(work):
            assert result.error is None and result.drafted == result.accepted
        rounds.append(engine.stats.row_rounds)
    assert rounds == sorted(rounds) and rounds[0] < 0.7 * rounds[-1]


@pytest.mark.parametrize("family", ["llama", "granite", "qwen3"])
@pytest.mark.parametrize(
    "engine", ["modules", "lean", pytest.param("native", marks=pytest.mark.native)]
)
def test_text_models_write_with_trees_what_beams_write_without(engine, family) -> None:
    def made(layers: int) -> Any:
        return causal_decoder(
            causal_lms.causal_lm(family, layers=layers), engine=ModelEngine.of(engine)
        )

    def run(levels: int, batch: int, layers: int) -> dict[Any, tuple[tuple[int, ...], float]]:
        searching = Engine(
            made(3),
            batch=batch,
            eos=(causal_lms.EOS,),
            beam_target=lambda: made(3),
            beam_drafter=lambda: TreeDrafter(made(layers)),
            beam_schedule=Changing(levels),
        )
        prompts = [(2, *range(5 + n, 5 + 2 * n)) for n in range(1, 7)]
        work = [Request(p, beams=Beams(4), tag=p, max_new_tokens=12) for p in prompts]
        found = {r.request.tag: (r.tokens, sum(r.logprobs)) for r in searching.run(work)}
        assert not searching.faults
        assert bool(searching.stats.accepted) is (levels > 0 and layers == 3)
        return found

    plain = run(0, 1, 3)
    for layers in (2, 3):  # another model, and the target itself
        drafted = run(3, 4, layers)
        for prompt, (text, total) in plain.items():
            assert drafted[prompt] == (text, pytest.approx(total, abs=1e-3))


@pytest.mark.parametrize(
    ("size", "levels"), [(5, (4,)), (5, (0, 4, 0, 0)), (5, (0,)), (1, (4,)), (1, (4, 1, 0))]
)
def test_rounds_read_far_enough_for_what_longer_drafts_have_left(size, levels) -> None:
    """Kept nodes lie behind the slots that their texts would fill without drafts. Here beams part at the
    first token, so that none shares a slot; the tiny model raises for one behind its reach."""

    def apart(logits: torch.Tensor, prefix: Prefix) -> torch.Tensor:
        """Any token first, then the one that follows the last in a circle."""
        following = prefix.tokens.gather(1, prefix.last) % 10 + 1
        tokens = torch.arange(logits.shape[2])
        first = (prefix.last + 1 == prefix.begin[:, None])[..., None]
        meant = (tokens == following[..., None]) | (first & (tokens != EOS))
        return logits.masked_fill(~meant, float("-inf"))

    def made() -> TinyModel:
        return TinyModel(positions=140)

    engine = Engine(
        made(),
        batch=2,
        eos=(EOS,),
        processors=(apart,),
        beam_target=made,
        beam_drafter=lambda: TreeDrafter(made()),
        beam_schedule=Changing(*levels),
    )
    prompt = (3,) * (60 if size == 1 else 1)
    work = [Request((*prompt, i + 1), i, beams=Beams(size), tag=i) for i in range(4)]
    for result in engine.run(work):
        assert result.error is None and result.draft_error is None
        first = result.tokens[0]
        assert result.tokens == tuple((first + n - 1) % 10 + 1 for n in range(70))
    assert not engine.faults and engine.stats.accepted == engine.stats.drafted


def test_one_beam_is_greedy_decoding() -> None:
    plain = Engine(TinyModel(positions=POSITIONS), batch=1, eos=(EOS,), processors=(forbids,))
    for states in range(8):
        request = Request((3, 1), states, max_new_tokens=LONGEST)
        (greedy,) = plain.run([request])
        (found,) = searched([Request((3, 1), states, beams=Beams(1), tag=0)], 1).values()
        assert found.tokens == greedy.tokens
        assert found.logprobs == pytest.approx(greedy.logprobs, abs=1e-5)


def test_a_probe_reads_the_prompt() -> None:
    request = Request((3, 1, 2), 4, beams=Beams(2), probe=Probe(1, (5, 6)), tag=0)
    expected = TinyModel(positions=POSITIONS).forward(torch.tensor((3, 1)), 4)[-1].softmax(-1)
    (found,) = searched([request], 1).values()
    assert found.probe == pytest.approx(expected[[5, 6]].tolist(), abs=1e-6)


MARK = 9
"""The first token of the prompt that shall fail."""


class Faulty(TinyModel):
    """Fails in the prefill, or in the second round, of groups that begin with MARK."""

    stage, rounds = "score", 0
    rows: Any = None

    def prefill(self, rows: Any, tokens: torch.Tensor, *others: Any) -> Any:
        if self.stage == "prefill" and bool((tokens[:, 0] == MARK).any()):
            raise ArithmeticError("planted")
        return super().prefill(rows, tokens, *others)

    def score_paths(self, tokens: torch.Tensor, paths: Any, *, reach: int) -> torch.Tensor:
        marked = self.rows.active & (self.rows.tokens[:, 0] == MARK)
        if self.stage == "score" and bool((marked & (self.rows.rounds > 0)).any()):
            raise ArithmeticError("planted")
        return super().score_paths(tokens, paths, reach=reach)


def beside(count: int = 5) -> list[Request]:
    """Groups, number 1 of them marked, and single texts."""
    return [
        Request(
            (MARK if i == 1 else 3, i + 1),
            i,
            max_new_tokens=9,
            beams=None if i % 3 == 2 else Beams(3),
            tag=i,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("stage", "told"), [("prefill", "prefill"), ("score", "scoring"), ("rule", "scoring")]
)
def test_a_fault_of_one_group_reaches_no_other(stage: str, told: str, batch: int) -> None:
    def rule(logits: torch.Tensor, prefix: Prefix) -> torch.Tensor:
        marked = (prefix.tokens[:, 0] == MARK) & (prefix.last[:, 0] > prefix.begin)
        if stage == "rule" and bool(marked.any()):
            raise ArithmeticError("planted")
        return forbids(logits, prefix)

    work, made = beside(), list[Faulty]()

    def target() -> Faulty:
        made.append(Faulty(positions=POSITIONS))
        made[0].stage = stage
        return made[0]

    engine = Engine(
        TinyModel(positions=POSITIONS),
        batch=batch,
        eos=(EOS,),
        processors=(rule,),
        beam_target=target,
    )
    for request in work:
        engine.submit(request)
    made[0].rows, found = engine._groups[3].table.rows, dict[int, Result]()
    while not engine.idle:
        found |= {result.request.tag: result for result in engine.step()}
    assert found[1].finish is Finish.FAILED and isinstance(found[1].error, DecodingError)
    assert found[1].error.stage == told and "planted" in str(found[1].error)
    assert len(made) == 1 and 1 <= engine.stats.faults <= 2
    expected = searched(work, batch)
    for tag in (0, 2, 3, 4):
        assert found[tag].tokens == expected[tag].tokens


def test_a_group_that_is_cancelled_is_gone_with_the_next_step_and_others_go_on() -> None:
    engine, work = engine_of(2), beside(6)
    for request in work:
        engine.submit(request)
    assert engine.free == 0
    found = engine.step()
    assert engine.cancel(0) == 1 and engine.cancel(4) == 1  # in a row, and waiting
    found += engine.step()
    assert [(r.request.tag, r.finish) for r in found] == [(0, Finish.CANCELLED)]
    while not engine.idle:
        found += engine.step()
    expected = searched(work, 2)
    ended = {r.request.tag: r.tokens for r in found[1:]}
    assert ended == {tag: expected[tag].tokens for tag in (1, 2, 3, 5)}


def test_groups_wait_for_rows_and_those_of_another_size_do_not() -> None:
    engine, work = engine_of(1), beside(2)
    other = Request((4,), max_new_tokens=3, beams=Beams(2), tag="other")
    for request in (*work, other):
        engine.submit(request)
    tags = [result.request.tag for _ in range(4) for result in engine.step()]
    assert tags == ["other"]
    while not engine.idle:
        tags += [result.request.tag for result in engine.step()]
    assert tags == ["other", 0, 1] and engine.free == 1


def test_idle_groups_make_room_for_those_of_another_size_and_are_still_counted() -> None:
    engine = engine_of(1)
    for size in (2, 3, 2):
        (result,) = engine.run([Request((3,), beams=Beams(size), max_new_tokens=4)])
        assert result.error is None and len(engine._groups) == 1
    assert engine.stats.rounds > 8 and engine.stats.target_forwards == engine.stats.rounds + 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"size": 0}, "beam_size is 0; it must be a whole number, from 1 to 32"),
        ({"size": 1000}, "beam_size is 1000; it must be a whole number, from 1 to 32"),
        ({"size": 5, "patience": 0}, "patience is 0; it must be above 0, up to 10"),
        ({"size": 5, "patience": float("nan")}, "patience is nan; it must be above 0, up to 10"),
        ({"size": 5, "patience": 0.05}, "of 5 beams ends before the first text"),
        ({"size": 5, "length_penalty": 1.5}, "length_penalty is 1.5; it must be from 0 to 1"),
    ],
)
def test_impossible_numbers_are_refused(given, told) -> None:
    with pytest.raises(RequestError, match=told):
        Beams(**given)


@pytest.mark.parametrize(
    ("beam_target", "given", "told"),
    [
        (None, {}, "this engine has no beams"),
        (TinyModel, {"ranks": 1}, "neither penalties nor ranked tokens"),
        (TinyModel, {"sampling": Sampling(presence=0.5)}, "neither penalties nor ranked tokens"),
    ],
)
def test_what_has_no_beams_says_so(beam_target, given, told) -> None:
    engine = Engine(TinyModel(), batch=1, eos=(EOS,), ranks=1, beam_target=beam_target)
    with pytest.raises(RequestError, match=told):
        engine.submit(Request((1,), beams=Beams(2), **given))
    assert engine.idle
