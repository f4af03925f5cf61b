"""Messages of a command: a progress bar, a line per recording, a summary. All on stderr.

On a terminal the text of a recording scrolls above the bar as windows end. In a log, with --verbose, only
segments are printed. For scripts there is one JSON record per recording on stdout, with the codes of
`asr.errors`. Knows how a result is shown; nothing of how it was made.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console as Rich
from rich.markup import escape as without_markup
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from forescribe.asr.batch.interrupts import INTERRUPTED
from forescribe.asr.errors import one_line, visible
from forescribe.asr.formats.transcript_parts import seconds
from forescribe.asr.model.languages import SPACELESS

if TYPE_CHECKING:
    from pathlib import Path

    from forescribe.asr.batch.outputs import RecordingResult
    from forescribe.asr.decode.results import Hook
    from forescribe.asr.decode.results import Progress as WindowProgress
    from forescribe.asr.errors import ForescribeError
    from forescribe.asr.formats.report import Reports
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.storage.locations import Location, Source


class Console:
    """The messages of one command. `quiet` shows errors only; `records` are written to stdout; `stats` tells
    of drafts and engines."""

    def __init__(
        self, *, quiet: bool, verbose: bool = False, records: bool = False, stats: bool = False
    ) -> None:
        self.rich = Rich(stderr=True, highlight=False, soft_wrap=True)
        self.quiet, self.verbose, self.records, self.stats = quiet, verbose, records, stats
        self.started = time.perf_counter()
        self.totals = Totals()
        self.failed: list[str] = []
        self.cancelled = 0
        self.interrupted = False

    def status(self, text: str) -> None:
        """Show a line on a terminal only, for a user who waits."""
        if self.rich.is_terminal and not self.quiet:
            self.rich.print(f"[dim]{escape(text)}[/]")

    def notice(self, text: str) -> None:
        """Show a line unless `quiet`: the run differs from what the options say."""
        if not self.quiet:
            self.rich.print(f"[yellow]note[/] {escape(text)}")

    def problem(self, error: ForescribeError) -> None:
        """Show why a recording, or a part of one, has failed."""
        self.rich.print(f"[red]failed[/] {escape(str(error))} [dim]({error.code})[/]")

    def skipped(
        self, results: Sequence[RecordingResult], total: int, reports: Reports | None = None
    ) -> None:
        """Show what an earlier run has done, of `total` recordings, and add it to the reports."""
        done = [result for result in results if result.record.status == "skipped"]
        for result in results:
            if result.record.status != "skipped":
                self.result(result)
            elif self.records:
                self._write(result)
        if done and not self.quiet:
            path = done[0].record.path
            what = path if len(done) == 1 else f"{len(done)} of {total}"
            self.rich.print(f"{escape(what)}: already done, --overwrite to redo")
        for result in results if reports else ():
            path = result.record.path
            if reports and not reports.add_skipped(path, result.files):
                self.notice(f"{path}: no report without its JSON; --overwrite -f json")

    @contextmanager
    def progress(self, sources: Sequence[Source], *, text: bool = True) -> Iterator[Hook | None]:
        """Show a bar over seconds of audio; yields the hook that moves it. On a terminal the text is shown
        above it if `text`. An interruption ends the block."""
        self.started = time.perf_counter()
        try:
            if self.quiet or not (self.rich.is_terminal or self.verbose):
                yield None
            else:
                with Screen(self.rich, sources, verbose=self.verbose, text=text) as screen:
                    yield screen
        except KeyboardInterrupt:
            self.interrupted = True

    def result(self, result: RecordingResult, reports: Reports | None = None) -> None:
        """Show the line of one recording that has ended, and add it to the reports."""
        record, transcript, error = result.record, result.transcript, result.error
        if reports:
            why = record.status if error is None else error.message
            reports.add(record.path, why if transcript is None or error else transcript)
        if self.records:
            self._write(result)
        if record.status == "cancelled":
            self.cancelled += 1
            return
        if record.status == "skipped" and not self.quiet:  # found unchanged after it was fetched
            self.rich.print(f"{escape(record.path)}: already done, --overwrite to redo")
        if error is not None:
            self.failed.append(f"{record.path}: {error.code}")
            self.problem(error)
        for name in result.kept:
            self.notice(f"{name} was edited: kept; --overwrite replaces it")
        if record.status != "succeeded" or error is not None:
            return
        if transcript is not None:
            self.totals.add(transcript)
        if self.quiet:
            return
        line = f"{escape(record.path)}: "
        line += "from its JSON" if transcript is None else _speed(transcript)
        if result.files:
            line += f" -> {escape(file_names(result.files))}"
        self.rich.print(line)
        for notice in transcript.warnings if transcript else ():
            self.rich.print(f"  [yellow]note[/] {escape(notice.message)}")

    def _write(self, result: RecordingResult) -> None:
        """Write the record for scripts, with paths relative to the working directory."""
        record = result.record.to_dict() | {"outputs": [str(path) for path in result.files]}
        # In ASCII: a path may hold bytes that no encoding of stdout can write.
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()

    def summary(self, *, vad: bool = False) -> None:
        """Show the last lines: what was heard and how fast, and all failures by name. `vad`: silence was left
        out."""
        if self.quiet:
            return
        totals = self.totals
        if totals.audio:  # without a transcript there is no speed
            wall_s = time.perf_counter() - self.started
            self.rich.print(f"[bold]{totals.line(wall_s, vad=vad)}[/]")
            if self.stats:
                self.rich.print(totals.figures)
        if totals.wordless:
            self.rich.print(f"[yellow]{seconds(totals.wordless):.1f} s of voice without words[/]")
        if self.cancelled:
            self.rich.print(f"[yellow]{self.cancelled} cancelled;[/] the same command goes on")
        if self.failed:
            names = escape("; ".join(self.failed))
            self.rich.print(f"[red]{len(self.failed)} failed:[/] {names}")

    @property
    def exit_code(self) -> int:
        """0 if all went well, 1 if a recording failed, 130 after an interruption."""
        return INTERRUPTED if self.interrupted else int(bool(self.failed))


@dataclass
class Totals:
    """What the transcripts of a run hold together, in samples and numbers."""

    audio: int = 0
    silent: int = 0
    wordless: int = 0
    words: int = 0
    characters: int = 0  # of languages without spaces
    recordings: int = 0
    speakers: int = 0  # of the last one
    drafting: object = None  # what `auto` has decided, by the last one
    engines: set[str] = field(default_factory=set)
    searches: set[str] = field(default_factory=set)
    drafts: Counter[str] = field(default_factory=Counter)  # drafted, accepted, rounds

    def add(self, transcript: Transcript) -> None:
        self.recordings += 1
        self.audio += transcript.sample_count
        self.silent += transcript.coverage.silent_samples
        self.wordless += transcript.coverage.wordless_samples or 0
        self.speakers = len(transcript.speakers)
        stats: Mapping[str, Any] = transcript.stats
        self.drafting = stats.get("drafting")
        self.engines.add(str(transcript.settings.get("engine")))
        if (search := stats.get("search")) is not None:
            self.searches.add(search)
        self.drafts.update({name: stats.get(name, 0) for name in ("drafted", "accepted", "rounds")})
        if transcript.language in SPACELESS:
            self.characters += sum(map(str.isalnum, transcript.text))
        else:
            self.words += len(transcript.text.split())

    def line(self, wall_s: float, *, vad: bool) -> str:
        """Amount, speed and what was left out; recordings of their own have speakers of their own."""
        audio_s, silent_s = seconds(self.audio), seconds(self.silent)
        heard = [
            _counted(self.words, "word"),
            _counted(self.characters, "character"),
            _counted(self.speakers if self.recordings == 1 else 0, "speaker"),
        ]
        line = f"{audio_s:.1f} s of audio in {wall_s:.1f} s ({audio_s / wall_s:.1f}x real time)"
        if any(heard):
            line += f": {', '.join(filter(None, heard))}"
        if vad and silent_s >= 1:
            line += f"; {silent_s:.0f} s skipped as silence, --no-vad decodes it"
        return line

    @property
    def figures(self) -> str:
        """How texts were searched, what drafts brought, what was decided about them, and what computed."""
        searched = "".join(f"{search}; " for search in sorted(self.searches))
        brought = acceptance(**self.drafts) or "no drafts"
        decided = f"auto: {self.drafting}; " if self.drafting else ""
        return f"{searched}{brought}; {decided}engine {', '.join(sorted(self.engines))}"


class Screen(Progress):
    """A hook that draws; a context manager. The text of a single recording is shown, of several the bar
    alone."""

    def __init__(
        self, console: Rich, sources: Sequence[Source], *, verbose: bool, text: bool
    ) -> None:
        self.verbose = verbose
        self.text = text and len(sources) == 1 and console.is_terminal and not verbose
        self.seen = {source.path: (0.0, source.length_s or 0.0) for source in sources}
        self.started = time.perf_counter()
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        whole, files = sum(total for _, total in self.seen.values()), len(sources)
        self.task = self.add_task(f"{files} file{'s' * (files > 1)}", total=whole, note="")

    def __call__(self, progress: WindowProgress) -> None:
        """Draw a window that has ended."""
        self.seen[str(progress.source)] = (progress.done_s, progress.total_s or progress.done_s)
        done = sum(d for d, _ in self.seen.values())
        note = f"{done / max(time.perf_counter() - self.started, 1e-9):.1f}x real time"
        total = sum(t for _, t in self.seen.values())
        self.update(self.task, completed=done, total=total, note=note)
        if self.verbose:
            for segment in progress.segments:
                times = f"[{segment.start:.2f} --> {segment.end:.2f}]"
                self.console.print(f"{times} {one_line(segment.text)}", markup=False)
        elif self.text:
            for segment in progress.spoken:
                self.console.print(one_line(segment.text), markup=False)


class StageBar(Progress):
    """A hook `(stage, done, whole or None, note)` that draws; a context manager. `quiet` draws nothing."""

    def __init__(self, console: Rich, *, quiet: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.quiet, self.stage = quiet, ""
        self.task = self.add_task("", total=None, note="")

    def __call__(self, stage: str, done: float, whole: float | None, note: str) -> None:
        """Show how far a stage is."""
        if self.quiet:
            return
        if stage != self.stage:
            self.stage = stage
            self.reset(self.task, total=whole, description=stage, note="")
            if not self.console.is_terminal:
                self.console.print(f"{stage} …", markup=False)
        self.update(self.task, completed=done, total=whole, note=one_line(note))


def acceptance(drafted: int, accepted: int, rounds: int) -> str:
    """What drafts brought in so many rounds of rows, in words; empty without drafts."""
    if not drafted:
        return ""
    length = 1 + accepted / rounds
    return f"{accepted / drafted:.1%} of drafts accepted, {length:.2f} tokens per round"


def escape(text: str) -> str:
    """Make foreign text harmless, for rich markup and for the terminal."""
    return without_markup(visible(text))


def file_names(files: Sequence[Path | Location]) -> str:
    """The files of one recording, which differ in their extensions only: `out/a .txt .srt`."""
    stems, extensions = zip(*map(os.path.splitext, map(str, files)), strict=True)
    return " ".join((stems[0], *extensions))


def _speed(transcript: Transcript) -> str:
    """The length of a recording, what of it is loud and has no words, and its speakers."""
    text = f"{transcript.duration:.1f} s of audio"
    if loud := transcript.coverage.loud_samples:
        text += f", {seconds(loud):.1f} s of it loud ({transcript.coverage.loud_db:.0f} dB) without a voice"
    spoken: dict[str, float] = {}  # seconds
    for turn in transcript.turns:
        spoken[turn.speaker] = spoken.get(turn.speaker, 0.0) + turn.end - turn.start
    if spoken:
        people = _counted(len(spoken), "speaker")
        each = ", ".join(f"{name} {length:.1f} s" for name, length in spoken.items())
        return f"{text}, {people}: {each}"
    return text if transcript.segments else f"{text}, no speech"


def _counted(number: int, thing: str) -> str:
    """A number of things in words, empty for none."""
    return f"{number:,} {thing}{'s' * (number > 1)}" if number else ""
