"""Answers: a transcript in the requested format, whole or as server-sent events while it becomes final.

OpenAI's keys and events keep their names; further information has additional keys. A recording without speech
has an answer too: empty text and empty lists. Of events only final text is sent, in order, so the joined
deltas are the text of `done`; after a failure there is no `done`.
"""

from __future__ import annotations

import math
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import asdict
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, PlainTextResponse, Response

from forescribe.asr.formats import files
from forescribe.asr.formats.transcript import Transcript, coverage_to_dict, notice_to_dict
from forescribe.asr.formats.transcript_parts import Json, Segment, Word
from forescribe.asr.model.languages import LANGUAGES

from .decoding import Decoding

if TYPE_CHECKING:
    from forescribe.asr.decode.results import Part, Token


UNUSED = "unused_fields"
"""The code of the warning that names fields of the request which have no effect."""

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

FILES: Mapping[str, tuple[Callable[[Transcript], str], str]] = MappingProxyType(
    {"srt": (files.srt, "text/plain"), "vtt": (files.vtt, "text/vtt")}
)
"""Subtitles with their media types. SubRip has no registered one; clients of OpenAI's API take any."""

PIECE_TOKENS = 4
"""Tokens of a delta, three words of English: what a reader takes in at a glance."""

Assign = Callable[[Transcript], Awaitable[Transcript]]


def answer(
    form: str,
    transcript: Transcript,
    *,
    tokens: Sequence[Token] | None = None,
    granularities: Iterable[str] = ("segment",),
) -> Response:
    """The answer in any of the contract's formats. `diarized_json` requires a transcript with speakers;
    `tokens` are given if their log-probabilities were requested. Plain text has no place for a warning about
    the request, so it is in a header."""
    if form == "json":
        return JSONResponse(short(transcript, tokens))
    if form == "verbose_json":
        return JSONResponse(verbose(transcript, set(granularities)))
    if form == "diarized_json":
        return JSONResponse(diarized(transcript))
    render, media_type = FILES.get(form, (lambda transcript: f"{transcript.text}\n", "text/plain"))
    of_request = [n.message for n in transcript.warnings if n.code in (UNUSED, "cut_prompt")]
    warning = ", ".join(f'299 forescribe "{message}"' for message in of_request)
    headers = {"Warning": warning} if warning else None
    return PlainTextResponse(render(transcript), headers=headers, media_type=media_type)


def short(transcript: Transcript, tokens: Sequence[Token] | None) -> dict[str, Json]:
    """`json`."""
    body: dict[str, Json] = {"text": transcript.text, "languages": languages(transcript)}
    if tokens is not None:
        body["logprobs"] = token_logprobs(tokens)
    told = {**corrections(transcript), **warnings(transcript)}
    return {**body, "usage": duration_usage(transcript), **told}


def verbose(transcript: Transcript, granularities: set[str]) -> dict[str, Json]:
    """`verbose_json`."""
    task, code = str(transcript.settings["task"]), transcript.language
    # The English name in lower case, as OpenAI writes it.
    language = UNKNOWN if code is None else LANGUAGES.get(code, code)
    if task == "translate":
        language = "english"
    body: dict[str, Json] = {
        "task": task,
        "language": language,
        "duration": transcript.duration,
        "text": transcript.text,
    }
    if "word" in granularities:
        body["words"] = [
            _word(word) for segment in transcript.segments for word in segment.words or ()
        ]
    if "segment" in granularities:
        body["segments"] = [_segment(segment) for segment in transcript.segments]
    probability = transcript.language_probability
    if probability is not None and not math.isfinite(probability):
        probability = None
    return {
        **body,
        **corrections(transcript),
        "usage": duration_usage(transcript),
        "language_probability": probability,
        "warnings": [notice_to_dict(notice) for notice in transcript.warnings],
        "coverage": coverage_to_dict(transcript.coverage),
        "speculation": {
            key: transcript.stats[key] for key in SPECULATION if key in transcript.stats
        },
    }


def corrections(
    transcript: Transcript, name: Callable[[int], Json] = lambda number: number
) -> dict[str, Json]:
    """The words that were heard otherwise, if there are any: by the `name` of a segment, at a character of
    its text."""
    told: list[Json] = [
        {"segment": name(number), **asdict(own)}
        for number, segment in enumerate(transcript.segments)
        for own in segment.corrections
    ]
    return {"corrections": told} if told else {}


def diarized(transcript: Transcript) -> dict[str, Json]:
    """`diarized_json`. `text` is the text without names, as the schema says, unlike its example."""
    body: dict[str, Json] = {
        "task": "transcribe",
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": list[Json](speaker_segments(transcript)),
        "usage": duration_usage(transcript),
    }
    return {**body, **corrections(transcript, _segment_id), **warnings(transcript)}


def _segment_id(number: int) -> str:
    return f"seg_{number + 1:03}"


def speaker_segments(transcript: Transcript) -> list[dict[str, Json]]:
    """The segments with their speakers, or UNKNOWN."""
    return [
        {
            "type": "transcript.text.segment",
            "id": _segment_id(number),
            "start": segment.start,
            "end": segment.end,
            "text": segment.text,
            "speaker": segment.speaker or UNKNOWN,
        }
        for number, segment in enumerate(transcript.segments)
    ]


def languages(transcript: Transcript) -> list[Json]:
    """The detected language; empty if there is none."""
    return [{"code": transcript.language}] if transcript.language else []


def token_logprobs(tokens: Iterable[Token]) -> list[Json]:
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


def warnings(transcript: Transcript) -> dict[str, Json]:
    items: list[Json] = [notice_to_dict(notice) for notice in transcript.warnings]
    return {"warnings": items} if items else {}


async def events(
    stream: Decoding, *, logprobs: bool, assign: Assign | None = None
) -> AsyncGenerator[dict[str, Json], None]:
    """The events of a transcription. `assign` adds speakers once everything is decoded."""
    deltas, sent = Deltas(), list[Json]()
    while (part := await stream.next()) is not None:
        for text, tokens in pieces(part):
            delta: dict[str, Json] = {"delta": deltas.push(text)}
            if logprobs:
                delta["logprobs"] = token_logprobs(tokens)
                sent += token_logprobs(tokens)
            if any(delta.values()):
                yield {"type": "transcript.text.delta", **delta}
    transcript = stream.transcript
    if assign is not None:
        transcript = await assign(transcript)
        for segment in speaker_segments(transcript):
            yield segment
    done: dict[str, Json] = {
        "type": "transcript.text.done",
        "text": transcript.text,
        "languages": languages(transcript),
        "usage": token_usage(transcript),
        **warnings(transcript),
    }
    yield {**done, "logprobs": sent} if logprobs else done


class Deltas:
    """Splits growing text into deltas, without white space at the two ends of the whole text."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def push(self, text: str) -> str:
        """The text that can be sent now. White space at its end waits for the next word."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._begun = self._begun or bool(kept)
        return kept


def pieces(part: Part) -> Iterator[tuple[str, tuple[Token, ...]]]:
    """Text and tokens of a few words at a time: a part can hold several windows, and half a minute of text in
    one event is hard to follow. A piece has `PIECE_TOKENS` or a few more and ends before a word or, in
    scripts without spaces, before a character."""
    tokens = iter(part.tokens)
    for segment in part.segments:
        text = segment.text
        held: list[Token] = []
        for token in islice(tokens, len(segment.tokens)):
            word_begins = token.data[:1] == b" " or len(held) >= 3 * PIECE_TOKENS
            if word_begins and len(held) >= PIECE_TOKENS:
                said = b"".join(one.data for one in held).decode(errors="replace")
                if text.startswith(said) and len(said) < len(text):
                    yield said, tuple(held)
                    text, held = text[len(said) :], []
            held.append(token)
        yield text, tuple(held)
    assert next(tokens, None) is None, "every token belongs to a segment"


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
