"""Turns: the list of who speaks when in a recording.

Positions are integer samples at 16 kHz. Knows nothing of models and words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from operator import attrgetter
from string import ascii_uppercase

from forescribe.asr.formats.transcript_parts import Turn, shifted

UNKNOWN = "unknown"
"""The speaker of a turn of which it is doubtful whose it is."""

_LABEL = re.compile(rf"{UNKNOWN}( speaker)?|speaker[ _][a-z]\d*", re.IGNORECASE)


def letter(number: int) -> str:
    """A to Z, then A1, B1, ..."""
    round_, position = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[position] + (str(round_) if round_ else "")


def anonymous(number: int) -> str:
    """The label of the n-th speaker without a name, in results of every format."""
    return f"Speaker {letter(number)}"


def is_label(name: str) -> bool:
    """Whether results call speakers so who have no name: a person of this name would be taken for them."""
    return _LABEL.fullmatch(name.strip()) is not None


@dataclass(frozen=True)
class Turns:
    """Turns sorted by start, which may overlap."""

    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        # A stable sort that ignores names, so that renaming speakers keeps the order.
        in_order = sorted(self.turns, key=attrgetter("start_sample", "end_sample"))
        object.__setattr__(self, "turns", tuple(in_order))

    @classmethod
    def of(
        cls, turns: Iterable[tuple[int, int, str] | tuple[int, int, str, float | None]]
    ) -> Turns:
        """Create turns from (start sample, end sample, speaker), and the confidence where it is known."""
        return cls(tuple(starmap(Turn, turns)))

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def speakers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(attrgetter("speaker"), self.turns)))

    def samples_of(self, speaker: str) -> int:
        """The number of samples of a speaker; overlapping turns count separately."""
        return sum(turn.samples for turn in self if turn.speaker == speaker)

    def clipped(self, sample_count: int) -> Turns:
        """Cut turns at the end of a recording of this length; drop those after it."""
        return Turns(
            tuple(
                replace(t, end_sample=min(t.end_sample, sample_count))
                for t in self.turns
                if t.start_sample < sample_count
            )
        )

    def shifted(self, samples: int) -> Turns:
        return Turns(tuple(shifted(turn, samples) for turn in self))

    def renamed(self, names: Mapping[str, str]) -> Turns:
        """Rename the speakers in `names`; the others keep their names."""
        return Turns(tuple(replace(t, speaker=names.get(t.speaker, t.speaker)) for t in self))

    def joined(self, gap: int = 0) -> Turns:
        """Join turns of one speaker that overlap or are at most `gap` samples apart. The lower confidence is
        that of both."""
        found: list[Turn] = []
        last: dict[str, int] = {}  # place in `found`
        for turn in self:
            place = last.get(turn.speaker)
            if place is not None and turn.start_sample <= found[place].end_sample + gap:
                before = found[place]
                end = max(before.end_sample, turn.end_sample)
                known = [c for c in (before.confidence, turn.confidence) if c is not None]
                lower = min(known, default=None)
                found[place] = replace(before, end_sample=end, confidence=lower)
                continue
            last[turn.speaker] = len(found)
            found.append(turn)
        return Turns(tuple(found))
