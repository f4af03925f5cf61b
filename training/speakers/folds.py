"""Groups of speakers: who trains, who tunes, who judges, and three folds for cross-validation.

Decided by the speaker's own number, so that a speaker stays in a group whoever else is chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

FOLDS = 3
"""Parts of the training speakers; each is judged by a model that the other two have trained."""


@dataclass(frozen=True)
class Split:
    """Disjoint groups of speakers."""

    training: frozenset[int]
    tuning: frozenset[int]  # the pipeline's parameters are chosen on mixtures of these
    test: frozenset[int]  # and judged on mixtures of these


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
