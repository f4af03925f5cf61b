"""Rows of the result: a speed together with its equality and its error rate.

Knows how figures are computed from runs; nothing of how they are printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..equality import Equality, Tokens, compare
from .clips import Material
from .measure import Series
from .systems.job import FLOAT32, MODULES, OURS, Gamma, Job
from .wer import error_rate


@dataclass(frozen=True)
class Row:
    """One system with one setting; no figures if there is an `error`.

    Tokens are compared with gamma 0 at batch 1: `equality` with this engine's in the row's own dtype, for
    other systems in float32; `equality_float32` with this engine's in float32; `equality_modules` with that
    of transformers' modules over the same weights, None where they were not measured."""

    system: str
    batch: int
    gamma: Gamma
    dtype: str
    wall_s: float | None = None  # median of the repeats: features, encoder and decoding
    walls_s: list[float] = field(default_factory=list)
    x_real_time: float | None = None  # of the whole file, silence included
    word_error_rate: float | None = None
    equality: Equality | None = None
    equality_float32: Equality | None = None
    equality_modules: Equality | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    peak_bytes: int | None = None
    threads: int | None = None
    load_s: float | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    engine: str | None = None  # what computed the target's decoder, in this engine's rows
    draft_dtype: str | None = None  # as it was asked for, in this engine's rows with drafts


@dataclass(frozen=True)
class References:
    """The tokens of gamma 0 at batch 1, by system (this engine, or the modules) and dtype."""

    tokens: Mapping[tuple[str, str], Sequence[Tokens]]

    @classmethod
    def of(cls, all_series: Sequence[Series]) -> References:
        """Those of the runs that succeeded."""
        found = {}
        for series in all_series:
            job = series.job
            plain = job.system in (OURS, MODULES) and (job.batch, job.gamma) == (1, 0)
            if plain and series.error is None and series.median.written is not None:
                found[job.system, job.dtype] = series.median.written.tokens
        return cls(found)

    def own(self, job: Job) -> Sequence[Tokens] | None:
        """What the tokens of a job must equal; None where that run failed."""
        ours = job.system in (OURS, MODULES)
        return self.tokens.get((OURS, job.dtype if ours else FLOAT32))

    def compared(self, system: str, dtype: str, tokens: Sequence[Tokens]) -> Equality | None:
        """Compare with the reference of a system; None where there is none."""
        plain = self.tokens.get((system, dtype))
        return None if plain is None else compare(plain, tokens)


def make_row(series: Series, references: References, material: Material) -> Row:
    job = series.job
    own, error = references.own(job), series.error
    if error is None and own is None:
        error = f"plain decoding in {job.dtype} failed, so its tokens have no reference"
    if error is not None or own is None:
        return Row(
            job.system,
            job.batch,
            job.gamma,
            job.dtype,
            threads=job.threads,
            error=error,
            draft_dtype=job.draft_dtype,
        )
    run = series.median
    assert run.written is not None
    drafting, tokens = run.written.drafting, run.written.tokens
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
        equality=compare(own, tokens),
        equality_float32=references.compared(OURS, FLOAT32, tokens),
        equality_modules=references.compared(MODULES, job.dtype, tokens),
        acceptance_rate=drafting.acceptance_rate if drafting else None,
        mean_acceptance_length=drafting.mean_acceptance_length if drafting else None,
        peak_bytes=max(outcome.peak_bytes for outcome in series.outcomes),
        threads=run.threads,
        load_s=run.load_s,
        stages_s=run.written.stages,
        notes=run.written.notes + unsteady,
        engine=run.written.engine,
        draft_dtype=job.draft_dtype,
    )
