"""Families to come join without a change to the loop: trees, taps, own laws. Small fakes prove it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from forescribe.asr.decode.rules import whisper_rules
from forescribe.speculative import Engine, Fixed, Request
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.protocols import Needs
from forescribe.speculative.requests import Guarantee, Source
from forescribe.speculative.rows import Rows
from forescribe.speculative.testing import ScriptedDrafter, TinyModel, decode
from forescribe.speculative.types import Distribution, Draft, Scores, Topology, Tree, Verdict
from tests.speculative.models.whispers import EOS, SOT, encoder_states, forward, whisper

TREE = Topology((0, 0, 1, 1, 2, 3))  # two first tokens, their children, and one deeper node


class RequestDrafter(ScriptedDrafter):
    """Knows the request of each row."""

    def __init__(self) -> None:
        super().__init__({})
        self.requests: dict[int, Request] = {}

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        self.requests |= dict(zip(rows.tolist(), requests, strict=True))


class TreeDrafter(RequestDrafter):
    """Guesses with the target's own weights on the committed text, and puts decoys beside them."""

    def __init__(self, forwards: dict, vocab: int) -> None:
        super().__init__()
        self.model, self.vocab = forwards, vocab

    def propose(self, rows: Rows, gamma: int) -> Draft:
        assert gamma == len(TREE.parents)
        drafts = torch.zeros(rows.batch, gamma, dtype=torch.int64)
        for row, request in self.requests.items():
            known = rows.tokens[row, : rows.lengths[row]]
            nodes = {0: known}
            for node, parent in enumerate(TREE.parents, start=1):
                best = int(self.model[request.tag](nodes[parent][:40])[-1].argmax())
                # The second child is right, the first a decoy; which one changes with the length.
                decoy = node % 2 == int(rows.lengths[row]) % 2
                token = (best + 1) % self.vocab if decoy else best
                nodes[node] = torch.cat([nodes[parent], torch.tensor([token])])
                drafts[row, node - 1] = token
        return Draft(drafts, torch.full_like(rows.lengths, gamma), topology=TREE)


@pytest.mark.parametrize("decoder", [LeanWhisperDecoder, WhisperDecoder])
def test_a_tree_drafter_joins_the_loop_on_whisper(decoder):
    target = whisper()
    rules = whisper_rules(target.generation_config, target.config)
    requests = [
        Request((SOT, 9 + n), encoder_states=encoder_states(n), max_new_tokens=18 + n, tag=n)
        for n in range(4)
    ]
    models = {r.tag: lambda t, m=r.encoder_states: forward(target, m, t) for r in requests}
    engine = Engine(
        decoder(target),
        TreeDrafter(models, 120),
        batch=2,
        eos=(EOS,),
        schedule=Fixed(len(TREE.parents)),
        processors=rules,
    )
    results = list(engine.run(requests))
    for result in results:
        expected = decode(
            models[result.request.tag],
            result.request,
            eos=(EOS,),
            max_tokens=40,
            processors=rules,
        )
        assert result.tokens == expected
    assert engine.stats.accepted > 20  # paths that are not the leftmost were kept, and moved


class WideDrafter(RequestDrafter):
    """A tree whose second nodes are right, for a tiny model."""

    tree = Topology((0, 0, 2, 2, 4, 4))  # pairs of siblings, the second one goes on

    def propose(self, rows: Rows, gamma: int) -> Draft:
        drafts = torch.zeros(rows.batch, gamma, dtype=torch.int64)
        for row, request in self.requests.items():
            known = rows.tokens[row, : rows.lengths[row]]
            for depth in range(3):
                best = TinyModel().forward(known[:48], request.encoder_states or 0)[-1].argmax()
                drafts[row, 2 * depth] = (best + 1) % 11
                drafts[row, 2 * depth + 1] = best
                known = torch.cat([known, best[None]])
        return Draft(drafts, torch.full_like(rows.lengths, gamma), topology=self.tree)


class MixedDrafter(WideDrafter):
    """The same with a tree of each row's own: in odd rows the first nodes are right."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        draft, order = super().propose(rows, gamma), torch.arange(gamma)
        odd = torch.arange(rows.batch) % 2
        order = order + odd[:, None] * (1 - 2 * (order % 2))  # swaps siblings
        parents = torch.tensor([self.tree.parents, (0, 0, 1, 1, 3, 3)])[odd]
        return Draft(draft.tokens.gather(1, order), draft.valid, topology=Tree.of(parents, 3))


@pytest.mark.parametrize("drafter", [WideDrafter, MixedDrafter])
def test_trees_are_limited_and_counted_by_depth(drafter):
    requests = [
        Request((1, 2), encoder_states=n, max_new_tokens=9 + n, gamma=n % 3 or None, tag=n)
        for n in range(6)
    ]
    engine = Engine(TinyModel(), drafter(), batch=3, eos=(99,), schedule=Fixed(6))
    for result in engine.run(requests):
        request = result.request
        assert result.tokens == decode(
            lambda t, n=request.tag: TinyModel().forward(t, n), request, eos=(99,), max_tokens=48
        )
        deep, left, rounds = request.gamma or 3, len(result.tokens), 0
        while left > 0:  # every draft is right: a round writes as deep as it may, and one more
            left, rounds = left - min(deep + 1, left), rounds + 1
        assert result.rounds == rounds
        assert result.accepted == result.drafted == len(result.tokens) - rounds
        assert Source.CORRECTION not in result.sources
    rates = engine.stats.acceptance_at_depth
    assert rates[:3] == (1.0, 1.0, 1.0) and engine.stats.drafted_at_depth[3:] == (0, 0, 0)


class TapDrafter(RequestDrafter):
    """Reads the target's last hidden state: keeps what the model's head says at the accepted node."""

    needs = Needs(taps=(-1,))

    def __init__(self, model: TinyModel) -> None:
        super().__init__()
        self.head = model.head.float()

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self.guess = torch.zeros(batch, dtype=torch.int64)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        return Draft(self.guess[:, None].expand(-1, gamma), torch.ones_like(rows.lengths))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        at = verdict.num_accepted[:, None, None].expand(-1, 1, scores.taps.shape[3])
        self.guess = (scores.taps[:, :, 0].gather(1, at)[:, 0] @ self.head).argmax(-1)
        # The head on this tap gives the token the verdict ends with: taps and verdict fit together.
        extra = verdict.tokens.gather(1, verdict.num_accepted[:, None])[:, 0]
        assert torch.equal(self.guess[rows.active], extra[rows.active])


def test_a_tap_reading_drafter_joins_the_loop():
    model = TinyModel()
    engine = Engine(model, TapDrafter(model), batch=2, eos=(0,), schedule=Fixed(2))
    requests = [Request(prompt=(1, 2, n), tag=n) for n in range(3, 8)]
    for result in engine.run(requests):
        assert result.tokens == decode(
            lambda t: TinyModel().forward(t, 0), result.request, eos=(0,), max_tokens=48
        )


class TakeAll:
    """A lossy rule: keeps every draft. It must say so, and results must carry it."""

    name = "take all"
    distributions = frozenset(Distribution)

    def guarantee(self, distribution: Distribution) -> Guarantee:
        return Guarantee.LOSSY

    def __call__(self, rows: Rows, draft: Draft, logits: Tensor) -> Verdict:
        return Verdict(torch.cat([draft.tokens, logits[:, -1:].argmax(-1)], 1), draft.valid)


def test_a_lossy_rule_marks_its_results():
    model = TinyModel()
    options = {"batch": 1, "eos": (0,), "schedule": Fixed(2)}
    request = Request(prompt=(1, 2), max_new_tokens=9)
    (lossy,) = Engine(model, TapDrafter(model), rule=TakeAll(), **options).run([request])
    (exact,) = Engine(model, TapDrafter(model), **options).run([request])
    assert (lossy.guarantee, exact.guarantee) == (Guarantee.LOSSY, Guarantee.EXACT)


def test_topologies_are_sorted_and_know_their_ancestors():
    assert TREE.depths == (0, 1, 1, 2, 2, 2, 3)
    assert TREE.ancestry()[6] == [True, True, False, True, False, False, True]
    with pytest.raises(ValueError, match="node 1 has parent 1"):
        Topology((1,))
