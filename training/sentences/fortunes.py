"""Sentences from Debian's `fortunes` package, filtered for speech synthesis.

Keeps plain sentences of 3 to 24 words of letters, commas, apostrophes and end marks. Drops lists, verse
markup, attributions, digits, words in capitals, and number words from ten up, which Whisper writes as
digits.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path("/usr/share/games/fortunes")
SKIP = {"art", "ascii-art", "translate-me", "perl", "knghtbrd", "linuxcookie"}
NUMBER_WORDS = re.compile(
    r"\b(ten|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b", re.I
)
PLAIN = re.compile(r"[A-Z][A-Za-z',\- ]*[.?!]")
SHOUT = re.compile(
    r"\b[A-Z]{2,}|\b[A-Z]\.|\w[A-Z]|\b(?:Mr|Mrs|Dr|St|Ms|Jr|vs|etc)\.|(?<!\w)'|'(?!\w)"
)


def sentences() -> list[str]:
    found: dict[str, None] = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix or path.name in SKIP:
            continue
        for quote in path.read_text("utf-8", errors="replace").split("\n%\n"):
            for sentence in _split(quote):
                found.setdefault(sentence)
    return list(found)


def _split(quote: str) -> list[str]:
    body = re.split(r"\n\s*--", quote)[0]
    text = re.sub(r"\s+", " ", body)
    text = re.sub(r"\s+--+\s*|--+|;|:(?= )", ", ", text).replace("...", ".")
    text = re.sub(r"[\"()*_`]", "", text)
    text = re.sub(r"\s+,", ",", re.sub(r"\s+", " ", text)).replace(",,", ",")
    parts = re.split(r"(?<=[.?!])\s+(?=[A-Z])", text)
    return [p.strip() for p in parts if sayable(p.strip())]


def sayable(sentence: str) -> bool:
    if not PLAIN.fullmatch(sentence) or SHOUT.search(sentence) or NUMBER_WORDS.search(sentence):
        return False
    return 3 <= len(sentence.split()) <= 24 and max(map(len, sentence.split())) <= 18
