"""Text files that people have of a recording: a script, or an earlier transcript in any of the formats.

Returns the words alone, in order. Knows formats; nothing of recordings or tokens.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import UsageError

LARGEST = 16 << 20
"""Bytes of a text: more than any recording has words."""

_TIMES = re.compile(r"^\s*(\d+:)?\d+:\d+[.,]\d+\s*-->")
_TAG = re.compile(r"</?[a-zA-Z][^>]*>|\{\\[^}]*\}")
_BLOCK = re.compile(r"^(WEBVTT|NOTE|STYLE|REGION)\b")


def read_reference_text(path: str | Path) -> str:
    """The text of a file: txt, srt, vtt, tsv or json by its name, any other as plain text. Raises
    UsageError for a file that cannot be read or holds no text."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise UsageError(
                f"--reference-text {path} has more than {LARGEST} bytes: it is no text"
            )
        content = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--reference-text {path} cannot be read: {error}") from error
    readers = {".srt": _subtitles, ".vtt": _subtitles, ".json": _json, ".tsv": _tsv}
    try:
        words = readers.get(file.suffix.lower(), str)(content).split()
    except ValueError as error:
        raise UsageError(
            f"--reference-text {path} is no transcript: {error}; give its text as .txt"
        ) from error
    if not words:
        raise UsageError(f"--reference-text {path} holds no text")
    return " ".join(words)


def _subtitles(content: str) -> str:
    """The text of the cues of SubRip or WebVTT: blocks of lines, of which those after the times count."""
    texts: list[str] = []
    for block in re.split(r"\r?\n\s*\r?\n", content):
        lines = block.splitlines()
        times = [number for number, line in enumerate(lines) if _TIMES.match(line)]
        if times and not _BLOCK.match(lines[0]):
            texts += lines[times[0] + 1 :]
    return _TAG.sub("", "\n".join(texts))


def _tsv(content: str) -> str:
    """The last column, without the header."""
    lines = [line.split("\t") for line in content.splitlines() if line.strip()]
    if lines and lines[0][-1].strip().lower() == "text":
        lines = lines[1:]
    return "\n".join(cells[-1] for cells in lines)


def _json(content: str) -> str:
    """`text`, or the texts of `segments`, as this program, openai/whisper and the API write them. Raises
    ValueError for anything else."""
    data: Any = json.loads(content)
    if isinstance(data, dict) and isinstance(data.get("text"), str):
        return str(data["text"])
    segments = data.get("segments") if isinstance(data, dict) else data
    if not isinstance(segments, list) or not all(
        isinstance(s, dict) and isinstance(s.get("text"), str) for s in segments
    ):
        raise ValueError("it has neither `text` nor `segments` with texts")
    return "\n".join(segment["text"] for segment in segments)
