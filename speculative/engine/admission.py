"""What comes in: whether a request fits an engine, and how its prompt is laid out on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import checks
from ..device import Device
from ..errors import RequestError
from ..requests import Request
from ..rows import Rows

PROMPT_BUCKETS = (4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def check(request: Request, *, vocab: int, max_tokens: int, max_gamma: int, ranks: int) -> None:
    """Raises `RequestError` for more than the model and the engine have."""
    if len(request.prompt) > max_tokens:
        raise RequestError(
            f"the prompt has {len(request.prompt)} tokens; the model holds {max_tokens}"
        )
    checks.in_vocabulary("the prompt", request.prompt, vocab)
    checks.in_vocabulary("the hint", request.hint, vocab)
    if request.probe is not None:
        checks.in_vocabulary("the probe", request.probe.tokens, vocab)
    if request.ranks > ranks:
        raise RequestError(f"{request.ranks} ranked tokens; this engine keeps {ranks}")
    if request.gamma is not None and request.gamma > max_gamma:
        raise RequestError(f"gamma is {request.gamma}; this engine drafts {max_gamma} at most")


def prompts(
    rows: Sequence[int], requests: Sequence[Request], device: Device, max_tokens: int
) -> tuple[Tensor, Tensor, list[Request]]:
    """Rows [K], right-padded prompts [K, P] and their requests; a few static shapes where the device
    needs them."""
    rows, requests = list(rows), list(requests)
    if device.static_shapes:
        # The last row again: it is written twice, with the same values.
        padding = (1 << (len(rows) - 1).bit_length()) - len(rows)
        rows, requests = rows + rows[-1:] * padding, requests + requests[-1:] * padding
    length = max(len(r.prompt) for r in requests)
    if device.static_shapes:
        bucket = next((b for b in PROMPT_BUCKETS if b >= length), max_tokens)
        length = min(bucket, max_tokens)
    padded = [[*r.prompt, *[0] * (length - len(r.prompt))] for r in requests]
    tokens = torch.tensor(padded, dtype=torch.int64, device=device.torch)  # [K, P]
    return torch.tensor(rows, device=device.torch), tokens, requests


def write(
    state: Rows, rows: Sequence[int], requests: Sequence[Request], limits: Sequence[int], gamma: int
) -> None:
    """Writes the requests' state into their rows, which stay inactive: until their prompts have been
    read, a fault must not leave rows that nobody owns."""
    place = state.tokens.device
    index = torch.tensor(rows, device=place)

    def put(target: Tensor, values: Sequence[int] | Sequence[bool]) -> None:
        target[index] = torch.tensor(values, dtype=target.dtype, device=place)

    texts = torch.zeros((len(rows), state.tokens.shape[1]), dtype=torch.int64)
    for i, request in enumerate(requests):
        texts[i, : len(request.prompt)] = torch.tensor(request.prompt)
    put(state.active, [False] * len(rows))
    state.tokens[index] = texts.to(place)
    lengths = [len(r.prompt) for r in requests]
    put(state.lengths, lengths)
    put(state.begin, lengths)
    put(state.limits, limits)
    state.sampling.write(index, requests)
    put(state.gamma, [gamma if r.gamma is None else r.gamma for r in requests])
    for counter in (state.rounds, state.drafted, state.accepted):
        counter[index] = 0


def probabilities(logits: Tensor, request: Request) -> tuple[float, ...]:
    """The probabilities a request asked for, from its prompt's logits `[P, V]`."""
    probe = request.probe
    if probe is None:
        return ()
    if probe.slot >= len(logits):
        raise RequestError("this model keeps no logits of its prompt: it cannot be probed")
    chances = logits[probe.slot].float().softmax(-1)
    return tuple(float(chances[token]) for token in probe.tokens)
