"""`forescribe export`: transcripts in other formats, from their JSON.

Knows the options and the exit code; formats are in `asr.formats`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.errors import ForescribeError, OutputError, UsageError, one_line, visible

from .option_records import OUTPUT, arg, like, opt, takes
from .options import RunOptions

if TYPE_CHECKING:
    from forescribe.asr.formats.subtitles import LineRules


@dataclass(frozen=True, kw_only=True)
class SubtitleOptions:
    """How subtitles are arranged in lines."""

    max_line_width: int | None = opt(
        OUTPUT, "CHARS", "Subtitles: maximum characters per line.", min=1
    )
    max_line_count: int | None = opt(
        OUTPUT, "LINES", "Subtitles: maximum lines at once; needs another limit.", min=1
    )
    max_words_per_line: int | None = opt(
        OUTPUT, "WORDS", "Subtitles: maximum words per line; alone, one line each.", min=1
    )
    highlight_words: bool = opt(
        OUTPUT, "", "Subtitles: underline each word while it is spoken.", False
    )

    @cached_property
    def line_rules(self) -> LineRules:
        """The options for subtitles."""
        from forescribe.asr.formats.subtitles import LineRules

        return LineRules(
            self.max_line_width, self.max_line_count, self.max_words_per_line, self.highlight_words
        )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(SubtitleOptions):
    """The parsed command line."""

    transcripts: list[str] = arg("JSON...", "Transcripts in JSON, edited or not.")
    output_dir: str | None = like(
        RunOptions, "output_dir", "Folder for the files.", default=None, shown="that of the JSON"
    )
    output_format: str = like(RunOptions, "output_format")
    overwrite: bool = opt(OUTPUT, "--overwrite", "Replace files that exist.", False)


@takes(ExportOptions)
def export(**values: Any) -> None:
    """Write transcripts in other formats, without decoding them again.

    Reads the JSON of `forescribe transcribe -f json` and of a service's response_format=transcript."""
    options = ExportOptions(**values)
    from forescribe.asr.formats.files import formats
    from forescribe.asr.formats.transcript import Transcript

    rules, failed = options.line_rules, False
    names = [format_.name for format_ in formats(options.output_format)]
    if not rules.plain and not {"srt", "vtt"} & set(names):
        raise UsageError("line rules and --highlight-words shape subtitles: add srt or vtt to -f")
    for source in map(Path, options.transcripts):
        folder = source.parent if options.output_dir is None else Path(options.output_dir)
        try:
            transcript = Transcript.load(source)
            for path in (folder / f"{source.stem}.{name}" for name in names):
                if path.exists() and path.resolve() == source.resolve():
                    continue  # of "all"
                if path.exists() and not options.overwrite:
                    raise OutputError(f"{path} exists: --overwrite replaces it")
                typer.echo(visible(str(transcript.save(path, rules))))
        except ForescribeError as error:
            typer.echo(f"failed: {one_line(visible(str(error)))}", err=True)
            failed = True
    if failed:
        raise typer.Exit(1)
