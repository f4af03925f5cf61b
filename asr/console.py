"""What people see while the command works: a bar, a line per recording, a summary. All on stderr.

For scripts: one JSON record per recording on stdout, with the codes of `asr.errors`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console as Rich
from rich.markup import escape

from asr.errors import ForescribeError

if TYPE_CHECKING:
    from asr.transcriber import Hook, Outcome
    from speculative.stats import Stats


class Console:
    """Messages of one command. `quiet` leaves errors only; `json` writes records to stdout."""

    def __init__(self, *, quiet: bool, verbose: bool, json: bool) -> None:
        self.rich = Rich(stderr=True, highlight=False, soft_wrap=True)
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.started = time.perf_counter()
        self.audio_s = 0.0
        self.failed: list[str] = []

    def status(self, text: str) -> None:
        """A line that only somebody who waits at a terminal needs."""
        if self.rich.is_terminal and not self.quiet:
            self.rich.print(f"[dim]{escape(text)}[/]")

    @contextmanager
    def progress(self, files: int) -> Iterator[Hook | None]:
        """A bar over seconds of audio, and the hook that moves it."""
        self.started = time.perf_counter()
        if self.quiet or not (self.rich.is_terminal or self.verbose):
            yield None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        seen: dict[str, tuple[float, float]] = {}
        with Progress(*columns, console=self.rich, transient=True) as bar:
            task = bar.add_task(f"{files} file{'s' * (files > 1)}", total=0, note="")

            def hook(progress: Any) -> None:
                name = str(progress.source)
                seen[name] = (progress.done_s, progress.total_s or progress.done_s)
                done = sum(d for d, _ in seen.values())
                elapsed = time.perf_counter() - self.started
                note = f"{done / elapsed:.1f}x real time"
                if progress.stats.drafted:
                    note += f", {progress.stats.acceptance_rate:.0%} of drafts accepted"
                total = sum(t for _, t in seen.values())
                bar.update(task, completed=done, total=total, note=note)
                if self.verbose:
                    for segment in progress.segments:
                        times = f"[{segment.start:.2f} --> {segment.end:.2f}]"
                        bar.console.print(escape(f"{times} {segment.text.strip()}"))

            yield hook

    def outcome(self, outcome: Outcome, error: ForescribeError | None, files: list[Path]) -> None:
        """The line of one recording that has ended."""
        if self.json:
            # In ASCII: a path may hold bytes that no encoding of stdout can write.
            sys.stdout.write(json.dumps(_record(outcome, error, files)) + "\n")
            sys.stdout.flush()
        if error is not None:
            self.failed.append(f"{outcome.name}: {error.code}")
            self.rich.print(f"[red]failed[/] {escape(str(error))} [dim]({error.code})[/]")
        if outcome.transcript is None or error is not None:
            return
        self.audio_s += outcome.transcript.duration
        if self.quiet:
            return
        names = " ".join(path.suffix for path in files)
        line = f"{escape(outcome.name)}: {_speed(outcome)}"
        if files:
            line += f" -> {escape(str(files[0].with_suffix('')))} [dim]{names}[/]"
        self.rich.print(line)
        for notice in outcome.transcript.warnings:
            self.rich.print(f"  [yellow]note[/] {escape(notice.message)}")

    def summary(self, stats: Stats, failures: int) -> None:
        """The last line: how much, how fast, and what speculation did; failures by name again."""
        if self.quiet:
            return
        wall = time.perf_counter() - self.started
        line = (
            f"{self.audio_s:.1f} s of audio in {wall:.1f} s ({self.audio_s / wall:.1f}x real time)"
        )
        if stats.drafted:
            line += (
                f", {stats.acceptance_rate:.1%} of drafts accepted, "
                f"{stats.mean_acceptance_length:.2f} tokens per round"
            )
        self.rich.print(f"[bold]{line}[/]")
        if failures:
            self.rich.print(f"[red]{failures} failed:[/] {escape('; '.join(self.failed))}")


def _speed(outcome: Outcome) -> str:
    assert outcome.transcript is not None
    duration = outcome.transcript.duration
    text = f"{duration:.1f} s of audio"
    if not outcome.transcript.segments:
        text += ", no speech"
    return text


def _record(outcome: Outcome, error: ForescribeError | None, files: list[Path]) -> dict[str, Any]:
    """The status record of `cli-conventions`: what a script needs to know."""
    transcript = outcome.transcript
    record: dict[str, Any] = {
        "path": outcome.name,
        "status": "succeeded" if error is None else "failed",
        "code": None if error is None else error.code,
        "message": None if error is None else str(error),
        "audio_s": None if transcript is None else transcript.duration,
        "wall_s": round(outcome.wall_s, 3),
        "outputs": [str(path) for path in files],
    }
    if transcript is not None:
        record["rtfx"] = round(transcript.duration / outcome.wall_s, 2) if outcome.wall_s else None
        record["language"] = transcript.language
        record["acceptance_rate"] = transcript.stats.get("acceptance_rate")
        record["mean_acceptance_length"] = transcript.stats.get("mean_acceptance_length")
        record["warnings"] = [n.code for n in transcript.warnings]
    return record
