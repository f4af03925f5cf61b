"""Jobs and systems: what is run in one row of the table, and what comes back.

Knows names and records; imports no system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from forescribe.asr.model.special_tokens import Task

from ..clips import Samples

OURS = "forescribe"
GENERATE = "transformers"
ASSISTED = "transformers assisted"
ASSISTED_DEFAULTS = "transformers assisted, its defaults"
SEQUENTIAL = "faster-whisper"
BATCHED = "faster-whisper batched"
NAMES = (OURS, GENERATE, ASSISTED, ASSISTED_DEFAULTS, SEQUENTIAL, BATCHED)

Gamma = int | Literal["auto"] | None
"""Drafts per round; auto leaves them to the engine, None says that the system does not draft."""

LANGUAGE = "en"
TASK: Task = "transcribe"


@dataclass(frozen=True)
class Job:
    """One row of the table: a system and its settings. Folders only, so that all weights are equal.

    `converted` is CTranslate2's folder of the same target in `dtype`; other systems ignore it.
    """

    system: str
    batch: int
    gamma: Gamma
    dtype: str
    model: str
    draft: str | None
    threads: int
    converted: str | None = None

    @property
    def label(self) -> str:
        gamma = "" if self.gamma is None else f" gamma {self.gamma}"
        return f"{self.system} batch {self.batch}{gamma} {self.dtype}"


@dataclass(frozen=True)
class Drafting:
    """What became of the drafts of one run."""

    rounds: int
    drafted: int
    accepted: int

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return 1 + self.accepted / self.rounds if self.rounds else None


@dataclass(frozen=True)
class Written:
    """What one run over all windows gave."""

    tokens: list[list[int]]  # per window, without the prompt and end-of-text
    texts: list[str]  # in order; joined, they are the file's
    drafting: Drafting | None = None
    stages: dict[str, float] = field(default_factory=dict)  # seconds, where the system tells
    notes: list[str] = field(default_factory=list)


class System(Protocol):
    """Built once, run as often as one likes."""

    @property
    def threads(self) -> int:
        """Those that it computes with."""

    def run(self, windows: Sequence[Samples]) -> Written: ...


def use_threads(count: int) -> int:
    """Sets torch's threads for this process, and says what it made of that."""
    import torch

    torch.set_num_threads(count)
    return torch.get_num_threads()
