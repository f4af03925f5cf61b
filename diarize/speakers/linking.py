"""Finds the voices that belong to one person, across the blocks of a long recording.

Voices of one block are never joined, as an engine has distinguished them. Voices without a vector are
never joined either. Knows nothing of audio.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..diarizer import MOST_SPEAKERS, Voice


@dataclass
class _Person:
    """The voices of one speaker and their sum, weighted by speech."""

    members: list[int]
    total: NDArray[np.float64]  # [D]; its direction is the mean voice
    places: set[Hashable]


def link_voices(
    voices: Sequence[tuple[Hashable, Voice]],
    alike: float,
    *,
    least: int = 1,
    most: int = MOST_SPEAKERS,
) -> list[int]:
    """Return the number of the person for each (place, voice), counted from 0 by first appearance.

    The two most similar persons are joined until no cosine reaches `alike`, then further while there
    are more than `most` persons, but never below `least`. Two voices of one place, which is a block,
    are never joined; therefore the bounds may be missed.
    """
    people = [
        _Person([n], _direction(voice) * max(1, voice.samples), {place})
        for n, (place, voice) in enumerate(voices)
        if voice.vector is not None
    ]
    alone = [n for n, (_, voice) in enumerate(voices) if voice.vector is None]
    while len(people) > least:
        pair = _nearest(people)
        if pair is None or (pair[0] < alike and len(people) <= most):
            break
        _, one, other = pair
        one.members += other.members
        one.total = one.total + other.total
        one.places |= other.places
        people = [person for person in people if person is not other]
    groups = [person.members for person in people] + [[n] for n in alone]
    numbers = [0] * len(voices)
    for number, members in enumerate(sorted(groups, key=min)):
        for n in members:
            numbers[n] = number
    return numbers


def _nearest(people: Sequence[_Person]) -> tuple[float, _Person, _Person] | None:
    """The two most similar persons that may be joined, with their cosine."""
    if len(people) < 2:
        return None
    rows = np.stack(
        [person.total / max(float(np.linalg.norm(person.total)), 1e-9) for person in people]
    )
    cosines = rows @ rows.T
    pairs = [
        (float(cosines[a, b]), people[a], people[b])
        for a, b in combinations(range(len(people)), 2)
        if not people[a].places & people[b].places
    ]
    return max(pairs, key=lambda pair: pair[0], default=None)


def _direction(voice: Voice) -> NDArray[np.float64]:
    assert voice.vector is not None
    return voice.vector.astype(np.float64)
