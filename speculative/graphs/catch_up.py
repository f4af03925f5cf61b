"""Lets a drafter read text that was written without it, in one launch for each piece.

Knows rows, a drafter and captures; nothing of slots, backlogs or faults.
"""

from __future__ import annotations

import torch

from ..protocols import Drafter
from ..requests import Mode
from ..rows import Rows
from .capture import Capture, Function
from .row_views import first_rows
from .shapes import ShapeSet

PIECE = 32
"""Tokens of a row that a drafter reads at once of those written without it: one shape, and its logits
take no more memory than those of a few rounds."""


class CatchUp:
    """Reads the last tokens of the first rows in pieces of one size, captured for each number of rows.

    A graph of its own, and not a part of a round's: as an axis of rounds it would double their captures.
    How far back a piece begins is data of the device, so that one graph serves every piece. Reading a
    piece again writes the same keys and values, and so does a capture, which reads a few times.
    """

    def __init__(
        self, rows: Rows, drafter: Drafter, shapes: ShapeSet, capture: Capture | None = None
    ) -> None:
        self._rows, self._drafter, self._shapes = rows, drafter, shapes
        self._capture = capture  # None: pieces are read operator by operator
        self._graphs: dict[int, Function] = {}  # by the number of rows
        self.piece = min(PIECE, rows.scratch - 1)
        self._back = torch.zeros(1, dtype=torch.int64, device=rows.lengths.device)  # see `read`

    def read(self, tokens: int, rows: int, *, captured: bool = True) -> int:
        """Reads the last `tokens` of the first `rows` rows, and more where a piece is longer; returns how
        many pieces there were. `captured` False runs operators one by one, which locates a fault."""
        pieces = -(-tokens // self.piece)
        for piece in range(pieces, 0, -1):
            self._back.fill_(2 + piece * self.piece)  # the last two tokens are fed by `propose`
            self._launch(rows, captured)()
        return pieces

    def warm_up(self) -> None:
        """Reads one piece of the free rows, so that all numbers of rows are captured."""
        for count in reversed(self._shapes.batches):
            self.read(1, count)

    @property
    def captured(self) -> tuple[int, ...]:
        """The numbers of rows that have been captured so far."""
        return tuple(self._graphs)

    def _launch(self, rows: int, captured: bool) -> Function:
        if self._capture is None or not captured:
            return self._of(self._rows.batch)
        count = self._shapes.batch_for(rows)
        if count not in self._graphs:
            self._graphs[count] = self._capture(self._of(count))
        return self._graphs[count]

    def _of(self, count: int) -> Function:
        view = first_rows(self._rows, count, Mode(), self._rows.scratch)
        # A capture must not hold `self`.
        drafter, back, piece = self._drafter, self._back, self.piece

        def read() -> None:
            drafter.catch_up(view, (view.lengths - back).clamp_min(0), piece)

        return read
