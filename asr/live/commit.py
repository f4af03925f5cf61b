"""Which words of a growing hypothesis are told for good.

Each decode of the audio so far writes a hypothesis of all of it, and Whisper rewrites the end of it: a word
that is cut off by the end of the audio, and the punctuation there. A `Committer` releases words in order,
never takes one back, and counts those that the final text contradicts.

| delay | a word is released when | one that the model doubts, when |
|---|---|---|
| minimal | another word follows it | |
| low | another word follows it | two successive hypotheses agree on it and on all words before it too |
| medium | two successive hypotheses agree on it and on all words before it | three do |
| high | as medium, and two words follow it | |
| xhigh | three successive hypotheses agree on it | |

Agreement of hypotheses is LocalAgreement-n (Liu et al. 2020, https://arxiv.org/abs/2005.11185; Macháček et
al. 2023, https://arxiv.org/abs/2307.14743). Words are compared without case and punctuation. What the final
text contradicts had a low probability more often than not, so that waiting for doubtful words alone costs
little (docs/live.md#measured). Knows nothing of audio. Import is light.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..words.assembly import MARKS

if TYPE_CHECKING:
    from ..decode.results import Token

Delay = Literal["minimal", "low", "medium", "high", "xhigh"]


class Rule(NamedTuple):
    """`held` words at the end are held back; `agreeing` hypotheses must begin with the released words, and
    `doubtful` ones up to a word whose probability is below `sure`."""

    held: int
    agreeing: int
    sure: float = 0.0
    doubtful: int = 1


RULES: dict[Delay, Rule] = {
    "minimal": Rule(1, 1),
    "low": Rule(1, 1, 0.7, 2),
    "medium": Rule(0, 2, 0.5, 3),
    "high": Rule(2, 2, 0.5, 3),
    "xhigh": Rule(0, 3),
}


@dataclass(frozen=True)
class LiveWord:
    """A word with the space before it and its punctuation."""

    text: str
    tokens: tuple[Token, ...] = ()

    @property
    def key(self) -> str:
        """What is compared."""
        return _bare(self.text).casefold() or self.text.strip()

    @property
    def probability(self) -> float:
        """That of its least probable token, punctuation aside; 1 without tokens."""
        return math.exp(min((t.logprob for t in self.tokens if _bare(t.text)), default=0.0))


class Committer:
    """The released words of one item, as far as their windows may still change (`open`)."""

    def __init__(self, delay: Delay) -> None:
        self.rule = RULES[delay]
        self.contradicted = 0
        """Released words that the final text does not have in their place."""
        self.released = 0
        self.place: int | None = None
        """Of the last hypothesis, the number of words up to the end of the released ones; None where it ends
        before them."""
        self._open: list[str] = []  # keys of released words in windows that are not final
        self._before: list[list[str]] = []  # what earlier hypotheses had behind the released words

    def update(self, words: Sequence[LiveWord], *, settled: bool = False) -> list[LiveWord]:
        """The words that are released by a hypothesis of the windows that are not final; all of it where it
        is `settled`, because nobody has spoken since."""
        keys = [word.key for word in words]
        place = aligned(self._open, keys)
        if place.released < len(self._open):  # the hypothesis ends before the released words
            self.place = None
            return []
        behind = keys[place.words :]
        rule = self.rule
        recent = [*self._before, behind][-max(rule.agreeing, rule.doubtful) :]
        count, doubtful = (_agreed(recent, n, rule.held) for n in (rule.agreeing, rule.doubtful))
        probabilities = (word.probability for word in words[place.words :][:count])
        unsure = (n for n, p in enumerate(probabilities) if n >= doubtful and p < rule.sure)
        count = len(behind) if settled else next(unsure, count)
        self._before = [other[count:] for other in recent]
        self._open += behind[:count]
        self.released += count
        self.place = place.words + count
        return list(words[place.words : place.words + count])

    def close(self, words: Sequence[LiveWord]) -> list[LiveWord]:
        """The words that are released because these, of the next windows, are final."""
        keys = [word.key for word in words]
        place = aligned(self._open, keys)
        self.contradicted += place.contradicted
        rest = list(words[place.words :])
        self._open, self._before = self._open[place.released :], []
        self.released += len(rest)
        return rest

    def end(self) -> None:
        """The item is over: released words that no window has are contradicted too."""
        self.contradicted += len(self._open)
        self._open = []


class Place(NamedTuple):
    """How far released words and words of a text were matched, and how many of the former differ there."""

    released: int
    words: int
    contradicted: int


def aligned(released: Sequence[str], words: Sequence[str]) -> Place:
    """Matches the beginnings of two texts by edit distance, up to the end of one of them; the longer
    match where several cost the same."""
    rows, columns = len(released), len(words)
    if not rows or not columns:
        return Place(0, 0, 0)
    if list(words[:rows]) == list(released):
        return Place(rows, rows, 0)
    # Cost, and of equal costs the fewest contradicted words.
    line = [(j, 0) for j in range(columns + 1)]
    best = ((columns, 0), 0, columns)
    for i, key in enumerate(released, 1):
        above, line = line, [(i, i)]
        for j, other in enumerate(words, 1):
            wrong = key != other
            diagonal, up, left = above[j - 1], above[j], line[j - 1]
            line.append(
                min(
                    (diagonal[0] + wrong, diagonal[1] + wrong),
                    (up[0] + 1, up[1] + 1),
                    (left[0] + 1, left[1]),
                )
            )
        if i < rows:
            best = min(best, (line[columns], -i, columns))
    ends = ((line[j], -rows, j) for j in range(columns + 1))
    cost, i, j = min([best, *ends], key=lambda end: (end[0], end[1], -end[2]))
    return Place(abs(i), j, cost[1])


def _bare(text: str) -> str:
    return text.strip().strip(MARKS)


def _agreed(recent: Sequence[list[str]], number: int, held: int) -> int:
    """Words on which the last `number` texts agree, but the last `held` ones of the newest."""
    if len(recent) < number:
        return 0
    return max(0, min(len(recent[-1]) - held, len(commonprefix(recent[-number:]))))
