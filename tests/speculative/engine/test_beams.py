"""Beam search against a plain one, on a tiny model whose stale cache slots are poisoned, and on tiny Whispers
by every engine."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative.engine.beams import BeamSearch
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.errors import RequestError
from forescribe.speculative.model_engines import ModelEngine, whisper_decoder
from forescribe.speculative.requests import Beams, Finish, Probe, Request, Result
from forescribe.speculative.testing import TinyModel
from forescribe.speculative.types import Prefix
from tests.speculative.models import whispers
from tests.speculative.plain_beams import searched_plainly

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


def searched(work: list[Request], size: int, batch: int) -> dict[int, Result]:
    search = BeamSearch(
        TinyModel(positions=POSITIONS),
        size=size,
        batch=batch,
        longest=LONGEST,
        eos=(EOS,),
        processors=(forbids,),
    )
    for request in work:
        search.submit(request)
    found: dict[int, Result] = {}
    while not search.idle:
        found |= {result.request.tag: result for result in search.step()}
    assert not search.faults.count and search.free == batch
    return found


@settings(max_examples=40, deadline=None)
@given(
    work=st.lists(fields, min_size=1, max_size=6),
    given=options,
    size=st.integers(1, 6),
    batch=st.integers(1, 4),
)
def test_texts_are_those_of_plain_beam_search_in_any_batch(work, given, size, batch) -> None:
    requests = [Request(**one, beams=Beams(size, **given), tag=i) for i, one in enumerate(work)]
    found = searched(requests, size, batch)
    for request in requests:
        result, (text, total) = found[request.tag], plainly(request)
        assert result.tokens == text
        assert sum(result.logprobs) == pytest.approx(total, abs=1e-4)
        assert (result.finish is Finish.STOP) == (text[-1] == EOS)


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
)
def test_every_engine_searches_alike(engine, work, size, batch) -> None:
    target = whispers.whisper()
    rules = whisper_rules(target.generation_config, target.config)
    adapter = whisper_decoder(
        target, lambda states: states, engine=ModelEngine.of(engine), stored=torch.float32
    )
    search = BeamSearch(
        adapter, size=size, batch=batch, longest=20, eos=(whispers.EOS,), processors=rules
    )
    for tag, (text, seed) in enumerate(work):
        states = whispers.encoder_states(seed)
        search.submit(Request((whispers.SOT, *text), states, beams=Beams(size), tag=tag))
    found: dict[int, Result] = {}
    while not search.idle:
        found |= {result.request.tag: result for result in search.step()}
    for result in found.values():
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


def test_one_beam_is_greedy_decoding() -> None:
    plain = Engine(TinyModel(positions=POSITIONS), batch=1, eos=(EOS,), processors=(forbids,))
    for states in range(8):
        request = Request((3, 1), states, max_new_tokens=LONGEST)
        (greedy,) = plain.run([request])
        (found,) = searched([Request((3, 1), states, beams=Beams(1), tag=0)], 1, 1).values()
        assert found.tokens == greedy.tokens
        assert found.logprobs == pytest.approx(greedy.logprobs, abs=1e-5)


def test_a_probe_reads_the_prompt() -> None:
    request = Request((3, 1, 2), 4, beams=Beams(2), probe=Probe(1, (5, 6)), tag=0)
    expected = TinyModel(positions=POSITIONS).forward(torch.tensor((3, 1)), 4)[-1].softmax(-1)
    (found,) = searched([request], 2, 1).values()
    assert found.probe == pytest.approx(expected[[5, 6]].tolist(), abs=1e-6)


class Faulty(TinyModel):
    """Fails in every round in which row 1 is active."""

    search: BeamSearch

    def score_paths(self, tokens, paths, *, reach):
        if self.search.rows.active[1:2].any():
            raise ArithmeticError("row 1")
        return super().score_paths(tokens, paths, reach=reach)


def test_a_fault_of_one_row_reaches_no_other() -> None:
    work = [Request((3, i + 1), i, beams=Beams(3), tag=i) for i in range(3)]
    target = Faulty(positions=POSITIONS)
    search = BeamSearch(target, size=3, batch=3, longest=LONGEST, eos=(EOS,), processors=(forbids,))
    target.search = search
    for request in work:
        search.submit(request)
    found = {}
    while not search.idle:
        found |= {result.request.tag: result for result in search.step()}
    assert found[1].finish is Finish.FAILED and "row 1" in str(found[1].error)
    assert [found[i].tokens for i in (0, 2)] == [plainly(work[i])[0] for i in (0, 2)]


def test_a_cancelled_request_leaves_no_result() -> None:
    work = [Request((3, i + 1), i, beams=Beams(3), tag=i) for i in range(3)]
    search = BeamSearch(
        TinyModel(positions=POSITIONS), size=3, batch=2, longest=LONGEST, eos=(EOS,)
    )
    for request in work:
        search.submit(request)
    assert search.free == 0
    search.step()
    for tag in (0, 2):  # in a row, and waiting
        search.cancel(tag)
    results = []
    while not search.idle:
        results += search.step()
    assert [result.request.tag for result in results] == [1]


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


def test_an_engine_takes_no_beams() -> None:
    plain = Engine(TinyModel(), batch=1, eos=(EOS,))
    with pytest.raises(RequestError, match="beams"):
        plain.submit(Request((1,), beams=Beams(2)))
