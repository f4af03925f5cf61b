"""From what the segmentation hears to pieces of one voice each, and from their speakers to turns.

The segmentation tells people apart who speak at once, but merges similar voices that follow each other
quickly, and bridges pauses. The level of the signal shows pauses: where it stands out from the noise,
speech is what is loud, and what the segmentation takes for one speaker is cut at every pause of 80 ms, and
every two seconds. Such pieces hold one voice (of mixtures of readers 0.5 % of the time is another's, of
uncut speech 6 %), from which their speakers are found; a piece too short for that goes with its neighbours.

Shapes: T samples, F frames of 10 ms, 3 slots (local speakers), N pieces, K speakers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..turns import Turns
from .segmentation import MEMBERS, SLOTS, Probabilities
from .voice_encoder import HOP, Samples, frame_power

Flags = NDArray[np.bool_]
Labels = NDArray[np.int64]

FRAMES_PER_S = 100

MEMORY = 5 * FRAMES_PER_S
"""Frames after which a slot may be another person: half a chunk of the segmentation."""

DIGITAL_DB = -100.0
"""Digital zeros, which say nothing about the noise of a room."""


@dataclass(frozen=True)
class PieceSettings:
    """Thresholds of speech; lengths are in frames of 10 ms. Chosen on mixtures of readers that trained
    nothing (docs/development/diarization-measurements.md)."""

    active: float = 0.42  # probability from which a local speaker speaks
    bridge: int = 15  # of a local speaker, pauses without anybody else
    cut: int = 8  # pauses at which pieces end
    longest: int = 200  # of a piece
    # speech by its level
    part: float = 0.3  # of the range from quiet to loud in dB; speech is above it
    contrast_db: float = 25.0  # between quiet and loud; with less, the segmentation decides alone
    unsure: float = 0.6  # probability of anybody's speech that it then takes
    quiet: float = 10.0  # percentile of the level around a stretch
    loud: float = 95.0  # percentile of the level in the stretch
    around: int = 400
    gap: int = 25  # stretches closer than this are treated as one
    # turns
    pause: int = 30  # of one speaker, bridged up to this length
    shortest: int = 5


SETTINGS = PieceSettings()


@dataclass(frozen=True)
class Run:
    """A local speaker without a longer pause, frames `start` to `end`."""

    slot: int
    start: int
    end: int


@dataclass(frozen=True)
class Piece:
    """A part of a run in which nobody else speaks."""

    run: int
    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / FRAMES_PER_S


@dataclass(frozen=True, eq=False)
class Activity:
    """Who speaks when, before anybody is known."""

    slots: NDArray[np.float32]  # [F, 3] probability of each
    active: Flags  # [F, 3]
    speech: Flags  # [F] by level
    runs: tuple[Run, ...]  # by start
    pieces: tuple[Piece, ...] = ()  # by start


def find_pieces(samples: Samples, probabilities: Probabilities) -> Activity:
    """[T] samples and [F, 7] probabilities of sets of local speakers -> runs and pieces."""
    slots = probabilities @ MEMBERS
    active = slots > SETTINGS.active
    speech = _speech(
        10 * np.log10(frame_power(samples) + 1e-12),
        1 - probabilities[:, 0],
        np.asarray(active.any(1)),
    )
    runs = sorted(_runs(active), key=lambda run: (run.start, run.end))
    alone = active.sum(1) == 1
    loud = _closed(speech, SETTINGS.cut)
    pieces = [
        Piece(number, start, end)
        for number, run in enumerate(runs)
        for first, last in stretches(
            (alone & loud & active[:, run.slot])[run.start : run.end], run.start
        )
        for start, end in parts(first, last, SETTINGS.longest)
    ]
    pieces.sort(key=lambda piece: (piece.start, piece.end))
    return Activity(slots, active, speech, tuple(runs), tuple(pieces))


def turns_of(
    activity: Activity,
    labels: Labels,
    confidence: NDArray[np.float64],
) -> tuple[Turns, Turns]:
    """[N] speakers of pieces and [N] confidence -> (turns that may overlap, turns of the most probable
    speaker). A turn has the mean confidence of its frames."""
    if not len(labels):
        return Turns(), Turns()
    nearest = _nearest_pieces(activity)
    owners = np.where(nearest >= 0, labels[nearest], -1)
    heard = activity.active & activity.speech[:, None] & (owners >= 0)  # [F, 3]
    spoken = np.zeros((len(heard), int(labels.max()) + 1), bool)  # [F, K]
    sure = np.zeros(spoken.shape)
    for slot in range(SLOTS):
        frames = np.flatnonzero(heard[:, slot])
        spoken[frames, owners[frames, slot]] = True
        sure[frames, owners[frames, slot]] = confidence[nearest[frames, slot]]
    strongest = np.where(heard, activity.slots, -1.0).argmax(1)
    alone = np.where(heard.any(1), owners[np.arange(len(owners)), strongest], -1)
    exclusive = alone[:, None] == np.arange(spoken.shape[1])
    return (
        Turns.of(_turns(spoken, sure)),
        Turns.of(_turns(exclusive, sure)),
    )


def _nearest_pieces(activity: Activity) -> Labels:
    """[F, 3] the piece that each slot belongs to in its runs, -1 elsewhere: the nearest one of the run. A run
    without a piece, as only others speak at the same time, has that of the nearest run in its slot."""
    owners = np.full(activity.active.shape, -1)
    pieces: dict[int, list[tuple[Piece, int]]] = {}
    for n, piece in enumerate(activity.pieces):
        pieces.setdefault(piece.run, []).append((piece, n))
    by_slot: dict[int, list[tuple[Run, int, int]]] = {}
    for number, own in pieces.items():
        run = activity.runs[number]
        middles = [(a.end + b.start) / 2 for (a, _), (b, _) in zip(own, own[1:], strict=False)]
        nearest = np.searchsorted(middles, np.arange(run.start, run.end), side="right")
        owners[run.start : run.end, run.slot] = np.array([n for _, n in own])[nearest]
        by_slot.setdefault(run.slot, []).append((run, own[0][1], own[-1][1]))
    for number, run in enumerate(activity.runs):
        if number in pieces:
            continue
        near = [
            (distance, piece)
            for other, first, last in by_slot.get(run.slot, [])
            for distance, piece in ((run.start - other.end, last), (other.start - run.end, first))
            if 0 <= distance <= MEMORY
        ]
        if near:
            owners[run.start : run.end, run.slot] = min(near)[1]
    return owners


def _turns(spoken: Flags, sure: NDArray[np.float64]) -> Iterator[tuple[int, int, str, float]]:
    """[F, K] speech and its confidence -> (start sample, end sample, speaker, confidence), short pauses
    bridged where nobody else speaks."""
    for speaker in range(spoken.shape[1]):
        for start, end in _bridged(spoken, speaker, SETTINGS.pause):
            if end - start >= SETTINGS.shortest:
                own = spoken[start:end, speaker]
                confidence = float(sure[start:end, speaker][own].mean())
                yield start * HOP, end * HOP, str(speaker), confidence


def _bridged(active: Flags, column: int, longest: int) -> list[tuple[int, int]]:
    """[F, C] -> the stretches of one column, gaps of up to `longest` frames bridged where none is active."""
    anybody = np.concatenate([[0], np.cumsum(active.any(1))])
    found: list[tuple[int, int]] = []
    for start, end in stretches(active[:, column]):
        last = found[-1] if found else None
        if last and start - last[1] <= longest and anybody[start] == anybody[last[1]]:
            found[-1] = last[0], end
        else:
            found.append((start, end))
    return found


def _runs(active: Flags) -> Iterator[Run]:
    """[F, 3] -> the runs of each slot."""
    for slot in range(SLOTS):
        yield from (Run(slot, *span) for span in _bridged(active, slot, SETTINGS.bridge))


def _speech(level: NDArray[np.float64], heard: NDArray[np.float32], active: Flags) -> Flags:
    """[F] level, probability of speech and activity -> [F] speech."""
    found = np.zeros(len(level), bool)
    spans = np.array(list(stretches(active)), np.int64).reshape(-1, 2)
    if not len(spans):
        return found
    gaps = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > SETTINGS.gap) + 1
    for near in np.split(spans, gaps):
        start, end = int(near[0, 0]), int(near[-1, 1])
        if end - start < SETTINGS.shortest:
            continue
        surroundings = level[max(0, start - SETTINGS.around) : end + SETTINGS.around]
        surroundings = surroundings[surroundings > DIGITAL_DB]
        if not len(surroundings):
            continue
        quiet = float(np.percentile(surroundings, SETTINGS.quiet))
        loud = float(np.percentile(level[start:end], SETTINGS.loud))
        if loud - quiet < SETTINGS.contrast_db:
            found[start:end] |= heard[start:end] > SETTINGS.unsure
            continue
        found[start:end] |= level[start:end] > quiet + SETTINGS.part * (loud - quiet)
    return found


def _closed(flags: Flags, longest: int) -> Flags:
    """Fill gaps shorter than `longest`."""
    found = flags.copy()
    for start, end in stretches(~flags):
        if end - start < longest:
            found[start:end] = True
    return found


def stretches(flags: Flags, offset: int = 0) -> Iterator[tuple[int, int]]:
    """[F] -> (start, end) of stretches that are true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))) + offset
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def parts(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut into equal parts of at most `longest` frames."""
    count = -(-(end - start) // longest)
    edges = np.linspace(start, end, count + 1).round().astype(int).tolist()
    yield from zip(edges, edges[1:], strict=False)
