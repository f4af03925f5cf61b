"""This engine, transformers and faster-whisper on the same weights and windows, in one run.

    python -m benchmarks.transcribe --model demo --audio samples/*.flac --json out.json

A table on stdout, a record with everything in it as JSON, progress on stderr. Exit status: 0, or 1
where this engine's own rows are not equal, token for token, to its plain decoding. Rows of peers
may fail; they say why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asr.errors import ForescribeError
from asr.presets import Pair, resolve
from asr.weights import locate
from benchmarks import provenance, table
from benchmarks.audio import Material, join, read_clips
from benchmarks.convert import convert
from benchmarks.measure import Series, child, measure
from benchmarks.rows import Row, make_row
from benchmarks.systems import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    GENERATE,
    LANGUAGE,
    NAMES,
    OURS,
    SEQUENTIAL,
    Job,
)

TRANSFORMERS_DRAFTS = 20
"""What `generate` drafts per round where nobody says otherwise, if its confidence lasts."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transcribe", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--model", default="demo", help="preset, hub id in the cache, or folder")
    add("--draft", help="likewise; the model's own by default")
    add(
        "--audio", nargs="+", required=True, metavar="FILE", help="recordings, joined in this order"
    )
    add("--reference", nargs="+", metavar="TXT", help="their words; default: the .txt beside each")
    add("--minutes", type=float, default=10, help="at least so long, by repeating whole recordings")
    add("--batch", type=_numbers, default=[1, 4, 8, 16], metavar="N,N", help="this engine's")
    add("--peer-batch", type=int, default=8, help="of the peers that batch, beside 1")
    add("--gamma", type=int, default=5, help="drafts per round")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=_cores(), help="of every system; default: all cores")
    add("--only", nargs="+", choices=NAMES, metavar="SYSTEM", help=f"of: {', '.join(NAMES)}")
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan(
    options: argparse.Namespace, target: Path, draft: Path | None, converted: dict[str, str]
) -> list[Job]:
    """All rows, the reference first: this engine at gamma 0, one window at a time."""

    def job(system: str, batch: int, gamma: int | None = None, dtype: str = "float32") -> Job:
        model, own = str(target), None if draft is None else str(draft)
        folder = converted.get(dtype)
        return Job(system, batch, gamma, dtype, model, own, options.threads, folder)

    jobs = [job(OURS, 1, 0)]
    jobs += [job(OURS, batch, 0) for batch in options.batch if batch != 1]
    jobs += [job(OURS, batch, options.gamma) for batch in options.batch if options.gamma]
    jobs += [job(GENERATE, batch) for batch in (1, options.peer_batch)]
    # Batch 1 is all it can: larger ones it refuses.
    jobs += [job(ASSISTED, 1, options.gamma), job(ASSISTED_DEFAULTS, 1, TRANSFORMERS_DRAFTS)]
    for dtype in ("float32", "int8"):
        jobs += [job(SEQUENTIAL, 1, None, dtype), job(BATCHED, options.peer_batch, None, dtype)]
    wanted = {OURS, *(options.only or NAMES)}
    return [each for each in dict.fromkeys(jobs) if each.system in wanted]


def rows_of(all_series: Sequence[Series], material: Material) -> list[Row]:
    """Raises ValueError where plain decoding failed: there is nothing to compare with."""
    first = all_series[0]
    if first.error is not None:
        raise ValueError(f"plain decoding failed: {first.error}")
    assert first.median.written is not None
    plain = first.median.written.tokens
    return [make_row(series, plain, material) for series in all_series]


def exact(rows: Sequence[Row]) -> bool:
    """Whether this engine did what it promises: every token of plain decoding, at every batch."""
    ours = [row for row in rows if row.system == OURS]
    return all(row.equality is not None and row.equality.complete for row in ours)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        pair = resolve(options.model, options.draft, LANGUAGE)
        target, draft = folders(pair)
        material = join(read_clips(options.audio, options.reference), options.minutes)
        with tempfile.TemporaryDirectory() as scratch:
            rows = run(options, target, draft, material, Path(scratch))
    except (ForescribeError, ValueError) as error:
        print(f"benchmarks.transcribe: {error}", file=sys.stderr)
        return 2
    report(options, rows, material)
    if options.json is not None:
        record = describe(options, target, draft, material) | {"rows": [asdict(r) for r in rows]}
        options.json.write_text(json.dumps(record) + "\n")
    return 0 if exact(rows) else 1


def folders(pair: Pair) -> tuple[Path, Path | None]:
    """Where the weights are; nothing is downloaded in a measurement."""
    draft = None if pair.draft is None else locate(pair.draft, role="draft", network=False)
    return locate(pair.target, role="model", network=False), draft


def run(
    options: argparse.Namespace,
    target: Path,
    draft: Path | None,
    material: Material,
    scratch: Path,
) -> list[Row]:
    windows = scratch / "windows.npz"
    material.save(windows)
    peers = {SEQUENTIAL, BATCHED} & set(options.only or NAMES)
    converted, trouble = convert(target, scratch, ("float32", "int8")) if peers else ({}, None)
    if trouble is not None:
        _say(f"CTranslate2 cannot convert the model: {trouble}")
    jobs = plan(options, target, draft, converted)
    all_series = measure(jobs, child(windows), options.repeats, _say)
    return [_clean(row, scratch, trouble) for row in rows_of(all_series, material)]


def _clean(row: Row, scratch: Path, trouble: str | None) -> Row:
    """Messages without the paths of this machine, and with the reason behind the reason."""
    if row.error is None:
        return row
    text = row.error
    if trouble is not None and row.system in (SEQUENTIAL, BATCHED):
        text = f"{text} ({trouble})"
    for path in (str(scratch), str(provenance.ROOT), str(Path.home())):
        text = text.replace(path, "...")
    return Row(row.system, row.batch, row.gamma, row.dtype, error=text)


def report(options: argparse.Namespace, rows: Sequence[Row], material: Material) -> None:
    machine = provenance.device()
    print(
        f"{options.model}, {material.length_s / 60:.1f} minutes in {len(material.windows)} windows "
        f"({material.speech_s / 60:.1f} minutes of speech), {machine['cpu']}, "
        f"{options.threads} threads, median of {options.repeats}"
    )
    print("wall: features, encoder and decoding; equal: to this engine's gamma 0 at batch 1\n")
    print(table.results(rows))
    print("\nSeconds of this engine by stage (of the median run)\n")
    print(table.stages(rows))
    print("\n" + table.gains(rows))


def describe(
    options: argparse.Namespace, target: Path, draft: Path | None, material: Material
) -> dict[str, object]:
    """Everything around the rows."""
    given = {k: v for k, v in vars(options).items() if k not in ("json", "audio", "reference")}
    return {
        "benchmark": "transcribe",
        **provenance.record("benchmarks.transcribe"),
        "options": given,
        "weights": {
            "target": provenance.weights(target),
            "draft": None if draft is None else provenance.weights(draft),
        },
        "audio": {
            "recordings": provenance.digests(map(Path, options.audio)),
            "joined": material.clips,
            "seconds": material.length_s,
            "speech_seconds": material.speech_s,
            "windows": len(material.windows),
            "reference_words": len(material.reference.split()),
        },
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
