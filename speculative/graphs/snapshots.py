"""What the host reads of the device: the state of all rows between rounds, and a row at its end.

Knows rows, counters and transfers; nothing of requests. Every read is one packed tensor: each copy costs a
launch and a wait, whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..device import Device
from ..rounds.counters import Counters
from ..rows import Rows
from .transfers import HostCopy, HostReader, Moment


@dataclass(frozen=True)
class Snapshot:
    """The state of all rows after a round, and the counters that schedules learn from."""

    active: list[bool]  # [B]
    lengths: list[int]  # [B]
    judged: int
    accepted: int
    row_rounds: int


@dataclass(frozen=True)
class SnapshotCopy:
    """A snapshot on its way to the host; `moment` is when it was taken."""

    copy: HostCopy
    moment: Moment
    batch: int

    def read(self) -> Snapshot:
        """The snapshot; waits for the rounds before it, not for those after it."""
        numbers: list[int] = self.copy.tensor().tolist()
        active, lengths, rest = (
            numbers[: self.batch],
            numbers[self.batch : 2 * self.batch],
            numbers[2 * self.batch :],
        )
        judged, row_rounds, *accepted = rest
        return Snapshot([bool(a) for a in active], lengths, judged, sum(accepted), row_rounds)


@dataclass(frozen=True)
class RowRecord:
    """What a row has written from slot `begin` on, and its counts."""

    length: int
    rounds: int
    drafted: int
    accepted: int
    tokens: list[int]
    logprobs: list[float]
    sources: list[int]
    ranked: list[list[int]]  # R of them per token
    ranked_logprobs: list[list[float]]


class StateReader:
    """Reads the rows of an engine, late where the device has streams."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # One for each kind: a row's read must not wait for snapshots that were taken after it had ended.
        self._states, self._rows, self._others = (HostReader(device) for _ in range(3))

    def take(self, rows: Rows, counters: Counters) -> SnapshotCopy:
        """Takes a snapshot, in the order of the device's work."""
        packed = torch.cat(
            [
                rows.active,
                rows.lengths,
                counters.judged[None],
                counters.row_rounds[None],
                counters.accepted,
            ]
        )  # [2 B + 2 + G] int64
        moment = Moment(self._device)
        return SnapshotCopy(self._states.read(lambda: packed, moment), moment, rows.batch)

    def copy(self, tensor: Tensor) -> HostCopy:
        """Starts to copy a tensor that is not written any more."""
        return self._others.read(lambda: tensor)

    def row(
        self, rows: Rows, row: int, begin: int, end: int, ranks: int, after: Moment | None = None
    ) -> RowRecord:
        """Reads a row from slot `begin` on. The caller knows that nothing is written to the slots below
        `end` after the moment `after`; None waits for everything queued."""
        packed = self._rows.read(lambda: _packed(rows, row, slice(begin, end), ranks), after)
        return _unpacked(packed.tensor(), begin, end, ranks)


COUNTS = 4


def _packed(rows: Rows, row: int, span: slice, ranks: int) -> Tensor:
    """`[4 + (3 + 2 R) M]` int64: counts, then tokens, sources, bits of log-probabilities, ranked ones."""
    each = slice(row, row + 1)
    parts = [
        *(part[each] for part in (rows.lengths, rows.rounds, rows.drafted, rows.accepted)),
        rows.tokens[row, span],
        rows.sources[row, span],
        rows.logprobs[row, span].view(torch.int32),
    ]
    if ranks:
        parts.append(rows.ranked[row, span, :ranks].flatten())
        parts.append(rows.ranked_logprobs[row, span, :ranks].flatten().view(torch.int32))
    return torch.cat(parts)


def _unpacked(packed: Tensor, begin: int, end: int, ranks: int) -> RowRecord:
    length, rounds, drafted, accepted = packed[:COUNTS].tolist()
    room, count = end - begin, max(0, min(length, end) - begin)
    sizes = [room] * 3 + [room * ranks] * 2
    tokens, sources, logprobs, ranked, ranked_logprobs = packed[COUNTS:].split(sizes)
    return RowRecord(
        length=length,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        tokens=tokens[:count].tolist(),
        logprobs=_floats(logprobs[:count]).tolist(),
        sources=sources[:count].tolist(),
        ranked=ranked[: count * ranks].view(count, ranks).tolist(),
        ranked_logprobs=_floats(ranked_logprobs[: count * ranks]).view(count, ranks).tolist(),
    )


def _floats(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)
