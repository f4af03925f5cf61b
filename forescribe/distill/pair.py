"""The role of a pair in distillation, the same for speech and for text.

Knows its methods and their shapes; nothing of any implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.protocols import Schedule
from forescribe.speculative.requests import Request

from .labels import CutHead, LabelBatch, LabelRow

Hook = Callable[[str, float, float | None, str], None]
"""Called with the stage, what is done, the whole (None: unknown) and a note."""


@dataclass(frozen=True)
class StepSize:
    """`tokens` of a training step, padding included, in at most `rows` rows."""

    tokens: int
    rows: int


class DraftPair(Protocol):
    """A frozen target, and drafts that are given to each method: a model of transformers."""

    @property
    def device(self) -> Device: ...

    @property
    def target(self) -> Any:
        """The model of transformers."""

    @property
    def target_folder(self) -> Path: ...

    @property
    def text_ids(self) -> int:
        """Tokens below are text; those from here on have a meaning of their own."""

    @property
    def step_size(self) -> StepSize: ...

    def open(self, folder: Path) -> Any:
        """A draft to train, in float32, with everything frozen that it shares with its target or that would
        not pay. Raises ModelError or LoadError."""

    def pruned(self, layers: Sequence[int]) -> Any:
        """A draft to train that has these of the target's decoder layers, likewise."""

    def logits(self, draft: Any, batch: LabelBatch, head: CutHead | None = None) -> Tensor:
        """The draft's logits [N, V] at the predicted positions of a batch, with gradients; [N, L] of the
        tokens of a cut head."""

    def target_logits(self, batch: LabelBatch, begins: Tensor) -> Tensor:
        """The target's logits [N, V] there, processed as it is served; answers begin at `begins [B]`."""

    def request(self, row: LabelRow, tag: int) -> Request:
        """What the engine is asked, to write the row's answer again."""

    def engine(
        self,
        draft: Path | None,
        schedule: Schedule,
        batch: int,
        listed: DraftTokens | None = None,
    ) -> Engine:
        """An engine as it is served, with the draft of a folder; its head cut to `listed`, by default to the
        folder's own list, where it has one."""

    def save(self, draft: Any, folder: Path) -> None:
        """Write a draft's configuration, weights and tokenizer. Raises OSError."""

    def layers(self, draft: Any) -> Any:
        """The decoder layers of a model of this kind, a ModuleList."""
