"""Compares drafters on the same weights, in one run.

    python -m benchmarks.drafts samples/memo.flac --batch 1,8
    python -m benchmarks.drafts --prompts prompts.txt --draft ./head

Every drafter takes turns with plain decoding at each batch size: on recordings as jobs of
`benchmarks.transcribe`, each turn in a process of its own; on prompts as systems of `benchmarks.text`, in one
process. Knows options, the order of the measurements and the result. Import is light.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.options import (
    DRAFT_DTYPES,
    DTYPES,
    ComparisonOptions,
    RecordingOptions,
    Sink,
    parse_numbers,
    say,
    start,
)
from benchmarks.rows import (
    ACCEPTED,
    BATCH,
    WALL,
    WORD_ERRORS,
    Column,
    Row,
    compare,
    remarks,
    table,
)
from benchmarks.systems.jobs import LANGUAGE, OURS, Job, join, read_clips
from benchmarks.systems.runs import child, measure
from benchmarks.text import TextOptions, read_prompts
from benchmarks.transcribe import check_words, needs_jiwer
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.model.presets import locate, resolve
from forescribe.cli.option_records import PERFORMANCE, arg, like, opt, takes
from forescribe.cli.options import AUTO, LoadOptions
from forescribe.text.presets import NGRAM
from forescribe.text.presets import resolve as resolve_text

PROGRAM = "benchmarks.drafts"

PLAIN = "plain"
"""Drafts without a model, copied from the text so far."""

SPEECH_MODEL, TEXT_MODEL = "tiny.en", "demo-text"


@dataclass(frozen=True, kw_only=True)
class DraftsOptions(RecordingOptions):
    """The parsed command line. Raises UsageError for values that are impossible."""

    audio: list[str] | None = arg(
        "[AUDIO...]", "Recordings, joined in this order; without one, text is generated.", None
    )
    model: str | None = like(
        ComparisonOptions, "model", shown="tiny.en for recordings, demo-text for text"
    )
    draft: list[str] | None = like(  # type: ignore[assignment]  # several of them
        ComparisonOptions,
        "draft",
        "Draft to compare, named as elsewhere: a model, or a head for text; may be given several times.",
    )
    reference: list[str] | None = like(
        RecordingOptions,
        "reference",
        "Reference text of a recording; give one per recording, in order. Without texts there are no word "
        "errors.",
    )
    minutes: float = like(RecordingOptions, "minutes", default=0.0)
    prompts: Path | None = like(TextOptions, "prompts")
    max_tokens: int = like(TextOptions, "max_tokens", "Maximum tokens per generated text.")
    batch: str = opt(PERFORMANCE, "--batch N,N", "Batch sizes.", "1,4,8,16")
    gamma: str = opt(
        PERFORMANCE, "--gamma N,N", "Drafted tokens per round, 1 to 64, or auto.", AUTO
    )
    dtype: str = opt(
        PERFORMANCE,
        "--dtype TYPE",
        "Number format of the target: float32, bfloat16, int8 or int8-bfloat16.",
        "float32",
    )
    draft_dtype: str = like(LoadOptions, "draft_dtype", "Number format of the drafts.")
    repeats: int = like(
        ComparisonOptions, "repeats", "Turns of every drafter; the median is reported.", default=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.batches, self.gammas
        if self.audio and self.prompts is not None:
            raise UsageError(
                f"--prompts {self.prompts} is for text: leave out the recordings, or it"
            )
        if not self.audio and self.reference:
            raise UsageError("--reference is for recordings, and none is given")
        for option, given, known in (
            ("--dtype", self.dtype, DTYPES),
            ("--draft-dtype", self.draft_dtype, DRAFT_DTYPES),
        ):
            if given not in known:
                raise UsageError(f"{option} {given} is none of {', '.join(known)}")

    @property
    def batches(self) -> list[int]:
        """Batch sizes in order."""
        return sorted(parse_numbers("--batch", self.batch, 1024))

    @property
    def gammas(self) -> tuple[int | None, ...]:
        """Drafted tokens per round; None is auto."""
        parts = [part.strip() for part in self.gamma.split(",")]
        return tuple(
            None if part == AUTO else parse_numbers("--gamma", part, 64)[0]
            for part in dict.fromkeys(parts)
        )


@takes(DraftsOptions)
def drafts(**values: Any) -> None:
    """Compare drafters: tokens per round, acceptance by depth, price and speed-up over plain decoding.

    On CPUs, with greedy decoding. All tokens must be those of plain decoding; the exit code is 1 if a row's
    are not. The row of a drafter that cannot run gives the reason."""
    options = DraftsOptions(**values)
    sink = Sink(options.json)
    sink.check()
    if options.audio:
        needs_jiwer("drafts")
    sink.report(PROGRAM, measured(options, say))


@dataclass(frozen=True)
class Material:
    """What was decoded, in words and as a record."""

    text: str
    record: dict[str, object]


@dataclass(frozen=True)
class Result:
    """All rows, plain decoding of each batch size first, and what they were measured on."""

    options: DraftsOptions
    material: Material
    rows: Sequence[Row]

    @property
    def differing(self) -> list[Row]:
        """Rows whose tokens are not all those of plain decoding."""
        return [row for row in self.rows if row.error is None and not row.exact]

    @property
    def complaints(self) -> list[str]:
        return [f"{label(row)}: differs from plain decoding" for row in self.differing]

    def text(self) -> str:
        """Return the tables."""
        head = [
            self.material.text,
            provenance.machine(),
            "x plain: whole run over plain decoding at the same batch size; decoding x: rounds alone; price: "
            "of a proposal, in plain rounds\n",
        ]
        parts = [results(self.rows), depths(self.rows), fastest(self.rows)]
        return "\n".join(head) + "\n" + "\n\n".join(part for part in parts if part)

    def record(self) -> dict[str, object]:
        """Return the JSON record."""
        options, given = self.options, asdict(self.options)
        del given["json"]
        lists = {name: tuple(given[name] or ()) for name in ("audio", "draft")}
        return {
            "options": given
            | lists
            | {
                "prompts": None if options.prompts is None else str(options.prompts),
                "batch": options.batches,
                "gamma": options.gammas,
            },
            "native_kernels": provenance.instruction_set(),
            "material": self.material.record,
            "rows": [_record(row) for row in self.rows],
        }


def _record(row: Row) -> dict[str, object]:
    return (
        {"drafter": row.system, "batch": row.batch}
        | {"gamma": None if row.gamma == AUTO else row.gamma}
        | row.record("wall_s", "walls_s", "speed_up", "decoding_speed_up", "tokens_per_round")
        | row.record("acceptance_rate", "acceptance_at_depth", "draft_ms", "price", "equality")
        | row.record("word_error_rate", "notes", "error")
    )


def measured(options: DraftsOptions, say: Callable[[str], None]) -> Result:
    """Run all drafters; `say` gets a line per turn. Nothing is downloaded.

    Raises UsageError and the errors of loading; ForescribeError if plain decoding fails.
    """
    material, rows = (speech_rows if options.audio else text_rows)(options, say)
    return Result(options, material, compared(rows))


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows beside plain decoding: its tokens at the smallest batch size, which is the first row, and its
    speed at the same batch size. Raises ForescribeError where there is nothing to compare with."""
    first = rows[0]
    if first.error is not None:
        raise ForescribeError(f"plain decoding failed, so nothing can be compared: {first.error}")
    plain = {row.batch: row for row in rows if row.system == PLAIN and row.error is None}
    return [
        row
        if row.error is not None
        else replace(
            row,
            equality=compare(first.tokens, row.tokens),
            base=plain.get(row.batch),
            notes=() if row.steady else ("its turns gave different tokens",),
        )
        for row in rows
    ]


def speech_rows(options: DraftsOptions, say: Callable[[str], None]) -> tuple[Material, list[Row]]:
    """Plain decoding, and every draft."""
    from forescribe.speculative.model_engines import ModelEngine

    ModelEngine.of(options.engine)
    name = options.model or SPEECH_MODEL
    target = locate(resolve(name, "none", LANGUAGE).target, role="model", network=False)
    clips = read_clips(options.audio or (), options.reference, required=False)
    if options.reference:
        check_words(clips)
    audio = join(clips, options.minutes)
    jobs = plan(options, target, drafts_of(options, name))
    with tempfile.TemporaryDirectory() as scratch:
        windows = Path(scratch) / "windows.npz"
        audio.save(windows)
        all_series = measure([job for _, job in jobs], child(windows), options.repeats, say)
    rows = [
        replace(series.row(audio), system=label)
        for (label, _), series in zip(jobs, all_series, strict=True)
    ]
    text = f"{name}, {audio.length_s / 60:.1f} minutes in {len(audio.windows)} windows"
    return Material(text, {"seconds": audio.length_s, "windows": len(audio.windows)}), rows


def drafts_of(options: DraftsOptions, model: str) -> list[tuple[str, Path]]:
    """Draft models by label. Raises ModelError: nothing is downloaded."""
    pairs = [(each, resolve(model, each, LANGUAGE)) for each in options.draft or ()]
    if not options.draft:
        own = resolve(model, None, LANGUAGE)
        pairs = [] if own.draft is None else [(str(own.draft), own)]
    return [
        (label, locate(pair.draft, role="draft", network=False))
        for label, pair in pairs
        if pair.draft is not None
    ]


def plan(
    options: DraftsOptions, target: Path, drafts: Sequence[tuple[str, Path]]
) -> list[tuple[str, Job]]:
    """All jobs with their labels, plain decoding first."""

    def job(batch: int, gamma: int | None, draft: Path | None) -> Job:
        return Job(
            OURS,
            batch,
            "auto" if gamma is None else gamma,
            options.dtype,
            str(target),
            None if draft is None else str(draft),
            options.cores,
            engine=options.engine,
            draft_dtype=None if draft is None else options.draft_dtype,
        )

    jobs = [(PLAIN, job(batch, 0, None)) for batch in options.batches]
    for batch in options.batches:
        for gamma in options.gammas:
            jobs += [(Path(name).name, job(batch, gamma, draft)) for name, draft in drafts]
    return jobs


def text_rows(options: DraftsOptions, say: Callable[[str], None]) -> tuple[Material, list[Row]]:
    """Plain decoding, n-gram lookup and every draft."""
    import torch

    from benchmarks.systems import text as systems
    from forescribe.speculative.model_engines import ModelEngine
    from forescribe.text.language_model import load

    lines = None if options.prompts is None else read_prompts(options.prompts)
    name, most = options.model or TEXT_MODEL, options.max_tokens
    pair, device = resolve_text(name, None), systems.choose_format("cpu", options.dtype)
    engine = ModelEngine.of(options.engine)
    if options.threads:
        torch.set_num_threads(options.threads)
    target = load(pair.target, device, network=False, engine=engine)
    drafts: dict[str, Any] = {NGRAM: NGRAM}
    names: Sequence[str | Path | None] = options.draft or [pair.draft]
    for each in names:
        if each is not None and each != NGRAM:
            found = systems.own_draft(each, target, device, engine, options.draft_dtype)
            drafts[Path(each).name] = found
    prompts = systems.encoded(target, lines, None)
    room = min(systems.room(target, each) for each in drafts.values())
    systems.check_room(prompts, most, room, target.name)

    def system(label: str, draft: Any, batch: int, gamma: int | None) -> systems.System:
        made = systems.ours(
            target, draft, device, batch=batch, gamma=gamma, most=most, dtype=options.dtype
        )
        return replace(made, name=label)

    chosen = [system(PLAIN, None, batch, 0) for batch in options.batches]
    chosen += [
        system(label, draft, batch, gamma)
        for batch in options.batches
        for label, draft in drafts.items()
        for gamma in options.gammas
    ]
    rows = systems.take_turns(chosen, prompts, options.repeats, say)
    text = f"{name}, {len(prompts)} prompts, up to {most} tokens each"
    return Material(text, {"prompts": len(prompts), "prompt_tokens": sum(map(len, prompts))}), rows


def label(row: Row) -> str:
    return f"{row.system}, batch {row.batch}"


def results(rows: Sequence[Row]) -> str:
    """All rows, with errors and notes below them. The last column is left out where nothing has an error
    rate."""
    rated = any(row.word_error_rate is not None for row in rows)
    columns = [
        Column("drafter", lambda row: row.system),
        BATCH,
        Column("gamma", lambda row: None if row.system == PLAIN else row.gamma),
        WALL,
        Column("x plain", lambda row: row.speed_up, "{:.2f}"),
        Column("decoding x", lambda row: row.decoding_speed_up, "{:.2f}"),
        Column("tokens/round", lambda row: row.tokens_per_round, "{:.2f}"),
        Column("draft ms", lambda row: row.draft_ms, "{:.2f}"),
        Column("price", lambda row: row.price, "{:.2f}"),
        ACCEPTED,
        Column("equal tokens", _equal_tokens),
        *([WORD_ERRORS] if rated else []),
    ]
    return "\n".join([*table(columns, rows), *remarks(rows, label)])


def _equal_tokens(row: Row) -> str | None:
    same = row.equality
    return None if same is None else f"{same.tokens:,} of {same.tokens_of:,}"


def depths(rows: Sequence[Row]) -> str | None:
    """Acceptance by depth: of the drafts that were submitted, the share that was kept. None where nothing was
    drafted."""
    drafting = [row for row in rows if row.acceptance_at_depth]
    if not drafting:
        return None

    def kept(depth: int) -> Column:
        of = lambda row: next(iter(row.acceptance_at_depth[depth:]), None)  # noqa: E731
        return Column(str(depth + 1), of, "{:.2f}")

    deepest = max(len(row.acceptance_at_depth) for row in drafting)
    columns = [
        Column("accepted at depth", lambda row: row.system),
        BATCH,
        Column("gamma", lambda row: row.gamma),
        *map(kept, range(deepest)),
    ]
    return "\n".join(table(columns, drafting))


def fastest(rows: Sequence[Row]) -> str:
    """A line for each batch size."""
    return "\n".join(
        f"fastest at batch {row.batch}: {row.system}"
        + ("" if row.system == PLAIN else f", gamma {row.gamma}, {row.speed_up or 0:.2f}x plain")
        for row in winners(rows)
    )


def winners(rows: Sequence[Row]) -> list[Row]:
    """The fastest exact row at each batch size, plain decoding included. A row that drafted nothing is plain
    decoding under another name: what it was faster by is the machine's."""
    exact = [
        row
        for row in rows
        if row.exact and row.walls_s and (row.system == PLAIN or row.acceptance_rate is not None)
    ]
    batches = dict.fromkeys(row.batch for row in exact)
    return [
        min((row for row in exact if row.batch == batch), key=lambda row: row.wall_s or 0.0)
        for batch in batches
    ]


if __name__ == "__main__":
    start(drafts, PROGRAM)
