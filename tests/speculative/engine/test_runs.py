"""Runs of requests: which results belong to whom, and what is refused before anything is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from forescribe.speculative import Engine, Fixed, ModelDrafter, Probe, Request
from forescribe.speculative.errors import RequestError
from forescribe.speculative.requests import Finish, Sampling
from tests.speculative.tiny import TinyModel

NEVER = 99  # an end-of-text that no model here can write

# Runs


def long(*tags: Any) -> list[Request]:
    return [
        Request((1 + i,), encoder_states=i, max_new_tokens=12, tag=tag)
        for i, tag in enumerate(tags)
    ]


def plain(batch: int = 2) -> Engine:
    return Engine(TinyModel(), None, batch=batch, eos=(NEVER,))


def test_a_request_that_cannot_be_decoded_is_a_failed_result_of_its_run():
    work = [*long("a", "b"), Request((1,) * 60, tag="too long"), Request((70,), tag="no token")]
    engine = plain()
    results = {r.request.tag: r for r in engine.run([*work, *long("c")])}
    assert set(results) == {"a", "b", "c", "too long", "no token"}
    assert {tag for tag, r in results.items() if r.error} == {"too long", "no token"}
    assert "the prompt has 60 tokens; the model holds 48" in str(results["too long"].error)
    assert "the prompt holds token 70; the model has 11 tokens" in str(results["no token"].error)
    assert [len(results[tag].tokens) for tag in "abc"] == [12, 12, 12]
    assert engine.idle


def test_unfinished_rows_show_what_they_have_written_and_cancelled_ones_do_not():
    engine = plain()
    for request in long("a", "b"):
        engine.submit(request)
    for _ in range(4):
        assert engine.step() == []
    whole = {r.request.tag: r.tokens for r in plain().run(long("a", "b"))}
    shown = {partial.request.tag: partial for partial in engine.peek({"b": 2})}
    assert shown["a"].tokens == whole["a"][:4] and shown["b"].tokens == whole["b"][2:4]
    engine.cancel("a")
    assert [partial.request.tag for partial in engine.peek()] == ["b"]


def test_a_run_that_is_left_takes_its_requests_with_it():
    engine = plain()
    for result in engine.run([Request((3,), max_new_tokens=1, tag="x"), *long("a", "b", "c")]):
        assert result.request.tag == "x"
        break
    assert sorted(r.request.tag for r in engine.run(long("d", "e"))) == ["d", "e"]
    run = engine.run(long("f", "g"))
    next(run)
    run.close()
    assert list(run) == [] and not engine.rows.active.any()
    engine.step()
    assert engine.idle and engine.free == 2


def test_an_interrupt_ends_a_run_at_once():
    def source() -> Iterator[Request]:
        yield from long("a", "b")
        raise KeyboardInterrupt

    engine = plain(3)
    with pytest.raises(KeyboardInterrupt):
        list(engine.run(source()))
    assert engine.idle and engine.stats.rounds == 0


# Requests

INT64 = 2**63


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": ()}, "at least one prompt token"),
        ({"prompt": (1, -1)}, "the prompt holds -1; a token id is a whole number from 0"),
        ({"prompt": (True,)}, "the prompt holds True"),
        ({"prompt": "abc"}, "the prompt is 'abc'; it must be a tuple of token ids"),
        ({"hint": (-1,)}, "the hint holds -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e300}, "temperature is 1e\\+300"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be a whole number, 0 or more"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"gamma": -1}, "gamma is -1"),
        ({"ranks": -1}, "ranks is -1"),
        ({"seed": INT64}, "seed is 9223372036854775808; it must be a whole number, of 64 bits"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_requests_with_impossible_numbers_are_refused(fields, said):
    with pytest.raises(RequestError, match=said):
        Request(**{"prompt": (1,)} | fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"top_k": INT64}, "top_k is 9223372036854775808; it must be a whole number, 0 .all. or"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0}, "top_p is 0; it must be above 0, up to 1"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"top_p": True}, "top_p is True"),
        ({"min_p": -0.1}, "min_p is -0.1; it must be from 0 to 1"),
        ({"repetition": 0}, "repetition is 0"),
        ({"repetition": 1e-50}, "repetition is 1e-50"),
        ({"presence": float("nan")}, "presence is nan"),
        ({"frequency": 1e300}, "frequency is 1e\\+300"),
    ],
)
def test_sampling_with_impossible_numbers_is_refused(fields, said):
    with pytest.raises(RequestError, match=said):
        Sampling(**fields)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Request((11,)), "the prompt holds token 11; the model has 11 tokens"),
        (lambda: Request((1,), hint=(5, 12)), "the hint holds token 12"),
        (lambda: Request((1,), probe=Probe(0, (11,))), "the probe holds token 11"),
        (lambda: Request((1,), probe=Probe(-1, ())), "the probe's slot is -1"),
        (lambda: Request((1,), probe=Probe(1, ())), "probe slot 1 is behind the prompt"),
        (lambda: Request((1,), probe=Probe(0, (-1,))), "the probe holds -1"),
        (lambda: Request((1,), ranks=3), "3 ranked tokens; this engine keeps 2"),
        (lambda: Request((1,), gamma=5), "gamma is 5; this engine drafts 4 at most"),
    ],
)
def test_an_engine_refuses_what_its_model_does_not_have(make, said):
    drafter = ModelDrafter(TinyModel())
    engine = Engine(TinyModel(), drafter, batch=1, eos=(NEVER,), schedule=Fixed(4), ranks=2)
    with pytest.raises(RequestError, match=said):
        engine.submit(make())
    assert engine.idle


@pytest.mark.parametrize(
    ("options", "said"), [({"batch": 0}, "batch is 0"), ({"batch": True}, "batch is True")]
)
def test_engines_of_impossible_sizes_are_refused(options, said):
    with pytest.raises(RequestError, match=said):
        Engine(TinyModel(), None, **{"batch": 1, "eos": ()} | options)


def test_the_largest_numbers_that_are_taken_can_be_decoded():
    extreme = Sampling(top_k=INT64 - 1, top_p=5e-324, min_p=1.0, repetition=1e6, presence=1e6)
    work = [
        Request((1,), temperature=1e30, seed=-INT64, tag=0, max_new_tokens=10**30),
        Request((1,), temperature=5e-324, seed=INT64 - 1, sampling=extreme, tag=1),
        Request((2,) * 48, tag=2),
        Request((2,) * 47, tag=3),
    ]
    engine = Engine(
        TinyModel(), ModelDrafter(TinyModel()), batch=2, eos=(NEVER,), schedule=Fixed(4)
    )
    found = {r.request.tag: r for r in engine.run(work)}
    assert [len(found[i].tokens) for i in range(4)] == [47, 47, 0, 1]
    assert all(r.finish is Finish.LENGTH for r in found.values())
    assert all(0 <= token < 11 for r in found.values() for token in r.tokens)
