"""What the documentation consists of: pages, and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
SHELL = ("bash", "sh", "shell", "console")


@dataclass(frozen=True)
class Block:
    """Fenced text; `line` is where it begins on its page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Everything that a reader is led to."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    return [*found, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(*languages: str) -> list[Block]:
    """All blocks in one of these languages."""
    return [b for page in pages() for b in blocks_of(page) if b.language in languages]


def output_after(block: Block) -> str | None:
    """The text block that directly follows a block, which shows what the block prints."""
    after = block.line + block.text.count("\n") + 3  # its fences, and an empty line
    following = (b for b in blocks("text") if (b.page, b.line) == (block.page, after))
    return next((b.text for b in following), None)


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(
            page.relative_to(ROOT).as_posix(), line, match["language"].lower(), match["text"]
        )
