"""Speakers of audio that is still arriving: each stretch is compared with those that were heard before.

Networks, vectors and PLDA are those of the embedded engine. A speaker of the stream is the evidence of the
pieces that were given to it. The pieces of a stretch are joined with each other and with the speakers so far
by the likelihood that joins pieces in a recording (`clustering`), so that no threshold is chosen; two
speakers of the stream are never joined. What joins none is a new speaker once `founded_s` of it were heard.
Until then, and where no speaker is probable, a piece has the label UNKNOWN. A label is never given to
somebody else, and what was labelled is not labelled again.

Shapes: N pieces, K speakers, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from ..diarizer import MOST_SPEAKERS, Samples, Voice, capacity_errors
from ..known_speakers import KnownSpeaker, match_voices
from ..turns import UNKNOWN, Turns
from . import clustering
from .clustering import (
    Evidence,
    Flags,
    Floats,
    Labels,
    Pieces,
    Plda,
    agglomerate,
    change_costs,
    cheapest_path,
    densities,
    unit,
)
from .embedded import EmbeddedDiarizer
from .segmentation import turns_of


@dataclass(frozen=True)
class OnlineSettings:
    """Chosen on mixtures of tuning readers (docs/live.md)."""

    evidence: float = 0.65  # share of a piece's evidence that counts: more than in whole recordings
    founded_s: float = 2.0  # of speech, from which a voice that is no other is a speaker
    sure: float = 0.6  # probability from which a piece has its speaker
    learnt: float = 0.95  # from which it tells something about the speaker
    longest_s: float = 60.0  # of evidence of a speaker: what was heard long ago counts less
    waiting: int = 8  # voices that may become speakers


SETTINGS = OnlineSettings()


@dataclass(frozen=True, eq=False)
class _Voice:
    """What was heard of a speaker, or of a voice that may become one: then `label` is None."""

    label: str | None
    amount: float  # of evidence
    sum: Floats  # [D], the weighted vectors
    seconds: float

    def plus(self, pieces: Pieces, weights: Floats, own: Flags) -> _Voice:
        """With some pieces [N]."""
        return replace(
            self,
            amount=self.amount + float(weights[own].sum()),
            sum=self.sum + weights[own] @ pieces.vectors[own],
            seconds=self.seconds + float(pieces.seconds[own].sum()),
        )

    def and_(self, other: _Voice) -> _Voice:
        """Both are one, with the label of either."""
        return _Voice(
            self.label or other.label,
            self.amount + other.amount,
            self.sum + other.sum,
            self.seconds + other.seconds,
        )


class OnlineClusters:
    """The speakers of one stream, from the pieces of its stretches. Knows vectors only."""

    def __init__(
        self, plda: Plda, name: Callable[[Floats, float], str], most: int = MOST_SPEAKERS
    ) -> None:
        """`name` gives the label of a new speaker by its mean direction [D] and seconds of speech; there are
        `most` speakers at most."""
        self.plda, self.most, self._name = plda, most, name
        self._bound = SETTINGS.longest_s * SETTINGS.evidence * plda.precision(np.ones(1))[0]
        self._evidence = Evidence(plda.psi, (2 + SETTINGS.waiting) * self._bound)
        self._voices: list[_Voice] = []

    def assign(self, pieces: Pieces) -> tuple[list[str], Floats]:
        """N >= 1 pieces of the next stretch -> [N] labels, which may be UNKNOWN, and [N] probabilities."""
        precision = self.plda.precision(pieces.seconds)
        weights = SETTINGS.evidence * precision
        voices, members = self._joined(pieces, weights)
        heard = [v.plus(pieces, weights, members == k) for k, v in enumerate(voices)]
        self._name_new(heard)
        scores = densities(
            pieces.vectors,
            precision,
            np.array([voice.amount for voice in heard]),
            np.stack([voice.sum for voice in heard]),
            self.plda.psi,
        )
        if sum(voice.label is not None for voice in heard) >= self.most:
            scores[:, [voice.label is None for voice in heard]] = -np.inf
        places = cheapest_path(scores, change_costs(pieces))
        chances = np.exp(clustering.SETTINGS.sharpness * (scores - scores.max(1, keepdims=True)))
        sure = (chances / chances.sum(1, keepdims=True))[np.arange(len(places)), places]
        learnt = np.where(sure >= SETTINGS.learnt, places, -1)
        self._voices = self._kept(
            # A new speaker is all that was heard of it.
            new if new.label != old.label else old.plus(pieces, weights, learnt == k)
            for k, (old, new) in enumerate(zip(voices, heard, strict=True))
        )
        told = [
            heard[place].label if chance >= SETTINGS.sure else None
            for place, chance in zip(places.tolist(), sure.tolist(), strict=True)
        ]
        return [label or UNKNOWN for label in told], sure

    def _joined(self, pieces: Pieces, weights: Floats) -> tuple[list[_Voice], Labels]:
        """The voices so far, and empty ones for those that are new; [N] the voice to which agglomeration
        gives each piece, -1 where the piece is too short for it."""
        founding = np.flatnonzero(pieces.seconds >= clustering.SETTINGS.shortest_s)
        if not len(founding) and not self._voices:
            founding = np.arange(len(pieces.seconds))
        known, own = len(self._voices), np.ix_(founding, founding)
        links = np.zeros((known + len(founding),) * 2)
        apart = np.zeros(links.shape, bool)
        links[known:, known:], apart[known:, known:] = pieces.links[own], pieces.apart[own]
        named = np.array([voice.label is not None for voice in self._voices], bool)
        apart[:known, :known] = named[:, None] & named & ~np.eye(known, dtype=bool)
        clusters = agglomerate(
            np.stack([*(v.sum / v.amount for v in self._voices), *pieces.vectors[founding]]),
            np.array([*(v.amount for v in self._voices), *weights[founding]]),
            self.plda.psi,
            links,
            apart,
            evidence=self._evidence,
        ).tolist()
        empty = _Voice(None, 0.0, np.zeros(len(self.plda.psi)), 0.0)
        voices = dict.fromkeys(clusters, empty)
        for voice, cluster in zip(self._voices, clusters, strict=False):
            voices[cluster] = voices[cluster].and_(voice)
        place = {cluster: k for k, cluster in enumerate(voices)}
        members = np.full(len(weights), -1)
        members[founding] = [place[cluster] for cluster in clusters[known:]]
        return list(voices.values()), members

    def _name_new(self, heard: list[_Voice]) -> None:
        """Give labels to the voices of which enough was heard."""
        count = sum(voice.label is not None for voice in heard)
        for place, voice in enumerate(heard):
            enough = voice.seconds >= SETTINGS.founded_s and count < self.most
            if voice.label is None and enough:
                label, count = self._name(unit(voice.sum), voice.seconds), count + 1
                heard[place] = replace(voice, label=label)

    def _kept(self, voices: Iterable[_Voice]) -> list[_Voice]:
        """Speakers, their evidence bounded, and the last voices that may become some."""
        speakers, waiting = list[_Voice](), list[_Voice]()
        for voice in voices:
            share = min(1.0, self._bound / max(voice.amount, 1e-9))
            bounded = replace(voice, amount=share * voice.amount, sum=share * voice.sum)
            if voice.label is not None:
                speakers.append(bounded)
            elif voice.amount:
                waiting.append(bounded)
        return [*speakers, *waiting[-SETTINGS.waiting :]]


class OnlineSpeakers:
    """The speakers of one stream, `most` at most. `label` gives that of the n-th who is found, from 0;
    `known` people have their names if they are recognised then."""

    def __init__(
        self,
        engine: EmbeddedDiarizer,
        label: Callable[[int], str],
        known: Sequence[KnownSpeaker] = (),
        most: int = MOST_SPEAKERS,
    ) -> None:
        self.engine, self.known = engine, known
        self._taken = set[str]()  # names of known people who were found
        reserved = {person.name for person in known}
        self._labels = (name for name in map(label, count()) if name not in reserved)
        self._clusters = OnlineClusters(engine.plda, self._name, most)

    def turns(self, samples: Samples) -> tuple[Turns, Turns]:
        """The next stretch of audio [T], at most half a minute -> turns that may overlap, and turns of one
        speaker at a time; UNKNOWN is a label too. Raises CapacityError."""
        with capacity_errors(samples):
            activity, pieces = self.engine.hear(samples)
        if not activity.pieces:
            return Turns(), Turns()
        labels, sure = self._clusters.assign(pieces)
        names = list(dict.fromkeys(labels))
        numbers = np.array([names.index(label) for label in labels])
        told = {str(number): name for number, name in enumerate(names)}
        regular, exclusive = turns_of(activity, numbers, sure)
        return regular.renamed(told), exclusive.renamed(told)

    def _name(self, mean: Floats, seconds: float) -> str:
        engine = self.engine.engine
        voice = Voice("", mean.astype(np.float32), round(seconds * SAMPLE_RATE))
        free = [person for person in self.known if person.name not in self._taken]
        for match in match_voices([voice], free, engine.encoder, engine.thresholds):
            if match.sure:
                self._taken.add(match.name)
                return match.name
        return next(self._labels)
