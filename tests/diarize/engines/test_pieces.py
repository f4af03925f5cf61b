"""Pieces of one voice and turns, from synthetic probabilities and samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.diarize.engines.segmentation import (
    SETS,
    SLOTS,
    Activity,
    PieceSettings,
    Run,
    find_pieces,
    turns_of,
)
from forescribe.diarize.turns import Turns

HOP = 160
LOUD, NOISE = 0.1, 1e-4
SETTINGS = PieceSettings()

Spoken = tuple[int, int, Sequence[int]]
"""First frame, end, and the slots that speak."""


def heard(frames: int, *spoken: Spoken, certain: float = 0.97) -> np.ndarray:
    """[F, 7]: the sets of slots, each with a probability of `certain`; nobody speaks elsewhere."""
    rows = np.full((frames, len(SETS)), (1 - certain) / (len(SETS) - 1), np.float32)
    sets = np.zeros(frames, np.int64)
    for start, end, slots in spoken:
        sets[start:end] = SETS.index(frozenset(slots))
    rows[np.arange(frames), sets] = certain
    return rows


def sound(frames: int, *loud: tuple[int, int], noise: float = NOISE) -> np.ndarray:
    """[160 F]: a tone from each first frame to its end, over noise."""
    rng = np.random.default_rng(0)
    level = np.zeros(frames, np.float32)
    for start, end in loud:
        level[start:end] = LOUD
    tone = np.sin(2 * np.pi * 440 / 16_000 * np.arange(frames * HOP)) * np.repeat(level, HOP)
    return (tone + noise * rng.standard_normal(frames * HOP)).astype(np.float32)


def slots(activity: Activity) -> list[int]:
    """The slot of each piece."""
    return [activity.runs[piece.run].slot for piece in activity.pieces]


def frames(turns: Turns) -> list[tuple[int, int, str]]:
    return [(t.start_sample // HOP, t.end_sample // HOP, t.speaker) for t in turns]


def of(activity: Activity, *labels: int) -> tuple[Turns, Turns]:
    """Turns of pieces by their speakers."""
    return turns_of(activity, np.array(labels, np.int64), np.ones(len(labels)))


def by_slot(activity: Activity) -> tuple[Turns, Turns]:
    """Turns as if each slot were one person, with its number as the name."""
    return of(activity, *slots(activity))


def test_two_at_once_overlap_but_in_the_exclusive_turns_the_more_probable_slot_speaks() -> None:
    given_ = heard(600, (100, 200, [0]), (200, 300, [0, 1]), (300, 400, [1]))
    given_[200:300] = 0
    given_[200:300, SETS.index(frozenset({0, 1}))] = 0.6
    given_[200:250, SETS.index(frozenset({1}))] = 0.4  # slot 1 is surer first, slot 0 then
    given_[250:300, SETS.index(frozenset({0}))] = 0.4
    activity = find_pieces(sound(600, (100, 400)), given_)
    regular, exclusive = by_slot(activity)
    assert frames(regular) == [(100, 300, "0"), (200, 400, "1")]
    assert frames(exclusive) == [(100, 200, "0"), (200, 250, "1"), (250, 300, "0"), (300, 400, "1")]


def test_digital_silence_has_no_speech_whatever_the_segmentation_hears() -> None:
    activity = find_pieces(np.zeros(300 * HOP, np.float32), heard(300, (50, 250, [1])))
    assert activity.runs == (Run(1, 50, 250),) and not activity.pieces
    assert not activity.speech.any()
    assert of(activity) == (Turns(), Turns())


stretches = st.lists(
    st.tuples(
        st.integers(1, 120),  # frames
        st.integers(0, len(SETS) - 1),  # who speaks
        st.sampled_from([0.3, 0.5, 0.65, 0.97]),  # how probably
        st.sampled_from([0.0, 1e-4, 0.01, 0.2]),  # level
    ),
    max_size=14,
)


@settings(max_examples=300)
@given(stretches, st.integers(0, HOP - 1), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_pieces_and_turns_are_consistent_whatever_is_heard(
    parts: list[tuple[int, int, float, float]], rest: int, seed: int, speakers: int
) -> None:
    rng = np.random.default_rng(seed)
    count = sum(length for length, *_ in parts)
    probabilities, level = np.zeros((0, len(SETS))), np.zeros(0)
    for length, members, certain, loudness in parts:
        others = rng.dirichlet(np.ones(len(SETS)), length) * (1 - certain)
        others[:, members] += certain
        probabilities = np.concatenate([probabilities, others])
        level = np.append(level, np.full(length, loudness))
    samples = np.repeat(level, HOP) * rng.standard_normal(count * HOP)
    samples = np.append(samples, np.zeros(rest)).astype(np.float32)

    activity = find_pieces(samples, probabilities.astype(np.float32))
    labels = rng.integers(speakers, size=len(activity.pieces))
    confidence = rng.random(len(labels))
    regular, exclusive = turns_of(activity, labels, confidence)

    assert activity.slots.shape == activity.active.shape == (count, SLOTS)
    assert activity.speech.shape == (count,)
    taken = np.zeros((count, SLOTS), np.int64)
    for piece in activity.pieces:
        run = activity.runs[piece.run]
        assert run.start <= piece.start < piece.end <= run.end
        assert piece.end - piece.start <= SETTINGS.longest
        own = slice(piece.start, piece.end)
        assert (activity.active[own].sum(1) == 1).all() and activity.active[own, run.slot].all()
        taken[own, run.slot] += 1
    assert taken.max(initial=0) <= 1
    starts = [(piece.start, piece.end) for piece in activity.pieces]
    assert starts == sorted(starts)
    in_runs = np.zeros((count, SLOTS), np.int64)
    for run in activity.runs:
        in_runs[run.start : run.end, run.slot] += 1
    assert in_runs.max(initial=0) <= 1 and (in_runs >= activity.active).all()

    names = {str(label) for label in labels}
    covered = {name: np.zeros(count, np.int64) for name in names}
    for turn in regular:
        assert 0 <= turn.start_sample < turn.end_sample <= len(samples)
        covered[turn.speaker][turn.start_sample // HOP : turn.end_sample // HOP] += 1
        assert turn.confidence is not None and 0 <= turn.confidence <= 1
    assert all(own.max(initial=0) <= 1 for own in covered.values())
    for turn in exclusive:
        assert turn.end_sample <= len(samples)
        assert covered[turn.speaker][turn.start_sample // HOP : turn.end_sample // HOP].all()
    assert all(
        before.end_sample <= after.start_sample
        for before, after in zip(exclusive.turns, exclusive.turns[1:], strict=False)
    )
