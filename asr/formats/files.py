"""Transcripts as files: txt, srt, vtt, tsv, json, rttm.

Each format is a pure function Transcript -> str, so writing another format never decodes again.
UTF-8 without BOM, "\\n" line ends. `write` puts files in place whole or not at all. Knows nothing
of how a transcript came to be.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from ..errors import ForescribeError, OutputError, UsageError
from .rttm import rttm
from .subtitles import PLAIN, Block, LineRules, blocks
from .transcript import SAMPLE_RATE, Segment, Transcript

Render = Callable[[Transcript], str]

TEMPORARY = ".forescribe-{}.tmp"
"""Name of a file that is being written; a process that is killed may leave one."""


@dataclass(frozen=True)
class Format:
    """An output format: its name is also its file extension."""

    name: str
    render: Render


@dataclass(frozen=True)
class Cue:
    """A subtitle: integer milliseconds, text of one line or, with line rules, of several. `mark`
    is the part of the text that is underlined. Raises ValueError unless start_ms < end_ms."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None
    mark: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_ms < self.end_ms:
            raise ValueError(f"cue runs from {self.start_ms} to {self.end_ms} ms")

    def marked(self, clean: Callable[[str], str]) -> str:
        """The text as `clean` makes it, the marked part between `<u>` and `</u>`."""
        if self.mark is None:
            return clean(self.text)
        start, end = self.mark
        before, word, after = self.text[:start], self.text[start:end], self.text[end:]
        return f"{clean(before)}<u>{clean(word)}</u>{clean(after)}"


def milliseconds(samples: int) -> int:
    """Nearest millisecond, halves up. Integers throughout: 59.9996 s is 60000, never 59 s and 1000
    ms."""
    return (samples * 1000 + SAMPLE_RATE // 2) // SAMPLE_RATE


def cues(transcript: Transcript, rules: LineRules = PLAIN) -> list[Cue]:
    """The segments as subtitles, or what `rules` make of their words: in order, start < end, none
    overlapping the next, none after the audio's end.

    Whisper's timestamps promise none of this: they may touch, repeat, or point into the padding
    behind the audio. No text is lost for it: a segment without room of its own joins the cue before
    it.
    """
    if rules.plain:
        spoken = (segment for segment in transcript.segments if _line(segment.text))
        parts = [_Part(s.start_sample, s.end_sample, _line(s.text), s.speaker) for s in spoken]
    else:
        parts = [_part(block) for block in blocks(transcript, rules)]
    placed = _apart(parts, max(1, milliseconds(transcript.sample_count)))
    if not rules.highlight:
        return [cue for cue, _ in placed]
    return [cue for whole, part in placed for cue in _highlighted(whole, part)]


@dataclass(frozen=True)
class _Part:
    """What becomes a cue: samples, and the words in the text where each has a time."""

    start_sample: int
    end_sample: int
    text: str
    speaker: str | None
    words: tuple[tuple[int, int, tuple[int, int]], ...] = ()  # start_ms, end_ms, place in the text


def _part(block: Block) -> _Part:
    text, places = block.text()
    words = (
        (milliseconds(piece.start_sample), milliseconds(piece.end_sample), place)
        for piece, place in zip(block.words(), places, strict=True)
    )
    timed = tuple(words) if block.timed else ()
    return _Part(block.start_sample, block.end_sample, text, block.speaker, timed)


def _apart(parts: list[_Part], limit: int) -> list[tuple[Cue, _Part]]:
    """Cues for parts in any order, up to `limit` ms."""
    parts = sorted(parts, key=lambda part: part.start_sample)
    starts = [milliseconds(part.start_sample) for part in parts]
    following = [*starts[1:], limit][: len(starts)]
    result: list[tuple[Cue, _Part]] = []
    for part, raw_start, next_start in zip(parts, starts, following, strict=True):
        start = max(raw_start, result[-1][0].end_ms if result else 0)
        if start >= limit and result:
            cue, before = result[-1]
            result[-1] = replace(cue, text=f"{cue.text} {part.text}"), before
            continue
        start = min(start, limit - 1)
        end = min(milliseconds(part.end_sample), limit)
        if next_start > start:
            end = min(end, next_start)
        result.append((Cue(start, max(end, start + 1), part.text, part.speaker), part))
    return result


def _highlighted(cue: Cue, part: _Part) -> Iterator[Cue]:
    """The cue once per word, that word marked while it is said; between words nothing is."""
    at = cue.start_ms
    for start, end, place in part.words:
        start = min(max(start, at), cue.end_ms)
        end = min(end, cue.end_ms)
        if end <= start:
            continue
        if start > at:
            yield replace(cue, start_ms=at, end_ms=start)
        yield replace(cue, start_ms=start, end_ms=end, mark=place)
        at = end
    if at < cue.end_ms:
        yield replace(cue, start_ms=at)


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


def srt(transcript: Transcript, rules: LineRules = PLAIN) -> str:
    """SubRip: numbered from 1, hours always, comma before the milliseconds."""
    documents = []
    for number, cue in enumerate(cues(transcript, rules), start=1):
        label = f"[{cue.speaker}]: " if cue.speaker else ""
        span = f"{_clock(cue.start_ms, ',', hours=True)} --> {_clock(cue.end_ms, ',', hours=True)}"
        documents.append(f"{number}\n{span}\n{_no_arrow(label)}{cue.marked(_no_arrow)}\n\n")
    return "".join(documents)


def vtt(transcript: Transcript, rules: LineRules = PLAIN) -> str:
    """WebVTT: the header also when empty, hours from the first hour on, markup escaped, voice tags
    for speakers."""
    documents = ["WEBVTT\n\n"]
    for cue in cues(transcript, rules):
        voice = f"<v {_escaped(cue.speaker).replace('>', '&gt;')}>" if cue.speaker else ""
        span = f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}"
        text = cue.marked(lambda text: _escaped(_no_arrow(text)))
        documents.append(f"{span}\n{voice}{text}\n\n")
    return "".join(documents)


def tsv(transcript: Transcript) -> str:
    """Tab-separated: integer milliseconds and text; tabs in the text become spaces."""
    rows = [f"{cue.start_ms}\t{cue.end_ms}\t{_no_tab(cue)}\n" for cue in cues(transcript)]
    return "".join(["start\tend\ttext\n", *rows])


def json_(transcript: Transcript) -> str:
    """Whisper's JSON with what explains the result; one line, since token lists would fill pages
    otherwise."""
    return json.dumps(transcript.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"


OF_SPEAKERS = frozenset({"rttm"})
"""Formats that say nothing of a transcript without speakers: written when named, not by "all"."""

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        format_.name: format_
        for format_ in (
            Format("txt", txt),
            Format("srt", srt),
            Format("vtt", vtt),
            Format("tsv", tsv),
            Format("json", json_),
            Format("rttm", rttm),
        )
    }
)


def formats(names: str | Iterable[str], rules: LineRules = PLAIN) -> tuple[Format, ...]:
    """The formats for "txt,srt", ["txt", "srt"] or "all", each once, in the order given. `rules`
    shape the subtitles, srt and vtt; the other formats have none.

    Raises UsageError that lists the known names.
    """
    wanted = names.split(",") if isinstance(names, str) else list(names)
    wanted = [name.strip().lower() for name in wanted]
    every = [name for name in FORMATS if name not in OF_SPEAKERS]
    expanded = [known for name in wanted for known in (every if name == "all" else [name])]
    unknown = [name for name in expanded if name not in FORMATS]
    if unknown or not expanded:
        culprit = f"unknown output format {unknown[0]!r}" if unknown else "no output format"
        raise UsageError(f"{culprit}; known: {', '.join(FORMATS)}, all")
    shaped = {"srt": partial(srt, rules=rules), "vtt": partial(vtt, rules=rules)}
    chosen = [FORMATS[name] for name in dict.fromkeys(expanded)]
    if rules.plain:
        return tuple(chosen)
    return tuple(Format(f.name, shaped.get(f.name, f.render)) for f in chosen)


def write(
    transcript: Transcript,
    folder: str | Path,
    stem: str,
    names: str | Iterable[str] = "all",
    rules: LineRules = PLAIN,
) -> list[Path]:
    """Write `<folder>/<stem>.<format>` for each format; creates the folder; replaces what is there.

    Every format is rendered before the first file appears, and every file appears by a rename: a
    reader sees an old file, a new file or none, never half a file.

    Raises UsageError for an unknown format, OutputError: `unwritable_output` and `storage_full` if the
    folder refuses, `internal_error` if a format fails on this transcript.
    """
    if stem in ("", ".", "..") or Path(stem).name != stem:
        raise UsageError(f"{stem!r} is not a file name")
    rendered = [(f.name, _rendered(f, transcript, stem)) for f in formats(names, rules)]
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [put(folder / f"{stem}.{extension}", text) for extension, text in rendered]
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write {stem!r} to {str(folder)!r}: {error.strerror or error}; "
            "name another folder with -o",
            code="storage_full" if full else "unwritable_output",
        ) from error


def _rendered(format_: Format, transcript: Transcript, stem: str) -> str:
    """A fault of ours in a format ends this recording, not the run."""
    try:
        return format_.render(transcript)
    except ForescribeError:
        raise
    except Exception as error:
        text = f"cannot write {stem!r} as {format_.name}: {type(error).__name__}: {error}"
        raise OutputError(text, code="internal_error") from error


def put(path: Path, text: str) -> Path:
    """Writes a file whole or not at all. Raises OSError."""
    # Not tempfile: its files are private to the user (mode 0600), and the rename would keep that.
    temporary = path.with_name(TEMPORARY.format(secrets.token_hex(8)))
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
    "OF_SPEAKERS",
    "TEMPORARY",
    "Cue",
    "Format",
    "cues",
    "formats",
    "json_",
    "milliseconds",
    "put",
    "srt",
    "tsv",
    "txt",
    "vtt",
    "write",
]
