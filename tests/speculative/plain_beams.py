"""Beam search as plainly as it can be written: whole forwards of one text at a time, and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

import torch
from torch import Tensor

from forescribe.speculative.protocols import Processor
from forescribe.speculative.requests import Request
from forescribe.speculative.types import Prefix

NEVER = float("-inf")


@torch.inference_mode()
def searched_plainly(
    forward: Callable[[Tensor], Tensor],
    request: Request,
    *,
    eos: int,
    longest: int,
    positions: int,
    processors: Iterable[Processor] = (),
) -> tuple[tuple[int, ...], float]:
    """The text and the sum of its log-probabilities; `forward` gives logits `[L, V]` of a text `[L]`, or
    `[1, V]` of its last position alone."""
    beams, prompt = request.beams, list(request.prompt)
    assert beams is not None
    if request.max_new_tokens is not None:
        longest = min(longest, request.max_new_tokens)
    ended: list[tuple[list[int], float]] = []
    going: list[tuple[list[int], float]] = [([], 0.0)]
    for _ in range(min(longest, positions + 1 - len(prompt))):
        found: list[tuple[float, list[int], int]] = []
        for text, total in going:
            whole = torch.tensor(prompt + text)
            last, begin = torch.tensor([[len(whole) - 1]]), torch.tensor([len(prompt)])
            logits = forward(whole)[-1][None, None].float()
            for processor in processors:
                logits = processor(logits, Prefix(whole[None], last, begin))
            best = logits[0, 0].log_softmax(-1).topk(beams.size + 1)  # one of them may be the end
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            found += [(total + logprob, text, token) for logprob, token in pairs]
        going = []
        for total, text, token in sorted(found, key=itemgetter(0), reverse=True):
            if total == NEVER or len(going) == beams.size:
                break
            if token != eos:
                going.append(([*text, token], total))
            elif len(ended) < beams.candidates:
                ended.append(([*text, token], total))
        if len(ended) >= beams.candidates or not going:
            break
    ended += going[: max(0, beams.size - len(ended))]
    scores = [beams.score(total, sum(t != eos for t in text)) for text, total in ended]
    text, total = ended[scores.index(max(scores))]
    return tuple(text), total
