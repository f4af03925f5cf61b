"""What people see while the command works: a bar, a line per recording, a summary. All on stderr.

For scripts: one JSON record per recording on stdout, with the codes of `asr.errors`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console as Rich
from rich.markup import escape as without_markup

from forescribe.asr.formats.transcript import ONCE
from forescribe.asr.printable import visible

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Ended
    from forescribe.asr.batch.inputs import Source
    from forescribe.asr.decode.outcome import Hook
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.speculative.engine.stats import Stats


class Console:
    """Messages of one command. `quiet` leaves errors only; `json` writes records to stdout."""

    def __init__(self, *, quiet: bool, verbose: bool, json: bool) -> None:
        self.rich = Rich(stderr=True, highlight=False, soft_wrap=True)
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.started = time.perf_counter()
        self.audio_s = 0.0
        self.failed: list[str] = []
        self.cancelled = 0
        self.said: frozenset[str] = frozenset()  # codes that are not to be said again

    def status(self, text: str) -> None:
        """A line that only somebody who waits at a terminal needs."""
        if self.rich.is_terminal and not self.quiet:
            self.rich.print(f"[dim]{escape(text)}[/]")

    def notice(self, text: str) -> None:
        """A line that everybody must see who sees anything: the run is not what was asked for."""
        if not self.quiet:
            self.rich.print(f"[yellow]note[/] {escape(text)}")

    def skipped(self, done: Sequence[Ended], files: int) -> None:
        """What an earlier run has done."""
        if self.json:
            for ended in done:
                self._write(ended)
        if not done or self.quiet:
            return
        what = done[0].record.path if len(done) == 1 else f"{len(done)} of {files}"
        self.rich.print(f"{escape(what)}: already done, --overwrite to redo")

    @contextmanager
    def progress(self, sources: Sequence[Source], *, text: bool = True) -> Iterator[Hook | None]:
        """A bar over seconds of audio, and the hook that moves it. On a terminal the words are shown as
        they come: above the bar what is final, unless `text` says that it will be there anyway, and
        below it what is being written."""
        self.started = time.perf_counter()
        if self.quiet or not (self.rich.is_terminal or self.verbose):
            yield None
            return
        from .progress import Screen

        with Screen(self.rich, sources, verbose=self.verbose, text=text) as screen:
            yield screen

    def ended(self, ended: Ended) -> None:
        """The line of one recording that has ended."""
        record, transcript, error = ended.record, ended.transcript, ended.error
        if self.json:
            self._write(ended)
        if record.status == "cancelled":
            self.cancelled += 1
            return
        if error is not None:
            self.failed.append(f"{record.path}: {error.code}")
            self.rich.print(f"[red]failed[/] {escape(str(error))} [dim]({error.code})[/]")
        if transcript is None or error is not None:
            return
        self.audio_s += transcript.duration
        if self.quiet:
            return
        line = f"{escape(record.path)}: {_speed(transcript)}"
        if ended.files:
            line += f" -> {escape(named(ended.files))}"
        self.rich.print(line)
        for notice in transcript.warnings:
            if notice.code not in self.said:
                self.rich.print(f"  [yellow]note[/] {escape(notice.message)}")
            self.said |= ONCE & {notice.code}

    def _write(self, ended: Ended) -> None:
        """The record, for scripts, with paths as from here."""
        record = ended.record.to_dict() | {"outputs": [str(path) for path in ended.files]}
        # In ASCII: a path may hold bytes that no encoding of stdout can write.
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()

    def _speed(self, stats: Stats | None) -> str:
        wall = time.perf_counter() - self.started
        line = (
            f"{self.audio_s:.1f} s of audio in {wall:.1f} s ({self.audio_s / wall:.1f}x real time)"
        )
        if stats is not None and stats.drafted:
            line += (
                f", {stats.acceptance_rate:.1%} of drafts accepted, "
                f"{stats.mean_acceptance_length:.2f} tokens per round"
            )
        return line

    def summary(self, stats: Stats | None) -> None:
        """The last line: how much, how fast, and what speculation did; failures by name again."""
        if self.quiet:
            return
        if self.audio_s:  # where nothing was transcribed there is no speed
            self.rich.print(f"[bold]{self._speed(stats)}[/]")
        if self.cancelled:
            self.rich.print(f"[yellow]{self.cancelled} cancelled;[/] the same command goes on")
        if self.failed:
            names = escape("; ".join(self.failed))
            self.rich.print(f"[red]{len(self.failed)} failed:[/] {names}")


def escape(text: str) -> str:
    """Text from outside: without effect on rich, nor on the terminal."""
    return without_markup(visible(text))


def named(files: Sequence[Path]) -> str:
    """The files of one recording, which differ in their extensions."""
    return " ".join([str(files[0].with_suffix("")), *(path.suffix for path in files)])


def _speed(transcript: Transcript) -> str:
    """How long it is, and what was found in it."""
    text = f"{transcript.duration:.1f} s of audio"
    spoken: dict[str, float] = {}  # seconds
    for turn in transcript.turns:
        spoken[turn.speaker] = spoken.get(turn.speaker, 0.0) + turn.end - turn.start
    if spoken:
        people = f"{len(spoken)} speaker{'s' * (len(spoken) > 1)}"
        each = ", ".join(f"{name} {said:.1f} s" for name, said in spoken.items())
        return f"{text}, {people}: {each}"
    return text if transcript.segments else f"{text}, no speech"
