"""Shell blocks of the documentation as commands, one program each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.pages import SHELL, Block, blocks

ASSIGNMENT = re.compile(r"(?P<name>[A-Z][A-Z0-9_]*)=.*", re.S)
ENDS = {"&&", "||", "|", ";", "&", "(", ")"}
OURS = ("forescribe", "scripts/", "source ", "python -m", ".venv/bin/", "pip ")


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the variables that are set for it."""

    place: str
    words: tuple[str, ...]
    variables: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        return self.words[0].removeprefix(".venv/bin/") if self.words else ""

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)}"


def documented() -> list[Command]:
    """Of all pages; blocks without a language count if they begin like one of ours."""
    shown = [*blocks(*SHELL), *(b for b in blocks("") if b.text.startswith(OURS))]
    return [command for block in shown for command in commands(block)]


def commands(block: Block) -> Iterator[Command]:
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in ENDS:
                words.append(word)
            elif words:
                yield _command(block.name, words)
                words = []


def _command(place: str, words: list[str]) -> Command:
    cut = next((i for i, word in enumerate(words) if word in (">", ">>", "<", "2>")), len(words))
    words, variables = words[:cut], []
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        variables.append(match["name"])
        words = words[1:]
    return Command(place, tuple(words), tuple(variables))
