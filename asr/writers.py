"""Transcripts as files: txt, srt, vtt, tsv, json.

Each format is a pure function Transcript -> str, so writing another format never decodes again.
UTF-8 without BOM, "\\n" line ends. `write` puts files in place whole or not at all. Knows nothing
of how a transcript came to be.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from asr.errors import OutputError, UsageError
from asr.transcript import SAMPLE_RATE, Segment, Transcript

Render = Callable[[Transcript], str]


@dataclass(frozen=True)
class Format:
    """An output format: its name is also its file extension."""

    name: str
    render: Render


@dataclass(frozen=True)
class Cue:
    """A subtitle: integer milliseconds, one line of text. Raises ValueError unless start_ms <
    end_ms."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_ms < self.end_ms:
            raise ValueError(f"cue runs from {self.start_ms} to {self.end_ms} ms")


def milliseconds(samples: int) -> int:
    """Nearest millisecond, halves up. Integers throughout: 59.9996 s is 60000, never 59 s and 1000
    ms."""
    return (samples * 1000 + SAMPLE_RATE // 2) // SAMPLE_RATE


def cues(transcript: Transcript) -> list[Cue]:
    """The segments as subtitles: in order, start < end, none overlapping the next, none after the
    audio's end.

    Whisper's timestamps promise none of this: they may touch, repeat, or point into the padding
    behind the audio. No text is lost for it: a segment without room of its own joins the cue before
    it.
    """
    limit = max(1, milliseconds(transcript.sample_count))
    spoken = sorted((s for s in transcript.segments if _line(s.text)), key=lambda s: s.start_sample)
    starts = [milliseconds(segment.start_sample) for segment in spoken]
    following = [*starts[1:], limit][: len(starts)]
    result: list[Cue] = []
    for segment, raw_start, next_start in zip(spoken, starts, following, strict=True):
        start = max(raw_start, result[-1].end_ms if result else 0)
        if start >= limit and result:
            result[-1] = replace(result[-1], text=f"{result[-1].text} {_line(segment.text)}")
            continue
        start = min(start, limit - 1)
        end = min(milliseconds(segment.end_sample), limit)
        if next_start > start:
            end = min(end, next_start)
        result.append(Cue(start, max(end, start + 1), _line(segment.text), segment.speaker))
    return result


def txt(transcript: Transcript) -> str:
    """One segment per line; with speakers one line per turn, `SPEAKER: text`."""
    spoken = [segment for segment in transcript.segments if _line(segment.text)]
    if not any(segment.speaker for segment in spoken):
        return "".join(f"{_line(segment.text)}\n" for segment in spoken)
    turns = groupby(spoken, key=lambda segment: segment.speaker)
    return "".join(
        f"{speaker}: {_joined(turn)}\n" if speaker else f"{_joined(turn)}\n"
        for speaker, turn in turns
    )


def srt(transcript: Transcript) -> str:
    """SubRip: numbered from 1, hours always, comma before the milliseconds."""
    blocks = []
    for number, cue in enumerate(cues(transcript), start=1):
        label = f"[{cue.speaker}]: " if cue.speaker else ""
        span = f"{_clock(cue.start_ms, ',', hours=True)} --> {_clock(cue.end_ms, ',', hours=True)}"
        blocks.append(f"{number}\n{span}\n{_no_arrow(label + cue.text)}\n\n")
    return "".join(blocks)


def vtt(transcript: Transcript) -> str:
    """WebVTT: the header also when empty, hours from the first hour on, markup escaped, voice tags
    for speakers."""
    blocks = ["WEBVTT\n\n"]
    for cue in cues(transcript):
        voice = f"<v {_escaped(cue.speaker).replace('>', '&gt;')}>" if cue.speaker else ""
        span = f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}"
        blocks.append(f"{span}\n{voice}{_escaped(_no_arrow(cue.text))}\n\n")
    return "".join(blocks)


def tsv(transcript: Transcript) -> str:
    """Tab-separated: integer milliseconds and text; tabs in the text become spaces."""
    rows = [f"{cue.start_ms}\t{cue.end_ms}\t{_no_tab(cue)}\n" for cue in cues(transcript)]
    return "".join(["start\tend\ttext\n", *rows])


def json_(transcript: Transcript) -> str:
    """Whisper's JSON with what explains the result; one line, since token lists would fill pages
    otherwise."""
    return json.dumps(transcript.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        format_.name: format_
        for format_ in (
            Format("txt", txt),
            Format("srt", srt),
            Format("vtt", vtt),
            Format("tsv", tsv),
            Format("json", json_),
        )
    }
)


def formats(names: str | Iterable[str]) -> tuple[Format, ...]:
    """The formats for "txt,srt", ["txt", "srt"] or "all", each once, in the order given.

    Raises UsageError that lists the known names.
    """
    wanted = names.split(",") if isinstance(names, str) else list(names)
    wanted = [name.strip().lower() for name in wanted]
    expanded = [known for name in wanted for known in (FORMATS if name == "all" else [name])]
    unknown = [name for name in expanded if name not in FORMATS]
    if unknown or not expanded:
        culprit = f"unknown output format {unknown[0]!r}" if unknown else "no output format"
        raise UsageError(f"{culprit}; known: {', '.join(FORMATS)}, all")
    return tuple(FORMATS[name] for name in dict.fromkeys(expanded))


def write(
    transcript: Transcript, folder: str | Path, stem: str, names: str | Iterable[str] = "all"
) -> list[Path]:
    """Write `<folder>/<stem>.<format>` for each format; creates the folder; replaces what is there.

    Every format is rendered before the first file appears, and every file appears by a rename: a
    reader sees an old file, a new file or none, never half a file.

    Raises UsageError for an unknown format, OutputError (`unwritable_output`, `storage_full`) if
    the folder refuses.
    """
    if stem in ("", ".", "..") or Path(stem).name != stem:
        raise UsageError(f"{stem!r} is not a file name")
    rendered = [(format_.name, format_.render(transcript)) for format_ in formats(names)]
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_replace(folder / f"{stem}.{extension}", text) for extension, text in rendered]
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write {stem!r} to {str(folder)!r}: {error.strerror or error}; "
            "name another folder with -o",
            code="storage_full" if full else "unwritable_output",
        ) from error


def _replace(path: Path, text: str) -> Path:
    # Not tempfile: its files are private to the user (mode 0600), and the rename would keep that.
    temporary = path.with_name(f".forescribe-{secrets.token_hex(8)}.tmp")
    try:
        # A lone surrogate cannot be written as UTF-8; one odd character must not cost the
        # transcript.
        temporary.write_bytes(text.encode("utf-8", errors="replace"))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return path


def _clock(total_ms: int, point: str, *, hours: bool = False) -> str:
    minutes_total, ms = divmod(total_ms, 60_000)
    hour, minute = divmod(minutes_total, 60)
    prefix = f"{hour:02d}:" if hours or hour else ""
    return f"{prefix}{minute:02d}:{ms // 1000:02d}{point}{ms % 1000:03d}"


def _line(text: str) -> str:
    """One line: a line break inside a cue would end it, a blank line would begin the next."""
    return " ".join(part.strip() for part in text.splitlines() if part.strip())


def _joined(segments: Iterable[Segment]) -> str:
    return _line("".join(segment.text for segment in segments))


def _no_arrow(text: str) -> str:
    """Subtitle parsers take `-->` for a time line. Repeated: `--->` still holds an arrow after one
    pass."""
    while "-->" in text:
        text = text.replace("-->", "->")
    return text


def _no_tab(cue: Cue) -> str:
    text = f"[{cue.speaker}]: {cue.text}" if cue.speaker else cue.text
    return text.replace("\t", " ")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


__all__ = [
    "FORMATS",
    "Cue",
    "Format",
    "cues",
    "formats",
    "json_",
    "milliseconds",
    "srt",
    "tsv",
    "txt",
    "vtt",
    "write",
]
