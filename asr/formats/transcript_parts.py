"""The parts of a transcript: words, segments, turns, notices, and what became of every sample.

Positions are integer samples at 16 kHz; seconds are derived from them, so nothing drifts and
nothing is rounded twice. Knows what a valid part is; nothing of files or of decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, get_args

from ..errors import clipped

SAMPLE_RATE = 16_000
"""Hz. Whisper's only rate, and therefore the unit of every position in this package."""

SAMPLES_PER_SEEK = 160
"""Whisper's `seek` counts feature frames of 10 ms."""

PLACES = 3
"""The most places that a notice lists; it counts the others."""

MOST_NOTICES = 32
"""The most notices of a recording: what a hostile file causes must not fill a terminal or a database."""

MESSAGE_LENGTH = 1000
"""The most characters of a notice's message."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value of JSON."""

State = Literal["decoded", "silent", "failed"]
STATES = get_args(State)
"""What became of samples."""

TokenSource = Literal["accepted", "correction", "bonus", "plain", "guessed"]
TOKEN_SOURCES = get_args(TokenSource)
"""Where a token comes from: drafted and accepted; the target's own after a rejection, after full
acceptance, or in a round without drafts."""

CorrectionSource = Literal["terms", "replacements"]
"""What has changed words: a list of terms that the model agrees to, or replacements of texts."""


def seconds(samples: int) -> float:
    """Convert samples to seconds. `samples_at` returns exactly the same count for 17,000 years of
    audio."""
    return samples / SAMPLE_RATE


def samples_at(time_s: float) -> int:
    """Return the sample nearest to a time in seconds."""
    return round(time_s * SAMPLE_RATE)


@dataclass(frozen=True, repr=False)
class _InSeconds:
    """Start and end of a span of samples, in seconds: fields, so that pandas makes columns of them."""

    start: float = field(init=False, compare=False)
    end: float = field(init=False, compare=False)

    def _place(self, start_sample: int, end_sample: int, what: str) -> None:
        if not 0 <= start_sample <= end_sample:
            raise ValueError(f"{what} runs from sample {start_sample} to {end_sample}")
        object.__setattr__(self, "start", seconds(start_sample))
        object.__setattr__(self, "end", seconds(end_sample))

    def _brief(self, *about: object) -> str:
        told = "".join(f", {value!r}" for value in about if value is not None)
        return f"{type(self).__name__}({self.start:.2f}-{self.end:.2f} s{told})"


@dataclass(frozen=True, repr=False)
class Word(_InSeconds):
    """A timed word. `text` keeps its leading space, as Whisper's tokens do.

    `probability` is None if it was not measured, `speaker` if it is unknown. `speaker_confidence` is the
    share of the evidence for this speaker, 0 to 1; `overlap` is whether other people speak at the same
    time, and `others` are these; the first two are None without diarization. `sources` holds the source of
    each of its tokens, None if unknown. Raises ValueError unless 0 <= start_sample <= end_sample."""

    text: str
    start_sample: int
    end_sample: int
    probability: float | None = None
    speaker: str | None = None
    speaker_confidence: float | None = None
    overlap: bool | None = None
    sources: tuple[TokenSource, ...] | None = None
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._place(self.start_sample, self.end_sample, f"word {self.text!r}")

    def renamed(self, name: Callable[[str | None], str | None]) -> Word:
        """With the names of its speakers. Where two have one name it is said once."""
        speaker, others = name(self.speaker), dict.fromkeys(map(name, self.others))
        kept = tuple(other for other in others if other and other != speaker)
        return replace(self, speaker=speaker, others=kept)

    def __repr__(self) -> str:
        return self._brief(self.text, self.speaker)


@dataclass(frozen=True)
class Correction:
    """Words that are not as they were heard: `written` from character `at` of a segment's text on, in place
    of `heard`. `source` says by what."""

    at: int
    heard: str
    written: str
    source: CorrectionSource


@dataclass(frozen=True, repr=False)
class Segment(_InSeconds):
    """A decoded span with its text and the values that guards check.

    `text` keeps its leading space: the text of a transcript is the concatenation of its segments.
    `window` is the index of the window it was decoded in, `window_sample` where that window starts.
    Guard values are None if they were not measured, `words` is None without word times.
    `speaker_confidence` is the mean over its words. A segment that was cut at a change of speaker has no
    tokens, as a token may reach over the cut; `continues` says that it is no first piece. `corrections` are
    the words that were heard otherwise, in the order of its text. `doubt` is the reason why the guards
    rejected the text of its window, if it was kept for lack of a better one. Raises ValueError unless
    0 <= start_sample <= end_sample."""

    id: int
    window: int
    window_sample: int
    start_sample: int
    end_sample: int
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None
    words: tuple[Word, ...] | None = None
    speaker: str | None = None
    speaker_confidence: float | None = None
    doubt: str | None = None
    continues: bool = False
    corrections: tuple[Correction, ...] = ()

    def __post_init__(self) -> None:
        self._place(self.start_sample, self.end_sample, f"segment {self.id}")

    def __repr__(self) -> str:
        return self._brief(beginning(self.text), self.speaker)

    def corrected_from(self, start: int, end: int) -> tuple[Correction, ...]:
        """The corrections of characters `start` to `end` (exclusive), as those of that text alone."""
        within = (own for own in self.corrections if start <= own.at < end)
        return tuple(replace(own, at=own.at - start) for own in within)

    @property
    def seek(self) -> int:
        """The start of the window as Whisper counts it, in frames of 10 ms."""
        return self.window_sample // SAMPLES_PER_SEEK


@dataclass(frozen=True, repr=False)
class Turn(_InSeconds):
    """A time span in which one person speaks, found from the voice alone; turns may overlap.

    `confidence` is the probability that it is this speaker, from 0 to 1; None where the engine does not tell.
    Raises ValueError for an empty or reversed span and for an empty speaker label.
    """

    start_sample: int
    end_sample: int
    speaker: str
    confidence: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_sample < self.end_sample:
            raise ValueError(f"empty or reversed turn [{self.start_sample}, {self.end_sample})")
        self._place(self.start_sample, self.end_sample, "turn")
        if not self.speaker.strip():
            raise ValueError("a turn's speaker has no name")

    def __repr__(self) -> str:
        return self._brief(self.speaker)

    @property
    def samples(self) -> int:
        return self.end_sample - self.start_sample


@dataclass(frozen=True)
class Span:
    """The samples `start_sample` to `end_sample` (exclusive) and what became of them. A span that was left
    out as silence though it is loud has a `level_db`, against full scale.

    Raises ValueError for an empty span or an unknown state.
    """

    start_sample: int
    end_sample: int
    state: State
    reason: str | None = None
    level_db: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_sample < self.end_sample:
            raise ValueError(f"empty or reversed span [{self.start_sample}, {self.end_sample})")
        if self.state not in STATES:
            raise ValueError(f"unknown state {self.state!r}; known: {', '.join(STATES)}")

    @property
    def samples(self) -> int:
        return self.end_sample - self.start_sample


Part = TypeVar("Part", Word, Segment, Turn, Span)


def shifted(part: Part, samples: int, **others: Any) -> Part:
    """A part that is so much later, with other values of `others`."""
    start, end = part.start_sample + samples, part.end_sample + samples
    return replace(part, start_sample=start, end_sample=end, **others)


@dataclass(frozen=True)
class Coverage:
    """Every sample of the recording, in order, in exactly one span.

    `wordless_samples` are those in which a voice was heard and no word was written; None where nothing
    listened for one. `unwritten_turn_samples` are those of speakers' turns without a word of this speaker,
    such as a listener's "yes" that the model left out; None without diarization. Raises ValueError if the
    spans do not begin at 0 or leave a gap or an overlap.
    """

    spans: tuple[Span, ...] = ()
    wordless_samples: int | None = None
    unwritten_turn_samples: int | None = None

    def __post_init__(self) -> None:
        position = 0
        for span in self.spans:
            if span.start_sample != position:
                raise ValueError(f"coverage has a gap or overlap at sample {position}: {span}")
            position = span.end_sample

    @property
    def sample_count(self) -> int:
        return self.spans[-1].end_sample if self.spans else 0

    @property
    def decoded_samples(self) -> int:
        return self._total("decoded")

    @property
    def silent_samples(self) -> int:
        """Samples left out as silence."""
        return self._total("silent")

    @property
    def loud_samples(self) -> int:
        """Samples left out as silence though they are loud."""
        return sum(span.samples for span in self.spans if span.level_db is not None)

    @property
    def loud_db(self) -> float | None:
        """Their level against full scale; None where there are none."""
        loud = [(span.samples, span.level_db) for span in self.spans if span.level_db is not None]
        if not loud:
            return None
        power = sum(count * 10 ** (level / 10) for count, level in loud)
        return 10 * math.log10(power / self.loud_samples)

    @property
    def failed_samples(self) -> int:
        """Samples whose text is missing."""
        return self._total("failed")

    def _total(self, state: State) -> int:
        return sum(span.samples for span in self.spans if span.state == state)


@dataclass(frozen=True)
class Notice:
    """A warning for readers of the result, stored in the transcript.

    `message` is complete. For programs, `count` says how many times it applies, and `places` where, in
    seconds, for the first few of several.
    """

    code: str
    message: str
    count: int = 1
    places: tuple[float, ...] = ()


class Contents(Protocol):
    """What output formats read of a `Transcript`."""

    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def sample_count(self) -> int: ...
    @property
    def turns(self) -> tuple[Turn, ...]: ...
    @property
    def settings(self) -> Mapping[str, Json]: ...
    def to_dict(self) -> dict[str, Json]: ...


def beginning(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def merged(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    """The notices within bounds: equal ones are one, with a count; the first `MOST_NOTICES` different ones,
    the last of which counts the others; messages of at most `MESSAGE_LENGTH` characters."""
    found: dict[tuple[str, str], Notice] = {}
    for notice in notices:
        suffix = _times(notice.count)
        text = clipped(notice.message.removesuffix(suffix), MESSAGE_LENGTH)
        equal = found.get((notice.code, text))
        if equal is None:
            kept = suffix if notice.message.endswith(suffix) else ""
            found[notice.code, text] = replace(notice, message=text + kept)
        else:
            count = equal.count + notice.count
            places = (*equal.places, *notice.places)[:PLACES]
            found[notice.code, text] = Notice(notice.code, text + _times(count), count, places)
    joined = tuple(found.values())
    if len(joined) <= MOST_NOTICES:
        return joined
    rest = joined[MOST_NOTICES - 1 :]
    codes = clipped(", ".join(dict.fromkeys(notice.code for notice in rest)), MESSAGE_LENGTH // 2)
    text = f"{len(rest)} more warnings are left out: {codes}"
    return (*joined[: MOST_NOTICES - 1], Notice("more_warnings", text, len(rest)))


def _times(count: int) -> str:
    return f" ({count} times)"
