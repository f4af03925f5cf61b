"""A speaker for every word: the cheapest way through the words, given the turns.

Each word has evidence for each speaker, from the turns it lies in or near. Changing the speaker
costs more within a phrase than after a sentence, so a turn whose border is off by a fifth of a
second does not tear a sentence apart. Knows nothing of audio; never touches a word's text or times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.formats.subtitles import CLOSING, SENTENCE_ENDS
from forescribe.asr.formats.transcript import SAMPLE_RATE, Word

from ..turns import Turn, Turns
from .backchannels import is_backchannel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """What decides, in seconds and in nats. The values are first guesses that held on simulated
    conversations (0.9 to 2.2 % of words wrong, where overlap alone had 3.6 %), not tuned."""

    shortest_turn: float = 0.05
    around: float = 0.15  # a word's surroundings, which count half
    decay: float = 0.5  # evidence of a turn that does not touch the word
    floor: float = 0.08  # of the probability, shared by all: one bad turn does not decide alone
    in_phrase: float = 2.2
    after_pause: float = 0.9
    at_segment: float = 0.5
    after_sentence: float = 0.25
    pause: float = 0.35
    island_words: int = 2
    island: float = 0.7
    reach: float = 2.0  # beyond it a turn says nothing about a word
    heard: float = 0.6  # of a backchannel, to be believed


@dataclass(frozen=True)
class Attribution:
    """Whose a word is. `confidence` is the share of the evidence, 0 to 1; both are None where no
    turn is near. `overlap` says that somebody else speaks at the same time."""

    speaker: str | None
    confidence: float | None
    overlap: bool

    def __post_init__(self) -> None:
        assert (self.speaker is None) == (self.confidence is None)


NO_SPEAKER = Attribution(None, None, False)


def assign_speakers(
    words: Sequence[Word],
    exclusive: Turns,
    regular: Turns,
    *,
    breaks: Collection[int] = (),
    language: str | None = None,
    costs: Costs | None = None,
) -> list[Attribution]:
    """One attribution for each of `words`, which are in order.

    `exclusive` turns do not overlap and are the evidence, `regular` ones say where several speak.
    `breaks` are the words that begin a segment, `language` chooses the backchannels; None takes those
    of all languages. Words all belong to the same recording as the turns.
    """
    costs = costs or Costs()
    alone = [turn for turn in exclusive if turn.samples >= costs.shortest_turn * SAMPLE_RATE]
    speakers = list(dict.fromkeys(turn.speaker for turn in alone))
    if not words or not speakers:
        return [NO_SPEAKER] * len(words)
    spans = _spans(words)  # [N, 2]
    floor = _Floor(alone, speakers)
    chances, distance = floor.evidence(spans, costs)  # [N, S], [N]
    borders = _Borders(words, spans, frozenset(breaks), costs)
    labels = _cheapest(chances, borders.costs(), costs)
    everybody = list(dict.fromkeys([*speakers, *regular.speakers]))
    activity = _Floor(list(regular.joined()), everybody)
    active = activity.overlap(spans) / np.maximum(spans[:, 1:] - spans[:, :1], 1e-9)  # [N, S]
    labels = _without_islands(labels, words, spans, borders, active, language, costs)
    known = _known(labels, distance <= costs.reach, borders, costs)
    return [
        Attribution(
            speakers[label] if told else None,
            float(chances[n, label]) if told else None,
            bool((active[n] >= 0.5).sum() >= 2),
        )
        for n, (label, told) in enumerate(zip(labels, known, strict=True))
    ]


def _spans(words: Sequence[Word]) -> Floats:
    """[N, 2] seconds, for timing only: a word that was stretched over a pause would take the next
    speaker's turn for its own."""
    starts = np.array([word.start for word in words])
    ends = np.array([word.end for word in words])
    letters = np.array([len(word.text.strip()) for word in words])
    longest = np.minimum(1.2, np.maximum(0.25, 0.4 + 0.12 * letters))
    return np.stack([starts, np.minimum(ends, starts + longest)], axis=1)


class _Floor:
    """Who has the floor when: each speaker's turns, which do not overlap among themselves."""

    def __init__(self, turns: Sequence[Turn], speakers: Sequence[str]) -> None:
        own = [[turn for turn in turns if turn.speaker == speaker] for speaker in speakers]
        self.starts = [np.array([t.start for t in turns]) for turns in own]
        self.ends = [np.array([t.end for t in turns]) for turns in own]

    def overlap(self, spans: Floats) -> Floats:
        """[N, 2] -> [N, S] seconds of each speaker within each span."""
        return np.stack(
            [self._until(s, spans[:, 1]) - self._until(s, spans[:, 0]) for s in self._all()], axis=1
        )

    def distance(self, spans: Floats) -> Floats:
        """[N, 2] -> [N, S] seconds to each speaker's nearest turn, from edge to edge."""
        found = np.full((len(spans), len(self.starts)), np.inf)
        for s in self._all():
            starts, ends = np.append(self.starts[s], np.inf), np.append(-np.inf, self.ends[s])
            following = np.searchsorted(self.ends[s], spans[:, 0], side="right")  # ends after it
            before = spans[:, 0] - ends[following]
            found[:, s] = np.minimum(before, np.maximum(0, starts[following] - spans[:, 1]))
        return found

    def evidence(self, spans: Floats, costs: Costs) -> tuple[Floats, Floats]:
        """[N, S] probabilities, and [N] seconds to the nearest turn."""
        widened = spans + np.array([-costs.around, costs.around])
        score = self.overlap(spans) + 0.5 * self.overlap(widened)
        distance = self.distance(spans)
        nearest = distance.min(axis=1, keepdims=True)
        total = score.sum(axis=1, keepdims=True)
        near = np.exp((nearest - distance) / costs.decay)
        score = np.where(total > 1e-9, score, near)
        return score / score.sum(axis=1, keepdims=True), nearest[:, 0]

    def _all(self) -> range:
        return range(len(self.starts))

    def _until(self, s: int, times: Floats) -> Floats:
        """Seconds of speech before each time."""
        starts, ends = self.starts[s], self.ends[s]
        if not len(starts):
            return np.zeros(len(times))
        said = np.concatenate([[0.0], np.cumsum(ends - starts)])
        edges = np.stack([starts, ends], axis=1).ravel()
        return np.asarray(np.interp(times, edges, np.stack([said[:-1], said[1:]], axis=1).ravel()))


class _Borders:
    """What stands between a word and the next one."""

    def __init__(
        self, words: Sequence[Word], spans: Floats, breaks: frozenset[int], costs: Costs
    ) -> None:
        self.breaks, self.limits = breaks, costs
        self.pauses = spans[1:, 0] - spans[:-1, 1]  # [N - 1] seconds
        self.sentences = np.array([_ends_sentence(word.text) for word in words[:-1]], bool)

    def costs(self) -> Floats:
        """[N - 1] of changing the speaker between a word and the next: the least that applies."""
        found = np.full(len(self.pauses), self.limits.in_phrase)
        found[self.pauses > self.limits.pause] = self.limits.after_pause
        found[[n - 1 for n in self.breaks if 0 < n <= len(found)]] = self.limits.at_segment
        found[self.sentences] = self.limits.after_sentence
        return found

    def clear(self, number: int) -> bool:
        """Whether a pause or the end of a sentence, or nothing at all, stands before a word."""
        if not 0 < number <= len(self.pauses):
            return True
        return bool(self.sentences[number - 1] or self.pauses[number - 1] > self.limits.pause)

    def parts(self, number: int) -> bool:
        """Whether a word begins a sentence, as far as one can tell without punctuation."""
        return bool(self.sentences[number - 1] or self.pauses[number - 1] > self.limits.reach)


def _ends_sentence(text: str) -> bool:
    return text.strip().rstrip(CLOSING).endswith(SENTENCE_ENDS)


def _cheapest(chances: Floats, changes: Floats, costs: Costs) -> list[int]:
    """Viterbi: [N, S] probabilities and [N - 1] costs of a change -> N speakers."""
    count = chances.shape[1]
    prices = -np.log((1 - costs.floor) * chances + costs.floor / count)
    total = prices[0].copy()
    came = np.empty(chances.shape, np.int64)
    stay = np.arange(count)
    for n in range(1, len(prices)):
        best = int(total.argmin())
        change = total[best] + changes[n - 1]
        came[n] = np.where(total <= change, stay, best)
        total = np.minimum(total, change) + prices[n]
    labels = [int(total.argmin())]
    for n in range(len(prices) - 1, 0, -1):
        labels.append(int(came[n, labels[-1]]))
    return labels[::-1]


def _without_islands(
    labels: list[int],
    words: Sequence[Word],
    spans: Floats,
    borders: _Borders,
    active: Floats,
    language: str | None,
    costs: Costs,
) -> list[int]:
    """A word or two between two runs of one other speaker go to that speaker, unless they stand for
    themselves or are a listener's sound while both are heard."""

    def stays(start: int, end: int, label: int) -> bool:
        long = spans[end - 1, 1] - spans[start, 0] >= costs.island
        if end - start > costs.island_words and long:
            return True
        if borders.clear(start) and borders.clear(end):
            return True
        said = "".join(word.text for word in words[start:end])
        return bool(active[start:end, label].mean() >= costs.heard) and is_backchannel(
            said, language
        )

    found = list(labels)
    runs = _runs(found)
    for number in range(1, len(runs) - 1):
        (start, end), after = runs[number], runs[number + 1]
        before = found[start - 1]  # what stands before may have been absorbed already
        if before == found[after[0]] != found[start] and not stays(start, end, found[start]):
            found[start:end] = [before] * (end - start)
    return found


def _runs(labels: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches of one label: start and end (exclusive)."""
    edges = [0, *(n for n in range(1, len(labels)) if labels[n] != labels[n - 1]), len(labels)]
    return list(pairwise(edges))


def _known(
    labels: Sequence[int], near: NDArray[np.bool_], borders: _Borders, costs: Costs
) -> list[bool]:
    """Whether a word's speaker can be told: a turn is near it, or near a word of its sentence that
    has the same speaker."""
    sentences = [0] * len(labels)
    for n in range(1, len(labels)):
        sentences[n] = sentences[n - 1] + borders.parts(n)
    told = list[bool]()
    for _, group in groupby(range(len(labels)), key=sentences.__getitem__):
        members = list(group)
        heard = {labels[n] for n in members if near[n]}
        told += [bool(near[n]) or labels[n] in heard for n in members]
    return told


__all__ = ["NO_SPEAKER", "Attribution", "Costs", "assign_speakers"]
