"""Drafters of speech: jobs of `bench transcribe`, each turn in a process of its own.

Knows recordings, pairs and jobs; nothing of figures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from forescribe.asr.model.presets import locate, resolve
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.stats import Stats

from ..speech.bench_transcribe import check_words
from ..speech.clips import Material as Audio
from ..speech.clips import join, read_clips
from ..speech.measure import Series, child, measure
from ..speech.systems.job import LANGUAGE, OURS, Job
from ..speech.wer import error_rate, normalise
from .draft_options import Material, Options
from .draft_rows import PLAIN, DraftRun

MODEL = "tiny.en"
LOOKUP = "lookup"
"""Drafts without a model, copied from the text so far."""


def speech_runs(options: Options, say: Callable[[str], None]) -> tuple[Material, list[DraftRun]]:
    """Plain decoding, lookup, and every draft with every way to draft."""
    ModelEngine.of(options.engine)
    name = options.model or MODEL
    target = locate(resolve(name, "none", LANGUAGE).target, role="model", network=False)
    clips = read_clips(options.audio, options.reference, required=False)
    if options.reference:
        check_words(clips)
    audio = join(clips, options.minutes)
    jobs = plan(options, target, drafts_of(options, name))
    with tempfile.TemporaryDirectory() as scratch:
        windows = Path(scratch) / "windows.npz"
        audio.save(windows)
        labels = {job: label for label, job in jobs}
        all_series = measure([job for _, job in jobs], child(windows), options.repeats, say)
    runs = [_run(labels[series.job], series, audio) for series in all_series]
    text = f"{name}, {audio.length_s / 60:.1f} minutes in {len(audio.windows)} windows"
    record: dict[str, object] = {"seconds": audio.length_s, "windows": len(audio.windows)}
    return Material(text, record), runs


def drafts_of(options: Options, model: str) -> list[tuple[str, Path]]:
    """Draft models by label. Raises ModelError: nothing is downloaded."""
    pairs = [(each, resolve(model, each, LANGUAGE)) for each in options.draft]
    if not options.draft:
        own = resolve(model, None, LANGUAGE)
        pairs = [] if own.draft is None else [(str(own.draft), own)]
    return [
        (label, locate(pair.draft, role="draft", network=False))
        for label, pair in pairs
        if pair.draft is not None
    ]


def plan(
    options: Options, target: Path, drafts: Sequence[tuple[str, Path]]
) -> list[tuple[str, Job]]:
    """All jobs with their labels, plain decoding first."""

    def job(batch: int, gamma: int | None, draft: Path | None, drafter: str = "auto") -> Job:
        return Job(
            OURS,
            batch,
            "auto" if gamma is None else gamma,
            options.dtype,
            str(target),
            None if draft is None else str(draft),
            options.threads or _cores(),
            engine=options.engine,
            draft_dtype=None if draft is None else options.draft_dtype,
            drafter=drafter,
        )

    jobs = [(PLAIN, job(batch, 0, None)) for batch in options.batches]
    for batch in options.batches:
        for gamma in options.gamma:
            jobs.append((LOOKUP, job(batch, gamma, None)))
            for label, draft in drafts:
                for drafter in options.drafters or ("model",):
                    short = Path(label).name if len(drafts) > 1 else ""
                    jobs.append(
                        (
                            " ".join(filter(None, (drafter, short))),
                            job(batch, gamma, draft, drafter),
                        )
                    )
    return jobs


def _cores() -> int:
    from ..speech.bench_transcribe import Options as Measured

    return Measured(()).cores


def _run(label: str, series: Series, audio: Audio) -> DraftRun:
    job = series.job
    gamma = None if job.gamma == "auto" else job.gamma
    if series.error is not None:
        return DraftRun(label, job.batch, gamma, error=series.error)
    written = series.median.written
    assert written is not None
    counts = written.drafting
    rate = None  # drafts change no word: their rows are compared by tokens
    if normalise(audio.reference):
        rate = error_rate(audio.reference, " ".join(written.texts))
    stats = Stats(
        rounds=written.rounds,
        row_rounds=written.row_rounds,
        emitted=written.emitted,
        drafted_at_depth=tuple(counts.drafted_at_depth) if counts else (),
        accepted_at_depth=tuple(counts.accepted_at_depth) if counts else (),
        seconds=written.stages,
    )
    return DraftRun(
        label,
        job.batch,
        gamma,
        walls_s=series.walls,
        tokens=written.tokens,
        stats=stats,
        steady=series.steady,
        word_error_rate=rate,
    )
