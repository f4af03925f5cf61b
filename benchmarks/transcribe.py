"""Compares this engine, transformers, faster-whisper and whisper.cpp on the same weights and windows.

    python -m benchmarks.transcribe samples/*.flac --model tiny.en --json out.json

Other systems may fail; their rows give the reason. Knows options, jobs and the result; tables and ratios are
in `speech_tables.py`, the systems in `systems/`. Import is light.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks import speech_tables as tables
from benchmarks.options import (
    DRAFT_DTYPES,
    DTYPES,
    INSTALL,
    ComparisonOptions,
    RecordingOptions,
    Sink,
    missing,
    parse_names,
    parse_numbers,
    say,
    start,
)
from benchmarks.rows import (
    Equality,
    Row,
    Tokens,
    compare,
    normalise,
)
from benchmarks.systems import faster, openvino, whisper_cpp
from benchmarks.systems.jobs import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    CPP,
    CPP_FLASH,
    FLOAT32,
    GENERATE,
    LANGUAGE,
    MODULES,
    NAMES,
    OPENVINO,
    OURS,
    SEQUENTIAL,
    Clip,
    Gamma,
    Job,
    Material,
    join,
    read_clips,
)
from benchmarks.systems.runs import Series, child, measure, unmeasured_row
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.model.presets import Pair, locate, resolve
from forescribe.cli.option_records import DIAGNOSTICS, PERFORMANCE, arg, like, opt, takes
from forescribe.cli.options import AUTO

PROGRAM = "benchmarks.transcribe"

TRANSFORMERS_DRAFTS = 20
"""The default of `generate`: drafted tokens per round, as long as its confidence lasts."""

FASTER, WHISPER_CPP = (SEQUENTIAL, BATCHED), (CPP, CPP_FLASH)
CONVERTED: Mapping[tuple[str, ...], tuple[str, ...]] = {
    FASTER: ("faster_whisper", "ctranslate2"),
    WHISPER_CPP: ("pywhispercpp",),
    (OPENVINO,): ("openvino_genai",),
}
"""Systems that read formats of their own, with the packages that they need."""


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions(RecordingOptions):
    """The parsed command line. Raises UsageError for values that are impossible."""

    audio: list[str] = arg("AUDIO...", "Recordings, joined in this order and repeated as needed.")
    model: str = like(ComparisonOptions, "model", default="tiny.en", shown=None)
    batch: str = opt(PERFORMANCE, "--batch N,N", "Batch sizes of this engine.", "1,4,8,16")
    peer_batch: str = opt(
        PERFORMANCE,
        "--peer-batch N,N",
        "Batch sizes of other systems that can batch; 1 is always measured.",
        "8",
    )
    gamma: int = opt(
        PERFORMANCE,
        "--gamma N",
        "Drafted tokens per round, measured next to 0 and auto; 0 measures no drafting.",
        5,
        min=0,
        max=64,
    )
    peer_threads: str | None = opt(
        PERFORMANCE,
        "--peer-threads N,N",
        "CPU threads of the other systems, a row for each.",
        shown="1 and all of ours",
    )
    only: list[str] | None = opt(
        DIAGNOSTICS,
        "--only SYSTEM",
        "System to compare with; may be given several times. One of forescribe, transformers, transformers "
        "assisted, 'transformers assisted, its defaults', faster-whisper, faster-whisper batched, "
        "whisper.cpp, 'whisper.cpp, flash attention', OpenVINO.",
        shown="all",
    )
    openvino: str | None = opt(
        DIAGNOSTICS,
        "--openvino DIR",
        "The model as optimum-intel converts it to OpenVINO; see benchmarks/systems/openvino.py.",
    )
    dtype: str = opt(
        PERFORMANCE,
        "--dtype TYPE,TYPE",
        "Number formats of this engine's rows: float32, bfloat16, int8, int8-bfloat16 (--quantize int8 with "
        "that --dtype); float32 is always measured, and what other systems are compared with.",
        "float32",
    )
    draft_dtype: str = opt(
        PERFORMANCE,
        "--draft-dtype TYPE,TYPE",
        "Number formats of this engine's draft, with rows for each: auto, float32, float16, bfloat16 or "
        "int8. Same tokens.",
        AUTO,
    )
    avx2: bool = opt(
        DIAGNOSTICS,
        "--avx2",
        "Keep to AVX2, as on a processor without AVX-512: this engine, transformers and faster-whisper.",
        False,
    )
    modules: bool = opt(
        DIAGNOSTICS,
        "--modules/--no-modules",
        "Also decode with transformers' modules at batch 1 without drafts, in each --dtype: the reference of "
        "the other engines.",
        False,
    )

    def __post_init__(self) -> None:
        _ = self.batches, self.peer_batches, self.peer_cores
        _ = self.dtypes, self.draft_dtypes
        if self.avx2 and not {*self.dtypes, *self.draft_dtypes} <= {FLOAT32, "int8"}:
            raise UsageError(
                "--avx2 is for --dtype and --draft-dtype float32 and int8: such processors have no bfloat16"
            )
        super().__post_init__()

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes of this engine."""
        return parse_numbers("--batch", self.batch, 1024)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Number formats of this engine's rows, float32 first."""
        return tuple(dict.fromkeys((FLOAT32, *parse_names("--dtype", self.dtype, DTYPES))))

    @property
    def draft_dtypes(self) -> tuple[str, ...]:
        """Number formats of this engine's draft."""
        chosen = FLOAT32 if self.avx2 and self.draft_dtype == AUTO else self.draft_dtype
        return parse_names("--draft-dtype", chosen, DRAFT_DTYPES)

    @property
    def peer_batches(self) -> tuple[int, ...]:
        """Batch sizes of other systems, besides 1."""
        return tuple(n for n in parse_numbers("--peer-batch", self.peer_batch, 1024) if n != 1)

    @property
    def peer_cores(self) -> tuple[int, ...]:
        """Thread counts of other systems, most first; one thread and all of ours if none are given, as either
        may be the faster."""
        given = self.peer_threads
        chosen = (1, self.cores) if given is None else parse_numbers("--peer-threads", given, 1024)
        return tuple(sorted(set(chosen), reverse=True))

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems to compare with. Raises UsageError for unknown ones and for missing packages."""
        fixed = (
            (*WHISPER_CPP, OPENVINO) if self.avx2 else ()
        )  # cannot be told which instructions to use
        if not self.only:
            return tuple(name for name in NAMES if name not in fixed)
        if set(self.only) & set(fixed):
            raise UsageError(
                "--avx2 cannot be kept by whisper.cpp and OpenVINO: leave them out of --only"
            )
        unknown = [name for name in self.only if name not in NAMES]
        if unknown:
            known = ", ".join(f"'{name}'" for name in NAMES)
            raise UsageError(f"--only '{unknown[0]}' is no system; known: {known}")
        for names, packages in CONVERTED.items():
            package = missing(*packages)
            unavailable = [name for name in self.only if name in names]
            if package is not None and unavailable:
                raise UsageError(f"--only '{unavailable[0]}' needs {package}: {INSTALL}")
        return tuple(self.only)

    def described(self) -> dict[str, object]:
        """The options of the record; recordings are described apart."""
        return asdict(self) | {
            "batch": self.batches,
            "peer_batch": self.peer_batches,
            "threads": self.cores,
            "peer_threads": self.peer_cores,
            "only": self.systems,
            "dtype": self.dtypes,
            "draft_dtype": self.draft_dtypes,
        }


@takes(TranscribeOptions)
def transcribe(**values: Any) -> None:
    """Compare with transformers, faster-whisper and whisper.cpp on the same weights and windows.

    On CPUs, in English, with greedy decoding; every run is a separate process. Next to each speed
    stand the tokens that equal this engine's plain decoding, and the word error rate. The exit code
    is 1 if a row of this engine differs. The row of a system that cannot run gives the reason."""
    options = TranscribeOptions(**values)
    sink = Sink(options.json)
    sink.check()
    needs_jiwer("transcribe")
    _ = options.systems
    sink.report(PROGRAM, measured(options, say))


def needs_jiwer(name: str) -> None:
    """Raises UsageError where there would be no word error rate."""
    package = missing("jiwer")
    if package is not None:
        raise UsageError(f"benchmarks.{name} needs {package}: {INSTALL}")


@dataclass(frozen=True)
class Result:
    """All rows, the reference first, and what they were measured on."""

    options: TranscribeOptions
    target: Path
    draft: Path | None
    material: Material
    rows: Sequence[Row]

    @property
    def differing(self) -> list[Row]:
        """The rows of this engine whose tokens are not all those of plain decoding in their dtype, and the
        modules' in float32: in a reduced one, engines round in different places."""
        promised = {(MODULES, FLOAT32), *((OURS, dtype) for dtype in self.options.dtypes)}
        ours = [row for row in self.rows if (row.system, row.dtype) in promised]
        return [row for row in ours if row.equality is None or not row.equality.complete]

    @property
    def complaints(self) -> list[str]:
        return [
            f"{row.system}, batch {row.batch}, gamma {row.gamma}, {row.dtype}: differs from this engine's "
            "plain decoding"
            for row in self.differing
        ]

    def text(self) -> str:
        """Return the tables."""
        options, material = self.options, self.material
        parts = [
            f"{options.model}, {material.length_s / 60:.1f} minutes in {len(material.windows)} windows "
            f"({material.speech_s / 60:.1f} minutes of speech), median of {options.repeats}",
            provenance.machine(options.cores),
            "wall: features, encoder and decoding; equal: to this engine's gamma 0 at batch 1, in the "
            "same dtype for its own rows and in float32 for others\n",
            tables.results(self.rows),
            "\nSeconds of this engine by stage (of the median run)\n",
            tables.stages(self.rows),
        ]
        return "\n".join(parts)

    def record(self) -> dict[str, object]:
        """Return the JSON record."""
        left_out = ("audio", "reference", "json")
        given = self.options.described()
        return {
            "options": {name: value for name, value in given.items() if name not in left_out},
            "native_kernels": "avx2" if self.options.avx2 else provenance.instruction_set(),
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
            "rows": [_record(row) for row in self.rows],
        }


def _record(row: Row) -> dict[str, object]:
    return (
        row.record("system", "batch", "gamma", "dtype", "wall_s", "walls_s", "x_real_time")
        | row.record("word_error_rate", "equality")
        | {"equality_float32": row.record("equality_first")["equality_first"]}
        | row.record("equality_modules", "acceptance_rate", "mean_acceptance_length")
        | row.record("peak_bytes", "threads", "load_s", "stages_s", "notes", "error")
        | row.record("engine", "draft_dtype")
    )


def measured(options: TranscribeOptions, say: Callable[[str], None]) -> Result:
    """Run every job in a process of its own; `say` gets a line per run. Nothing is downloaded.

    Raises UsageError, ModelError and AudioError for options, weights and recordings; ForescribeError if
    plain decoding fails.
    """
    from forescribe.speculative.model_engines import ModelEngine
    from forescribe.speculative.models.quantized import as_floats

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
    options: TranscribeOptions,
    target: Path,
    draft: Path | None,
    material: Material,
    scratch: Path,
    say: Callable[[str], None],
) -> list[Row]:
    windows = scratch / "windows.npz"
    material.save(windows)
    converted, troubles = converted_for(options, target, scratch)
    for system, trouble in troubles.items():
        say(f"{system} cannot take part: {trouble}")
    jobs = plan(options, target, draft, converted)
    all_series = measure(jobs, child(windows, avx2=options.avx2), options.repeats, say)
    return [_clean(row, scratch, troubles.get(row.system)) for row in rows_of(all_series, material)]


def converted_for(
    options: TranscribeOptions, target: Path, scratch: Path
) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """Return the converted weights by system and dtype, and by system the reason if there are none; neither
    of systems that take no part."""
    found: dict[tuple[str, str], str] = {}
    troubles: dict[str, str] = {}
    for names, packages in CONVERTED.items():
        if not set(names) & set(options.systems):
            continue
        package = missing(*packages)
        made: dict[str, str] = {}
        trouble: str | None = f"{package} is not installed: {INSTALL}"
        if package is None and names is FASTER:
            made, trouble = faster.convert(target, scratch, (FLOAT32, "int8"))
        elif package is None and names is WHISPER_CPP:
            made, trouble = whisper_cpp.convert(target, scratch)
        elif package is None and options.openvino is None:
            trouble = "its weights are converted beforehand: name their folder with --openvino"
        elif package is None:
            made, trouble = dict.fromkeys(openvino.KINDS, str(options.openvino)), None
        found |= {(name, dtype): path for name in names for dtype, path in made.items()}
        if trouble is not None:
            troubles |= dict.fromkeys(names, trouble)
    return found, troubles


def plan(
    options: TranscribeOptions,
    target: Path,
    draft: Path | None,
    converted: Mapping[tuple[str, str], str],
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
        folder = converted.get((system, dtype))
        engine = "modules" if system == MODULES else options.engine
        return Job(system, batch, gamma, dtype, model, own, count, folder, engine, draft_dtype)

    jobs = []
    lengths: tuple[Gamma, ...] = (options.gamma, "auto") if options.gamma else ()
    for dtype in options.dtypes:
        jobs += [job(OURS, 1, 0, dtype)]
        jobs += [job(OURS, batch, 0, dtype) for batch in options.batches if batch != 1]
        jobs += [
            job(OURS, batch, gamma, dtype, draft_dtype=own)
            for own in (options.draft_dtypes if draft is not None else (None,))
            for gamma in lengths
            for batch in options.batches
        ]
    if options.modules:
        jobs += [job(MODULES, 1, 0, dtype) for dtype in options.dtypes]
    for threads in options.peer_cores:
        jobs += [job(GENERATE, batch, threads=threads) for batch in (1, *options.peer_batches)]
        # Assisted generation refuses larger batches.
        if options.gamma:
            jobs += [job(ASSISTED, 1, options.gamma, threads=threads)]
        jobs += [job(ASSISTED_DEFAULTS, 1, TRANSFORMERS_DRAFTS, threads=threads)]
        for dtype in (FLOAT32, "int8"):
            jobs += [job(SEQUENTIAL, 1, None, dtype, threads)]
            jobs += [job(BATCHED, batch, None, dtype, threads) for batch in options.peer_batches]
        for dtype in whisper_cpp.KINDS:
            jobs += [job(system, 1, None, dtype, threads) for system in WHISPER_CPP]
        jobs += [job(OPENVINO, 1, None, dtype, threads) for dtype in openvino.KINDS]
    systems = {OURS, MODULES, *options.systems}
    return [each for each in dict.fromkeys(jobs) if each.system in systems]


def rows_of(all_series: Sequence[Series], material: Material) -> list[Row]:
    """Make the rows. Raises ForescribeError if plain decoding failed: nothing can be compared with
    it."""
    first = all_series[0]
    if first.error is not None:
        raise ForescribeError(f"plain decoding failed, so nothing can be compared: {first.error}")
    references = References.of(all_series)
    return [make_row(series, references, material) for series in all_series]


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

    def compared(self, system: str, dtype: str, tokens: Sequence[Tokens]) -> Equality | None:
        """Compare with the reference of a system; None where there is none."""
        plain = self.tokens.get((system, dtype))
        return None if plain is None else compare(plain, tokens)


def make_row(series: Series, references: References, material: Material) -> Row:
    """The row of a job, with its equality: for other systems to this engine's plain decoding in float32."""
    job = series.job
    dtype = job.dtype if job.system in (OURS, MODULES) else FLOAT32
    if series.error is None and (OURS, dtype) not in references.tokens:
        reason = f"plain decoding in {job.dtype} failed, so its tokens have no reference"
        return unmeasured_row(job, reason)
    row = series.row(material)
    if row.error is not None:
        return row
    return replace(
        row,
        equality=references.compared(OURS, dtype, row.tokens),
        equality_first=references.compared(OURS, FLOAT32, row.tokens),
        equality_modules=references.compared(MODULES, row.dtype, row.tokens),
        notes=[*row.notes, *([] if row.steady else ["its runs gave different tokens"])],
    )


def _clean(row: Row, scratch: Path, trouble: str | None) -> Row:
    """Remove paths of this machine from an error message, and add why conversion failed."""
    if row.error is None:
        return row
    text = row.error
    if trouble is not None:
        text = f"{text} ({trouble})"
    for path in (str(scratch), str(provenance.ROOT), str(Path.home())):
        text = text.replace(path, "...")
    return replace(row, error=text)


if __name__ == "__main__":
    start(transcribe, PROGRAM)
