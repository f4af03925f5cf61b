"""When the phases of a recording's decoding began and ended, for traces.

    phases = PhaseTimes()
    session.submit(source, options, listener, phases=phases)
    phases.spans["encode"]              # began, ended (Unix nanoseconds), and busy nanoseconds in between

Windows of several recordings are encoded and decoded together, so the phases of a recording overlap, and
its busy time includes that of others in the same batch. Knows no recording and no trace format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseSpan:
    """A phase: its first beginning, its last end, and the sum of its parts, in nanoseconds."""

    began_ns: int
    ended_ns: int
    busy_ns: int = 0

    def with_part(self, began_ns: int, ended_ns: int) -> PhaseSpan:
        return PhaseSpan(
            min(self.began_ns, began_ns),
            max(self.ended_ns, ended_ns),
            self.busy_ns + ended_ns - began_ns,
        )


class PhaseTimes:
    """The phases of one recording by name: `encode`, `rounds`, `words`. Written by the engine's thread."""

    def __init__(self) -> None:
        self.spans: dict[str, PhaseSpan] = {}

    def add(self, phase: str, began_ns: int, ended_ns: int) -> None:
        """A part of a phase is over."""
        known = self.spans.get(phase, PhaseSpan(began_ns, ended_ns))
        self.spans[phase] = known.with_part(began_ns, ended_ns)
