"""The interface of diarization engines: samples in, turns and voices out.

An engine is any object with `diarize` and `engine`; docs/speakers.md has an example in ten lines.
This module does not need torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.errors import CapacityError, UsageError, out_of_memory
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, Json, Notice

from .turns import Turns, anonymous

Samples = NDArray[np.float32]
"""[T] mono at 16 kHz, nominally from -1 to 1."""

StageHook = Callable[[str, float], None]
"""Called with the name of the step and the share of the work that is done, 0 to 1. An exception that
it raises cancels the call."""

MOST_SPEAKERS = 100
"""pyannote counts clusters in 8 bits, which would overflow at 128."""


def ignore_progress(step: str, done: float) -> None:
    """A hook that does nothing."""


@dataclass(frozen=True)
class Bounds:
    """The number of speakers: `exactly`, or from `at_least` to `at_most`; None is unknown.

    Raises UsageError for bounds that are out of range or contradict each other.
    """

    exactly: int | None = None
    at_least: int | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        named = {
            "number of speakers": self.exactly,
            "least number of speakers": self.at_least,
            "greatest number of speakers": self.at_most,
        }
        for name, value in named.items():
            if value is not None and value not in range(1, MOST_SPEAKERS + 1):
                raise UsageError(f"the {name} is {value!r}; it must be from 1 to {MOST_SPEAKERS}")
        if self.exactly is not None and (self.at_least or self.at_most):
            raise UsageError("give either the number of speakers or its bounds, not both")
        if self.at_least and self.at_most and self.at_least > self.at_most:
            raise UsageError(
                f"at least {self.at_least} and at most {self.at_most} speakers contradict each other: "
                "the least number must not exceed the greatest"
            )

    @property
    def least(self) -> int:
        return self.exactly or self.at_least or 1

    @property
    def most(self) -> int:
        return self.exactly or self.at_most or MOST_SPEAKERS

    def notices(self, count: int) -> tuple[Notice, ...]:
        """A warning if the count is out of bounds, as engines may miss them. Silence has no warning."""
        if not count or self.least <= count <= self.most:
            return ()
        requested = " to ".join(str(n) for n in sorted({self.least, self.most}))
        text = f"{count} speakers were found where {requested} were requested"
        return (Notice("speaker_count", text),)


@dataclass(frozen=True, eq=False)
class Voice:
    """A speaker's voice: a unit vector [D] of the engine's speaker encoder, computed from `samples`
    samples of speech. `vector` is None where there was too little speech."""

    speaker: str
    vector: NDArray[np.float32] | None
    samples: int

    def __post_init__(self) -> None:
        assert self.vector is None or abs(float(np.linalg.norm(self.vector)) - 1) < 1e-3


@dataclass(frozen=True)
class SimilarityThresholds:
    """Thresholds of an encoder for the cosine of two vectors: from `same` on they are the voice of one
    person, from `possible` on they may be."""

    same: float
    possible: float


@dataclass(frozen=True)
class Engine:
    """Describes the engine in every result.

    `encoder` names the speaker encoder, as vectors of two encoders must not be compared; it is None
    for an engine without one. `details` are versions and similar facts.
    """

    name: str
    encoder: str | None = None
    thresholds: SimilarityThresholds = SimilarityThresholds(same=0.7, possible=0.5)
    details: Mapping[str, Json] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Json]:
        return {"name": self.name, "encoder": self.encoder, **self.details}


@dataclass(frozen=True, eq=False)
class Diarization:
    """Who spoke when. `regular` turns may overlap; `exclusive` turns do not and name the dominant
    speaker.

    Speakers are numbered by first appearance and turns lie within the recording; `of` ensures both.
    """

    regular: Turns
    exclusive: Turns
    voices: tuple[Voice, ...]
    sample_count: int
    engine: Engine
    warnings: tuple[Notice, ...] = ()

    @classmethod
    def of(
        cls,
        regular: Turns,
        exclusive: Turns,
        voices: tuple[Voice, ...],
        sample_count: int,
        engine: Engine,
        warnings: tuple[Notice, ...] = (),
    ) -> Diarization:
        """Create it from turns with any names, which may extend past the end."""
        regular, exclusive = regular.clipped(sample_count), exclusive.clipped(sample_count)
        names = {speaker: anonymous(n) for n, speaker in enumerate(regular.speakers)}
        known = [voice for voice in voices if voice.speaker in names]
        known.sort(key=lambda voice: names[voice.speaker])
        found = cls(regular, exclusive, tuple(known), sample_count, engine, warnings)
        return found.renamed(names)

    @property
    def speakers(self) -> tuple[str, ...]:
        return self.regular.speakers

    def renamed(self, names: Mapping[str, str]) -> Diarization:
        return replace(
            self,
            regular=self.regular.renamed(names),
            exclusive=self.exclusive.renamed(names),
            voices=tuple(
                replace(voice, speaker=names.get(voice.speaker, voice.speaker))
                for voice in self.voices
            ),
        )


class Diarizer(Protocol):
    """A loaded engine. It diarizes several recordings, one at a time."""

    @property
    def engine(self) -> Engine:
        """The description of the engine."""

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook = ignore_progress
    ) -> Diarization:
        """Diarize `samples` [T], which may be empty. Raises CapacityError and what the hook raises."""


@contextmanager
def capacity_errors(samples: Samples) -> Iterator[None]:
    """Raises CapacityError where memory runs out while `samples` are diarized."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise CapacityError(
            f"out of memory while diarizing {len(samples) / SAMPLE_RATE:.0f} s; "
            "choose another --device"
        ) from error
