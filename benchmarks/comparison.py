"""What the comparisons with other programs share: rows, tables, lists on the command line, and the record.

A row is a speed with its equality, its error rate and what it was measured with. The exit code of a
comparison is 0; 1 if a row of this engine differs from its reference; 2 if nothing could be measured. Knows
nothing of how figures are measured. Import is light.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from benchmarks import provenance
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Stats

Tokens = Sequence[int]

Gamma = int | Literal["auto"] | None
"""Drafted tokens per round; auto lets the engine choose, None means that the system does not draft."""

FLOAT32 = "float32"

INT8 = {"int8": "float32", "int8-bfloat16": "bfloat16"}
"""The number formats with matrices of 8-bit integers, and the dtype of the rest."""

DTYPES = (FLOAT32, "bfloat16", *INT8)

INSTALL = "run `scripts/setup bench` in forescribe's folder"


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
    the first dtype. `base` is the row that speeds are relative to."""

    system: str
    batch: int
    gamma: Gamma = None
    dtype: str = FLOAT32
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
    base: Row | None = None
    notes: Sequence[str] = ()
    error: str | None = None

    @property
    def label(self) -> str:
        return f"{self.system}, batch {self.batch}, {self.dtype}"

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
    def acceptance_rate(self) -> float | None:
        return self.stats.acceptance_rate if self.stats.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return self.stats.mean_acceptance_length if self.stats.drafted else None

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


# -- the command line -----------------------------------------------------------------------------------


def dtype_of(name: str) -> str:
    """The dtype of a number format, as `--dtype` takes it."""
    return INT8.get(name, name)


def quantization_of(name: str) -> str:
    """The quantization of a number format, as `--quantize` takes it."""
    return "int8" if name in INT8 else "none"


def numbers(most: int) -> Callable[[str], tuple[int, ...]]:
    """Reads a list such as 1,4,8 of numbers from 1 to `most`; duplicates are dropped."""

    def read(text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if wrong := [p for p in parts if not p.isdecimal() or not 1 <= int(p) <= most]:
            raise argparse.ArgumentTypeError(
                f"'{wrong[0]}' is no number from 1 to {most}; write them as 1,4,8"
            )
        return tuple(dict.fromkeys(map(int, parts)))

    return read


def names(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Reads a list of names, such as number formats; duplicates are dropped."""

    def read(text: str) -> tuple[str, ...]:
        parts = [part.strip() for part in text.split(",")]
        if wrong := [part for part in parts if part not in known]:
            raise argparse.ArgumentTypeError(f"'{wrong[0]}' is none of {', '.join(known)}")
        return tuple(dict.fromkeys(parts))

    return read


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """With the options of every comparison."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=(description or "").splitlines()[0]
    )
    made.add_argument("--draft", help="draft model, named like --model; none for none")
    made.add_argument("--engine", default="auto", help="auto, native, lean or modules")
    made.add_argument(
        "--repeats", type=int, default=3, help="runs of every system; the median counts"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    return made


def missing(*packages: str) -> str | None:
    """The first of these packages of the group `bench` that is not installed."""
    return next((name for name in packages if find_spec(name.replace("-", "_")) is None), None)


def check_record(path: Path | None) -> None:
    """Raises UsageError where the record cannot be written, before minutes of measuring."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(f"--json {path}: name a file in a folder that exists")


def report(
    program: str,
    path: Path | None,
    table: str,
    record: Mapping[str, object],
    complaints: Sequence[str],
) -> int:
    """Prints the table and writes the record with its provenance; the exit status, 1 where something is
    complained about."""
    print(table)
    if path is not None:
        name = program.rpartition(".")[2]
        path.write_text(
            json.dumps({"benchmark": name, **provenance.record(program), **record}) + "\n"
        )
    for line in complaints:
        say(line)
    return int(bool(complaints))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def start(main: Callable[[], int]) -> None:
    """Runs a comparison with the arguments of this process; what a user can mend is one line and status 2."""
    try:
        status = main()
    except (ForescribeError, SpeculativeError) as error:
        say(f"forescribe: {error}")
        status = 2
    sys.exit(status)
