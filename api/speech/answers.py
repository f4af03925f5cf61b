"""Answers: a transcript in the requested format. Pure functions.

OpenAI's keys keep their names; further information has additional keys. A recording without speech has an
answer too: empty text and empty lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, PlainTextResponse, Response

from forescribe.asr.formats import files
from forescribe.asr.formats.transcript import Transcript, notice_to_dict
from forescribe.asr.formats.transcript_parts import Json, Segment, Word

if TYPE_CHECKING:
    from forescribe.asr.sessions.parts import Token

UNKNOWN = "unknown"
"""The language of a recording without speech, and the speaker of a segment without one: the contract requires
a string."""

STEPS_PER_S = 50
"""Positions of Whisper's encoder per second, which usage counts as audio tokens."""

SPECULATION = (
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_acceptance_length",
    "written",
    "judged_at_depth",
    "accepted_at_depth",
)
"""The statistics of a transcript that `verbose_json` contains."""

FILES: Mapping[str, tuple[files.Render, str]] = MappingProxyType(
    {"srt": (files.srt, "text/plain"), "vtt": (files.vtt, "text/vtt")}
)
"""Subtitles with their media types. SubRip has no registered one; clients of OpenAI's API take any."""


def answer(
    form: str,
    transcript: Transcript,
    *,
    tokens: Sequence[Token] | None = None,
    granularities: Iterable[str] | None = None,
) -> Response:
    """The answer in any of the contract's formats; `diarized_json` requires a transcript with speakers.
    `tokens` are given if their log-probabilities were requested; without `granularities` there are segments.
    """
    if form == "text":
        return PlainTextResponse(f"{transcript.text}\n")
    if form in FILES:
        render, kind = FILES[form]
        return PlainTextResponse(render(transcript), media_type=kind)
    if form == "diarized_json":
        return JSONResponse(diarized(transcript))
    if form == "json":
        return JSONResponse(short(transcript, tokens))
    return JSONResponse(verbose(transcript, set(granularities or ("segment",))))


def short(transcript: Transcript, tokens: Sequence[Token] | None) -> dict[str, Json]:
    """`json`."""
    body: dict[str, Json] = {"text": transcript.text, "languages": languages(transcript)}
    if tokens is not None:
        body["logprobs"] = logprobs(tokens)
    return {**body, "usage": duration_usage(transcript), **warnings(transcript)}


def verbose(transcript: Transcript, granularities: set[str]) -> dict[str, Json]:
    """`verbose_json`."""
    task = str(transcript.settings["task"])
    translated = task == "translate"
    body: dict[str, Json] = {
        "task": task,
        "language": "english" if translated else language_name(transcript.language),
        "duration": transcript.duration,
        "text": transcript.text,
    }
    if "word" in granularities:
        body["words"] = [
            _word(word) for segment in transcript.segments for word in segment.words or ()
        ]
    if "segment" in granularities:
        body["segments"] = [_segment(segment) for segment in transcript.segments]
    whole = transcript.to_dict()
    return {
        **body,
        "usage": duration_usage(transcript),
        "language_probability": whole["language_probability"],
        "warnings": whole["warnings"],
        "coverage": whole["coverage"],
        "speculation": {
            key: transcript.stats[key] for key in SPECULATION if key in transcript.stats
        },
    }


def diarized(transcript: Transcript) -> dict[str, Json]:
    """`diarized_json`. `text` is the text without names, as the schema says, unlike its example."""
    body: dict[str, Json] = {
        "task": "transcribe",
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": list[Json](speaker_segments(transcript)),
        "usage": duration_usage(transcript),
    }
    return {**body, **warnings(transcript)}


def speaker_segments(transcript: Transcript) -> list[dict[str, Json]]:
    """The segments with their speakers, or UNKNOWN."""
    return [
        {
            "type": "transcript.text.segment",
            "id": f"seg_{number:03}",
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "speaker": segment.speaker or UNKNOWN,
        }
        for number, segment in enumerate(transcript.segments, start=1)
    ]


def languages(transcript: Transcript) -> list[Json]:
    """The detected language; empty if there is none."""
    return [{"code": transcript.language}] if transcript.language else []


def logprobs(tokens: Iterable[Token]) -> list[Json]:
    return [{"token": t.text, "logprob": t.logprob, "bytes": list(t.data)} for t in tokens]


def duration_usage(transcript: Transcript) -> dict[str, Json]:
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}


def token_usage(transcript: Transcript) -> dict[str, Json]:
    """The usage of an event: encoder positions as input, tokens as output."""
    positions = math.ceil(transcript.duration * STEPS_PER_S)
    written = transcript.stats["tokens"]
    assert isinstance(written, int)
    return {
        "type": "tokens",
        "input_tokens": positions,
        "input_token_details": {"text_tokens": 0, "audio_tokens": positions},
        "output_tokens": written,
        "total_tokens": positions + written,
    }


def language_name(code: str | None) -> str:
    """The English name in lower case, as OpenAI writes it."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return UNKNOWN if code is None else str(LANGUAGES.get(code, code))


def _word(word: Word) -> dict[str, Json]:
    """The contract's three keys, and the sources of the word's tokens."""
    data: dict[str, Json] = {"word": word.text.strip(), "start": word.start, "end": word.end}
    return data if word.sources is None else {**data, "sources": list[Json](word.sources)}


def _segment(segment: Segment) -> dict[str, Json]:
    """The contract's ten keys, none of them null."""
    guarded = {
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }
    assert all(value is not None and math.isfinite(value) for value in guarded.values())
    return {
        "id": segment.id,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        **guarded,
    }


def warnings(transcript: Transcript) -> dict[str, Json]:
    items: list[Json] = [notice_to_dict(notice) for notice in transcript.warnings]
    return {"warnings": items} if items else {}
