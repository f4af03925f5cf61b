"""The transcript: what was said, when, by whom, and what became of every sample.

Knows nothing of audio files, models or output formats; needs neither numpy nor torch. Its parts,
defined in `transcript_parts`, can be imported from here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .transcript_json import (
    Fields,
    coverage_from_dict,
    coverage_to_dict,
    finite_or_none,
    notice_from_dict,
    notice_to_dict,
    segment_from_dict,
    segment_to_dict,
    turn_to_dict,
    without_nan,
)
from .transcript_parts import (
    PLACES,
    STATES,
    TOKEN_SOURCES,
    Coverage,
    Notice,
    Segment,
    Span,
    State,
    TokenSource,
    Turn,
    Word,
    merged,
)
from .units import SAMPLE_RATE, SAMPLES_PER_SEEK, Json, samples_at, seconds

__all__ = [
    "PLACES",
    "SAMPLES_PER_SEEK",
    "SAMPLE_RATE",
    "STATES",
    "TOKEN_SOURCES",
    "Coverage",
    "Json",
    "Notice",
    "Segment",
    "Span",
    "State",
    "TokenSource",
    "Transcript",
    "Turn",
    "Word",
    "merged",
    "samples_at",
    "seconds",
]


@dataclass(frozen=True)
class Transcript:
    """The result for one recording. Every output format is a pure function of it.

    With `diarized`, the key `speaker` is always written, null meaning unknown, and `turns` holds
    who speaks when. `settings` explains the result (model, options, versions), `stats` its cost.
    Equal warnings become one, and their number is bounded (`merged`). Raises ValueError if the coverage
    does not account for exactly `sample_count` samples."""

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
        object.__setattr__(self, "warnings", merged(self.warnings))
        if self.coverage.sample_count != self.sample_count:
            raise ValueError(
                f"coverage of {self.coverage.sample_count} of {self.sample_count} samples"
            )

    @property
    def text(self) -> str:
        """The concatenated text of the segments, stripped."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return seconds(self.sample_count)

    def to_dict(self) -> dict[str, Json]:
        """Whisper's JSON with additional keys. Numbers that are not finite become null."""
        turns: dict[str, Json] = {"turns": [turn_to_dict(turn) for turn in self.turns]}
        return {
            "text": self.text,
            "segments": [segment_to_dict(segment, self.diarized) for segment in self.segments],
            **(turns if self.diarized else {}),
            "language": self.language,
            "language_probability": finite_or_none(self.language_probability),
            "duration": self.duration,
            "diarized": self.diarized,
            "warnings": [notice_to_dict(notice) for notice in self.warnings],
            "coverage": coverage_to_dict(self.coverage),
            "settings": without_nan(dict(self.settings)),
            "stats": without_nan(dict(self.stats)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Transcript:
        """The inverse of `to_dict`. Raises KeyError, TypeError or ValueError for other data."""
        record = Fields(data)
        return cls(
            segments=tuple(segment_from_dict(item) for item in record.records("segments")),
            sample_count=samples_at(record.number("duration")),
            coverage=coverage_from_dict(record.record("coverage")),
            language=record.optional_text("language"),
            language_probability=record.optional_number("language_probability"),
            warnings=tuple(notice_from_dict(item) for item in record.records("warnings")),
            settings=record.record("settings").data,
            stats=record.record("stats").data,
            diarized=record.data["diarized"] is True,
            turns=tuple(
                Turn(samples_at(i.number("start")), samples_at(i.number("end")), i.text("speaker"))
                for i in (record.records("turns") if "turns" in record.data else [])
            ),
        )
