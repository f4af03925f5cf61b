"""Trees of a draft model: which nodes they have, and the engine with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.models.lean import LeanCausalDecoder
from forescribe.speculative.native.decoder import NativeCausalDecoder
from forescribe.speculative.requests import Guarantee, Sampling
from forescribe.speculative.rounds import accept
from forescribe.speculative.rounds.accept import BlockVerification
from forescribe.speculative.rows import Rows
from forescribe.speculative.testing import TinyModel, decode
from forescribe.speculative.types import Draft, Topology
from tests.speculative.engine.test_engine import Planned
from tests.speculative.models.causal_lms import causal_lm
from training.trees.tree_drafter import Growth, TreeDrafter
from training.trees.tree_rejection import TreeRejection

NEVER = 99
WIDE = Topology((0, 0, 0, 1, 1, 2, 4, 4))
SHAPES = [
    pytest.param(Growth(3, 3), 8, id="grown"),
    pytest.param(Growth(3, 3), 21, id="all candidates"),
    pytest.param(Growth(2, 4), 5, id="deep"),
    pytest.param(Growth(1, 3), 3, id="chain"),
    pytest.param(Growth(2, 2, copied=4), 7, id="with copies"),
    pytest.param(WIDE, 8, id="static"),
]


def work(temperature: float = 0.0, **options: Any) -> list[Request]:
    return [
        Request(
            (1, 2, n % 11), encoder_states=n % 3, temperature=temperature, seed=n,
            max_new_tokens=9 + n, tag=n, **options,
        )
        for n in range(12)
    ]  # fmt: skip


def engine_of(drafter: Any, gamma: int, batch: int = 3, eos: int = NEVER, **options: Any) -> Engine:
    return Engine(
        TinyModel(), drafter, batch=batch, eos=(eos,), schedule=Fixed(gamma),
        sampled=TreeRejection(), **options,
    )  # fmt: skip


def oracle(request: Request, eos: int = NEVER) -> tuple[int, ...]:
    def forward(tokens: Tensor) -> Tensor:
        return TinyModel().forward(tokens, request.encoder_states)

    return decode(forward, request, eos=(eos,), max_tokens=48)


class Recorded(TreeDrafter):
    """Keeps what it proposed for each row, with the row's text."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        super().allocate(batch, slots, device)
        self.proposed: list[tuple[list[int], int, set[tuple[int, ...]]]] = []

    def propose(self, rows: Rows, gamma: int) -> Draft:
        draft = super().propose(rows, gamma)
        tree = draft.tree()
        for row in rows.active.nonzero()[:, 0].tolist():
            texts: list[tuple[int, ...]] = [()]
            for node, parent in enumerate(tree.parents()[row, 1:].tolist()):
                texts.append((*texts[parent], int(draft.tokens[row, node])))
            text = rows.tokens[row, : rows.lengths[row]].tolist()
            self.proposed.append((text, text[2] % 3, set(texts[1:])))
        return draft


def brute_force(
    forward: Callable[[list[int]], Tensor], text: list[int], growth: Growth, nodes: int
) -> set[tuple[int, ...]]:
    """The nodes of a grown tree, as texts behind `text`, from forwards of whole prefixes."""
    scores: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[int, ...]] = [()]
    copy: tuple[int, ...] = ()
    for n in range(1, 4):  # the longest match, of those the latest
        ends = [i for i in range(n, len(text)) if text[i - n : i] == text[len(text) - n :]]
        copy = tuple(text[ends[-1] : ends[-1] + growth.copied]) if ends else copy
    for _ in range(growth.depth):
        made = {}
        for path in frontier:
            best = forward([*text, *path]).log_softmax(-1).topk(growth.width)
            for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                made[(*path, token)] = scores.get(path, 0.0) + value
        scores |= made
        frontier = sorted(made, key=lambda p: -made[p])[: growth.width]
    found = [(-score, len(path), path) for path, score in scores.items()]
    # A path that the model has too is there twice.
    copies = [copy[: i + 1] for i in range(len(copy))]
    found += [(-math.log(growth.trust) * len(path), len(path), path) for path in copies]
    return {path for _, _, path in sorted(found)[:nodes]}


@pytest.mark.parametrize(("shape", "gamma"), SHAPES)
@pytest.mark.parametrize("blur", [0.0, 0.3])
def test_every_row_equals_decoding_it_alone(shape, gamma, blur):
    drafter = TreeDrafter(TinyModel(blur=blur), shape)
    engine = engine_of(drafter, gamma, eos=0)
    requests = [replace(r, gamma=(None, 2, 0)[r.tag % 3]) for r in work()]
    for result in engine.run(requests):
        assert result.tokens == oracle(result.request, eos=0)
        assert result.guarantee is Guarantee.EXACT
        # A request's own gamma is the depth of its drafts.
        depth = 4 if result.request.gamma is None else result.request.gamma
        assert result.rounds >= len(result.tokens) / (1 + depth)
    assert not engine.faults and engine.stats.accepted > 30


@pytest.mark.parametrize("growth", [Growth(3, 3), Growth(2, 4), Growth(2, 2, copied=3, trust=0.6)])
@pytest.mark.parametrize("plan", [(1,), (1, 0, 0), (1, 1, 0)], ids=str)
def test_every_round_grows_the_tree_of_the_likeliest_paths(growth, plan):
    """Behind every accepted path and after rounds without drafts, so that the draft model's keys and values
    are where they belong."""
    draft, nodes = TinyModel(blur=0.4), 5 if growth.copied else 7
    drafter = Recorded(TinyModel(blur=0.4), growth)
    schedule = Planned(*(nodes * drafts for drafts in plan))
    engine = Engine(
        TinyModel(), drafter, batch=3, eos=(NEVER,), schedule=schedule, sampled=TreeRejection()
    )
    work_ = [Request((1, 2, n), encoder_states=n % 3, max_new_tokens=20) for n in range(5)]
    assert len(list(engine.run(work_))) == 5
    assert not engine.faults and len(drafter.proposed) > 15
    for text, states, found in drafter.proposed:
        forward = lambda t, s=states: draft.forward(torch.tensor(t), s)[-1]  # noqa: E731
        assert found == brute_force(forward, text, growth, nodes)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_equal_to_its_target_is_never_rejected(temperature):
    drafter = TreeDrafter(TinyModel(), WIDE)
    engine = engine_of(drafter, 8)
    assert len(list(engine.run(work(temperature)))) == 12
    assert engine.stats.acceptance_at_depth[:3] == (1.0, 1.0, 1.0)


def test_a_tree_of_width_one_drafts_as_a_chain_does():
    found = []
    for drafter in (
        TreeDrafter(TinyModel(blur=0.3), Growth(1, 3)),
        ModelDrafter(TinyModel(blur=0.3)),
    ):
        engine = engine_of(drafter, 3)
        found.append({r.request.tag: (r.tokens, r.accepted, r.drafted) for r in engine.run(work())})
    assert found[0] == found[1]


@pytest.mark.parametrize(("shape", "gamma"), SHAPES)
def test_penalties_and_likely_tokens_are_those_of_each_path(shape, gamma):
    penalties = Sampling(repetition=1.3, presence=0.5, frequency=0.4)
    found = {}
    for drafts in (0, gamma):
        drafter = TreeDrafter(TinyModel(blur=0.3), shape)
        engine = engine_of(drafter, drafts, batch=4, ranks=3)
        for r in engine.run(work(sampling=penalties, ranks=3)):
            found[drafts, r.request.tag] = r
        assert drafts == 0 or engine.stats.accepted > 20
    for n in range(12):
        plain, drafted = found[0, n], found[gamma, n]
        assert drafted.tokens == plain.tokens == oracle(plain.request)
        assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
        for ours, theirs in zip(drafted.ranked, plain.ranked, strict=True):
            assert [t for t, _ in ours] == [t for t, _ in theirs]


def test_no_random_number_is_read_twice(monkeypatch):
    read = []

    def record(seed: Tensor, start: Tensor, slot: Tensor, stream: int) -> Tensor:
        places = [t.flatten().tolist() for t in torch.broadcast_tensors(start, slot)]
        read.extend((*place, int(stream)) for place in zip(*places, strict=True))
        return uniform(seed, start, slot, stream)

    uniform = accept.uniform
    monkeypatch.setattr("training.trees.tree_rejection.uniform", record)
    monkeypatch.setattr("training.trees.tree_drafter.uniform", record)
    drafter = TreeDrafter(TinyModel(blur=0.3), WIDE)
    engine = engine_of(drafter, 8, batch=1)
    (result,) = engine.run([Request((1, 2), temperature=0.9, max_new_tokens=12)])
    assert result.rounds > 3 and len(read) == result.rounds * (8 + 8 + 9)
    assert len(set(read)) == len(read)


def test_what_cannot_have_trees_says_so():
    tree = TreeDrafter(TinyModel(), Growth(2, 2))
    options = {"batch": 1, "eos": (NEVER,), "schedule": Fixed(4)}
    for rule in (None, BlockVerification()):
        with pytest.raises(ValueError, match="cannot verify tree drafts; it takes: dense, one-hot"):
            Engine(TinyModel(), tree, sampled=rule, **options)
    with pytest.raises(ValueError, match="a tree of width 0 and depth 2"):
        Growth(0, 2)


@pytest.mark.parametrize(("shape", "most"), [(Growth(2, 2), 6), (WIDE, 8)])
def test_a_tree_has_gamma_nodes_or_as_many_as_it_can(shape, most):
    for gamma in (1, 3, most, 30):
        drafter = Recorded(TinyModel(blur=0.3), shape)
        engine = engine_of(drafter, gamma)
        for result in engine.run(work()[:5]):
            assert result.tokens == oracle(result.request)
        assert {len(nodes) for _, _, nodes in drafter.proposed} == {min(gamma, most)}
        depth = min(gamma, 2) if shape is not WIDE else max(Topology(WIDE.parents[:gamma]).depths)
        assert drafter.forwards(gamma) == depth


@pytest.mark.native
def test_native_kernels_take_a_tree_that_all_rows_share_and_no_others():
    made = causal_lm("llama", dtype=torch.float32)
    native, lean = NativeCausalDecoder(made), LeanCausalDecoder(made)
    options = {"batch": 2, "eos": (NEVER,), "sampled": TreeRejection()}
    with pytest.raises(ValueError, match="the target cannot score trees: native kernels read one"):
        Engine(native, TreeDrafter(lean, Growth(2, 2)), schedule=Fixed(4), **options)
    with pytest.raises(ValueError, match="the draft model cannot score trees"):
        TreeDrafter(native, Growth(2, 2))
    requests = [Request((1, 2, n), max_new_tokens=20, tag=n) for n in range(4)]
    plain = Engine(native, batch=2, eos=(NEVER,), schedule=Fixed(0))
    expected = {r.request.tag: r.tokens for r in plain.run(requests)}
    drafting = Engine(native, TreeDrafter(lean, WIDE), schedule=Fixed(8), **options)
    for result in drafting.run(requests):
        assert result.tokens == expected[result.request.tag]
    assert drafting.stats.acceptance_at_depth[:3] == (1.0, 1.0, 1.0)
