"""The output formats as pure functions from a transcript to text: txt, srt, vtt, tsv, json.

Writing another format never needs decoding again. Lines end with "\\n". Knows formats; nothing of
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

from .cues import Cue, cues, label, one_line
from .subtitles import PLAIN, LineRules
from .transcript import Segment, Transcript


def txt(transcript: Transcript) -> str:
    """One segment per line; with speakers one line per turn, `SPEAKER: text`."""
    with_text = [segment for segment in transcript.segments if one_line(segment.text)]
    if not any(label(segment.speaker) for segment in with_text):
        return "".join(f"{one_line(segment.text)}\n" for segment in with_text)
    turns = groupby(with_text, key=lambda segment: label(segment.speaker))
    return "".join(
        f"{speaker}: {_joined(turn)}\n" if speaker else f"{_joined(turn)}\n"
        for speaker, turn in turns
    )


def srt(transcript: Transcript, rules: LineRules = PLAIN) -> str:
    """SubRip: numbered from 1, hours always, comma before the milliseconds."""
    documents = []
    for number, cue in enumerate(cues(transcript, rules), start=1):
        name = f"[{cue.speaker}]: " if cue.speaker else ""
        span = f"{_clock(cue.start_ms, ',', hours=True)} --> {_clock(cue.end_ms, ',', hours=True)}"
        documents.append(f"{number}\n{span}\n{_no_arrow(name)}{cue.marked(_no_arrow)}\n\n")
    return "".join(documents)


def vtt(transcript: Transcript, rules: LineRules = PLAIN) -> str:
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


def tsv(transcript: Transcript) -> str:
    """Tab-separated: integer milliseconds and text; tabs in the text become spaces."""
    rows = [f"{cue.start_ms}\t{cue.end_ms}\t{_no_tab(cue)}\n" for cue in cues(transcript)]
    return "".join(["start\tend\ttext\n", *rows])


def json_(transcript: Transcript) -> str:
    """Whisper's JSON with additional keys, in one line, as indented token lists would fill pages."""
    return json.dumps(transcript.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"


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


def _no_tab(cue: Cue) -> str:
    text = f"[{cue.speaker}]: {cue.text}" if cue.speaker else cue.text
    return text.replace("\t", " ")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
