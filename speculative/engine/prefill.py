"""Runs prefills: of a model that reads encoder states, a shape that comes again is one launch.

Operator by operator, a prefill of large-v3's 32 layers costs the host 10 ms, in which the device idles: on an
H100 as long as two rounds of eight rows. Knows prompts and models; nothing of requests, slots or schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..protocols import Model, StackedModel
from ..types import Prefilled
from .captures import Capture

log = logging.getLogger(__name__)

Shape = tuple[int, int, int | None]
"""Rows, tokens of a prompt, and positions with logits (None: the model's choice)."""

MOST_BYTES = 64 << 20
"""Of the logits of a captured prefill, which keep their memory: those of one position of 16 rows of Whisper
take 3 MB. Larger ones are rare, and long enough to hide the launches."""

MOST_GRAPHS = 32
"""Captured prefills of an engine."""


class PrefillRunner:
    """The prefill of a model in an engine of `batch` rows, as `Model.prefill`.

    With `capture` the second prefill of a shape captures it: shapes that come once are never captured. What a
    captured prefill returns is overwritten by the next one of its shape. A shape whose capture fails, for
    lack of memory, say, runs operator by operator from then on; `refused` has the reason.
    """

    def __init__(self, model: Model, batch: int, capture: Capture | None = None) -> None:
        self._model, self._batch = model, batch
        self._capture = capture if hasattr(model, "prefill_stacked") else None
        self._seen: set[Shape] = set()
        self.refused: dict[Shape, Exception] = {}
        self._graphs: dict[Shape, Replay] = {}
        self._states: Tensor | None = None  # [batch, S, D], which all graphs read

    @property
    def captured(self) -> tuple[Shape, ...]:
        """The shapes that have been captured so far."""
        return tuple(self._graphs)

    def __call__(
        self, rows: Tensor, tokens: Tensor, encoder_states: Sequence[Any], nodes: Tensor | None
    ) -> Prefilled:
        if self._capture is None:
            return self._model.prefill(rows, tokens, encoder_states, nodes)
        model: Any = self._model
        states = model.stacked(encoder_states)
        shape = (*tokens.shape, None if nodes is None else nodes.shape[1])
        given = (rows, tokens, states, nodes)
        if shape not in self._graphs and self._wanted(shape):
            try:
                if self._states is None:
                    self._states = states.new_empty((self._batch, *states.shape[1:]))
                self._graphs[shape] = captured(model, self._capture, given, self._states)
            except Exception as error:
                self.refused[shape] = error.with_traceback(None)  # it would keep tensors
                log.warning("a prefill of %s is not captured, and slower: %s", shape, error)
        self._seen.add(shape)
        replay = self._graphs.get(shape)
        found: Prefilled = replay(*given) if replay else model.prefill_stacked(*given)
        return found

    def _wanted(self, shape: Shape) -> bool:
        """Whether a shape is to be captured."""
        rows, tokens, positions = shape
        bytes_ = 4 * rows * (tokens if positions is None else positions) * self._model.vocab_size
        known = shape in self._seen and shape not in self.refused
        fits = rows <= self._batch and bytes_ <= MOST_BYTES and len(self._graphs) < MOST_GRAPHS
        return known and fits


Replay = Callable[[Tensor, Tensor, Tensor, Tensor | None], Prefilled]


@torch.inference_mode()
def captured(
    model: StackedModel,
    capture: Capture,
    given: tuple[Tensor, Tensor, Tensor, Tensor | None],
    buffer: Tensor,
) -> Replay:
    """A captured prefill of what is shaped as `given`, on tensors that stay where they are: the first rows of
    `buffer` for the states. Capturing runs it on `given`."""
    rows, tokens, states, nodes = given
    fixed = (rows.clone(), tokens.clone(), buffer[: len(states)])
    positions = None if nodes is None else nodes.clone()
    fixed[2].copy_(states)
    first = model.prefill_stacked(*fixed, positions)
    logits = torch.empty_like(first.logits)
    taps = None if first.taps is None else torch.empty_like(first.taps)

    def run() -> None:
        made = model.prefill_stacked(*fixed, positions)
        logits.copy_(made.logits)
        if taps is not None and made.taps is not None:
            taps.copy_(made.taps)

    graph = capture(run)

    @torch.inference_mode()
    def replay(rows: Tensor, tokens: Tensor, states: Tensor, nodes: Tensor | None) -> Prefilled:
        for mine, theirs in zip(fixed, (rows, tokens, states), strict=True):
            mine.copy_(theirs)
        if positions is not None and nodes is not None:
            positions.copy_(nodes)
        graph()
        return Prefilled(logits, taps)

    return replay
