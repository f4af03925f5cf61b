"""The list of tokens that a draft may propose, in a file beside its weights.

A draft whose folder has `draft_tokens.json` gets an output head of these tokens alone (`listed`),
which makes each drafted token cheaper and changes no text: what the list lacks is decoded by the target.
`forescribe distill --cut-head` makes the file. Knows counts and files; no texts and no models. Import is
light.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LoadError

FILE = "draft_tokens.json"
REMEDY = "make it again with `forescribe distill --cut-head`, or delete it"


def bitmap(ids: Collection[int]) -> str:
    """Ids as base64 of one bit for each token, the lowest first: a fifth of a list's room, for files that are
    distributed."""
    bits = sum(1 << token for token in set(ids))
    return base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()


def from_bitmap(text: str) -> list[int]:
    """The ids of a `bitmap`, ascending. Raises ValueError for anything else."""
    digits = f"{int.from_bytes(base64.b64decode(text, validate=True), 'little'):b}"
    return [token for token, digit in enumerate(reversed(digits)) if digit == "1"]


@dataclass(frozen=True)
class DraftTokens:
    """Token ids in ascending order, how often each occurred (0 for one that is listed in any case), and of
    what.

    Raises ValueError for a list that is empty, not ascending, or has ids outside the vocabulary.
    """

    ids: tuple[int, ...]
    counts: tuple[int, ...]
    vocab_size: int
    occurrences: int  # of all tokens that were counted, listed or not
    source: str  # what was counted, for people

    def __post_init__(self) -> None:
        numbers = (*self.ids, *self.counts, self.vocab_size, self.occurrences)
        if any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError("ids and counts are integers from 0 on")
        if not self.ids:
            raise ValueError("it lists no tokens")
        if len(self.ids) != len(self.counts):
            raise ValueError(f"it has {len(self.ids)} ids and {len(self.counts)} counts")
        for token, following in zip(self.ids, self.ids[1:], strict=False):
            if following <= token:
                raise ValueError(f"ids ascend, and {following} follows {token}")
        if self.ids[-1] >= self.vocab_size:
            raise ValueError(f"token {self.ids[-1]} is not in a vocabulary of {self.vocab_size}")
        if sum(self.counts) > self.occurrences:
            raise ValueError(f"its counts exceed the {self.occurrences} tokens that it counted")

    @property
    def coverage(self) -> float:
        """The share of the counted tokens that are listed."""
        return sum(self.counts) / self.occurrences if self.occurrences else 1.0

    @classmethod
    def most_frequent(
        cls,
        counted: Mapping[int, int],
        always: Collection[int],
        vocab_size: int,
        source: str,
        *,
        coverage: float = 1.0,
    ) -> DraftTokens:
        """The most frequent of the tokens that occurred, and those of `always`: as many as have this share
        of all occurrences. Of equally frequent tokens the lower ids come first."""
        ranked = sorted(counted, key=lambda token: (-counted[token], token))
        occurrences = sum(counted.values())
        chosen = set(always)
        covered = sum(counted.get(token, 0) for token in chosen)
        for token in ranked:
            if covered >= coverage * occurrences:
                break
            if token not in chosen:
                chosen.add(token)
                covered += counted[token]
        ids = tuple(sorted(chosen))
        return cls(ids, tuple(counted.get(i, 0) for i in ids), vocab_size, occurrences, source)

    @classmethod
    def beside(cls, folder: Path, vocab_size: int) -> DraftTokens | None:
        """The list in a draft's folder; None where there is none. Raises LoadError for one that is damaged or
        was made for another vocabulary."""
        path = folder / FILE
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise LoadError(f"{path} cannot be read ({error}): {REMEDY}") from error
        try:
            found = cls.from_json(text)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise LoadError(f"{path} is no list of tokens: {reason}; {REMEDY}") from error
        if found.vocab_size != vocab_size:
            raise LoadError(
                f"{path} is for a vocabulary of {found.vocab_size} tokens, and the draft has {vocab_size}: "
                f"{REMEDY}"
            )
        return found

    @classmethod
    def from_json(cls, text: str) -> DraftTokens:
        """What `to_json` writes; ids may be a `bitmap`, and what was counted may be left out. Raises
        ValueError, TypeError or KeyError for anything else."""
        data: Any = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("it is no JSON object")
        ids = data["ids"]
        ids = from_bitmap(ids) if isinstance(ids, str) else ids
        counted = "counts" in data or "occurrences" in data
        counts = data["counts"] if counted else [0] * len(ids)
        if not isinstance(ids, list) or not isinstance(counts, list):
            raise TypeError("its ids and counts are no lists")
        return cls(
            tuple(ids),
            tuple(counts),
            data["vocab_size"],
            data["occurrences"] if counted else 0,
            str(data["source"]),
        )

    def to_json(self) -> str:
        """One line per field."""
        fields = {
            "vocab_size": self.vocab_size,
            "source": self.source,
            "occurrences": self.occurrences,
            "coverage": round(self.coverage, 6),
            "ids": self.ids,
            "counts": self.counts,
        }
        lines = [
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in fields.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}\n"
