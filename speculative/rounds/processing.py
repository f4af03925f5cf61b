"""From the target's logits to what the acceptance rule reads: processors, penalties and prefixes.

A greedy round reads the best token of each position only; where the processors can say what they allow,
it is found without processed logits (`choice`). All other rounds process the logits. Knows rows and
processors; nothing of rules or drafters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from ..drafts import Chain, Draft, Prefix
from ..protocols import AllowingProcessor, Drafter, Model, Processor, Rule
from ..rows import Rows
from .accept import GreedyMatch
from .choice import Choice, chooser
from .sampling import penalise


@dataclass(frozen=True)
class Parts:
    """The parts of a round besides the rows."""

    target: Model
    drafter: Drafter | None
    rule: Rule
    processors: tuple[Processor, ...]
    eos: Tensor  # [E] token ids that end a row


def reads_choice(rows: Rows, parts: Parts) -> bool:
    """Whether rounds of this mode need the best tokens only. Static, as the mode is."""
    if rows.mode.penalised or rows.mode.ranked or not isinstance(parts.rule, GreedyMatch):
        return False
    count = len(parts.processors)
    return count == 0 or (count == 1 and allows(parts.processors[0]))


def allows(processor: Processor) -> TypeGuard[AllowingProcessor]:
    """Whether a processor can say which tokens it allows."""
    return hasattr(processor, "allowed")


def choice(rows: Rows, parts: Parts, draft: Draft, tokens: Tensor, logits: Tensor) -> Choice:
    """The best allowed tokens after `tokens [B, N]`, of `logits [B, N, V]`."""
    choose = chooser(parts.target)
    if not parts.processors:
        return choose(logits, None)
    processor = parts.processors[0]
    assert allows(processor)  # see `reads_choice`
    if draft.topology is None:
        return choose(logits, processor.allowed(_chain(rows, tokens)))
    nodes = _node_prefixes(rows, draft).chain()
    best = choose(logits.flatten(0, 1)[:, None], processor.allowed(nodes))
    return Choice(best.tokens.view(tokens.shape), best.logprobs.view(tokens.shape))


def process(rows: Rows, parts: Parts, draft: Draft, tokens: Tensor, logits: Tensor) -> Tensor:
    """Applies the logits processors, then the penalties, to `logits [B, N, V]` of `tokens [B, N]`."""
    if not (parts.processors or rows.mode.penalised):
        return logits
    shape = logits.shape
    if draft.topology is None:
        prefix = _chain(rows, tokens).prefix()
    else:
        # Siblings share a depth but not a prefix: every node becomes a row of its own.
        prefix = _node_prefixes(rows, draft)
        logits = logits.flatten(0, 1)[:, None]
    for processor in parts.processors:
        logits = processor(logits, prefix)
    if rows.mode.penalised:
        logits = penalise(rows, logits, prefix)
    return logits.reshape(shape)


def _chain(rows: Rows, tokens: Tensor) -> Chain:
    slots = (rows.lengths - 1)[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    return Chain(rows.tokens, tokens, slots, rows.begin)


def _node_prefixes(rows: Rows, draft: Draft) -> Prefix:
    """Prefixes of all B * N nodes: the committed tokens, then the drafts on the way from the root."""
    assert draft.topology is not None
    parents, depths = draft.topology.parents, draft.topology.depths
    texts = [rows.tokens]
    for node, parent in enumerate(parents, start=1):
        slot = rows.lengths - 1 + depths[node]
        texts.append(texts[parent].scatter(1, slot[:, None], draft.tokens[:, node - 1 : node]))
    last = torch.stack([rows.lengths - 1 + depth for depth in depths], dim=1)  # [B, N]
    return Prefix(
        tokens=torch.stack(texts, dim=1).flatten(0, 1),
        last=last.reshape(-1, 1),
        begin=rows.begin.repeat_interleave(len(depths), output_size=last.numel()),
    )
