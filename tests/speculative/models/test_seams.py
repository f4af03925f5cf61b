"""Families to come join without a change to the loop: taps, own laws. Small fakes prove it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forescribe.speculative import Engine, Fixed, Request
from forescribe.speculative.protocols import Needs
from forescribe.speculative.rows import Rows
from forescribe.speculative.testing import ScriptedDrafter, TinyModel, decode
from forescribe.speculative.types import Draft, Scores, Verdict


class RequestDrafter(ScriptedDrafter):
    """Knows the request of each row."""

    def __init__(self) -> None:
        super().__init__({})
        self.requests: dict[int, Request] = {}

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        self.requests |= dict(zip(rows.tolist(), requests, strict=True))


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
