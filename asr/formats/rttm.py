"""RTTM: who spoke when, as the tools that score it read it.

    SPEAKER <recording> 1 <start> <duration> <NA> <NA> <speaker> <NA> <NA>

Pure functions; knows nothing of how turns were found.
"""

from __future__ import annotations

from collections.abc import Iterable

from .transcript import Transcript, Turn

SAMPLES_PER_MS = 16

RECORDING = "recording"
"""The setting of a transcript that names its recording, and the name of one without."""


def lines(turns: Iterable[Turn], name: str) -> str:
    """The turns of the recording `name`, in milliseconds, at least one each.

    RTTM has no escapes: a space within a name becomes `_`.
    """
    written = []
    for turn in turns:
        start, end = _ms(turn.start_sample), _ms(turn.end_sample)
        length = max(1, end - start)
        written.append(
            f"SPEAKER {_field(name)} 1 {start / 1000:.3f} {length / 1000:.3f} "
            f"<NA> <NA> {_field(turn.speaker)} <NA> <NA>\n"
        )
    return "".join(written)


def rttm(transcript: Transcript) -> str:
    """The turns of a diarized transcript; nothing where nobody spoke or nobody asked."""
    return lines(transcript.turns, str(transcript.settings.get(RECORDING, RECORDING)))


def _ms(sample: int) -> int:
    return (sample + SAMPLES_PER_MS // 2) // SAMPLES_PER_MS


def _field(text: str) -> str:
    return "_".join(text.split()) or "_"
