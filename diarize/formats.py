"""Diarized results as text: OpenAI's `diarized_json`, and a diarization of its own as JSON.

Pure functions. Formats that do not need speakers are in asr/writers.py, RTTM in asr/rttm.py.
"""

from __future__ import annotations

import json
from itertools import count, product
from string import ascii_uppercase

from asr.transcript import Json, Transcript
from diarize.diarizer import Diarization
from diarize.turns import ANONYMOUS

UNKNOWN = "unknown"
"""The contract wants a string where nobody can be told."""


def diarized_json(transcript: Transcript, task: str = "transcribe") -> dict[str, Json]:
    """OpenAI's body for `response_format=diarized_json`.

    Known speakers keep their names, others are A, B, … by first appearance. `text` is the words
    alone, as in the other formats: it is what the segments' texts join to.
    """
    names = letters([segment.speaker for segment in transcript.segments])
    segments: list[Json] = [
        {
            "type": "transcript.text.segment",
            "id": f"seg_{number:03d}",
            "start": segment.start,
            "end": segment.end,
            "text": segment.text.strip(),
            "speaker": names[segment.speaker],
        }
        for number, segment in enumerate(transcript.segments, start=1)
    ]
    return {
        "task": task,
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": segments,
        "usage": {"type": "duration", "seconds": -(-transcript.sample_count // 16_000)},
    }


def letters(speakers: list[str | None]) -> dict[str | None, str]:
    """What each is called: their name, or A to Z, AA, … that is nobody's name."""
    taken = {speaker for speaker in speakers if speaker is not None}
    free = (
        name
        for length in count(1)
        for name in map("".join, product(ascii_uppercase, repeat=length))
        if name not in taken
    )
    found: dict[str | None, str] = {None: UNKNOWN}
    for speaker in speakers:
        if speaker not in found:
            assert speaker is not None
            found[speaker] = next(free) if speaker.startswith(ANONYMOUS) else speaker
    return found


def diarization_json(diarization: Diarization) -> str:
    """Turns without words, as `forescribe diarize -f json` writes them."""
    return json.dumps(diarization.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"
