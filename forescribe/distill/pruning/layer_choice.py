"""Which of a target's layers a draft begins with, measured on labelled rows.

Knows pairs and rows; the arithmetic is in `angular_distance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ..labels.label_batches import collate
from ..labels.label_rows import LabelRow
from ..pairs.draft_pair import DraftPair
from .angular_distance import AngularDistances, angular_distances

ROWS = 32
"""Rows that are measured: thousands of tokens, of which hundreds already give the same order."""


def measured_distances(pair: DraftPair, rows: Sequence[LabelRow]) -> AngularDistances:
    """Between all layers of the target, at the tokens of the answers and what is before them."""
    passes = []
    for row in rows[:ROWS]:
        batch = collate([row]).to(pair.device.torch)
        count = len(row.tokens) - 1
        place = torch.arange(count, device=batch.tokens.device)
        forward = partial(pair.target_logits, batch, torch.tensor([row.begin], device=place.device))
        passes.append((forward, torch.zeros_like(place), place))
    return angular_distances(pair.layers(pair.target), passes)
