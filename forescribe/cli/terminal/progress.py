"""A progress bar with the text as it is decoded.

Final text scrolls above the bar; partial text stands in one line below it, which is redrawn a few
times a second and removed at the end. In a log, with --verbose, only segments are printed. Knows
the hook of a transcription; nothing of files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from forescribe.asr.errors import one_line

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Partial
    from forescribe.asr.decode.options import Progress as WindowProgress
    from forescribe.asr.records.sources import Source

EVERY_S = 0.2
"""Seconds between two updates of partial text: each one waits for the device."""


class Screen:
    """A hook that draws. The text of a single recording is shown; of several, the bar and the line
    below."""

    def __init__(
        self,
        console: Console,
        sources: Sequence[Source],
        *,
        verbose: bool,
        text: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.console, self.verbose, self.clock = console, verbose, clock
        self.text = text and len(sources) == 1 and console.is_terminal and not verbose
        self.seen = {source.path: (0.0, source.length_s or 0.0) for source in sources}
        self.started = self.last_update = clock()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        self.bar = _Bar(*columns, console=console, transient=True)
        whole, files = sum(total for _, total in self.seen.values()), len(sources)
        self.task = self.bar.add_task(f"{files} file{'s' * (files > 1)}", total=whole, note="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.line = ""
        self.bar.stop()

    def __call__(self, progress: WindowProgress) -> None:
        """Draw a window that has ended."""
        self.seen[str(progress.source)] = (progress.done_s, progress.total_s or progress.done_s)
        done = sum(d for d, _ in self.seen.values())
        note = f"{done / max(self.clock() - self.started, 1e-9):.1f}x real time"
        if progress.stats.drafted:
            note += f", {progress.stats.acceptance_rate:.0%} of drafts accepted"
        total = sum(t for _, t in self.seen.values())
        self.bar.update(self.task, completed=done, total=total, note=note)
        self.bar.line = ""
        if self.verbose:
            for segment in progress.segments:
                times = f"[{segment.start:.2f} --> {segment.end:.2f}]"
                self._print(f"{times} {one_line(segment.text)}")
        elif self.text:
            for segment in progress.spoken:
                self._print(one_line(segment.text))

    @property
    def wants(self) -> bool:
        """Whether it is time to show partial text."""
        return self.console.is_terminal and self.clock() - self.last_update >= EVERY_S

    def follow(self, partial: Partial) -> None:
        """Show partial text."""
        self.last_update = self.clock()
        self.bar.line = one_line(partial.text)

    def _print(self, text: str) -> None:
        self.bar.console.print(text, markup=False)


class _Bar(Progress):
    """A bar with a line of text below it."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.line:
            yield Text(tail(self.line, self.console.width - 1), style="dim", no_wrap=True)


def tail(text: str, width: int) -> str:
    """The end of a text, as much as fits in `width` columns; wide characters count as two."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[max(1, (cell_len(text) - width) // 2) :]
    return f"…{text}"
