"""Word error rate, with a simple normaliser.

Knows text; nothing of audio.
"""

from __future__ import annotations

import re
import unicodedata

import jiwer


def normalise(text: str) -> str:
    """Return lower-case text without punctuation and symbols; dashes separate words, other signs are
    removed.

    Nothing more: "12 %" and "twelve percent" stay different, as a model that was trained to write
    digits should write them. Error rates are therefore higher than with Whisper's own normaliser.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"[-\u2010-\u2015/]", " ", text)
    letters = (c for c in text if unicodedata.category(c)[0] not in "PS")
    return " ".join("".join(letters).split())


def error_rate(reference: str, written: str) -> float:
    """Return (substitutions + deletions + insertions) / words of the reference, over the whole file.

    Raises ValueError for a reference without words.
    """
    words = normalise(reference)
    if not words:
        raise ValueError("the reference has no words")
    return float(jiwer.wer(words, normalise(written)))
