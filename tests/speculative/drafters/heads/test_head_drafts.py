"""Every draft of a head is what its published tensors give for the row's text, in all rounds of a batch."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from forescribe.speculative import Engine, Request
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.engine.schedule import Fixed
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft

from ...engine.test_engine import Planned
from ...models.causal_lms import EOS, VOCAB, causal_lm
from . import tiny_heads
from .naive_heads import eagle3_drafts, mtp_drafts
from .tiny_heads import FLAGS, Made

FAMILIES = ("eagle3", "mtp")
GAMMA = 3


class Watched:
    """A drafter that records each row's text with the tokens that it drafted."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.seen: list[tuple[list[int], list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        draft: Draft = self.drafter.propose(rows, gamma)
        for row in range(rows.batch):
            count = int(draft.valid[row])
            if bool(rows.active[row]) and count:
                text = rows.tokens[row, : int(rows.lengths[row])].tolist()
                self.seen.append((text, draft.tokens[row, :count].tolist()))
        return draft


def requests(count: int = 5) -> list[Request]:
    chosen = random.Random(3)
    lengths = [1, 2, *(chosen.randint(3, 9) for _ in range(count - 2))]
    return [
        Request(
            tuple(chosen.randrange(2, VOCAB) for _ in range(length)),
            max_new_tokens=chosen.randint(8, 20),
            tag=i,
        )
        for i, length in enumerate(lengths)
    ]


@functools.cache
@torch.inference_mode(False)  # whoever asks first
def _copy(model: Any) -> Any:
    return copy.deepcopy(model)


def taps_of(model: Any, text: Sequence[int], layers: Sequence[int]) -> Tensor:
    """The states of all tokens but the last `[L - 1, n, D]`, by an un-cached forward. Of a copy: transformers
    hooks a model that returns its states, and lean decoders refuse models with hooks."""
    with torch.no_grad():
        found = _copy(model)(
            input_ids=torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True
        )
    return torch.stack([found.hidden_states[i][0] for i in layers], 1)


@torch.no_grad()
def naive(made: Made, model: Any, text: Sequence[int], count: int) -> list[int]:
    taps = taps_of(model, text, made.head.taps.layers)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if made.family == "eagle3":
        return eagle3_drafts(made.config, made.tensors, table, text, taps, count)
    prefix = f"model.layers.{model.config.num_hidden_layers}."
    return mtp_drafts(made.config, made.tensors, prefix, table, head, text, taps[:, 0], count)


def run(made: Made, model: Any, schedule: Any, engine: ModelEngine = ModelEngine.LEAN) -> Watched:
    drafter = Watched(HeadDrafter(made.head))
    runner = Engine(
        causal_decoder(model, engine=engine), drafter, batch=3, eos=[EOS], schedule=schedule
    )
    plain = Engine(causal_decoder(model, engine=engine), None, batch=3, eos=[EOS])
    asked = requests()
    results = {r.request.tag: r for r in runner.run(asked)}
    assert len(results) == len(asked)
    for result in plain.run(requests()):
        found = results[result.request.tag]
        assert found.draft_error is None, found.draft_error
        assert found.tokens == result.tokens
    return drafter


def check(made: Made, model: Any, drafter: Watched, least: int) -> None:
    assert len(drafter.seen) >= least
    for text, drafts in drafter.seen[::3]:  # of all rows and rounds; the naive heads are slow
        assert drafts == naive(made, model, text, len(drafts)), text


@pytest.mark.parametrize(
    ("family", "engine"),
    [
        *((family, ModelEngine.LEAN) for family in FAMILIES),
        ("eagle3", ModelEngine.MODULES),
        pytest.param("mtp", ModelEngine.NATIVE, marks=pytest.mark.native),
    ],
)
def test_drafts_are_those_of_the_published_tensors(family: str, engine: ModelEngine) -> None:
    model = tiny_heads.target()
    made = tiny_heads.made(family, model)
    check(made, model, run(made, model, Fixed(GAMMA), engine), least=20)


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_after_rounds_without_drafts_are_the_same(family: str) -> None:
    model = tiny_heads.target()
    made = tiny_heads.made(family, model)
    check(made, model, run(made, model, Planned(GAMMA, 0)), least=5)


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_speculators_change_what_is_drafted(flag: str) -> None:
    model = tiny_heads.target()
    made = tiny_heads.eagle3(model, speculators=True, **{flag: True})
    plain = tiny_heads.eagle3(model, speculators=True)
    drafter = run(made, model, Fixed(GAMMA))
    check(made, model, drafter, least=20)
    other = [naive(plain, model, text, len(drafts)) for text, drafts in drafter.seen[::5]]
    assert other != [drafts for _, drafts in drafter.seen[::5]]


def test_heads_of_several_layers() -> None:
    model = tiny_heads.target()
    made = tiny_heads.eagle3(model, speculators=True, layers=3, norm_before_residual=True)
    check(made, model, run(made, model, Fixed(GAMMA)), least=20)


@pytest.mark.parametrize("family", ("qwen3", "gemma"))
def test_targets_of_other_families(family: str) -> None:
    model = causal_lm(family, layers=tiny_heads.LAYERS)
    made = tiny_heads.eagle3(model)
    table = model.get_input_embeddings()
    drafter = run(made, model, Fixed(GAMMA), ModelEngine.MODULES)
    assert len(drafter.seen) >= 20
    for text, drafts in drafter.seen[::3]:
        taps = taps_of(model, text, made.head.taps.layers)
        with torch.no_grad():  # an embedding may be scaled: Gemma's is
            rows = table(torch.arange(VOCAB))
        assert drafts == eagle3_drafts(made.config, made.tensors, rows, text, taps, len(drafts))
