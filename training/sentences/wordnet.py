"""Example sentences of WordNet 3.0 (Debian's `wordnet-base`), for ordinary words.

WordNet has them without a capital and a full stop; both are added here.
"""

from __future__ import annotations

import re
from pathlib import Path

from training.sentences.fortunes import sayable

FOLDER = Path("/usr/share/wordnet")
KINDS = ("noun", "verb", "adj", "adv")
FEWEST = 4  # words


def sentences() -> list[str]:
    found: dict[str, None] = {}
    for kind in KINDS:
        text = (FOLDER / f"data.{kind}").read_text("utf-8", errors="replace")
        for example in re.findall(r'"([^"]+)"', text):
            sentence = _sentence(example)
            if len(sentence.split()) >= FEWEST and sayable(sentence):
                found.setdefault(sentence)
    return list(found)


def _sentence(example: str) -> str:
    text = re.sub(r"\s*(?:;|--+)\s*", ", ", example.strip()).rstrip(" ,")
    text = re.sub(r"\bi\b", "I", text)
    return text[:1].upper() + text[1:] + ("" if text[-1:] in ".?!" else ".")
