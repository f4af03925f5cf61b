"""Rows of a comparison: a speed with its equality, its error rate and what it was measured with; and tables.

Knows figures and columns; nothing of how they were measured. Import is light.
"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.systems.jobs import FLOAT32, Gamma
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Stats

Tokens = Sequence[int]


@dataclass(frozen=True)
class Equality:
    """Tokens count as equal up to the first difference in their window: after it the systems decode
    different prefixes, so agreement has no meaning."""

    tokens: int
    tokens_of: int  # of plain decoding, without end-of-text
    windows: int
    windows_of: int

    @property
    def complete(self) -> bool:
        return self.windows == self.windows_of

    @property
    def in_windows(self) -> str:
        return f"{self.windows} of {self.windows_of}"

    def __str__(self) -> str:
        return f"{self.tokens} of {self.tokens_of}"


def compare(plain: Sequence[Tokens], other: Sequence[Tokens]) -> Equality:
    """Compare window by window, both without end-of-text, which some systems do not return."""
    pairs = list(zip(plain, other, strict=True))
    return Equality(
        tokens=sum(_common(a, b) for a, b in pairs),
        tokens_of=sum(len(a) for a in plain),
        windows=sum(list(a) == list(b) for a, b in pairs),
        windows_of=len(pairs),
    )


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


@dataclass(frozen=True)
class Row:
    """One system with one setting: how it was measured, what came out, and what that equals. There are no
    figures if there is an `error`; a figure that was not measured is None.

    `equality` is with the tokens that the row has to write, `equality_first` with those of plain decoding in
    the first dtype, `equality_modules` with those of transformers' modules over the same weights. `base` is
    the row that speeds are relative to."""

    system: str
    batch: int
    gamma: Gamma = None
    dtype: str = FLOAT32
    draft_dtype: str | None = None  # as it was asked for, in this engine's rows with drafts
    threads: int | None = None
    engine: str | None = None  # what computed the target's decoder, in this engine's rows
    walls_s: Sequence[float] = ()  # of each run; in speech: features, encoder and decoding
    tokens: Sequence[Tokens] = ()  # of the median run, by window or text, without end-of-text
    stats: Stats = field(default_factory=Stats)  # of the median run
    steady: bool = True  # all runs gave the same tokens
    audio_s: float | None = None  # of the whole file, silence included
    word_error_rate: float | None = None
    load_s: float | None = None
    peak_bytes: int | None = None
    equality: Equality | None = None
    equality_first: Equality | None = None
    equality_modules: Equality | None = None
    base: Row | None = None
    notes: Sequence[str] = ()
    error: str | None = None

    @property
    def label(self) -> str:
        return f"{self.system}, batch {self.batch}, {self.dtype}"

    @property
    def exact(self) -> bool:
        """Whether it wrote all tokens that it has to, in every run."""
        return self.equality is not None and self.equality.complete and self.steady

    @property
    def wall_s(self) -> float | None:
        """The median of the runs, the faster of two middle ones."""
        return statistics.median_low(self.walls_s) if self.walls_s else None

    @property
    def x_real_time(self) -> float | None:
        return _ratio(self.audio_s, self.wall_s)

    @property
    def speed_up(self) -> float | None:
        """Over `base`, the whole run."""
        return None if self.base is None else _ratio(self.base.wall_s, self.wall_s)

    @property
    def stages_s(self) -> dict[str, float]:
        return self.stats.seconds

    @property
    def decoding_s(self) -> float:
        """Admission with its cross-attention keys, and the rounds; 0 where stages are not known."""
        return sum(s for name, s in self.stages_s.items() if name not in ("features", "encode"))

    @property
    def rounds_s(self) -> float:
        """Rounds alone: drafting, scoring and accepting."""
        return sum(self.stages_s.get(stage, 0.0) for stage in ("draft", "score", "accept"))

    @property
    def decoding_speed_up(self) -> float | None:
        """Over `base`, rounds alone."""
        return None if self.base is None else _ratio(self.base.rounds_s, self.rounds_s)

    @property
    def tokens_per_round(self) -> float | None:
        """Of a row, the target's own token included."""
        return _ratio(self.stats.emitted, self.stats.row_rounds)

    @property
    def acceptance_rate(self) -> float | None:
        return self.stats.acceptance_rate if self.stats.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return self.stats.mean_acceptance_length if self.stats.drafted else None

    @property
    def acceptance_at_depth(self) -> Sequence[float]:
        """Of the drafts that were submitted, the share that was kept."""
        return self.stats.acceptance_at_depth if self.stats.drafted else ()

    @property
    def draft_ms(self) -> float | None:
        """Of one proposal, for all rows of the batch."""
        if not self.stats.drafted:
            return None
        return _ratio(1000 * self.stats.seconds.get("draft", 0.0), self.stats.rounds)

    @property
    def price(self) -> float | None:
        """Of one proposal, in rounds of `base`."""
        if self.base is None or self.draft_ms is None or not self.base.stats.rounds:
            return None
        return _ratio(self.draft_ms, 1000 * self.base.rounds_s / self.base.stats.rounds)

    def record(self, *names: str) -> dict[str, object]:
        """These attributes for JSON."""
        values = {name: getattr(self, name) for name in names}
        return {n: asdict(v) if isinstance(v, Equality) else v for n, v in values.items()}


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def check_drafts(stats: Stats) -> None:
    """Raises SpeculativeError where drafts have failed: plain decoding wrote the same words instead, and its
    speed would be taken for that of the drafts."""
    if stats.draft_faults:
        raise SpeculativeError(f"not a measurement: drafts failed {stats.draft_faults} times")


def normalise(text: str) -> str:
    """Return lower-case text without punctuation and symbols; dashes separate words, other signs are
    removed.

    Nothing more: "12 %" and "twelve percent" stay different, as a model that was trained to write
    digits should write them. Error rates are therefore higher than with Whisper's own normaliser.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"[-\u2010-\u2015/]", " ", text)
    letters = (c for c in text if unicodedata.category(c)[0] not in "PS")
    return " ".join("".join(letters).split())


def error_rate(reference: str, written: str) -> float:
    """Return (substitutions + deletions + insertions) / words of the reference, over the whole file.

    Raises ValueError for a reference without words.
    """
    import jiwer

    words = normalise(reference)
    if not words:
        raise ValueError("the reference has no words")
    return float(jiwer.wer(words, normalise(written)))


@dataclass(frozen=True)
class Column:
    """A column of a table; `missing` stands where there is no value."""

    head: str
    of: Callable[[Row], object]
    form: str = "{}"
    missing: str = "-"

    def cell(self, row: Row) -> str:
        value = self.of(row)
        return self.missing if value is None else self.form.format(value)


BATCH = Column("batch", lambda row: row.batch)
WALL = Column("wall s", lambda row: row.wall_s, "{:.2f}", missing="failed")
ACCEPTED = Column("accepted", lambda row: row.acceptance_rate, "{:.1%}")
WORD_ERRORS = Column(
    "WER %",
    lambda row: None if row.word_error_rate is None else 100 * row.word_error_rate,
    "{:.2f}",
)


def table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """The lines of a table."""
    heads = [column.head for column in columns]
    return layout([heads, *([column.cell(row) for column in columns] for row in rows)])


def remarks(rows: Sequence[Row], name: Callable[[Row], str]) -> list[str]:
    """A line for each row with an error or with notes, behind what `name` calls it."""
    said = [(row, [row.error] if row.error else row.notes) for row in rows]
    return [f"{name(row)}: {'; '.join(words)}" for row, words in said if words]


def layout(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column aligned left, others right, a rule below the
    head."""
    cells = [list(line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    out = []
    for first, *rest in cells:
        aligned = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        out.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    return [out[0], "-" * len(out[0]), *out[1:]]
