"""Groups of speakers for training, tuning and testing, and three folds for cross-validation.

The group depends on the speaker's number only, not on the other speakers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

FOLDS = 3
"""Parts of the training speakers; each is evaluated with a model trained on the other two."""


@dataclass(frozen=True)
class Split:
    """Disjoint groups of speakers."""

    training: frozenset[int]
    tuning: frozenset[int]  # for choosing parameters of the pipeline
    test: frozenset[int]  # for evaluation


def split(speakers: Iterable[int]) -> Split:
    """Assign a tenth to tuning, 15 % to the test group and the others to training."""
    groups: dict[str, set[int]] = {"training": set(), "tuning": set(), "test": set()}
    for speaker in speakers:
        draw = int(hashlib.sha256(str(speaker).encode()).hexdigest(), 16) % 20
        groups["tuning" if draw < 2 else "test" if draw < 5 else "training"].add(speaker)
    return Split(*(frozenset(groups[name]) for name in ("training", "tuning", "test")))


def fold_of(speaker: int) -> int:
    """The fold of a training speaker, from 0."""
    return int(hashlib.sha256(f"fold {speaker}".encode()).hexdigest(), 16) % FOLDS
