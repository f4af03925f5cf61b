"""The closed set of shapes in which rounds run on a device.

Knows numbers; nothing of graphs or tensors. Every shape is a capture or a compilation, so each axis has few
values, and they are known before the first request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from ..device import Device
from ..requests import Mode

EAGER_REACHES = (64, 128, 256, 512, 1024, 2048, 4096)
"""How many slots attention reads where a shape costs nothing: a window of 30 s usually fills a third of
Whisper's positions."""

SHORTEST_CAPTURED = 128
"""The shortest reach of captured rounds; the others double it. Half of it would serve a window only until
its 64th token, and would spare large-v3 10 MB of self-attention keys per row and round, beside 246 MB of
cross-attention keys and 1.6 GB of weights."""

ALIGNMENT = 8
"""Reaches of captured rounds are multiples of it: fused attention kernels read masks in vectors of 16 bytes
and copy those whose rows are not aligned."""


@dataclass(frozen=True)
class Shape:
    """The static part of a round."""

    rows: int  # the first rows of the batch
    gamma: int
    mode: Mode
    reach: int

    @property
    def size(self) -> tuple[int, int, int, int]:
        """An order in which the captures of larger memory come first when reversed."""
        cost = sum((self.mode.sampling, self.mode.bounded, self.mode.penalised, self.mode.ranked))
        return self.rows, self.gamma, cost, self.reach


@dataclass(frozen=True)
class ShapeSet:
    """The values of a shape's axes, and the shapes that they make.

    Closed: requests that are admitted one by one, each in a mode that is covered, never meet in a round
    whose shape is not in the set.
    """

    batches: tuple[int, ...]  # ascending, the last one is the whole batch
    gammas: tuple[int, ...]  # of the schedule
    modes: tuple[Mode, ...]  # one of them covers all the others together
    reaches: tuple[int, ...]  # ascending, the last one is every slot

    @classmethod
    def of(
        cls,
        device: Device,
        batch: int,
        slots: int,
        gammas: Sequence[int],
        modes: Sequence[Mode],
    ) -> ShapeSet:
        """The axes on `device` for `batch` rows of `slots` slots.

        cuda captures in tenths of a second: batches and reaches double. A Gaudi card compiles for minutes:
        batches grow by four, and every round reads all slots.
        """
        batches: tuple[int, ...] = (batch,)
        reaches: tuple[int, ...] = (*(r for r in EAGER_REACHES if r < slots), slots)
        if device.kind == "cuda":
            batches, reaches = powers(2, 1, batch), powers(2, SHORTEST_CAPTURED, slots)
        elif device.kind == "hpu":
            batches, reaches = powers(4, 1, batch), (slots,)
        return cls(batches, tuple(gammas), closed(modes), reaches)

    def __contains__(self, shape: Shape) -> bool:
        return (
            shape.rows in self.batches
            # Rows whose drafter has failed run plain rounds, whatever the schedule.
            and shape.gamma in (0, *self.gammas)
            and shape.mode in self.modes
            and shape.reach in self.reaches
        )

    def covers(self, need: Mode) -> bool:
        """Whether a request that needs this mode can be decoded in a captured round."""
        return any(mode.covers(need) for mode in self.modes)

    def mode(self, need: Mode) -> Mode:
        """The mode of a round for requests that are covered one by one: the first that covers them all."""
        return next(mode for mode in self.modes if mode.covers(need))

    def batch_for(self, rows: int) -> int:
        """The smallest number of rows that holds the first `rows`."""
        return self.batches[bisect_left(self.batches, rows)]

    def pick(self, rows: int, gamma: int, mode: Mode, longest: int) -> Shape:
        """The smallest shape that holds the first `rows` rows of at most `longest` tokens."""
        return Shape(
            rows=self.batches[bisect_left(self.batches, rows)],
            gamma=gamma,
            mode=mode,
            reach=self.reaches[bisect_left(self.reaches, longest)],
        )

    def common(self, modes: Sequence[Mode]) -> Iterator[Shape]:
        """The shapes of these modes and the schedule's gammas, largest first: graphs of one memory pool
        reuse each other's blocks, and a smaller graph fits into those of a larger one."""
        made = [
            Shape(rows, gamma, mode, reach)
            for rows in self.batches
            for gamma in self.gammas
            for mode in modes
            for reach in self.reaches
        ]
        return iter(sorted(made, key=lambda shape: shape.size, reverse=True))


def closed(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """`modes`, followed by all of them together where none covers that. Requests of different modes share
    a round; one mode that covers everything is enough for whichever meet."""
    together = reduce(or_, modes, Mode())
    if any(mode.covers(together) for mode in modes):
        return tuple(modes)
    return (*modes, together)


def powers(factor: int, first: int, last: int) -> tuple[int, ...]:
    """`first` and its multiples by powers of `factor` below `last`, then `last`."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return (*found, last)


def aligned(slots: int, device: Device) -> int:
    """`slots`, rounded up to a multiple of `ALIGNMENT` where rounds are captured."""
    return -(-slots // ALIGNMENT) * ALIGNMENT if device.static_shapes else slots
