"""Simulated conversations: words with true speakers, and turns with the errors of a diarizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Word
from forescribe.diarize.turns import Turns

RATE = 16_000


@dataclass(frozen=True)
class Conversation:
    """Words with their speakers, and the simulated turns."""

    words: tuple[Word, ...]  # `speaker` is the truth
    turns: Turns

    @property
    def unnamed(self) -> list[Word]:
        return [Word(w.text, w.start_sample, w.end_sample) for w in self.words]


def converse(
    rng: np.random.Generator,
    *,
    turns: int = 40,
    jitter: float = 0.25,
    missed: float = 0.05,
    islands: float = 0.15,
    unpunctuated: float = 0.1,
) -> Conversation:
    """Turns of 1 to 25 words between two to four speakers. Boundaries are up to `jitter` seconds off,
    short turns are `missed` and long ones broken by wrong `islands` at times, and word times are 50 ms
    off. Sentence ends are wrong or missing with probability `unpunctuated`."""
    speakers = [f"S{n}" for n in range(rng.integers(2, 5))]
    words, heard, at = list[Word](), list[tuple[int, int, str]](), 0.5
    speaker = speakers[0]
    for _ in range(turns):
        others = [s for s in speakers if s != speaker]
        speaker = others[rng.integers(len(others))]
        count = int(rng.integers(1, 4)) if rng.random() < 0.3 else int(rng.integers(4, 26))
        begin = at
        for n in range(count):
            length = rng.uniform(0.15, 0.5)
            ends = n == count - 1 or (n % 9 == 8)
            if rng.random() < unpunctuated:
                ends = not ends if rng.random() < 0.3 else False
            off = rng.uniform(-0.05, 0.05, 2)
            start, end = max(0.0, at + off[0]), at + length + off[1]
            text = f" w{len(words)}" + "." * ends
            words.append(
                Word(text, round(start * RATE), round(max(start, end) * RATE), None, speaker)
            )
            at += length + (rng.uniform(0.02, 0.1) if rng.random() < 0.9 else 0.4)
        first = max(0.0, begin + rng.uniform(-jitter, jitter))
        last = max(first + 0.01, at + rng.uniform(-jitter, jitter))
        if at - begin > 4 and rng.random() < islands:
            middle = rng.uniform(begin + 1, at - 1)
            wrong = others[rng.integers(len(others))]
            heard.append((round(first * RATE), round(middle * RATE), speaker))
            heard.append((round(middle * RATE), round((middle + 0.4) * RATE), wrong))
            first = middle + 0.4
        if at - begin > 1.5 or rng.random() >= missed:
            heard.append((round(first * RATE), round(last * RATE), speaker))
        at += rng.uniform(-0.1, 0.3)
    return Conversation(tuple(words), Turns.of(heard))


def transcript(segments: Sequence[Sequence[Word]], *, words: bool = True) -> Transcript:
    """One segment for each list of words."""
    total = max([1, *(w.end_sample for own in segments for w in own)])
    return Transcript(
        segments=tuple(
            Segment(
                n,
                0,
                0,
                min(w.start_sample for w in own),
                max(w.end_sample for w in own),
                "".join(w.text for w in own),
                tokens=(1, 2),
                words=tuple(own) if words else None,
            )
            for n, own in enumerate(segments)
        ),
        sample_count=total,
        coverage=Coverage((Span(0, total, "decoded"),)),
    )
