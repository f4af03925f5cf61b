"""Every drafter on a text that repeats, as services and commands run it: it drafts, drafts are kept, and the
tokens are those of plain decoding. One that fails would write the same tokens, without drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from forescribe.speculative import Engine, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.device import choose
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.drafters.model_drafter import confidence_for
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.drafters.script import ScriptDrafter
from forescribe.speculative.engine import runner
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from tests.speculative.tiny import TinyModel

from .heads.test_head_rounds import _own_layers, _windowed

LENGTH = 20

windowed = cache(_windowed)


class Repeating(TinyModel):
    """Its next token depends on the last one alone, so that it soon writes the same ones over and over."""

    def _embed(self, tokens, positions):
        return self.embedding[tokens]

    def _read(self, values, sees, encoder_states):
        return super()._read(values, sees & ~pad(sees[..., 1:], (0, 1)), encoder_states)


def drafting(confidence: float) -> ModelDrafter:
    return ModelDrafter(Repeating(), confidence=confidence)


DRAFTERS: dict[str, Callable[[float], Any]] = {
    "model": drafting,
    "routed": lambda confidence: RoutingDrafter(
        [drafting(confidence), drafting(confidence)], lambda request: request.tag % 2, skips=True
    ),
    "ngram": lambda confidence: NgramDrafter(early=True),
    "ngram of one size": lambda confidence: NgramDrafter(),
    "script": lambda confidence: ScriptDrafter(special_from=11, early=True),
    "head": lambda confidence: HeadDrafter(_own_layers(windowed()), confidence=confidence),
}


def target(kind: str) -> Any:
    """A head reads the states of layers, which the tiny model does not have."""
    return causal_decoder(windowed(), engine=ModelEngine.LEAN) if kind == "head" else Repeating()


def work(kind: str) -> dict[int, tuple[Request, tuple[int, ...]]]:
    """Requests and what plain decoding writes, by tag. Prompts hold what will be repeated."""
    plain, asked = Engine(target(kind), batch=1, eos=()), {}
    for tag in range(2):
        (begun,) = plain.run([Request((9, 3, 7), max_new_tokens=16 + tag)])
        request = Request((9, 3, 7, *begun.tokens), max_new_tokens=LENGTH, tag=tag)
        (ended,) = plain.run([request])
        assert len(set(ended.tokens)) < LENGTH / 2
        asked[tag] = replace(request, hint=request.prompt + ended.tokens), ended.tokens
    return asked


@pytest.fixture
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So many; with more than one an engine measures how many are faster, here by a single pair of rounds."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(runner, "PAIRS", 1)
    monkeypatch.setattr(runner, "SECONDS", 60.0)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_text_that_repeats_is_drafted_and_drafts_are_kept(kind: str) -> None:
    asked = work(kind)
    for batch in (1, 2, 8):
        for gamma in (1, 4, 8, None):
            case = f"batch {batch}, gamma {gamma}"
            drafter = DRAFTERS[kind](confidence_for(gamma, choose("cpu")))
            schedule = schedule_for(gamma, drafter)
            engine = Engine(target(kind), drafter, batch=batch, eos=(), schedule=schedule)
            engine.choose_threads()
            results = list(engine.run([request for request, _ in asked.values()]))
            found = {r.request.tag: r.tokens for r in results}
            assert found == {tag: tokens for tag, (_, tokens) in asked.items()}, case
            assert engine.stats.accepted > 4 and engine.stats.faults == 0, case


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_nothing_is_learnt_of_the_rounds_that_choose_the_threads() -> None:
    """They would leave a token that nobody wrote among the answers that are searched for matches."""
    drafter = NgramDrafter(early=True)
    engine = Engine(Repeating(), drafter, batch=2, eos=(), schedule=schedule_for(4, drafter))
    engine.choose_threads()
    assert engine.stats.rounds == 0 and (drafter._own == -1).all()
