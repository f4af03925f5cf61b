"""Adds speakers to a transcript and splits segments where the speaker changes.

Text and times of the words are not changed. Knows nothing of how turns were found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Segment, Word

from ..turns import Turns
from .word_speakers import Attribution, assign_speakers


def attribute_speakers(transcript: Transcript, regular: Turns, exclusive: Turns) -> Transcript:
    """Return the transcript with speakers. Its `text` is unchanged.

    Segments without words are not split; their words are assumed to be spread evenly over their time.
    Without turns every speaker is None.
    """
    spoken = [_timed(segment) for segment in transcript.segments]
    words = [word for own in spoken for word in own]
    breaks = set(accumulate((len(own) for own in spoken), initial=0))
    who = iter(
        assign_speakers(words, exclusive, regular, breaks=breaks, language=transcript.language)
    )
    pieces = [
        piece
        for segment, own in zip(transcript.segments, spoken, strict=True)
        for piece in _cut(segment, own, [next(who) for _ in own])
    ]
    return replace(
        transcript,
        segments=tuple(replace(piece, id=number) for number, piece in enumerate(pieces)),
        diarized=True,
        turns=tuple(regular),
    )


def _timed(segment: Segment) -> Sequence[Word]:
    """The words of the segment, or else its text with times in proportion to length."""
    if segment.words is not None:
        return segment.words
    texts = segment.text.split()
    upto = list(accumulate((len(text) for text in texts), initial=0))
    length = segment.end_sample - segment.start_sample
    edges = [segment.start_sample + length * n // max(1, upto[-1]) for n in upto]
    return [Word(t, a, b) for t, a, b in zip(texts, edges, edges[1:], strict=False)]


def _cut(segment: Segment, words: Sequence[Word], who: Sequence[Attribution]) -> Iterator[Segment]:
    named = [
        replace(w, speaker=a.speaker, speaker_confidence=a.confidence, overlap=a.overlap)
        for w, a in zip(words, who, strict=True)
    ]
    whole = "".join(word.text for word in named) == segment.text
    if segment.words is None or not whole or not named:
        kept = None if segment.words is None else tuple(named)
        yield _named(replace(segment, words=kept), named)
        return
    runs = [list(run) for _, run in groupby(named, key=lambda word: word.speaker)]
    for number, run in enumerate(runs):
        start = run[0].start_sample if number else segment.start_sample
        end = run[-1].end_sample if number < len(runs) - 1 else segment.end_sample
        piece = replace(
            segment,
            start_sample=start,
            end_sample=max(start, end),
            text="".join(word.text for word in run),
            tokens=segment.tokens if len(runs) == 1 else (),
            words=tuple(run),
        )
        yield _named(piece, run)


def _named(segment: Segment, words: Sequence[Word]) -> Segment:
    """Set the speaker who has most of the segment's time, with the mean confidence."""
    said: dict[str, int] = defaultdict(int)
    for word in words:
        if word.speaker is not None:
            said[word.speaker] += 1 + word.end_sample - word.start_sample
    if not said:
        return replace(segment, speaker=None, speaker_confidence=None)
    speaker = max(said, key=said.__getitem__)
    sure = [
        word.speaker_confidence
        for word in words
        if word.speaker == speaker and word.speaker_confidence is not None
    ]
    return replace(segment, speaker=speaker, speaker_confidence=sum(sure) / len(sure))
