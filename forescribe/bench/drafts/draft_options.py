"""What `bench drafts` measures, and on what.

Knows values; nothing of models or recordings.
"""

from __future__ import annotations

from dataclasses import dataclass

from .draft_rows import Gamma


@dataclass(frozen=True)
class Options:
    """What is measured: speech where there are recordings, else text.

    `draft` are draft models or heads, as for `--draft`; none takes the model's own. `drafters` are the ways
    to draft in speech, `asr.decode.drafting.SOURCES`. `threads` 0 means all cores."""

    audio: tuple[str, ...] = ()
    reference: tuple[str, ...] | None = None
    minutes: float = 0.0
    prompts: str | None = None
    max_tokens: int = 128
    model: str | None = None
    draft: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    batch: tuple[int, ...] = (1, 4, 8, 16)
    gamma: tuple[Gamma, ...] = (None,)
    repeats: int = 1
    threads: int = 0
    engine: str = "auto"
    dtype: str = "float32"
    draft_dtype: str = "auto"

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.batch)))


@dataclass(frozen=True)
class Material:
    """What was decoded, in words and as a record."""

    text: str
    record: dict[str, object]
