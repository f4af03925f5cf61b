"""Compares this engine, transformers and faster-whisper on the same weights and windows.

    python -m benchmarks.transcribe samples/*.flac --model tiny.en --json out.json

On CPUs, in English, by greedy decoding; every run is a process of its own. Next to each speed stand the
tokens that equal this engine's plain decoding, and the word error rate. The exit status is 1 if a row of this
engine differs, 2 if nothing could be measured; the row of a system that cannot run gives the reason. Import
is light.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import comparison, provenance
from benchmarks.comparison import (
    ACCEPTED,
    BATCH,
    DTYPES,
    FLOAT32,
    WALL,
    WORD_ERRORS,
    Column,
    Gamma,
    Row,
    compare,
    normalise,
    remarks,
    say,
    table,
)
from benchmarks.systems import faster
from benchmarks.systems.jobs import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    GENERATE,
    LANGUAGE,
    NAMES,
    OURS,
    SEQUENTIAL,
    Clip,
    Job,
    Material,
    join,
    read_clips,
)
from benchmarks.systems.runs import Series, child, measure, unmeasured_row
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.model.presets import locate, resolve

PROGRAM = "benchmarks.transcribe"

TRANSFORMERS_DRAFTS = 20
"""The default of `generate`: drafted tokens per round, as long as its confidence lasts."""

STAGES = ("features", "encode", "prefill", "draft", "score", "accept")
"""The stages in order; others follow them."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    made = comparison.parser(PROGRAM, __doc__)
    add = made.add_argument
    add("audio", nargs="+", type=Path, help="recordings, joined in this order, repeated as needed")
    add("--model", default="tiny.en", help="preset, downloaded Hugging Face id or folder")
    add("--reference", action="append", type=Path, metavar="FILE",
        help="text of a recording, one for each  [default: the .txt file beside it]")  # fmt: skip
    add("--minutes", type=float, default=10.0, help="whole recordings are repeated until then")
    add("--batch", type=comparison.numbers(1024), default=(1, 4, 8, 16), metavar="N,N")
    add("--peer-batch", type=comparison.numbers(1024), default=(8,), metavar="N,N",
        help="of other systems that can batch; 1 is always measured")  # fmt: skip
    add("--gamma", type=int, default=5, help="drafts, beside 0 and auto; 0 measures no drafts")
    add("--dtype", type=comparison.names(*DTYPES), default=(FLOAT32,), metavar="TYPE,TYPE",
        help="of this engine's rows; float32, with which others are compared, always")  # fmt: skip
    add("--threads", type=int, default=provenance.cores(), help="of this engine")
    add("--peer-threads", type=comparison.numbers(1024), metavar="N,N",
        help="of other systems, a row for each  [default: 1 and ours]")  # fmt: skip
    add("--only", action="append", choices=NAMES, metavar="SYSTEM",
        help=f"may be given several times: {', '.join(NAMES)}")  # fmt: skip
    options = made.parse_args(arguments)
    if not 0 <= options.minutes < float("inf"):
        made.error(f"--minutes {options.minutes} is no length")
    options.dtype = tuple(dict.fromkeys((FLOAT32, *options.dtype)))
    options.peer_threads = options.peer_threads or tuple({options.threads, 1})
    options.only = tuple(options.only or NAMES)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every job; nothing is downloaded. Raises UsageError, ModelError and AudioError for options, weights
    and recordings, ForescribeError if plain decoding fails."""
    from forescribe.speculative.model_engines import ModelEngine
    from forescribe.speculative.models.quantized import as_floats

    options = parse(arguments)
    if comparison.missing("jiwer"):
        raise UsageError(f"{PROGRAM} needs jiwer: {comparison.INSTALL}")
    comparison.check_record(options.json)
    ModelEngine.of(options.engine)
    pair = resolve(options.model, options.draft, LANGUAGE, 1)
    target = locate(pair.target, role="model", network=False)
    draft = None if pair.draft is None else locate(pair.draft, role="draft", network=False)
    clips = read_clips(options.audio, options.reference)
    check_words(clips)
    material = join(clips, options.minutes)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        read = as_floats(target, scratch / "target")  # the other systems know no weights in 8 bits
        drafts = None if draft is None else as_floats(draft, scratch / "draft", read)
        rows = run(options, read, drafts, material, scratch)
    record = {
        "options": {
            k: v for k, v in vars(options).items() if k not in ("audio", "reference", "json")
        },
        "native_kernels": provenance.instruction_set(),
        "weights": {
            "target": provenance.weights(target),
            "draft": None if draft is None else provenance.weights(draft),
        },
        "audio": {
            "recordings": provenance.digests(options.audio),
            "joined": material.clips,
            "seconds": material.length_s,
            "speech_seconds": material.speech_s,
            "windows": len(material.windows),
            "reference_words": len(material.reference.split()),
        },
        "rows": [record_of(row) for row in rows],
    }
    complaints = [
        f"{row.label}, gamma {row.gamma}: differs from this engine's plain decoding"
        for row in differing(rows)
    ]
    return comparison.report(
        PROGRAM, options.json, text(options, material, rows), record, complaints
    )


def check_words(clips: Sequence[Clip]) -> None:
    """Raise UsageError if no error rate could be computed, before anything is measured."""
    if not any(normalise(clip.words) for clip in clips):
        raise UsageError("the reference texts have no words: there would be no error rate")


def differing(rows: Sequence[Row]) -> list[Row]:
    """The rows of this engine whose tokens are not all those of plain decoding in their dtype."""
    ours = [row for row in rows if row.system == OURS]
    return [row for row in ours if row.equality is None or not row.equality.complete]


def run(
    options: argparse.Namespace, target: Path, draft: Path | None, material: Material, scratch: Path
) -> list[Row]:
    windows = scratch / "windows.npz"
    material.save(windows)
    converted, trouble = converted_for(options.only, target, scratch)
    if trouble is not None:
        say(f"{SEQUENTIAL} cannot take part: {trouble}")
    jobs = plan(options, target, draft, converted)
    all_series = measure(jobs, child(windows), options.repeats, say)
    return [
        _clean(row, scratch, trouble if row.system in (SEQUENTIAL, BATCHED) else None)
        for row in rows_of(all_series, material)
    ]


def converted_for(
    systems: Sequence[str], target: Path, scratch: Path
) -> tuple[dict[str, str], str | None]:
    """Folders of weights as faster-whisper reads them, by dtype, and the reason if there are none; neither
    if it takes no part."""
    if not {SEQUENTIAL, BATCHED} & set(systems):
        return {}, None
    if package := comparison.missing("faster-whisper", "ctranslate2"):
        return {}, f"{package} is not installed: {comparison.INSTALL}"
    return faster.convert(target, scratch, (FLOAT32, "int8"))


def plan(
    options: argparse.Namespace, target: Path, draft: Path | None, converted: Mapping[str, str]
) -> list[Job]:
    """Return all jobs, the reference first: this engine with gamma 0, one window at a time."""

    def job(
        system: str, batch: int, gamma: Gamma = None, dtype: str = FLOAT32, threads: int = 0
    ) -> Job:
        own = None if draft is None else str(draft)
        folder = converted.get(dtype) if system in (SEQUENTIAL, BATCHED) else None
        count = threads or options.threads
        return Job(system, batch, gamma, dtype, str(target), own, count, folder, options.engine)

    lengths: tuple[Gamma, ...] = (options.gamma, "auto") if options.gamma else ()
    jobs = []
    for dtype in options.dtype:
        jobs += [job(OURS, batch, 0, dtype) for batch in (1, *options.batch)]
        jobs += [job(OURS, batch, gamma, dtype) for gamma in lengths for batch in options.batch]
    for threads in options.peer_threads:
        jobs += [job(GENERATE, batch, threads=threads) for batch in (1, *options.peer_batch)]
        # Assisted generation refuses larger batches.
        if options.gamma:
            jobs += [job(ASSISTED, 1, options.gamma, threads=threads)]
        jobs += [job(ASSISTED_DEFAULTS, 1, TRANSFORMERS_DRAFTS, threads=threads)]
        for dtype in (FLOAT32, "int8"):
            jobs += [job(SEQUENTIAL, 1, None, dtype, threads)]
            jobs += [job(BATCHED, batch, None, dtype, threads) for batch in options.peer_batch]
    return [each for each in dict.fromkeys(jobs) if each.system in {OURS, *options.only}]


def rows_of(all_series: Sequence[Series], material: Material) -> list[Row]:
    """The rows with their equality: of this engine's to its gamma 0 at batch 1 in their dtype, of others' to
    that in float32. Raises ForescribeError if plain decoding failed: nothing can be compared with it."""
    first = all_series[0]
    if first.error is not None:
        raise ForescribeError(f"plain decoding failed, so nothing can be compared: {first.error}")
    plain = {}
    for series in all_series:
        job = series.job
        if (job.system, job.batch, job.gamma) == (OURS, 1, 0) and series.error is None:
            assert series.median.written is not None
            plain[job.dtype] = series.median.written.tokens
    rows = []
    for series in all_series:
        dtype = series.job.dtype if series.job.system == OURS else FLOAT32
        row = series.row(material)
        if row.error is None and dtype not in plain:
            row = unmeasured_row(series.job, f"plain decoding in {dtype} failed: no reference")
        if row.error is None:
            row = replace(
                row,
                equality=compare(plain[dtype], row.tokens),
                equality_first=compare(plain[FLOAT32], row.tokens),
                notes=[*row.notes, *([] if row.steady else ["its runs gave different tokens"])],
            )
        rows.append(row)
    return rows


def _clean(row: Row, scratch: Path, trouble: str | None) -> Row:
    """Remove paths of this machine from an error message, and add why conversion failed."""
    if row.error is None:
        return row
    said = row.error if trouble is None else f"{row.error} ({trouble})"
    for path in (str(scratch), str(provenance.ROOT), str(Path.home())):
        said = said.replace(path, "...")
    return replace(row, error=said)


def text(options: argparse.Namespace, material: Material, rows: Sequence[Row]) -> str:
    """The tables, with errors and notes below the first."""
    reduced = any(row.system == OURS and row.dtype != FLOAT32 for row in rows)
    columns = [
        Column("system", lambda row: row.system),
        BATCH,
        Column("gamma", lambda row: row.gamma),
        Column("dtype", lambda row: row.dtype),
        Column("threads", lambda row: row.threads),
        WALL,
        Column("x real time", lambda row: row.x_real_time, "{:.1f}"),
        WORD_ERRORS,
        Column("equal tokens", lambda row: row.equality),
        Column("equal windows", lambda row: row.equality and row.equality.in_windows),
        *([Column("tokens as float32", lambda row: row.equality_first)] if reduced else []),
        ACCEPTED,
        Column("mean length", lambda row: row.mean_acceptance_length, "{:.2f}"),
        Column("peak MB", lambda row: row.peak_bytes and row.peak_bytes / 1e6, "{:.0f}"),
    ]
    lines = [
        f"{options.model}, {material.length_s / 60:.1f} minutes in {len(material.windows)} windows "
        f"({material.speech_s / 60:.1f} minutes of speech), median of {options.repeats}",
        provenance.machine(options.threads),
        "wall: features, encoder and decoding; equal: to this engine's gamma 0 at batch 1, in the same "
        "dtype for its own rows and in float32 for others\n",
        *table(columns, rows),
        *remarks(rows, lambda row: f"{row.label}, {row.threads or '-'} threads"),
        "\nSeconds of this engine by stage (of the median run)\n",
        *stages(rows),
    ]
    return "\n".join(lines)


def stages(rows: Sequence[Row]) -> list[str]:
    """The table of this engine's seconds by stage."""
    ours = [row for row in rows if row.system == OURS and row.stats.seconds]
    known = {name for row in ours for name in row.stats.seconds}
    stages = [name for name in STAGES if name in known] + sorted(known.difference(STAGES))

    def seconds(stage: str) -> Column:
        return Column(stage, lambda row: row.stats.seconds.get(stage), "{:.2f}")

    columns = [
        Column("dtype", lambda row: row.dtype),
        BATCH,
        Column("gamma", lambda row: row.gamma),
        *map(seconds, stages),
        Column("sum", lambda row: sum(row.stats.seconds.values()), "{:.2f}"),
        Column("wall", lambda row: row.wall_s, "{:.2f}"),
    ]
    return table(columns, ours)


def record_of(row: Row) -> dict[str, object]:
    return (
        row.record("system", "batch", "gamma", "dtype", "wall_s", "walls_s", "x_real_time")
        | row.record("word_error_rate", "equality", "acceptance_rate", "mean_acceptance_length")
        | {"equality_float32": row.record("equality_first")["equality_first"]}
        | row.record("peak_bytes", "threads", "load_s", "notes", "error", "engine")
        | {"stages_s": row.stats.seconds}
    )


if __name__ == "__main__":
    comparison.start(main)
