"""Drafters of prompts with embeddings: they read those in place of the tokens, as the target does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.speculative.requests import Result
from forescribe.speculative.types import Embedded
from tests.speculative.drafters.heads import tiny_heads
from tests.speculative.engine.test_engine import Planned
from tests.speculative.models.causal_lms import EOS
from tests.speculative.models.speech_llms import AUDIO


def results(drafter: Any, schedule: Any, work: list[Request], target: Any) -> list[Result]:
    engine = Engine(target, drafter, batch=3, eos=(EOS,), schedule=schedule)
    found = {result.request.tag: result for result in engine.run(work)}
    assert all(result.error is result.draft_error is None for result in found.values())
    assert engine.stats.drafted > 20
    return [found[request.tag] for request in work]


def drafter_of(kind: str, target: Any) -> Any:
    """A head, or the target itself as a draft: what it has read of the prompt is in all its drafts."""
    if kind == "model":
        return ModelDrafter(causal_decoder(target, engine=ModelEngine.LEAN))
    return HeadDrafter(tiny_heads.made(kind, target).head)


@pytest.mark.parametrize("planned", [False, True], ids=["always", "at times"])
@pytest.mark.parametrize("kind", ["model", "eagle3", "mtp"])
def test_drafts_are_those_of_the_tokens_whose_embeddings_are_given(kind, planned):
    """In all rounds, those after rounds without drafts too, which the drafter reads later."""
    target, draw = tiny_heads.target(), torch.Generator().manual_seed(5)
    texts = [torch.randint(2, AUDIO, (9 + n,), generator=draw) for n in range(6)]
    plain, given = [], []
    for n, text in enumerate(texts):
        at, end = n % 3, 7 + n % 3
        run = Embedded(at, target.get_input_embeddings()(text[at:end]).detach())
        hidden = text.clone()
        hidden[at:end] = AUDIO
        plain.append(Request(tuple(text.tolist()), max_new_tokens=20, tag=n))
        given.append(Request(tuple(hidden.tolist()), run, max_new_tokens=20, tag=n))

    def run_of(work: list[Request]) -> list[tuple[Any, ...]]:
        schedule = Planned(0, 3, 0, 2) if planned else Fixed(3)
        decoder = causal_decoder(target, engine=ModelEngine.LEAN)
        found = results(drafter_of(kind, target), schedule, work, decoder)
        return [(r.tokens, r.sources, r.rounds, r.drafted, r.accepted) for r in found]

    assert run_of(given) == run_of(plain)
