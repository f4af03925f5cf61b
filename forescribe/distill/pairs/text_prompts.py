"""Prompts from files: texts that the target continues, and requests that it answers.

A `.jsonl` file has an object per line with `prompt`, `messages` (a conversation) or `text`, and optionally a
`kind`, by which the report groups. Of any other text, each paragraph is continued from its first words.
Knows files and token ids.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forescribe.asr.errors import UsageError
from forescribe.draft_lists import files_of, read
from forescribe.speculative.errors import SpeculativeError
from forescribe.text.generator import TextGenerator

from ..labels.label_rows import GENERAL
from .speech_labels import Skipped
from .text_labels import TextPrompt

LINES = ".jsonl"
BEGINNING, LEAST = 24, 4
"""Tokens of a paragraph that are given at most, and tokens that a paragraph needs."""


def prompts_of(
    generator: TextGenerator, names: Sequence[str], kind: str, *, seed: int
) -> tuple[list[TextPrompt], list[Skipped]]:
    """All prompts of the files and folders, shuffled by `seed`, and what was skipped and why.

    Their kind is the one that a line names, else `kind`; general data have no other. Raises UsageError for a
    name that is not there."""
    prompts: dict[tuple[int, ...], TextPrompt] = {}
    skipped: list[Skipped] = []
    for file in [found for name in names for found in _files(name)]:
        try:
            for tokens, named in _of_file(generator, file):
                prompts.setdefault(
                    tokens, TextPrompt(tokens, file, kind if kind == GENERAL else named or kind)
                )
        except (UsageError, SpeculativeError) as error:
            skipped.append(Skipped(file, str(error)))
    ordered = list(prompts.values())
    random.Random(seed).shuffle(ordered)
    return ordered, skipped


def _files(name: str) -> list[str]:
    folder = Path(name).expanduser()
    lines = [str(p) for p in sorted(folder.rglob(f"*{LINES}"))] if folder.is_dir() else []
    try:
        return [*lines, *files_of([name])]
    except UsageError:
        if lines:
            return lines
        raise


def _of_file(generator: TextGenerator, file: str) -> Iterator[tuple[tuple[int, ...], str | None]]:
    if file.endswith(LINES):
        yield from _of_lines(generator, file)
        return
    for piece in read(file):
        for paragraph in re.split(r"\n\s*\n", piece.text):
            tokens = generator.encode(paragraph.strip())[: generator.context - 1]
            if len(tokens) >= LEAST:
                yield tokens[: max(2, min(BEGINNING, len(tokens) // 2))], None


def _of_lines(generator: TextGenerator, file: str) -> Iterator[tuple[tuple[int, ...], str | None]]:
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _of_line(generator, line, f"{file}, line {number}")


def _of_line(generator: TextGenerator, line: str, where: str) -> tuple[tuple[int, ...], str | None]:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}") from error
    prompt = (
        data.get("prompt", data.get("messages", data.get("text")))
        if isinstance(data, dict)
        else None
    )
    if prompt is None:
        raise UsageError(f"{where} has neither a prompt, nor messages, nor a text")
    kind = data.get("kind")
    return generator.encode(prompt), None if kind is None else str(kind)
