r"""Output formats by name, and transcripts as files: txt, srt, vtt, tsv, json, rttm, md, docx.

A format is a pure function from a transcript to text, or to the bytes of a docx, so writing another one never
needs decoding again; its lines end with "\n". RTTM says who speaks when, for diarization scoring tools:

    SPEAKER <recording> 1 <start> <duration> <NA> <NA> <speaker> <NA> <NA>

Files are UTF-8 without BOM, and appear whole or not at all. Knows formats, names and folders; nothing of how
a transcript was made.
"""

from __future__ import annotations

import json
import os
import secrets
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import groupby
from pathlib import Path

from ..errors import ForescribeError, OutputError, UsageError, output_errors
from ..storage.locations import is_url
from .documents import docx, md
from .subtitles import PLAIN, UNNAMED, LineRules, cues, label, milliseconds, one_line
from .transcript_parts import Contents, Segment

TEMPORARY = ".forescribe-{}.tmp"
"""Name of a file while it is written; a process that is killed may leave one behind."""

RECORDING = "recording"
"""The setting of a transcript that holds the name of its recording, and the name without that
setting."""

TITLED = frozenset({"md", "docx"})
"""Formats with a title, the name of the file. They and those of speakers are written when named, but not by
"all"."""

OF_SPEAKERS = frozenset({"rttm"})
"""Formats that are empty without speakers."""

LARGEST = 16 << 20
"""Bytes of a text: more than any recording has words."""

Render = Callable[..., str | bytes]
"""A transcript in a format. Those that are `TITLED` also take a title."""


@dataclass(frozen=True)
class Format:
    """An output format: its name is also its file extension."""

    name: str
    render: Render


def formats(names: str | Iterable[str], rules: LineRules = PLAIN) -> tuple[Format, ...]:
    """Return the formats for "txt,srt", ["txt", "srt"] or "all", each once, in the order given. `rules`
    apply to subtitles (srt and vtt).

    Raises UsageError, with a list of the known names.
    """
    given = names.split(",") if isinstance(names, str) else list(names)
    requested = [name.strip().lower() for name in given]
    every = [name for name in FORMATS if name not in OF_SPEAKERS | TITLED]
    expanded = [known for name in requested for known in (every if name == "all" else [name])]
    unknown = [name for name in expanded if name not in FORMATS]
    if unknown or not expanded:
        culprit = f"unknown output format {unknown[0]!r}" if unknown else "no output format"
        close = get_close_matches("".join(unknown[:1]), [*FORMATS, "all"], n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"{culprit}; known: {', '.join(FORMATS)}, all{meant}")
    shaped = {"srt": partial(srt, rules=rules), "vtt": partial(vtt, rules=rules)}
    chosen = [FORMATS[name] for name in dict.fromkeys(expanded)]
    if rules.plain:
        return tuple(chosen)
    return tuple(Format(f.name, shaped.get(f.name, f.render)) for f in chosen)


def save(transcript: Contents, path: str | os.PathLike[str], rules: LineRules = PLAIN) -> Path:
    """Write one file, in the format of its extension, and return its path. It appears whole and replaces an
    earlier one, its folder is created, and `~` is the home folder. `rules` are for srt and vtt.

    Raises UsageError for another extension and for an address, OutputError: `unwritable_output` and
    `storage_full` for a place that cannot be written, `internal_error` if the format fails.
    """
    if is_url(str(path)):
        raise UsageError(
            f"{str(path)!r} is an address, and a transcript is saved on this machine: give a path"
        )
    path = Path(os.path.expanduser(path))
    extension = path.suffix[1:].lower()
    if extension not in FORMATS:
        raise UsageError(
            f"the extension of {path.name!r} names no output format; known: {', '.join(FORMATS)}"
        )
    (format_,) = formats(extension, rules)
    text = rendered(format_, transcript, path.stem)
    with output_errors(f"{path.name!r} to {str(path.parent)!r}", "name another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        return put(path, text)


def rendered(format_: Format, transcript: Contents, stem: str) -> bytes:
    """Render a format, with the file's stem as its title; a bug in it fails this recording, not the run."""
    titled = {"title": stem} if format_.name in TITLED else {}
    try:
        return encoded(format_.render(transcript, **titled))
    except ForescribeError:
        raise
    except Exception as error:
        text = f"cannot write {stem!r} as {format_.name}: {type(error).__name__}: {error}"
        raise OutputError(text, code="internal_error") from error


def encoded(content: str | bytes) -> bytes:
    """UTF-8: one odd character, as a lone surrogate, must not cost the transcript."""
    return content if isinstance(content, bytes) else content.encode("utf-8", errors="replace")


def put(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all. Raises OSError."""
    # Not tempfile: its files are private to the user (mode 0600), and the rename would keep that.
    temporary = path.with_name(TEMPORARY.format(secrets.token_hex(8)))
    try:
        temporary.write_bytes(encoded(content))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return path


def txt(transcript: Contents) -> str:
    """One segment per line; with speakers one line per turn, `SPEAKER: text`."""
    with_text = [segment for segment in transcript.segments if one_line(segment.text)]
    if not any(label(segment.speaker) for segment in with_text):
        return "".join(f"{one_line(segment.text)}\n" for segment in with_text)
    turns = groupby(with_text, key=lambda segment: label(segment.speaker) or UNNAMED)
    return "".join(f"{speaker}: {_joined(turn)}\n" for speaker, turn in turns)


def srt(transcript: Contents, rules: LineRules = PLAIN) -> str:
    """SubRip: numbered from 1, hours always, comma before the milliseconds. With `rules` the words are
    arranged in lines; segments without word times stay whole."""
    documents = []
    for number, cue in enumerate(cues(transcript, rules), start=1):
        name = f"[{cue.speaker}]: " if cue.speaker else ""
        span = f"{_clock(cue.start_ms, ',', hours=True)} --> {_clock(cue.end_ms, ',', hours=True)}"
        documents.append(f"{number}\n{span}\n{_no_arrow(name)}{cue.marked(_no_arrow)}\n\n")
    return "".join(documents)


def vtt(transcript: Contents, rules: LineRules = PLAIN) -> str:
    """WebVTT: the header also when empty, hours from the first hour on, markup escaped, voice tags
    for speakers."""
    documents = ["WEBVTT\n\n"]
    for cue in cues(transcript, rules):
        voice = f"<v {_escaped(cue.speaker).replace('>', '&gt;')}>" if cue.speaker else ""
        voice = _no_arrow(voice)  # of a name that ends with "--"
        span = f"{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}"
        text = cue.marked(lambda text: _escaped(_no_arrow(text)))
        documents.append(f"{span}\n{voice}{text}\n\n")
    return "".join(documents)


def tsv(transcript: Contents) -> str:
    """Tab-separated: integer milliseconds and text; tabs in the text become spaces."""
    rows = ["start\tend\ttext\n"]
    for cue in cues(transcript):
        text = (f"[{cue.speaker}]: {cue.text}" if cue.speaker else cue.text).replace("\t", " ")
        rows.append(f"{cue.start_ms}\t{cue.end_ms}\t{text}\n")
    return "".join(rows)


def json_(transcript: Contents) -> str:
    """Whisper's JSON with additional keys, in one line, as indented token lists would fill pages."""
    return json.dumps(transcript.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"


def rttm(transcript: Contents) -> str:
    """Turns, rounded to milliseconds, each at least 1 ms long. There are no escapes: spaces in names become
    `_`."""
    name, rows = _field(str(transcript.settings.get(RECORDING, RECORDING))), []
    for turn in transcript.turns:
        start, end = milliseconds(turn.start_sample), milliseconds(turn.end_sample)
        length = max(1, end - start)
        rows.append(
            f"SPEAKER {name} 1 {start / 1000:.3f} {length / 1000:.3f} "
            f"<NA> <NA> {_field(turn.speaker)} <NA> <NA>\n"
        )
    return "".join(rows)


RENDERS: Mapping[str, Render] = {
    "txt": txt,
    "srt": srt,
    "vtt": vtt,
    "tsv": tsv,
    "json": json_,
    "rttm": rttm,
    "md": md,
    "docx": docx,
}
FORMATS = {name: Format(name, render) for name, render in RENDERS.items()}


def read_text(option: str, path: str | Path) -> str:
    """The text of a file that `option` names, in UTF-8, or in UTF-16 with its mark (Windows' "Unicode").
    Raises UsageError for one that cannot be read."""
    try:
        with Path(path).open("rb") as opened:
            data = opened.read(LARGEST + 1)
        if len(data) <= LARGEST:
            marked = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
            return data.decode("utf-16" if marked else "utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{option} {path} cannot be read: line {line} is not UTF-8") from None
    raise UsageError(f"{option} {path} has more than {LARGEST} bytes: it is no text")


def read_reference_text(path: str | Path) -> str:
    """The words of a text file. Raises UsageError for one that cannot be read or holds no text."""
    words = read_text("--reference-text", path).split()
    if not words:
        raise UsageError(f"--reference-text {path} holds no text")
    return " ".join(words)


def _clock(total_ms: int, point: str, *, hours: bool = False) -> str:
    minutes_total, ms = divmod(total_ms, 60_000)
    hour, minute = divmod(minutes_total, 60)
    prefix = f"{hour:02d}:" if hours or hour else ""
    return f"{prefix}{minute:02d}:{ms // 1000:02d}{point}{ms % 1000:03d}"


def _joined(segments: Iterable[Segment]) -> str:
    return one_line("".join(segment.text for segment in segments))


def _no_arrow(text: str) -> str:
    """Remove `-->`, which subtitle parsers take for a line of times. In a loop: `--->` holds an arrow
    again after one pass."""
    while "-->" in text:
        text = text.replace("-->", "->")
    return text


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _field(text: str) -> str:
    return "_".join((label(text) or "").split()) or "_"
