"""The Hugging Face asr-diarization contract: its parameters, and its answer.

    {"speakers": [...], "chunks": [{"timestamp": [0.0, 4.2], "text": " ..."}], "text": "..."}

What it had, this takes: values as text, names that nobody knows (with a warning), options that make no
difference here. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from forescribe.asr.decode.guards import Guards
from forescribe.asr.decode.options import Options
from forescribe.asr.formats.transcript import Json, Transcript

from ..errors import ApiError
from ..http.validation import loads

if TYPE_CHECKING:
    from forescribe.diarize.diarizer import Bounds

NOBODY = "UNKNOWN"
"""Who said the words that no speaker's turn holds: they have an entry too."""


class Parameters(BaseModel):
    """The contract's names and defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: Literal["transcribe", "translate"] = "transcribe"
    batch_size: int = 24  # the engine's own holds for all requests together
    assisted: bool = False  # drafts are used in any case: the words are the same
    chunk_length_s: int = 30
    sampling_rate: int = 16000  # of nothing: a recording's own rate is known
    language: str | None = None
    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None

    def options(self, *, diarizing: bool) -> Options:
        return Options(language=self.language, task=self.task, words=diarizing, guards=Guards())

    def warnings(self, *, drafting: bool, diarizing: bool) -> list[str]:
        """What was asked for and has no effect."""
        found = []
        if self.assisted and not drafting:
            found.append("assisted: there is no assistant model, so decoding is plain")
        if self.chunk_length_s != 30:
            found.append("chunk_length_s: audio is cut in its pauses, into at most 30 s")
        if any((self.num_speakers, self.min_speakers, self.max_speakers)) and not diarizing:
            found.append("number of speakers: this server does not tell speakers apart")
        return found

    def bounds(self) -> Bounds:
        """Raises UsageError for numbers of speakers that contradict each other."""
        from forescribe.diarize.diarizer import Bounds

        return Bounds(self.num_speakers, self.min_speakers, self.max_speakers)


def parameters(given: str | Mapping[str, Any] | None) -> tuple[Parameters, list[str]]:
    """The record and a warning for every name that nobody knows. JSON text or an object; None has
    all defaults. Raises ApiError `invalid_value`."""
    if isinstance(given, str):
        given = loads(given or "{}", "parameters")
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ApiError("invalid_value", "parameters: not an object")
    unknown = [name for name in given if name not in Parameters.model_fields]
    try:
        made = Parameters.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        raise ApiError("invalid_value", f"{first['loc'][0]}: {first['msg']}") from error
    return made, [f"{name}: unknown parameter, ignored" for name in unknown]


def answer(
    transcript: Transcript, spoken: Transcript | None, warnings: list[str]
) -> dict[str, Json]:
    """The contract's three keys, and `warnings` where there are any. `spoken` is the transcript with
    speakers, None where nobody tells them apart: then there are none."""
    chunks: list[Json] = [
        {"timestamp": [segment.start, segment.end], "text": segment.text}
        for segment in transcript.segments
    ]
    said = [*warnings, *(notice.message for notice in (spoken or transcript).warnings)]
    speakers = list[Json](turns(spoken)) if spoken is not None else []
    body: dict[str, Json] = {"speakers": speakers, "chunks": chunks, "text": transcript.text}
    return {**body, "warnings": list[Json](said)} if said else body


def turns(transcript: Transcript) -> list[dict[str, Json]]:
    """Who said what: an entry for each stretch of one speaker, in which every word is."""
    found: list[dict[str, Json]] = []
    for speaker, run in groupby(transcript.segments, key=lambda segment: segment.speaker):
        said = list(run)
        found.append(
            {
                "speaker": speaker or NOBODY,
                "timestamp": [said[0].start, said[-1].end],
                "text": "".join(segment.text for segment in said),
            }
        )
    return found


def speaker(number: int) -> str:
    """The n-th to appear, as the contract calls it."""
    return f"SPEAKER_{number:02}"
