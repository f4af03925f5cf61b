"""RTTM: who speaks when, in the format of diarization scoring tools.

    SPEAKER <recording> 1 <start> <duration> <NA> <NA> <speaker> <NA> <NA>

Knows turns; nothing of how they were found.
"""

from __future__ import annotations

from collections.abc import Iterable

from .cues import label
from .transcript import Transcript, Turn

SAMPLES_PER_MS = 16

RECORDING = "recording"
"""The setting of a transcript that holds the name of its recording, and the name without that
setting."""


def format_turns(turns: Iterable[Turn], name: str) -> str:
    """Return the turns of the recording `name`, rounded to milliseconds, each at least 1 ms long.

    RTTM has no escapes: spaces in names become `_`.
    """
    rows = []
    for turn in turns:
        start, end = _ms(turn.start_sample), _ms(turn.end_sample)
        length = max(1, end - start)
        rows.append(
            f"SPEAKER {_field(name)} 1 {start / 1000:.3f} {length / 1000:.3f} "
            f"<NA> <NA> {_field(turn.speaker)} <NA> <NA>\n"
        )
    return "".join(rows)


def rttm(transcript: Transcript) -> str:
    """Return the turns of a transcript; empty without turns."""
    return format_turns(transcript.turns, str(transcript.settings.get(RECORDING, RECORDING)))


def _ms(sample: int) -> int:
    return (sample + SAMPLES_PER_MS // 2) // SAMPLES_PER_MS


def _field(text: str) -> str:
    return "_".join((label(text) or "").split()) or "_"
