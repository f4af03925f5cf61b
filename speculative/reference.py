"""A slow reference decoder: one sequence at a time, no cache, no batch, no draft.

Every forward reads the whole prefix. Tests compare the engine with it for every drafter and rule; the two
share only the logits processors and, above temperature 0, the keyed noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .drafts import Prefix
from .protocols import Processor
from .requests import Mode, Request
from .rounds.accept import distribution, draw
from .rounds.noise import Stream, uniform
from .rounds.sampling import penalise
from .rows import Rows

Forward = Callable[[Tensor], Tensor]  # token ids [L] -> logits [L, V] of the whole prefix


@torch.inference_mode()
def decode(
    forward: Forward,
    request: Request,
    *,
    eos: Iterable[int],
    max_tokens: int,
    processors: Iterable[Processor] = (),
) -> tuple[int, ...]:
    """Tokens generated after `request.prompt`, end-of-text included where it comes."""
    ends, tokens = set(eos), list(request.prompt)
    begin, limit = len(tokens), max_tokens
    if request.max_new_tokens is not None:
        limit = min(limit, begin + request.max_new_tokens)
    row = Rows.empty(1, limit, torch.device("cpu"))
    row.mode = Mode.of([request])
    row.sampling.write(torch.tensor([0]), [request])
    while len(tokens) < limit:
        prefix = torch.tensor(tokens)
        logits = forward(prefix)[-1][None, None].float()  # [1, 1, V]
        view = Prefix(prefix[None], torch.tensor([[len(tokens) - 1]]), torch.tensor([begin]))
        for processor in processors:
            logits = processor(logits, view)
        if row.mode.penalised:
            logits = penalise(row, logits, view)
        probabilities = distribution(row, logits)[0, 0]
        here = torch.tensor(len(tokens))  # a round of one token starts where it writes
        u = uniform(torch.tensor(request.seed), here, here, Stream.EXTRA)
        tokens.append(int(draw(probabilities, u)))
        if tokens[-1] in ends:
            break
    return tuple(tokens[begin:])
