"""Reader of RTTM, the format of references of who speaks when."""

from __future__ import annotations

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript_parts import Turn, samples_at
from forescribe.diarize.turns import Turns


def read_rttm(text: str) -> dict[str, Turns]:
    """Read the turns of each recording. Comments and lines of other types are ignored.

    Raises UsageError with the line number for an invalid turn.
    """
    found: dict[str, list[tuple[int, int, str]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        try:
            name, start, length, speaker = fields[1], fields[3], fields[4], fields[7]
            begin = samples_at(float(start))
            end = samples_at(float(start) + float(length))
            turn = Turn(begin, end, speaker)
        except (IndexError, ValueError, OverflowError) as error:
            raise UsageError(
                f"RTTM line {number} is not a valid turn ({error}): {line!r}"
            ) from error
        found.setdefault(name, []).append((turn.start_sample, turn.end_sample, turn.speaker))
    return {name: Turns.of(turns) for name, turns in found.items()}
