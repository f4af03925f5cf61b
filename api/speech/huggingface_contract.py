"""The Hugging Face asr-diarization contract: its parameters and its answer.

    {"speakers": [...], "chunks": [{"timestamp": [0.0, 4.2], "text": " ..."}], "text": "..."}

Everything that the contract accepts is accepted: values as text, unknown names (with a warning), and
options that make no difference here. Does not know HTTP. Import is light.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Json

from ..errors import ApiError, checked
from ..http.bodies import loads

if TYPE_CHECKING:
    from forescribe.diarize.diarizer import Bounds

UNKNOWN_SPEAKER = "UNKNOWN"
"""The speaker of words outside all turns: they have an entry too."""


class Parameters(BaseModel):
    """The contract's names and defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: Literal["transcribe", "translate"] = "transcribe"
    batch_size: int = 24  # no effect: the engine's own applies to all requests together
    assisted: bool = False  # no effect: drafts are used where they save time, with the same words
    chunk_length_s: int = 30  # no effect: audio is cut at pauses, into windows of at most 30 s
    sampling_rate: int = 16000  # no effect: a recording's own rate is known
    language: str | None = None
    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None

    def options(self, *, diarizing: bool) -> Options:
        return Options(language=self.language, task=self.task, words=diarizing, guards=Guards())

    def warnings(self, *, diarizing: bool) -> list[str]:
        """Messages about parameters that could not be served."""
        if any((self.num_speakers, self.min_speakers, self.max_speakers)) and not diarizing:
            return ["number of speakers: this server does not diarize"]
        return []

    def bounds(self) -> Bounds:
        """Bounds for the number of speakers. Raises UsageError if they contradict each other."""
        from forescribe.diarize.diarizer import Bounds

        return Bounds(self.num_speakers, self.min_speakers, self.max_speakers)


def parameters(given: str | Mapping[str, Any] | None) -> tuple[Parameters, list[str]]:
    """The parameters, from JSON text, an object or None, and a warning for every unknown name. Raises
    ApiError `invalid_value`."""
    if isinstance(given, str):
        given = loads(given or "{}", "parameters")
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ApiError("invalid_value", "parameters: not an object")
    unknown = [name for name in given if name not in Parameters.model_fields]
    parsed = checked(Parameters, dict(given))
    return parsed, [f"{name}: unknown parameter, ignored" for name in unknown]


def answer(
    transcript: Transcript, diarized: Transcript | None, warnings: list[str]
) -> dict[str, Json]:
    """The contract's three keys, and `warnings` if there are any. `diarized` is the transcript with
    speakers, or None if this server does not diarize."""
    chunks: list[Json] = [
        {"timestamp": [segment.start, segment.end], "text": segment.text}
        for segment in transcript.segments
    ]
    messages = [*warnings, *(notice.message for notice in (diarized or transcript).warnings)]
    speakers = list[Json](turns(diarized)) if diarized is not None else []
    body: dict[str, Json] = {"speakers": speakers, "chunks": chunks, "text": transcript.text}
    return {**body, "warnings": list[Json](messages)} if messages else body


def turns(transcript: Transcript) -> list[dict[str, Json]]:
    """One entry for each run of segments with the same speaker; together they hold every word."""
    entries: list[dict[str, Json]] = []
    for speaker, run in groupby(transcript.segments, key=lambda segment: segment.speaker):
        segments = list(run)
        entries.append(
            {
                "speaker": speaker or UNKNOWN_SPEAKER,
                "timestamp": [segments[0].start, segments[-1].end],
                "text": "".join(segment.text for segment in segments),
            }
        )
    return entries
