"""What the engine is compared with: a reference decoder, and a drafter with known outcomes.

`decode` has one sequence at a time, no cache, no batch and no draft; it shares with the engine only the
logits processors and, above temperature 0, the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.protocols import Drafter, Processor
from forescribe.speculative.requests import Mode, Request
from forescribe.speculative.rounds.sampling import penalise, perturbed
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft, Prefix
from tests.speculative.tiny import TinyModel


@torch.inference_mode()
def decode(
    forward: Callable[[Tensor], Tensor],
    request: Request,
    *,
    eos: Iterable[int],
    max_tokens: int,
    processors: Iterable[Processor] = (),
) -> tuple[int, ...]:
    """Tokens generated after `request.prompt`, end-of-text included where it comes. `forward` gives
    the logits `[L, V]` of a whole prefix `[L]`."""
    ends, tokens = set(eos), list(request.prompt)
    begin, limit = len(tokens), max_tokens
    if request.max_new_tokens is not None:
        limit = min(limit, begin + request.max_new_tokens)
    row = Rows.empty(1, limit, torch.device("cpu"))
    row.mode = Mode.of([request])
    row.sample_as([request])
    while len(tokens) < limit:
        prefix = torch.tensor(tokens)
        logits = forward(prefix)[-1][None, None].float()  # [1, 1, V]
        view = Prefix(prefix[None], torch.tensor([[len(tokens) - 1]]), torch.tensor([begin]))
        for processor in processors:
            logits = processor(logits, view)
        if row.mode.penalised:
            logits = penalise(row, logits, view)
        drawn = perturbed(row, logits, torch.tensor([[len(tokens)]]))
        tokens.append(int(drawn[0, 0].argmax()))
        if tokens[-1] in ends:
            break
    return tuple(tokens[begin:])


class ScriptedDrafter(Drafter):
    """Proposes the tokens of a script: `scripts[tag]` is the row's whole text, or a wrong guess of it.

    With the true continuation in the script every draft is accepted; tests force any acceptance
    pattern by changing tokens of it.
    """

    def __init__(self, scripts: dict[Any, Sequence[int]], fill: int = 0) -> None:
        self.scripts, self.fill = scripts, fill
        self.script = torch.empty(0)

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self.script = torch.full((batch, 2 * slots), self.fill, dtype=torch.int64, device=device)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        for row, request in zip(rows.tolist(), requests, strict=True):
            text = [*request.prompt, *self.scripts[request.tag]]
            self.script[row] = self.fill
            self.script[row, : len(text)] = torch.tensor(text)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        index = rows.lengths[:, None] + torch.arange(gamma, device=rows.lengths.device)
        return Draft(self.script.gather(1, index), torch.full_like(rows.lengths, gamma))


def with_ids(
    model: TinyModel, ids: Sequence[int], listed: Sequence[int] | None = None
) -> TinyModel:
    """The same model with other ids: its token i is the model's token `ids[i]`; some may be left out, or
    occur twice. `listed` are the only tokens that it has, in its own ids."""
    made = copy(model)
    made.vocab_size, chosen = len(ids), torch.tensor(ids)
    made.embedding, made.head = model.embedding[chosen], model.head[:, chosen]
    made.listed = None if listed is None else torch.tensor(listed)
    return made
