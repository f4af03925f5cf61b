"""What `bench drafts` measures, and on what.

Knows values; nothing of models or recordings.

Rows of `bench drafts`: figures of one drafter at one batch size, and which one is the fastest.

Knows counts and seconds; nothing of how they were measured.

The tables of `bench drafts`.

Knows rows and columns; computes no figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.provenance import Equality, Tokens, compare, layout
from forescribe.speculative.stats import Stats

Gamma = int | None
"""Drafted tokens per round; None lets the engine choose."""

PLAIN = "plain"


@dataclass(frozen=True)
class DraftRun:
    """What was measured: the turns of one drafter at one batch size."""

    drafter: str
    batch: int
    gamma: Gamma
    walls_s: Sequence[float] = ()
    tokens: Sequence[Tokens] = ()
    stats: Stats = field(default_factory=Stats)  # of the median turn
    steady: bool = True  # all turns gave the same tokens
    word_error_rate: float | None = None
    error: str | None = None

    @property
    def plain(self) -> bool:
        return self.drafter == PLAIN

    @property
    def wall_s(self) -> float:
        """The median of the turns, the faster of two middle ones."""
        return sorted(self.walls_s)[(len(self.walls_s) - 1) // 2]


@dataclass(frozen=True)
class DraftRow:
    """Figures of a run; none if there is an `error`."""

    drafter: str
    batch: int
    gamma: Gamma
    wall_s: float | None = None
    walls_s: Sequence[float] = ()
    speed_up: float | None = None  # over plain decoding at the same batch size, whole run
    decoding_speed_up: float | None = None  # rounds alone: drafting, scoring and accepting
    tokens_per_round: float | None = None  # of a row, the target's own token included
    acceptance_rate: float | None = None
    acceptance_at_depth: Sequence[float] = ()
    draft_ms: float | None = None  # of one proposal, for all rows
    price: float | None = None  # of one proposal, in plain rounds of the same batch size
    equality: Equality | None = None
    word_error_rate: float | None = None
    notes: Sequence[str] = ()
    error: str | None = None

    @property
    def plain(self) -> bool:
        return self.drafter == PLAIN

    @property
    def exact(self) -> bool:
        """Whether it gave all tokens of plain decoding, in every turn."""
        return self.equality is not None and self.equality.complete and not self.notes


def rows_of(runs: Sequence[DraftRun]) -> list[DraftRow]:
    """Make the rows. Tokens are compared with plain decoding at the smallest batch size, the first run."""
    reference = runs[0]
    plain = {run.batch: run for run in runs if run.plain and run.error is None}
    return [_row(run, plain.get(run.batch), reference) for run in runs]


def _row(run: DraftRun, plain: DraftRun | None, reference: DraftRun) -> DraftRow:
    if run.error is not None:
        return DraftRow(run.drafter, run.batch, run.gamma, error=run.error)
    stats, ms, price = run.stats, None, None
    if stats.drafted and stats.rounds:
        ms = 1000 * stats.seconds.get("draft", 0.0) / stats.rounds
    if plain is not None and ms is not None and plain.stats.rounds:
        price = ms / (1000 * _decoding(plain.stats) / plain.stats.rounds)
    drafted = stats.drafted > 0
    return DraftRow(
        run.drafter,
        run.batch,
        run.gamma,
        wall_s=run.wall_s,
        walls_s=tuple(run.walls_s),
        speed_up=None if plain is None else plain.wall_s / run.wall_s,
        decoding_speed_up=None if plain is None else _ratio(plain.stats, stats),
        tokens_per_round=stats.emitted / stats.row_rounds if stats.row_rounds else None,
        acceptance_rate=stats.acceptance_rate if drafted else None,
        acceptance_at_depth=stats.acceptance_at_depth if drafted else (),
        draft_ms=ms,
        price=price,
        equality=compare(reference.tokens, run.tokens),
        word_error_rate=run.word_error_rate,
        notes=() if run.steady else ("its turns gave different tokens",),
    )


def _decoding(stats: Stats) -> float:
    """Seconds of rounds."""
    return sum(stats.seconds.get(stage, 0.0) for stage in ("draft", "score", "accept"))


def _ratio(plain: Stats, drafting: Stats) -> float | None:
    return _decoding(plain) / _decoding(drafting) if _decoding(drafting) else None


def winners(rows: Sequence[DraftRow]) -> list[DraftRow]:
    """The fastest exact row at each batch size, plain decoding included. A row that drafted nothing is plain
    decoding under another name: what it was faster by is the machine's."""
    exact = [
        row
        for row in rows
        if row.exact and row.wall_s is not None and (row.plain or row.acceptance_rate is not None)
    ]
    batches = dict.fromkeys(row.batch for row in exact)
    return [
        min((row for row in exact if row.batch == batch), key=lambda row: row.wall_s or 0.0)
        for batch in batches
    ]


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


HEAD = (
    "drafter",
    "batch",
    "gamma",
    "wall s",
    "x plain",
    "decoding x",
    "tokens/round",
    "draft ms",
    "price",
    "accepted",
    "equal tokens",
    "WER %",
)


def named(gamma: Gamma) -> str:
    """A draft length as the user writes it."""
    return "auto" if gamma is None else str(gamma)


def results(rows: Sequence[DraftRow]) -> str:
    """All rows, with errors and notes below them. The last column is left out where nothing has an error
    rate."""
    rated = any(row.word_error_rate is not None for row in rows)
    width = len(HEAD) if rated else len(HEAD) - 1
    lines = layout([HEAD[:width], *(_cells(row)[:width] for row in rows)])
    for row in rows:
        notes = [row.error] if row.error else list(row.notes)
        if notes:
            lines.append(f"{row.drafter}, batch {row.batch}: {'; '.join(notes)}")
    return "\n".join(lines)


def _cells(row: DraftRow) -> tuple[str, ...]:
    first = (row.drafter, str(row.batch), "-" if row.plain else named(row.gamma))
    if row.error is not None or row.equality is None:
        return (*first, "failed", *["-"] * (len(HEAD) - 4))
    return (
        *first,
        _or(row.wall_s, "{:.2f}"),
        _or(row.speed_up, "{:.2f}"),
        _or(row.decoding_speed_up, "{:.2f}"),
        _or(row.tokens_per_round, "{:.2f}"),
        _or(row.draft_ms, "{:.2f}"),
        _or(row.price, "{:.2f}"),
        _or(row.acceptance_rate, "{:.1%}"),
        f"{row.equality.tokens:,} of {row.equality.tokens_of:,}",
        _or(row.word_error_rate, "{:.2%}").removesuffix("%"),
    )


def depths(rows: Sequence[DraftRow]) -> str | None:
    """Acceptance by depth: of the drafts that were submitted, the share that was kept. None where nothing was
    drafted."""
    drafting = [row for row in rows if row.acceptance_at_depth]
    if not drafting:
        return None
    deepest = max(len(row.acceptance_at_depth) for row in drafting)
    head = ("accepted at depth", "batch", "gamma", *map(str, range(1, deepest + 1)))
    body = (
        (
            row.drafter,
            str(row.batch),
            named(row.gamma),
            *(f"{rate:.2f}" for rate in row.acceptance_at_depth),
            *["-"] * (deepest - len(row.acceptance_at_depth)),
        )
        for row in drafting
    )
    return "\n".join(layout([head, *body]))


def fastest(rows: Sequence[DraftRow]) -> str:
    """A line for each batch size."""
    return "\n".join(
        f"fastest at batch {row.batch}: {row.drafter}"
        + ("" if row.plain else f", gamma {named(row.gamma)}, {_or(row.speed_up, '{:.2f}')}x plain")
        for row in winners(rows)
    )


def _or(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
