"""A progress bar over the stages of a long command, one at a time.

On a terminal a bar; elsewhere a line for each stage as it begins. Knows names and numbers; nothing of what
is done.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from forescribe.asr.errors import one_line


class StageBar:
    """A hook `(stage, done, whole or None, note)` that draws; a context manager. `quiet` draws nothing."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.stage = ""
        self.task = self.bar.add_task("", total=None, note="")

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def __call__(self, stage: str, done: float, whole: float | None, note: str) -> None:
        """Show how far a stage is."""
        if self.quiet:
            return
        if stage != self.stage:
            self.stage = stage
            self.bar.reset(self.task, total=whole, description=stage, note="")
            if not self.console.is_terminal:
                self.console.print(f"{stage} …", markup=False)
        self.bar.update(self.task, completed=done, total=whole, note=one_line(note))
