"""`forescribe export`: transcripts in other formats, from their JSON.

Knows the options and the exit code; formats are in `asr.formats`.
"""

from __future__ import annotations

import os
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
    from forescribe.asr.batch.outputs import STDOUT
    from forescribe.asr.formats.files import OF_SPEAKERS, formats
    from forescribe.asr.formats.transcript import Transcript

    rules, failed = options.line_rules, False
    names = [format_.name for format_ in formats(options.output_format)]
    if not rules.plain and not {"srt", "vtt"} & set(names):
        raise UsageError("line rules and --highlight-words shape subtitles: add srt or vtt to -f")
    if options.output_dir == STDOUT:
        raise UsageError("-o -: `export` writes files; name a folder")
    stems: dict[Path, Path] = {}
    for source in map(Path, options.transcripts):
        folder = source.parent if options.output_dir is None else Path(options.output_dir)
        if (other := stems.setdefault(folder / source.stem, source)) != source:
            raise UsageError(f"{other} and {source} would be one file: export one into another -o")
    for stem, source in stems.items():
        try:
            transcript = Transcript.load(source)
            if not transcript.diarized and OF_SPEAKERS & set(names):
                raise UsageError(f"{source} names no speakers, which rttm lists")
            for path in (stem.with_name(f"{stem.name}.{name}") for name in names):
                if os.path.exists(path) and path.resolve() == source.resolve():
                    continue  # of "all"
                if os.path.exists(path) and not options.overwrite:
                    raise OutputError(f"{path} exists: --overwrite replaces it")
                typer.echo(visible(str(transcript.save(path, rules))))
        except ForescribeError as error:
            typer.echo(f"failed: {one_line(visible(str(error)))}", err=True)
            failed = True
    if failed:
        raise typer.Exit(1)
