"""Compares this engine, transformers and faster-whisper on the same weights and windows, in one run.

    result = measured(Options(("samples/memo.flac",)), say=print)
    print(result.text())

Other systems may fail; their rows give the reason. Knows the jobs and the result; nothing of commands.

Conversion of a target to CTranslate2's format, in a temporary folder.

Knows the converter; nothing of what runs on its result.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import provenance
from benchmarks import rows as speech_rows
from benchmarks.provenance import INSTALL, missing
from benchmarks.rows import References, Row, make_row, normalise
from benchmarks.systems.jobs import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    FLOAT32,
    GENERATE,
    LANGUAGE,
    MODULES,
    NAMES,
    OURS,
    SEQUENTIAL,
    Clip,
    Gamma,
    Job,
    Material,
    join,
    read_clips,
)
from benchmarks.systems.runs import Series, child, measure
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.model.presets import Pair, locate, resolve
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.models.quantized import as_floats

MORE_FILES = ("tokenizer.json", "preprocessor_config.json")
"""What faster-whisper reads besides the weights; else it downloads those of whisper-tiny."""


def convert(model: Path, into: Path, dtypes: Iterable[str]) -> tuple[dict[str, str], str | None]:
    """Return folders by dtype, and the reason if conversion failed.

    A missing library, or a model that it refuses, costs the rows of that system, not the run.
    """
    folders: dict[str, str] = {}
    try:
        importlib.import_module("transformers.utils.logging").disable_progress_bar()
        converters = importlib.import_module("ctranslate2.converters")
        files = [name for name in MORE_FILES if (model / name).is_file()]
        for dtype in dtypes:
            converter = converters.TransformersConverter(str(model), copy_files=files)
            folder = into / dtype
            converter.convert(str(folder), quantization=dtype)
            folders[dtype] = str(folder)
    except Exception as error:  # the library may raise anything
        return folders, f"{type(error).__name__}: {error}"
    return folders, None


TRANSFORMERS_DRAFTS = 20
"""The default of `generate`: drafted tokens per round, as long as its confidence lasts."""

FASTER = (SEQUENTIAL, BATCHED)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Options:
    """What is measured. `reference` None means the .txt file beside each recording; `batch` is for this
    engine, `peer_batch` for other systems that can batch; `only` are the systems to compare with.
    `dtype` are this engine's number formats besides float32, which is always measured; `modules` adds
    gamma 0 by transformers' modules in each. `threads` 0 means all cores. `peer_threads` are the thread
    counts of the other systems, each in a row of its own; None means one thread and all of them: either
    may be the faster."""

    audio: tuple[str, ...]
    model: str = "tiny.en"
    draft: str | None = None
    reference: tuple[str, ...] | None = None
    minutes: float = 10.0
    batch: tuple[int, ...] = (1, 4, 8, 16)
    peer_batch: tuple[int, ...] = (8,)
    gamma: int = 5
    repeats: int = 3
    threads: int = 0
    peer_threads: tuple[int, ...] | None = None
    only: tuple[str, ...] = NAMES
    engine: str = "auto"  # of `ModelEngine`, for this engine's rows
    dtype: tuple[str, ...] = ()
    draft_dtype: tuple[str, ...] = ("auto",)  # of this engine's drafts, with rows for each
    modules: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """This engine's number formats, float32 first."""
        return tuple(dict.fromkeys((FLOAT32, *self.dtype)))

    @property
    def cores(self) -> int:
        return self.threads or _cores()

    @property
    def peer_cores(self) -> tuple[int, ...]:
        """The thread counts of the other systems, most first."""
        chosen = (1, self.cores) if self.peer_threads is None else self.peer_threads
        return tuple(sorted({count or self.cores for count in chosen}, reverse=True))


@dataclass(frozen=True)
class Result:
    """All rows, the reference first, and what they were measured on."""

    options: Options
    target: Path
    draft: Path | None
    material: Material
    rows: Sequence[Row]

    @property
    def differing(self) -> list[Row]:
        """The rows of this engine whose tokens are not all those of plain decoding in their dtype, and the
        modules' in float32: in a reduced one, engines round in different places."""
        ours = [row for row in self.rows if (row.system, row.dtype) in self._promised]
        return [row for row in ours if row.equality is None or not row.equality.complete]

    @property
    def _promised(self) -> set[tuple[str, str]]:
        return {(MODULES, FLOAT32), *((OURS, dtype) for dtype in self.options.dtypes)}

    def text(self) -> str:
        """Return the tables."""
        options, material, rows = self.options, self.material, self.rows
        kernels = provenance.instruction_set()
        parts = [
            f"{options.model}, {material.length_s / 60:.1f} minutes in {len(material.windows)} windows "
            f"({material.speech_s / 60:.1f} minutes of speech), median of {options.repeats}",
            f"{provenance.device()['cpu']}, {options.cores} threads, "
            + ("no native kernels" if kernels is None else f"native kernels for {kernels}"),
            "wall: features, encoder and decoding; equal: to this engine's gamma 0 at batch 1, in the "
            "same dtype for its own rows and in float32 for others\n",
            speech_rows.results(rows),
            "\nSeconds of this engine by stage (of the median run)\n",
            speech_rows.stages(rows),
        ]
        ends = [
            speech_rows.gains_table(speech_rows.gains(rows)),
            speech_rows.reductions_table(speech_rows.reductions(rows)),
            speech_rows.exact_table(speech_rows.against_exact(rows)),
            speech_rows.reduced_table(
                speech_rows.against_reduced(rows), speech_rows.left_out(rows)
            ),
        ]
        return "\n".join([*parts, *(line for end in filter(None, ends) for line in ("", end))])

    def record(self, program: str) -> dict[str, object]:
        """Return the full JSON record; `program` as in `provenance.record`."""
        given = {k: v for k, v in asdict(self.options).items() if k not in ("audio", "reference")}
        return {
            "benchmark": "transcribe",
            **provenance.record(program),
            "options": given
            | {
                "threads": self.options.cores,
                "peer_threads": self.options.peer_cores,
                "dtype": self.options.dtypes,
            },
            "native_kernels": provenance.instruction_set(),
            "weights": {
                "target": provenance.weights(self.target),
                "draft": None if self.draft is None else provenance.weights(self.draft),
            },
            "audio": {
                "recordings": provenance.digests(map(Path, self.options.audio)),
                "joined": self.material.clips,
                "seconds": self.material.length_s,
                "speech_seconds": self.material.speech_s,
                "windows": len(self.material.windows),
                "reference_words": len(self.material.reference.split()),
            },
            "rows": [asdict(row) for row in self.rows],
            "ratios": {
                name: [ratio.record() for ratio in of(self.rows)]
                for name, of in (
                    ("gains", speech_rows.gains),
                    ("reductions", speech_rows.reductions),
                    ("against_exact", speech_rows.against_exact),
                    ("against_reduced", speech_rows.against_reduced),
                )
            },
        }


def measured(options: Options, say: Callable[[str], None]) -> Result:
    """Run every job in a process of its own; `say` gets a line per run. Nothing is downloaded.

    Raises UsageError, ModelError and AudioError for options, weights and recordings; ForescribeError if
    plain decoding fails.
    """
    ModelEngine.of(options.engine)
    target, draft = folders(resolve(options.model, options.draft, LANGUAGE))
    clips = read_clips(options.audio, options.reference)
    check_words(clips)
    material = join(clips, options.minutes)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        read = as_floats(target, scratch / "target")  # the other systems know no weights in 8 bits
        drafts = None if draft is None else as_floats(draft, scratch / "draft", read)
        rows = run(options, read, drafts, material, scratch, say)
    return Result(options, target, draft, material, rows)


def check_words(clips: Sequence[Clip]) -> None:
    """Raise UsageError if no error rate could be computed, before anything is measured."""
    if not any(normalise(clip.words) for clip in clips):
        raise UsageError("the reference texts have no words: there would be no error rate")


def folders(pair: Pair) -> tuple[Path, Path | None]:
    """Return the folders of target and draft. Raises ModelError: nothing is downloaded."""
    draft = None if pair.draft is None else locate(pair.draft, role="draft", network=False)
    return locate(pair.target, role="model", network=False), draft


def run(
    options: Options,
    target: Path,
    draft: Path | None,
    material: Material,
    scratch: Path,
    say: Callable[[str], None],
) -> list[Row]:
    windows = scratch / "windows.npz"
    material.save(windows)
    converted, trouble = converted_for(options, target, scratch)
    if trouble is not None:
        say(f"faster-whisper cannot take part: {trouble}")
    jobs = plan(options, target, draft, converted)
    all_series = measure(jobs, child(windows), options.repeats, say)
    return [_clean(row, scratch, trouble) for row in rows_of(all_series, material)]


def converted_for(
    options: Options, target: Path, scratch: Path
) -> tuple[dict[str, str], str | None]:
    """Return CTranslate2's folders by dtype, and the reason if there are none; neither if not needed."""
    if not set(FASTER) & set(options.only):
        return {}, None
    package = missing("faster_whisper", "ctranslate2")
    if package is not None:
        return {}, f"{package} is not installed: {INSTALL}"
    return convert(target, scratch, (FLOAT32, "int8"))


def plan(
    options: Options, target: Path, draft: Path | None, converted: Mapping[str, str]
) -> list[Job]:
    """Return all jobs, the reference first: this engine with gamma 0, one window at a time."""

    def job(
        system: str,
        batch: int,
        gamma: Gamma = None,
        dtype: str = FLOAT32,
        threads: int = 0,
        draft_dtype: str | None = None,
    ) -> Job:
        model, own = str(target), None if draft is None else str(draft)
        count = threads or options.cores
        folder = converted.get(dtype)
        engine = "modules" if system == MODULES else options.engine
        return Job(system, batch, gamma, dtype, model, own, count, folder, engine, draft_dtype)

    jobs = []
    lengths: tuple[Gamma, ...] = (options.gamma, "auto") if options.gamma else ()
    for dtype in options.dtypes:
        jobs += [job(OURS, 1, 0, dtype)]
        jobs += [job(OURS, batch, 0, dtype) for batch in options.batch if batch != 1]
        jobs += [
            job(OURS, batch, gamma, dtype, draft_dtype=own)
            for own in (options.draft_dtype if draft is not None else (None,))
            for gamma in lengths
            for batch in options.batch
        ]
    if options.modules:
        jobs += [job(MODULES, 1, 0, dtype) for dtype in options.dtypes]
    for threads in options.peer_cores:
        jobs += [job(GENERATE, batch, threads=threads) for batch in (1, *options.peer_batch)]
        # Assisted generation refuses larger batches.
        if options.gamma:
            jobs += [job(ASSISTED, 1, options.gamma, threads=threads)]
        jobs += [job(ASSISTED_DEFAULTS, 1, TRANSFORMERS_DRAFTS, threads=threads)]
        for dtype in (FLOAT32, "int8"):
            jobs += [job(SEQUENTIAL, 1, None, dtype, threads)]
            jobs += [job(BATCHED, batch, None, dtype, threads) for batch in options.peer_batch]
    systems = {OURS, MODULES, *options.only}
    return [each for each in dict.fromkeys(jobs) if each.system in systems]


def rows_of(all_series: Sequence[Series], material: Material) -> list[Row]:
    """Make the rows. Raises ForescribeError if plain decoding failed: nothing can be compared with
    it."""
    first = all_series[0]
    if first.error is not None:
        raise ForescribeError(f"plain decoding failed, so nothing can be compared: {first.error}")
    references = References.of(all_series)
    return [make_row(series, references, material) for series in all_series]


def _clean(row: Row, scratch: Path, trouble: str | None) -> Row:
    """Remove paths of this machine from an error message, and add why conversion failed."""
    if row.error is None:
        return row
    text = row.error
    if trouble is not None and row.system in FASTER:
        text = f"{text} ({trouble})"
    for path in (str(scratch), str(provenance.ROOT), str(Path.home())):
        text = text.replace(path, "...")
    return replace(row, error=text)


if __name__ == "__main__":
    from benchmarks.options import start, transcribe

    start(transcribe, "benchmarks.transcribe")
