"""The options about speakers and guards, as a command passes them on, checked before anything is loaded.

Knows which of them contradict each other, how a diarization engine is loaded for them, and how thresholds are
typed: numbers, or the word None. Finds no speakers and decodes no windows itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript_parts import Json
from forescribe.diarize.diarizer import Bounds
from forescribe.diarize.known_speakers import KnownSpeaker, KnownSpeakers

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import BatchTranscriber
    from forescribe.asr.decode.options import Guards
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.diarize.diarizer import Diarizer

MIX, SPLIT = "mix", "split"


@dataclass(frozen=True)
class SpeakerOptions:
    """How speakers are found and named.

    `diarizer` names the engine, None for no diarization. `channels` is `mix`, or `split` where each
    channel is one speaker. `known` uses the enrolled voices.

    Raises UsageError for options that contradict each other, and for `known` without enrolled voices.
    """

    diarizer: str | None = None
    bounds: Bounds = field(default_factory=Bounds)
    known: bool = False
    channels: str = MIX

    def __post_init__(self) -> None:
        if self.channels not in (MIX, SPLIT):
            raise UsageError(f"--channels {self.channels} is neither {MIX} nor {SPLIT}")
        if self.diarizer is not None and self.channels == SPLIT:
            raise UsageError(
                "--channels split: each channel is a speaker already; leave out --diarize"
            )
        if self.diarizer is None and (self.known or self.bounds != Bounds()):
            raise UsageError("a number of speakers and --known need --diarize")
        if self.known and not KnownSpeakers().list():
            raise UsageError(
                "--known: no speaker is enrolled; enrol one with `forescribe speakers add`"
            )

    @property
    def requested(self) -> bool:
        """Whether results name speakers."""
        return self.diarizer is not None or self.channels == SPLIT

    def settings(self, *, network: bool) -> dict[str, Json]:
        """What decides the names of speakers, for a result's fingerprint: the engine that will run and
        the known voices. Raises what `registry.resolve` raises."""
        from forescribe.diarize.engines.registry import resolve

        values: dict[str, Json] = {"channels": self.channels}
        if self.diarizer is not None:
            bounds = self.bounds
            values |= {
                "diarizer": str(resolve(self.diarizer, network=network)),
                "speakers": [bounds.exactly, bounds.at_least, bounds.at_most],
                "known": [[k.name, k.encoder, k.samples] for k in self.known_people()],
            }
        return values

    def load(
        self, *, device: str = "auto", network: bool = True
    ) -> Callable[[Transcriber], BatchTranscriber]:
        """Load what adds speakers to a transcriber; the result returns a transcriber unchanged if no
        speakers are requested. Raises what `engine` raises."""
        if self.channels == SPLIT:
            from forescribe.diarize.channels import ChannelTranscriber

            return ChannelTranscriber
        if self.diarizer is None:
            return lambda transcriber: transcriber
        from forescribe.diarize.speaker_finder import SpeakerFinder

        finder = SpeakerFinder(self.engine(device, network), self.bounds, self.known_people())
        return lambda transcriber: transcriber.with_speakers(finder)

    def engine(self, device: str, network: bool) -> Diarizer:
        """Load the diarizer. Raises what `registry.load` raises, and UsageError if voices are to be
        known and none of the enrolled people has one of this engine."""
        from forescribe.diarize.engines.registry import load

        assert self.diarizer is not None
        diarizer = load(self.diarizer, device=device, network=network)
        if self.known and all(k.encoder != diarizer.engine.encoder for k in self.known_people()):
            raise UsageError(
                f"--known: no speaker was enrolled with the engine {diarizer.engine.name} "
                f"({diarizer.engine.encoder or 'which keeps no voices'}); voices of other engines or "
                "versions cannot be compared: enrol with it by `forescribe speakers add`"
            )
        return diarizer

    def known_people(self) -> Sequence[KnownSpeaker]:
        """The enrolled people whose names may be used."""
        return KnownSpeakers().list() if self.known else ()


def guards(enabled: bool, *, increment: str | None, **thresholds: str | None) -> Guards | None:
    """Make guards with these thresholds; None if they are off. Raises UsageError.

    `thresholds` are `compression_ratio`, `logprob` and `no_speech`, None where not given.
    """
    from forescribe.asr.decode.options import Guards

    given: dict[str, Any] = {
        name: _number(f"--{name.replace('_', '-')}-threshold", text)
        for name, text in thresholds.items()
        if text is not None
    }
    if increment is not None:
        given["temperatures"] = _temperatures(increment)
    if given and not enabled:
        raise UsageError("--no-guards and a guard's threshold contradict each other")
    return Guards(**given) if enabled else None


def _number(option: str, text: str) -> float | None:
    """A number, or None for the word None, which turns a guard off."""
    if text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{option} {text} is neither a number nor None")
    return number


def _temperatures(text: str) -> tuple[float, ...]:
    """From 0 to 1 in steps, as in openai/whisper."""
    step = _number("--temperature-increment-on-fallback", text)
    if step is None:
        return (0.0,)
    if step < 0.01:
        raise UsageError(
            f"--temperature-increment-on-fallback {text}: give 0.01 or more, or None for one attempt"
        )
    return tuple(round(n * step, 6) for n in range(int((1 + 1e-6) / step) + 1))
