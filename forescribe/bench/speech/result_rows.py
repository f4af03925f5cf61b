"""Rows of the result: a speed together with its equality and its error rate.

Knows how figures are computed from runs; nothing of how they are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..equality import Equality, Tokens, compare
from .clips import Material
from .measure import Series
from .systems.job import Gamma
from .wer import error_rate


@dataclass(frozen=True)
class Row:
    """One system with one setting; no figures if there is an `error`."""

    system: str
    batch: int
    gamma: Gamma
    dtype: str
    wall_s: float | None = None  # median of the repeats: features, encoder and decoding
    walls_s: list[float] = field(default_factory=list)
    x_real_time: float | None = None  # of the whole file, silence included
    word_error_rate: float | None = None
    equality: Equality | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    peak_bytes: int | None = None
    threads: int | None = None
    load_s: float | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    engine: str | None = None  # what computed the target's decoder, in this engine's rows


def make_row(series: Series, plain: Sequence[Tokens], material: Material) -> Row:
    job = series.job
    if series.error is not None:
        return Row(
            job.system,
            job.batch,
            job.gamma,
            job.dtype,
            threads=job.threads,
            error=series.error,
        )
    run = series.median
    assert run.written is not None
    drafting = run.written.drafting
    unsteady = [] if series.steady else ["its runs gave different tokens"]
    return Row(
        job.system,
        job.batch,
        job.gamma,
        job.dtype,
        wall_s=run.wall_s,
        walls_s=series.walls,
        x_real_time=material.length_s / run.wall_s,
        word_error_rate=error_rate(material.reference, " ".join(run.written.texts)),
        equality=compare(plain, run.written.tokens),
        acceptance_rate=drafting.acceptance_rate if drafting else None,
        mean_acceptance_length=drafting.mean_acceptance_length if drafting else None,
        peak_bytes=max(outcome.peak_bytes for outcome in series.outcomes),
        threads=run.threads,
        load_s=run.load_s,
        stages_s=run.written.stages,
        notes=run.written.notes + unsteady,
        engine=run.written.engine,
    )
