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
MODULES = "forescribe, modules"
"""This engine over transformers' own modules, with the same weights: the reference of the other engines."""
GENERATE = "transformers"
ASSISTED = "transformers assisted"
ASSISTED_DEFAULTS = "transformers assisted, its defaults"
SEQUENTIAL = "faster-whisper"
BATCHED = "faster-whisper batched"
NAMES = (OURS, GENERATE, ASSISTED, ASSISTED_DEFAULTS, SEQUENTIAL, BATCHED)

Gamma = int | Literal["auto"] | None
"""Drafted tokens per round; auto lets the engine choose, None means that the system does not draft."""

FLOAT32 = "float32"

LANGUAGE = "en"
TASK: Task = "transcribe"


@dataclass(frozen=True)
class Job:
    """A row of the table: a system and its settings. Models are folders, so that all weights are equal.

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
    engine: str = "auto"  # what computes the decoders of this engine's rows
    draft_dtype: str | None = None  # of this engine's draft; None where it has none
    drafter: str = "auto"  # how this engine drafts, see `asr.decode.drafting`

    @property
    def label(self) -> str:
        gamma = "" if self.gamma is None else f" gamma {self.gamma}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        draft = "" if self.draft_dtype is None else f", draft {self.draft_dtype}"
        return f"{self.system} batch {self.batch}{gamma} {self.dtype}{draft}, {threads}"


@dataclass(frozen=True)
class Drafting:
    """Counts of drafted and accepted tokens in one run."""

    rounds: int
    drafted: int
    accepted: int
    drafted_at_depth: Sequence[int] = ()
    accepted_at_depth: Sequence[int] = ()

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return 1 + self.accepted / self.rounds if self.rounds else None


@dataclass(frozen=True)
class Written:
    """The tokens and texts of one run over all windows."""

    tokens: list[list[int]]  # per window, without the prompt and end-of-text
    texts: list[str]  # in order; joined, they are the file's
    drafting: Drafting | None = None
    stages: dict[str, float] = field(default_factory=dict)  # seconds, if known
    notes: list[str] = field(default_factory=list)
    engine: str | None = None  # what computed the target's decoder, for this engine's rows
    rounds: int = 0  # of the batch, of this engine
    row_rounds: int = 0  # rounds that rows took part in
    emitted: int = 0  # tokens that rounds wrote


class System(Protocol):
    """A loaded system, which can run any number of times."""

    @property
    def threads(self) -> int:
        """The number of threads that it uses."""

    def run(self, windows: Sequence[Samples]) -> Written: ...


def use_threads(count: int) -> int:
    """Set the number of torch's threads in this process; returns the number in effect."""
    import torch

    torch.set_num_threads(count)
    return torch.get_num_threads()
