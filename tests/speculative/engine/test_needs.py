"""What drafters need: taps of prompts and rounds, and a look at rounds without drafts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forescribe.speculative import Engine, Fixed, Request
from forescribe.speculative.protocols import Model, Needs
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft, Scores, Verdict
from tests.speculative.plain import ScriptedDrafter
from tests.speculative.tiny import TinyModel

from .test_engine import EOS, NEVER, Planned, oracle


class Observer(ScriptedDrafter):
    """Keeps each row's text from what it is told alone, and checks it whenever it drafts. Its first draft is
    the target's own next token, from the state that the target's head reads; the others are wrong."""

    needs = Needs(taps=(-1,), prompt=True, always=True, vocab=11)

    def __init__(self, fails: int | None = None) -> None:
        super().__init__({})
        self.fails = fails  # the first token of prompts whose rows it fails to observe
        self.model: TinyModel | None = None
        self.checked = self.observed = 0

    def bind(self, target: Model) -> None:
        assert isinstance(target, TinyModel)
        self.model = target

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        assert self.model is not None and self.model.taps == (-1,)  # tapped before anything else
        self.texts: list[list[int]] = [[] for _ in range(batch)]
        self.next = torch.zeros(batch, dtype=torch.int64)

    def _best(self, taps: Tensor) -> Tensor:
        assert self.model is not None
        return (taps.double() @ self.model.head).argmax(-1)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        assert taps is not None and taps.shape[:3] == (*tokens.shape, 1)
        for i, (row, request) in enumerate(zip(rows.tolist(), requests, strict=True)):
            self.texts[row] = list(request.prompt)
            assert tokens[i, : len(request.prompt)].tolist() == self.texts[row]
            self.next[row] = self._best(taps[i, len(request.prompt) - 1, 0])

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        raise AssertionError("it has observed everything")

    def propose(self, rows: Rows, gamma: int) -> Draft:
        for row, text in enumerate(self.texts):
            if rows.active[row]:
                known = rows.tokens[row, : int(rows.lengths[row])].tolist()
                assert known == text[: len(known)]
                self.checked += 1
        wrong = (self.next[:, None] + torch.arange(gamma)) % 11
        return Draft(wrong, torch.full_like(rows.lengths, gamma))

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        assert scores.taps is not None and scores.taps.shape[1] == draft.tokens.shape[1] + 1
        self.observed += 1
        for row in torch.nonzero(rows.active)[:, 0].tolist():
            if self.texts[row][0] == self.fails:
                raise RuntimeError("planted")
            count = int(verdict.num_accepted[row])
            # A round that failed for another row is observed again: what it adds has its place.
            new = verdict.tokens[row, : count + 1].tolist()
            self.texts[row] = self.texts[row][: int(rows.lengths[row])] + new
            # The state behind the last accepted token gave the token that the verdict ends with.
            assert self._best(scores.taps[row, count, 0]) == self.texts[row][-1]
        # That token was not scored yet, so the next one is not known: a guess.
        self.next = (self.next + 1) % 11


class Unbound(Observer):
    """One that does not expect to be of use."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None: ...


work = st.lists(
    st.builds(
        lambda prompt, states, most: (tuple(prompt), states, most),
        st.lists(st.integers(1, 10), min_size=1, max_size=9),
        st.integers(0, 7),
        st.integers(1, 25),
    ),
    min_size=1,
    max_size=7,
)


def requests_of(fields: list[tuple[tuple[int, ...], int, int]]) -> list[Request]:
    return [
        Request(prompt, encoder_states=states, max_new_tokens=most, tag=i)
        for i, (prompt, states, most) in enumerate(fields)
    ]


@settings(max_examples=40)
@given(work, st.integers(1, 4), st.sampled_from([(3,), (0,), (0, 3), (2, 0, 0, 0, 3)]))
def test_what_is_observed_is_the_whole_text_with_its_states(fields, batch, plan):
    drafter = Observer()
    schedule = Planned(*plan) if max(plan) else Planned(0, 0, 0, 0, 0, 0, 3)
    engine = Engine(TinyModel(), drafter, batch=batch, eos=(EOS,), schedule=schedule)
    requests = requests_of(fields)
    results = {r.request.tag: r for r in engine.run(requests)}
    for request in requests:
        assert results[request.tag].tokens == oracle(request)
        assert results[request.tag].draft_error is None
    assert engine.stats.faults == 0 and drafter.observed == engine.stats.rounds


@pytest.mark.failing_drafts
@pytest.mark.parametrize("plan", [(3,), (0, 3), (0, 0, 0, 3)])
def test_rows_that_cannot_be_observed_are_decoded_plainly_and_later_ones_are_drafted_for(plan):
    drafter = Observer(fails=9)
    engine = Engine(TinyModel(), drafter, batch=3, eos=(NEVER,), schedule=Planned(*plan))
    requests = [
        Request((9 if n == 2 else 1 + n, 3, 4), encoder_states=n, max_new_tokens=20, tag=n)
        for n in range(6)
    ]
    results = {r.request.tag: r for r in engine.run(requests)}
    for request in requests:
        assert results[request.tag].tokens == oracle(request, eos=NEVER)
    assert results[2].draft_error is not None and results[5].draft_error is None
    assert drafter.checked > 5


def test_an_engine_that_never_drafts_neither_taps_nor_observes():
    model, drafter = TinyModel(), Unbound()
    engine = Engine(model, drafter, batch=1, eos=(EOS,), schedule=Fixed(0))
    request = Request((1, 2))
    (result,) = engine.run([request])
    assert result.tokens == oracle(request) and result.draft_error is None
    assert model.taps == () and drafter.observed == 0
