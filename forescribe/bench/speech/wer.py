"""Word error rate, with every step of the normaliser in sight."""

from __future__ import annotations

import re
import unicodedata

import jiwer


def normalise(text: str) -> str:
    """Lower case, without punctuation and signs; dashes part words, other signs vanish within them.

    Nothing more: "12 %" and "twelve percent" stay different, since a model that was trained to write
    digits should write them. That makes rates higher than those of Whisper's own normaliser.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"[-\u2010-\u2015/]", " ", text)
    kept = (c for c in text if unicodedata.category(c)[0] not in "PS")
    return " ".join("".join(kept).split())


def error_rate(reference: str, written: str) -> float:
    """(Substitutions + deletions + insertions) / words of the reference, over the whole file.

    Raises ValueError for a reference without words.
    """
    truth = normalise(reference)
    if not truth:
        raise ValueError("the reference has no words")
    return float(jiwer.wer(truth, normalise(written)))
