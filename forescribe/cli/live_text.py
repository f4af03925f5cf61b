"""The text of a live stream as it is shown: what is certain on stdout, what may change on stderr.

A line is an item, in the order in which they were spoken; with speakers, what each says in turn.
On a terminal the item that is being spoken stands in one line of stderr, which is drawn again: released
words, then in another colour those that may change; of a long one the end, as much as fits. Knows events;
nothing of audio.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from forescribe.asr.batch.destinations import Stdout
from forescribe.asr.errors import one_line, visible
from forescribe.asr.live.events import Completed, Delta, Event, Failed, Hypothesis
from forescribe.diarize.turns import UNKNOWN

if TYPE_CHECKING:
    from forescribe.asr.formats.transcript import Transcript

    from .console import Console

LATE_S = 5.0
"""A text that is later than this after its sound is told; so is each time that it is twice as late."""


@dataclass
class _Line:
    """An item: its text that was not written yet, and whether all of it is there."""

    text: str = ""
    written: bool = False
    over: bool = False


class LiveText:
    """Shows events. `words` writes words when they are released, else lines when items are complete."""

    def __init__(self, console: Console, *, words: bool) -> None:
        self.console, self.words = console, words
        rich = console.rich
        # Words of stdout and the line of stderr would meet in the same row.
        free = not words or not sys.stdout.isatty()
        self.draws = rich.is_terminal and not rich.is_dumb_terminal and not console.quiet and free
        self.turns = 0
        self.failed = 0
        self.closed = False  # nobody reads stdout any more
        self._lines: dict[int, _Line] = {}  # that are not complete, by their items
        self._drawn = False
        self._told_s = LATE_S / 2
        self._stdout = Stdout()

    def show(self, event: Event) -> None:
        """Raises BrokenPipeError where nobody reads stdout any more."""
        line = self._lines.setdefault(event.item, _Line())
        if isinstance(event, Delta) and self.words:
            line.text += visible("".join(word.text for word in event.words))
            self._write()
        elif isinstance(event, Hypothesis):
            self._tell_lag(event.lag_s)
            if event.item == next(iter(self._lines)):
                self._draw(event)
        elif isinstance(event, Completed | Failed):
            line.over = True
            self.erase()
            if isinstance(event, Failed):
                self.failed += 1
                self.console.problem(event.error)
            elif not self.words:
                line.text = "\n".join(_lines(event.transcript))
            self._write()

    def end(self) -> None:
        """Nothing more is told: write what there is. Raises BrokenPipeError."""
        for line in self._lines.values():
            line.over = True
        self._write()

    def erase(self) -> None:
        """Remove the line that may change."""
        if self._drawn:
            self._drawn = False
            self.console.rich.control(
                Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
            )

    def _write(self) -> None:
        """Write what is certain, in the order of the items."""
        while self._lines:
            item, line = next(iter(self._lines.items()))
            text = line.text if line.written else line.text.lstrip()
            line.text = ""
            ended = line.over and bool(text or line.written)
            if text or ended:
                self.erase()
                self._put(text + "\n" * ended)
                line.written = True
            if not line.over:
                return
            self.turns += ended
            del self._lines[item]

    def _put(self, text: str) -> None:
        if self.closed:
            return
        try:
            self._stdout.put("", text.encode("utf-8", errors="replace"))
        except BrokenPipeError:
            self.closed = True
            raise

    def _draw(self, event: Hypothesis) -> None:
        if not self.draws:
            return
        committed, changing = one_line(event.committed), one_line(event.tail)
        between = " " if event.tail[:1].isspace() and committed else ""
        whole = tail(committed + between + changing, self.console.rich.width - 1)
        certain = max(0, len(whole) - len(changing))
        self.erase()
        text = Text.assemble(whole[:certain], (whole[certain:], "dim"))
        self.console.rich.print(text, end="", no_wrap=True, crop=False)
        self.console.rich.file.flush()
        self._drawn = True

    def _tell_lag(self, lag_s: float) -> None:
        if lag_s < 2 * self._told_s:
            return
        self._told_s = lag_s
        self.erase()
        self.console.notice(
            f"the text is {lag_s:.0f} s behind the sound: take a smaller model, a larger --step, or a faster "
            "device"
        )


def tail(text: str, width: int) -> str:
    """The end of a text, as much as fits in `width` columns; wide characters count as two."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[max(1, (cell_len(text) - width) // 2) :]
    return f"…{text}"


def _lines(transcript: Transcript) -> Iterator[str]:
    """The text, with speakers a line for each in turn, UNKNOWN where it is doubtful."""
    if not transcript.diarized:
        yield one_line(transcript.text)
        return
    with_text = [segment for segment in transcript.segments if segment.text.strip()]
    for speaker, turn in groupby(with_text, key=lambda segment: segment.speaker):
        yield one_line(f"{speaker or UNKNOWN}: {''.join(s.text for s in turn).strip()}")
