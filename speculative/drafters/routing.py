"""Drafts of several drafters: each row has the one that was chosen for it when it was admitted.

Such as one drafter for English and one for all other languages, in the same batch. Knows drafters and rows;
nothing of how a drafter is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..device import upload
from ..protocols import Drafter, Model, Needs
from ..requests import Request
from ..rows import Rows
from ..types import Draft, Scores, Verdict


class RoutingDrafter(Drafter):
    """Routes each request to one of `drafters`: `route` returns its index.

    With `skips` a drafter without active rows is left out of a round; this reads the device, which costs
    nothing where it is synchronous. Elsewhere all of them draft in every round, for all rows, and a round
    costs their sum: shapes stay the same whichever rows there are. Raises ValueError for drafters of
    different vocabularies, and for those that read the target's states.
    """

    def __init__(
        self, drafters: Sequence[Drafter], route: Callable[[Request], int], *, skips: bool
    ) -> None:
        needs = [drafter.needs for drafter in drafters]
        if len({need.vocab for need in needs}) != 1:
            raise ValueError(f"drafters of {[need.vocab for need in needs]} tokens")
        if any(need.taps or need.at_once for need in needs):
            raise ValueError("drafters that read the target's states cannot share a batch")
        self.drafters, self._route, self._skips = tuple(drafters), route, skips
        self._routes: Tensor | None = None  # [B], by row

    @property
    def needs(self) -> Needs:
        first = self.drafters[0].needs
        early = self._skips or any(drafter.needs.ends_early for drafter in self.drafters)
        return Needs(vocab=first.vocab, ends_early=early)

    def bind(self, target: Model) -> None:
        for drafter in self.drafters:
            drafter.bind(target)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self._routes = torch.zeros(batch, dtype=torch.int64, device=device)
        for drafter in self.drafters:
            drafter.allocate(batch, slots, device)

    def forwards(self, gamma: int) -> int:
        """Of all drafters: an upper bound where rounds skip some."""
        return sum(drafter.forwards(gamma) for drafter in self.drafters)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        assert self._routes is not None
        routes = [self._route(request) for request in requests]
        if not all(0 <= route < len(self.drafters) for route in routes):
            raise ValueError(f"routes {routes} among {len(self.drafters)} drafters")
        self._routes[rows] = upload(routes, torch.int64, rows.device)
        for index, drafter in enumerate(self.drafters):
            own = [place for place, route in enumerate(routes) if route == index]
            if not own:
                continue
            if not self._skips:
                # As many as a power of two, as the admission: the last one is read twice.
                own += own[-1:] * ((1 << (len(own) - 1).bit_length()) - len(own))
            at = upload(own, torch.int64, rows.device)
            drafter.admit(rows[at], tokens[at], [requests[place] for place in own], None)

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        for drafter, _, view in self._views(rows):
            drafter.catch_up(view, start, count)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        chosen: Draft | None = None
        for drafter, own, view in self._views(rows):
            draft = drafter.propose(view, gamma)
            chosen = draft if chosen is None else merged(own, draft, chosen)
        if chosen is None:  # no active rows at all
            return self.drafters[0].propose(rows, gamma)
        return chosen

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        for drafter, _, view in self._views(rows):
            drafter.observe(view, draft, scores, verdict)

    def _views(self, rows: Rows) -> Iterator[tuple[Drafter, Tensor, Rows]]:
        """The drafters of a round, which rows are theirs `[B]`, and the rows with the others inactive."""
        assert self._routes is not None
        for index, drafter in enumerate(self.drafters):
            own = self._routes[: rows.batch] == index
            active = rows.active & own
            if not self._skips or bool(active.any()):
                yield drafter, own, replace(rows, active=active)


def merged(own: Tensor, draft: Draft, other: Draft) -> Draft:
    """The rows `own [B]` of a draft, and the rest of another one; the shorter one is padded."""
    width = max(draft.tokens.shape[1], other.tokens.shape[1])
    first, second = (pad(d.tokens, (0, width - d.tokens.shape[1])) for d in (draft, other))
    return Draft(
        torch.where(own[:, None], first, second), torch.where(own, draft.valid, other.valid)
    )
