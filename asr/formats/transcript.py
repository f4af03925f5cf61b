"""The transcript record: what was said, when, by whom, and what became of every sample.

Positions are integer samples at 16 kHz; seconds are derived from them, so nothing drifts and
nothing is rounded twice. Knows nothing of audio files, models or output formats; needs neither
numpy nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

SAMPLE_RATE = 16_000
"""Hz. Whisper's only rate, therefore the unit of every position in this package."""

SAMPLES_PER_SEEK = 160
"""Whisper's `seek` counts feature frames of 10 ms."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
State = Literal["decoded", "silent", "failed"]
STATES: tuple[State, ...] = ("decoded", "silent", "failed")
TokenSource = Literal["accepted", "correction", "bonus", "plain"]
TOKEN_SOURCES: tuple[TokenSource, ...] = ("accepted", "correction", "bonus", "plain")
"""Who wrote a token: drafted and kept by the target; the target's own after a rejection, after full
acceptance, or in a round without drafts."""


def seconds(samples: int) -> float:
    """Seconds at 16 kHz. `samples_at` gives back exactly the same count for 17,000 years of
    audio."""
    return samples / SAMPLE_RATE


def samples_at(time_s: float) -> int:
    """The sample nearest to a time in seconds."""
    return round(time_s * SAMPLE_RATE)


ONCE = frozenset({"demo_model"})
"""Codes of notices that say the same of every recording of a run: the terminal says them once."""


@dataclass(frozen=True)
class Notice:
    """Something a reader of the result must know: a warning that travels with the transcript."""

    code: str
    message: str


@dataclass(frozen=True)
class Word:
    """A timed word. `text` keeps its leading space, as Whisper's tokens do.

    `probability` is None where it was not measured, `speaker` where nobody is known.
    `speaker_confidence` is the share of the evidence that speaks for this speaker, 0 to 1, and
    `overlap` whether somebody else speaks at the same time; None where nobody looked. `sources` says
    of each of its tokens who wrote it, None where that is not known.
    Raises ValueError unless 0 <= start_sample <= end_sample, and for a source that is none.
    """

    text: str
    start_sample: int
    end_sample: int
    probability: float | None = None
    speaker: str | None = None
    speaker_confidence: float | None = None
    overlap: bool | None = None
    sources: tuple[TokenSource, ...] | None = None

    def __post_init__(self) -> None:
        _check_order(self.start_sample, self.end_sample, f"word {self.text!r}")
        unknown = set(self.sources or ()) - set(TOKEN_SOURCES)
        if unknown:
            raise ValueError(f"unknown source {unknown.pop()!r}; known: {', '.join(TOKEN_SOURCES)}")

    @property
    def start(self) -> float:
        """Seconds."""
        return seconds(self.start_sample)

    @property
    def end(self) -> float:
        """Seconds."""
        return seconds(self.end_sample)


@dataclass(frozen=True)
class Segment:
    """A decoded span with its text and the values its guards saw.

    `text` keeps its leading space: the transcript's text is the plain joining of its segments.
    `window` is the index of the window it was decoded in, `window_sample` where that window starts.
    Guard values are None where they were not measured. `words` is None where no word times were
    asked for. `speaker_confidence` is the mean of its words'. A segment that was cut where the speaker
    changes has no tokens: their borders need not be its borders. `doubt` is why the guards refused the
    text of its window, which was kept as nothing better was found. Raises ValueError unless
    0 <= start_sample <= end_sample.
    """

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

    def __post_init__(self) -> None:
        _check_order(self.start_sample, self.end_sample, f"segment {self.id}")

    @property
    def start(self) -> float:
        """Seconds."""
        return seconds(self.start_sample)

    @property
    def end(self) -> float:
        """Seconds."""
        return seconds(self.end_sample)

    @property
    def seek(self) -> int:
        """Whisper's name for the window's place: frames of 10 ms."""
        return self.window_sample // SAMPLES_PER_SEEK


@dataclass(frozen=True)
class Turn:
    """A stretch in which somebody speaks, heard from the voice alone: turns may overlap.

    Raises ValueError for an empty or reversed stretch and for a speaker without a name.
    """

    start_sample: int
    end_sample: int
    speaker: str

    def __post_init__(self) -> None:
        if not 0 <= self.start_sample < self.end_sample:
            raise ValueError(f"empty or reversed turn [{self.start_sample}, {self.end_sample})")
        if not self.speaker.strip():
            raise ValueError("a turn's speaker has no name")

    @property
    def samples(self) -> int:
        """How many."""
        return self.end_sample - self.start_sample

    @property
    def start(self) -> float:
        """Seconds."""
        return seconds(self.start_sample)

    @property
    def end(self) -> float:
        """Seconds."""
        return seconds(self.end_sample)


@dataclass(frozen=True)
class Span:
    """Samples `start_sample` to `end_sample` (exclusive) and what became of them.

    Raises ValueError for an empty span or an unknown state.
    """

    start_sample: int
    end_sample: int
    state: State
    reason: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_sample < self.end_sample:
            raise ValueError(f"empty or reversed span [{self.start_sample}, {self.end_sample})")
        if self.state not in STATES:
            raise ValueError(f"unknown state {self.state!r}; known: {', '.join(STATES)}")

    @property
    def samples(self) -> int:
        """How many."""
        return self.end_sample - self.start_sample


@dataclass(frozen=True)
class Coverage:
    """Every sample of the recording, in order, in exactly one span.

    Raises ValueError if the spans do not begin at 0 or leave a gap or an overlap.
    """

    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        position = 0
        for span in self.spans:
            if span.start_sample != position:
                raise ValueError(f"coverage has a gap or overlap at sample {position}: {span}")
            position = span.end_sample

    @property
    def sample_count(self) -> int:
        """All samples."""
        return self.spans[-1].end_sample if self.spans else 0

    @property
    def decoded_samples(self) -> int:
        """Samples that a model has heard."""
        return self._total("decoded")

    @property
    def silent_samples(self) -> int:
        """Samples left out because nobody speaks."""
        return self._total("silent")

    @property
    def failed_samples(self) -> int:
        """Samples whose text is missing."""
        return self._total("failed")

    def _total(self, state: State) -> int:
        return sum(span.samples for span in self.spans if span.state == state)


@dataclass(frozen=True)
class Transcript:
    """The result for one recording. Every output format is a pure function of it.

    `diarized` says that speakers were looked for: then the key is always written, null meaning
    unknown, and `turns` holds who was heard when. `settings` explains the result (model, options,
    versions), `stats` what it cost. Raises ValueError if the coverage does not account for exactly
    `sample_count` samples.
    """

    segments: tuple[Segment, ...]
    sample_count: int
    coverage: Coverage
    language: str | None = None
    language_probability: float | None = None
    warnings: tuple[Notice, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict)
    stats: Mapping[str, Json] = field(default_factory=dict)
    diarized: bool = False
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        if self.coverage.sample_count != self.sample_count:
            raise ValueError(
                f"coverage of {self.coverage.sample_count} of {self.sample_count} samples"
            )

    @property
    def text(self) -> str:
        """The segments' text, joined and stripped."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def duration(self) -> float:
        """Seconds."""
        return seconds(self.sample_count)

    def to_dict(self) -> dict[str, Json]:
        """Whisper's JSON and what explains it. Holds no NaN: what is not a finite number becomes
        null."""
        turns: dict[str, Json] = {"turns": [_turn_to_dict(turn) for turn in self.turns]}
        return {
            "text": self.text,
            "segments": [_segment_to_dict(segment, self.diarized) for segment in self.segments],
            **(turns if self.diarized else {}),
            "language": self.language,
            "language_probability": _finite(self.language_probability),
            "duration": self.duration,
            "diarized": self.diarized,
            "warnings": [
                {"code": notice.code, "message": notice.message} for notice in self.warnings
            ],
            "coverage": _coverage_to_dict(self.coverage),
            "settings": _clean(dict(self.settings)),
            "stats": _clean(dict(self.stats)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Transcript:
        """The inverse of `to_dict`. Raises KeyError, TypeError or ValueError for other data."""
        record = _Fields(data)
        return cls(
            segments=tuple(_segment_from_dict(item) for item in record.records("segments")),
            sample_count=samples_at(record.number("duration")),
            coverage=Coverage(
                tuple(_span_from_dict(i) for i in record.record("coverage").records("spans"))
            ),
            language=record.optional_text("language"),
            language_probability=record.optional_number("language_probability"),
            warnings=tuple(
                Notice(i.text("code"), i.text("message")) for i in record.records("warnings")
            ),
            settings=record.record("settings").data,
            stats=record.record("stats").data,
            diarized=record.data["diarized"] is True,
            turns=tuple(
                Turn(samples_at(i.number("start")), samples_at(i.number("end")), i.text("speaker"))
                for i in (record.records("turns") if "turns" in record.data else [])
            ),
        )


def _check_order(start: int, end: int, what: str) -> None:
    if not 0 <= start <= end:
        raise ValueError(f"{what} runs from sample {start} to {end}")


def _segment_to_dict(segment: Segment, diarized: bool) -> dict[str, Json]:
    data: dict[str, Json] = {
        "id": segment.id,
        "seek": segment.seek,
        "window": segment.window,
        "window_start": seconds(segment.window_sample),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": _finite(segment.temperature),
        "avg_logprob": _finite(segment.avg_logprob),
        "compression_ratio": _finite(segment.compression_ratio),
        "no_speech_prob": _finite(segment.no_speech_prob),
    }
    if segment.doubt is not None:
        data["doubt"] = segment.doubt
    if segment.words is not None:
        data["words"] = [_word_to_dict(word, diarized) for word in segment.words]
    if diarized:
        data["speaker"] = segment.speaker
        data["speaker_confidence"] = _finite(segment.speaker_confidence)
    return data


def _word_to_dict(word: Word, diarized: bool) -> dict[str, Json]:
    data: dict[str, Json] = {
        "word": word.text,
        "start": word.start,
        "end": word.end,
        "probability": _finite(word.probability),
    }
    if word.sources is not None:
        data["sources"] = list[Json](word.sources)
    if diarized:
        data["speaker"] = word.speaker
        data["speaker_confidence"] = _finite(word.speaker_confidence)
        data["overlap"] = word.overlap
    return data


def _turn_to_dict(turn: Turn) -> dict[str, Json]:
    return {"start": turn.start, "end": turn.end, "speaker": turn.speaker}


def _coverage_to_dict(coverage: Coverage) -> dict[str, Json]:
    return {
        "decoded_s": seconds(coverage.decoded_samples),
        "silent_s": seconds(coverage.silent_samples),
        "failed_s": seconds(coverage.failed_samples),
        "spans": [
            {
                "start": seconds(span.start_sample),
                "end": seconds(span.end_sample),
                "state": span.state,
                "reason": span.reason,
            }
            for span in coverage.spans
        ],
    }


def _segment_from_dict(record: _Fields) -> Segment:
    words = (
        [_word_from_dict(item) for item in record.records("words")]
        if "words" in record.data
        else None
    )
    return Segment(
        id=record.integer("id"),
        window=record.integer("window"),
        window_sample=samples_at(record.number("window_start")),
        start_sample=samples_at(record.number("start")),
        end_sample=samples_at(record.number("end")),
        text=record.text("text"),
        tokens=tuple(record.integers("tokens")),
        temperature=record.optional_number("temperature"),
        avg_logprob=record.optional_number("avg_logprob"),
        compression_ratio=record.optional_number("compression_ratio"),
        no_speech_prob=record.optional_number("no_speech_prob"),
        words=None if words is None else tuple(words),
        speaker=record.optional_text("speaker"),
        speaker_confidence=record.optional_number("speaker_confidence"),
        doubt=record.optional_text("doubt"),
    )


def _word_from_dict(record: _Fields) -> Word:
    return Word(
        text=record.text("word"),
        start_sample=samples_at(record.number("start")),
        end_sample=samples_at(record.number("end")),
        probability=record.optional_number("probability"),
        speaker=record.optional_text("speaker"),
        speaker_confidence=record.optional_number("speaker_confidence"),
        overlap=record.optional_flag("overlap"),
        sources=_token_sources(record) if "sources" in record.data else None,
    )


def _token_sources(record: _Fields) -> tuple[TokenSource, ...]:
    # Word refuses what is none.
    return tuple(cast(TokenSource, str(item)) for item in record.items("sources"))


def _span_from_dict(record: _Fields) -> Span:
    return Span(
        start_sample=samples_at(record.number("start")),
        end_sample=samples_at(record.number("end")),
        state=cast(State, record.text("state")),  # Span refuses what is not one
        reason=record.optional_text("reason"),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _clean(value: Json) -> Json:
    """JSON has no NaN: a reader in another language would refuse the whole file."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return _finite(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class _Fields:
    """A JSON object read by type: a wrong file fails here, naming the key, not later in a
    writer."""

    data: Mapping[str, Json]

    def _get(self, key: str, kind: type | tuple[type, ...]) -> Json:
        value = self.data[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{key!r} is {type(value).__name__} in a transcript")
        return value

    def text(self, key: str) -> str:
        return cast(str, self._get(key, str))

    def integer(self, key: str) -> int:
        return cast(int, self._get(key, int))

    def number(self, key: str) -> float:
        return cast(float, self._get(key, (int, float)))

    def optional_text(self, key: str) -> str | None:
        return None if self.data.get(key) is None else self.text(key)

    def optional_number(self, key: str) -> float | None:
        return None if self.data.get(key) is None else self.number(key)

    def optional_flag(self, key: str) -> bool | None:
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"{key!r} is {type(value).__name__} in a transcript")
        return value

    def items(self, key: str) -> list[Json]:
        return cast(list[Json], self._get(key, list))

    def integers(self, key: str) -> list[int]:
        return [int(cast(int, item)) for item in self.items(key)]

    def record(self, key: str) -> _Fields:
        return _Fields(cast(dict[str, Json], self._get(key, dict)))

    def records(self, key: str) -> list[_Fields]:
        return [
            _Fields(cast(dict[str, Json], item)) for item in cast(list[Json], self._get(key, list))
        ]
