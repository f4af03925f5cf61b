"""What the comparisons share: options, how they are started, and where their results go.

Knows command lines; nothing of what is measured. The exit code is 0; 1 if a row of this engine differs from
its reference; 2 if nothing could be measured. Import is light.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import typer

from benchmarks import provenance
from benchmarks.systems.jobs import FLOAT32, REDUCED
from forescribe.asr.errors import OutputError, UsageError
from forescribe.cli.main import CONTEXT, reported
from forescribe.cli.option_records import (
    DIAGNOSTICS,
    INPUT,
    OUTPUT,
    PERFORMANCE,
    SectionedCommand,
    like,
    opt,
)
from forescribe.cli.options import AUTO, LoadOptions

DTYPES = (FLOAT32, *REDUCED)
DRAFT_DTYPES = (AUTO, "float32", "float16", "bfloat16", "int8")
"""Number formats in which a CPU decodes: the third one of a device, float16, has no arithmetic there."""

STDOUT = "-"

INSTALL = "run `scripts/setup bench` in forescribe's folder"

PACKAGES = {
    "jiwer": "jiwer",
    "faster_whisper": "faster-whisper",
    "ctranslate2": "ctranslate2",
    "pywhispercpp": "pywhispercpp",
    "openvino_genai": "openvino-genai",
}
"""Those of the group `bench`, by module."""


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """What all comparisons share."""

    model: str | None = like(
        LoadOptions, "model", "Preset, downloaded Hugging Face id or local folder."
    )
    draft: str | None = like(LoadOptions, "draft", "Draft model, named like --model.")
    engine: str = like(LoadOptions, "engine")
    threads: int = opt(
        PERFORMANCE, "--threads N", "CPU threads; 0 is all cores.", 0, min=0, max=1024
    )
    repeats: int = opt(
        DIAGNOSTICS, "--repeats N", "Runs of every system; the median is reported.", 3, min=1
    )
    json: str | None = opt(
        OUTPUT, "--json FILE", "File for the JSON record (one line), or - for stdout."
    )

    @property
    def cores(self) -> int:
        return self.threads or provenance.cores()


@dataclass(frozen=True, kw_only=True)
class RecordingOptions(ComparisonOptions):
    """Of comparisons on recordings."""

    reference: list[str] | None = opt(
        INPUT,
        "--reference FILE",
        "Reference text of a recording; give one per recording, in order.",
        shown="the .txt file beside each recording",
    )
    minutes: float = opt(
        INPUT,
        "--minutes MINUTES",
        "Minimum length; whole recordings are repeated until it is reached.",
        10.0,
        min=0,
    )

    def __post_init__(self) -> None:
        if not math.isfinite(self.minutes):
            raise UsageError(f"--minutes {self.minutes} is no length: give a number of minutes")


def parse_numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    """Read a list such as 1,4,8 of numbers from 1 to `most`; duplicates are dropped. Raises
    UsageError."""
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if part not in map(str, range(1, most + 1))]
    if wrong:
        raise UsageError(
            f"{option} {text}: '{wrong[0]}' is no number from 1 to {most}; write them as 1,4,8"
        )
    return tuple(dict.fromkeys(map(int, parts)))


def parse_names(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read a list of names, such as number formats; duplicates are dropped. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if part not in known]
    if wrong:
        raise UsageError(f"{option} {text}: '{wrong[0]}' is none of {', '.join(known)}")
    return tuple(dict.fromkeys(parts))


def missing(*modules: str) -> str | None:
    """Return the package name of the first of these modules that is not installed."""
    return next((PACKAGES[name] for name in modules if find_spec(name) is None), None)


def app(command: Callable[..., None]) -> typer.Typer:
    """The program of a command."""
    made = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
    made.command(cls=SectionedCommand)(command)
    return made


def start(command: Callable[..., None], program: str) -> None:
    """Run a command with the arguments of this process. Errors are one line, as those of `forescribe`."""
    with reported():
        app(command)(prog_name=f"python -m {program}")


def say(line: str) -> None:
    typer.echo(line, err=True)


class Result(Protocol):
    """What a comparison found."""

    @property
    def complaints(self) -> list[str]:
        """A line for each row of this engine that differs from its reference."""

    def text(self) -> str:
        """The tables."""

    def record(self) -> dict[str, object]:
        """What JSON says besides the provenance."""


@dataclass(frozen=True)
class Sink:
    """Where a result goes: a table to stdout, and a line of JSON to the file `record`; if that is "-", the
    line goes to stdout and the table to stderr."""

    record: str | None = None

    def check(self) -> None:
        """Check that the record can be written, before minutes of measuring. Raises UsageError."""
        if self.record in (None, STDOUT):
            return
        path = Path(self.record or "")
        folder = path.parent
        if path.is_dir():
            raise UsageError(f"--json {path} is a folder: name a file in it")
        if not folder.is_dir():
            raise UsageError(f"--json {path}: there is no folder {folder}; make it first")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"--json {path} cannot be written: name another place")

    def report(self, program: str, result: Result) -> None:
        """Write the result of a program, and end with 1 if a row differs. Raises OutputError."""
        name = program.rpartition(".")[2]
        record = {"benchmark": name, **provenance.record(program), **result.record()}
        self.write(result.text(), record)
        for line in result.complaints:
            say(line)
        if result.complaints:
            raise typer.Exit(1)

    def write(self, table: str, record: Mapping[str, object]) -> None:
        """Write the table, then the record, so that the table survives a full disk. Raises
        OutputError."""
        typer.echo(table, err=self.record == STDOUT)
        if self.record is None:
            return
        line = json.dumps(record)
        if self.record == STDOUT:
            typer.echo(line)
            return
        try:
            Path(self.record).write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"--json {self.record} was not written: {error.strerror or error}"
            ) from error
