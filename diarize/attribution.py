"""A speaker for every word of a transcript, given the turns; segments are split where the speaker changes.

Speakers are the path of least cost through the words. Each word has evidence for each speaker from the turns
that contain it or are near. A change of speaker costs more within a phrase than after a sentence, so that a
turn boundary that is off by a fifth of a second does not split a sentence. One word within a phrase goes to
the speaker around it; two words, and one word between pauses or sentences, are a turn of their own.

Text and times of the words are not changed. Knows nothing of audio, or of how turns were found.

Shapes: N words, S speakers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, compress, groupby, pairwise
from operator import attrgetter

import numpy as np

from forescribe.asr.formats.subtitles import CLOSING, SENTENCE_ENDS
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, Segment, Turn, Word

from .engines.clustering import Floats, Labels, cheapest_path
from .turns import Turns

LEAST = round(0.3 * SAMPLE_RATE)
"""Samples of a turn in which a word can be expected."""

NEAR = round(0.2 * SAMPLE_RATE)
"""Samples by which times of words and turns differ."""


@dataclass(frozen=True)
class Costs:
    """Times in seconds and costs in nats."""

    shortest_turn: float = 0.05
    around: float = 0.15  # before and after a word; overlap there counts half
    decay: float = 0.5  # evidence of a turn that does not touch the word
    floor: float = 0.08  # of the probability, shared by all speakers, against wrong turns
    in_phrase: float = 1.5
    after_pause: float = 0.9
    at_segment: float = 0.5
    after_sentence: float = 0.25
    pause: float = 0.35
    reach: float = 2.0  # turns farther away are no evidence for a word


COSTS = Costs()


SPEAKER_WARNINGS = frozenset({"speaker_count", "doubtful_speakers", "speaker_suggestion"})
"""What is said of speakers that were found before."""


def attribute_speakers(transcript: Transcript, regular: Turns, exclusive: Turns) -> Transcript:
    """Return the transcript with speakers. Its `text` is unchanged.

    Segments without words are not split; their words are assumed to be spread evenly over their time.
    Without turns every speaker is None.
    """
    spoken = list(map(_timed, transcript.segments))
    first = list(accumulate(map(len, spoken), initial=0))  # of the words of each segment
    named = assign_speakers(list(chain.from_iterable(spoken)), exclusive, regular, breaks=first)
    pieces: list[Segment] = []
    for segment, (start, end) in zip(transcript.segments, pairwise(first), strict=True):
        pieces += _cut(segment, named[start:end])
    timed = all(s.words is not None or not s.text.strip() for s in transcript.segments)
    unwritten = _unwritten(pieces, regular) if timed else None
    return replace(
        transcript,
        segments=tuple(replace(piece, id=number) for number, piece in enumerate(pieces)),
        diarized=True,
        turns=tuple(regular),
        coverage=replace(transcript.coverage, unwritten_turn_samples=unwritten),
    )


def _unwritten(segments: Sequence[Segment], turns: Turns) -> int:
    """Samples of turns of `LEAST` samples or more in and near which their speaker has no word."""
    said: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for segment in segments:
        for word in segment.words or ():
            if word.speaker is not None:
                said[word.speaker].append((word.start_sample, word.end_sample))
    missing = 0
    for turn in turns:
        own = said[turn.speaker]
        near = (turn.start_sample - NEAR, turn.end_sample + NEAR)
        if turn.samples >= LEAST and not any(a < near[1] and b > near[0] for a, b in own):
            missing += turn.samples
    return missing


def without_speakers(transcript: Transcript) -> Transcript:
    """Return the transcript as before `attribute_speakers`, but for tokens: segments that were cut where the
    speaker changed are joined, and warnings about speakers are gone."""
    found: list[Segment] = []
    for segment in transcript.segments:
        last = found[-1] if found else segment
        if segment.continues and last is not segment:
            found[-1] = replace(
                last,
                end_sample=max(last.end_sample, segment.end_sample),
                text=last.text + segment.text,
                words=(*(last.words or ()), *(segment.words or ())),
                speaker=segment.speaker,  # of the words before the next cut
            )
        else:
            found.append(segment)
    return replace(
        transcript,
        segments=tuple(found),
        warnings=tuple(w for w in transcript.warnings if w.code not in SPEAKER_WARNINGS),
    )


def assign_speakers(
    words: Sequence[Word], exclusive: Turns, regular: Turns, *, breaks: Collection[int] = ()
) -> list[Word]:
    """The words, which are in order, with their speakers: none where no turn is near.

    `exclusive` turns are the evidence; `regular` turns show where several speak. `breaks` are the
    indices of words that begin a segment. The confidence is the share of the evidence; others are those who
    speak during half of the word or more.
    """
    alone = [turn for turn in exclusive if turn.samples >= COSTS.shortest_turn * SAMPLE_RATE]
    if not words or not alone:
        return [_said_by(word, None, None, []) for word in words]
    turns_of = _SpeakerTurns(alone)
    spans = _spans(words)  # [N, 2]
    chances, distance = turns_of.evidence(spans)  # [N, S], [N]
    changes, sentences = _boundaries(words, spans, breaks)  # [N - 1], [N]
    # Nats of each speaker; wrong turns make none impossible.
    evens = COSTS.floor / len(turns_of.speakers)
    labels = cheapest_path(np.log((1 - COSTS.floor) * chances + evens), changes)  # [N]
    # A word's speaker is known if a turn is near it, or near a word of the same speaker in its sentence.
    near = distance <= COSTS.reach
    known = set(zip(sentences[near].tolist(), labels[near].tolist(), strict=True))
    sure = turns_of.confidence(spans, labels)
    activity = _SpeakerTurns(regular.joined(), (*turns_of.speakers, *regular.speakers))
    active = activity.overlap(spans) / np.maximum(spans[:, 1:] - spans[:, :1], 1e-9)  # [N, S]
    found = []
    for n, (label, sentence) in enumerate(zip(labels.tolist(), sentences.tolist(), strict=True)):
        who, confidence = None, None
        if (sentence, label) in known:
            who, confidence = turns_of.speakers[label], float(chances[n, label] * sure[n])
        heard = list(compress(activity.speakers, active[n] >= 0.5))
        found.append(_said_by(words[n], who, confidence, heard))
    return found


def _said_by(word: Word, who: str | None, confidence: float | None, heard: list[str]) -> Word:
    """The word, while these people are heard."""
    overlap = len(heard) >= 2
    others = tuple(other for other in heard if other != who) if overlap else ()
    return replace(word, speaker=who, speaker_confidence=confidence, overlap=overlap, others=others)


def _timed(segment: Segment) -> Sequence[Word]:
    """The words of the segment, or else its text with times in proportion to length."""
    if segment.words is not None:
        return segment.words
    texts = segment.text.split()
    upto = list(accumulate((len(text) for text in texts), initial=0))
    length = segment.end_sample - segment.start_sample
    edges = [segment.start_sample + length * n // max(1, upto[-1]) for n in upto]
    return [Word(t, a, b) for t, a, b in zip(texts, edges, edges[1:], strict=False)]


def _cut(segment: Segment, named: Sequence[Word]) -> Iterator[Segment]:
    if segment.words is None or not named or _text(named) != segment.text:
        kept = None if segment.words is None else tuple(named)
        yield _named(replace(segment, words=kept), named)
        return
    runs = [tuple(run) for _, run in groupby(named, key=attrgetter("speaker"))]
    at = 0
    for number, run in enumerate(runs):
        text, begin = _text(run), at
        at += len(text)
        start = run[0].start_sample if number else segment.start_sample
        end = run[-1].end_sample if number < len(runs) - 1 else segment.end_sample
        piece = replace(
            segment,
            start_sample=start,
            end_sample=max(start, end),
            text=text,
            corrections=segment.corrected_from(begin, at),
            tokens=segment.tokens if len(runs) == 1 else (),
            words=run,
            continues=segment.continues or number > 0,
        )
        yield _named(piece, run)


def _text(words: Sequence[Word]) -> str:
    return "".join(map(attrgetter("text"), words))


def _named(segment: Segment, words: Sequence[Word]) -> Segment:
    """Set the speaker who has most of the segment's time, with the mean confidence."""
    said: dict[str, int] = defaultdict(int)
    sure: dict[str, list[float]] = defaultdict(list)
    for word in words:
        if word.speaker is not None and word.speaker_confidence is not None:
            said[word.speaker] += 1 + word.end_sample - word.start_sample
            sure[word.speaker].append(word.speaker_confidence)
    if not said:
        return replace(segment, speaker=None, speaker_confidence=None)
    speaker = max(said, key=said.__getitem__)
    confidence = sum(sure[speaker]) / len(sure[speaker])
    return replace(segment, speaker=speaker, speaker_confidence=confidence)


def _spans(words: Sequence[Word]) -> Floats:
    """[N, 2] seconds, with long words shortened: a word stretched over a pause would otherwise reach
    into the next speaker's turn."""
    places = [(word.start, word.end, len(word.text.strip())) for word in words]
    starts, ends, letters = np.array(places).T
    longest = np.minimum(1.2, np.maximum(0.25, 0.4 + 0.12 * letters))
    return np.stack([starts, np.minimum(ends, starts + longest)], axis=1)


def _boundaries(
    words: Sequence[Word], spans: Floats, breaks: Collection[int]
) -> tuple[Floats, Labels]:
    """[N - 1] costs of a change of speaker after each word, the smallest that applies, and [N] the number
    of each word's sentence. A long pause counts as the end of one where punctuation is missing."""
    pauses = spans[1:, 0] - spans[:-1, 1]  # [N - 1] seconds
    ended = [word.text.strip().rstrip(CLOSING).endswith(SENTENCE_ENDS) for word in words[:-1]]
    ends = np.array(ended, bool)
    costs = np.full(len(pauses), COSTS.in_phrase)
    costs[pauses > COSTS.pause] = COSTS.after_pause
    inner = np.isin(np.arange(1, len(words)), list(breaks))
    costs[inner] = COSTS.at_segment
    costs[ends] = COSTS.after_sentence
    return costs, np.append(0, np.cumsum(ends | (pauses > COSTS.reach)))


class _SpeakerTurns:
    """The turns of each speaker; those of one speaker do not overlap."""

    def __init__(self, turns: Iterable[Turn], speakers: Sequence[str] = ()) -> None:
        """`speakers` come first, others in order of appearance."""
        own: dict[str, list[tuple[float, float, float]]] = {speaker: [] for speaker in speakers}
        for turn in turns:
            sure = 1.0 if turn.confidence is None else turn.confidence
            own.setdefault(turn.speaker, []).append((turn.start, turn.end, sure))
        self.speakers = list(own)
        self.turns = [np.array(rows).reshape(-1, 3) for rows in own.values()]

    def overlap(self, spans: Floats) -> Floats:
        """[N, 2] spans -> [N, S] seconds of each speaker within each span."""
        found = np.zeros((len(spans), len(self.turns)))
        for s, turns in enumerate(self.turns):
            if not len(turns):
                continue
            said = np.append(0.0, np.cumsum(turns[:, 1] - turns[:, 0]))
            before_edges = np.stack([said[:-1], said[1:]], axis=1).ravel()
            until = np.interp(spans, turns[:, :2].ravel(), before_edges)
            found[:, s] = until[:, 1] - until[:, 0]
        return found

    def evidence(self, spans: Floats) -> tuple[Floats, Floats]:
        """Return probabilities [N, S] and the seconds to the nearest turn [N]."""
        widened = spans + np.array([-COSTS.around, COSTS.around])
        score = self.overlap(spans) + 0.5 * self.overlap(widened)
        distance = np.full(score.shape, np.inf)  # from each speaker's nearest turn, edge to edge
        for s, turns in enumerate(self.turns):
            starts, ends = np.append(turns[:, 0], np.inf), np.append(-np.inf, turns[:, 1])
            # The first turn that ends after the start of the span.
            following = np.searchsorted(turns[:, 1], spans[:, 0], side="right")
            before = spans[:, 0] - ends[following]
            distance[:, s] = np.minimum(before, np.maximum(0, starts[following] - spans[:, 1]))
        nearest = distance.min(axis=1, keepdims=True)
        total = score.sum(axis=1, keepdims=True)
        near = np.exp((nearest - distance) / COSTS.decay)
        score = np.where(total > 1e-9, score, near)
        return score / score.sum(axis=1, keepdims=True), nearest[:, 0]

    def confidence(self, spans: Floats, labels: Labels) -> Floats:
        """[N, 2] spans and [N] speakers -> [N] confidence of the speaker's turn at or before the middle of
        the span, else of the first one; 1 where an engine does not tell."""
        found = np.ones(len(spans))
        for n, (middle, label) in enumerate(zip(spans.mean(axis=1), labels, strict=True)):
            starts, sure = self.turns[label][:, 0], self.turns[label][:, 2]
            found[n] = sure[max(0, int(np.searchsorted(starts, middle, side="right")) - 1)]
        return found
