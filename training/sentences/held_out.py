"""The sentences that are held out of training, selected by a hash of the text."""

from __future__ import annotations

import lzma
import re
import zlib

from training.paths import DATA


def fold(text: str) -> str:
    """Normalise text: lower case, without punctuation."""
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


def held_out(text: str) -> bool:
    """Whether a sentence is held out: one in forty, and all of the written evaluation set."""
    return zlib.crc32(fold(text).encode()) % 40 == 0 or fold(text) in _EVALUATION


def read_lines(name: str) -> list[str]:
    """The lines of a text, which may be compressed; none where there is no such file."""
    path, packed = DATA / name, DATA / f"{name}.xz"
    if packed.exists():
        text = lzma.decompress(packed.read_bytes()).decode()
    elif path.exists():
        text = path.read_text("utf-8")
    else:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


_EVALUATION = {fold(line) for line in read_lines("open_eval.txt")}
_EVALUATION |= {
    fold(line[2:])
    for name in ("memo", "conversation", "noisy", "silence")
    for line in read_lines(f"sample_{name}.txt")
}
