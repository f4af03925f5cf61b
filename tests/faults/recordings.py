"""Recordings of the fault tests, whose text is known, and the engine that decodes them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, Coverage, Segment, Span

GROUP_S = 60
"""Seconds of audio that a group represents."""


@dataclass(frozen=True)
class Script:
    """The content of a fake recording."""

    text: str
    groups: int
    pace_s: float
    poison: bool = False  # kills the process that works on it

    @classmethod
    def of(cls, data: bytes) -> Script:
        return cls(**json.loads(data))

    def said(self, k: int) -> str:
        return f" {self.text} {k}."

    def outcome(self, wall_s: float = 0.0) -> Outcome:
        size = GROUP_S * SAMPLE_RATE
        segments = (
            Segment(k, k, k * size, k * size, (k + 1) * size, self.said(k), (), 0.0, -0.1, 1, 0)
            for k in range(self.groups)
        )
        transcript = Transcript(
            segments=tuple(segments),
            sample_count=self.groups * size,
            coverage=Coverage((Span(0, self.groups * size, "decoded"),)),
            language="en",
            settings={"task": "transcribe"},
            stats={"tokens": 0, "drafted": 0, "accepted": 0, "windows": 0, "acceptance_rate": None},
        )
        return Outcome(transcript, wall_s=wall_s)


@dataclass(frozen=True)
class Group:
    """Replaces `asr.decode.planned.Group`."""

    k: int
    text: str

    @property
    def segments(self) -> tuple[str]:
        return (self.text,)

    def to_dict(self) -> dict[str, Any]:
        start = GROUP_S * self.k
        return {"segments": [{"start": start, "end": start + GROUP_S, "text": self.text}]}


@dataclass(frozen=True)
class Outcome:
    """Replaces `asr.decode.outcome.Outcome`, whose import of torch would slow down every restart."""

    transcript: Transcript
    error: None = None
    wall_s: float = 0.0
    decoded: tuple[()] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    fallbacks: int = 0


@dataclass(eq=False)
class FakeGroups:
    """Replaces the engine: takes the given time, logs its work, and can be cancelled."""

    job: str
    script: Script
    log: Callable[[str], None]
    trap: Callable[[str], None] = lambda phase: None
    left: list[BaseException] = field(default_factory=list)
    phases: None = None

    def wait_for(self, k: int) -> Group:
        self.log(f"begin {self.job} {k}")
        end = time.monotonic() + self.script.pace_s
        while time.monotonic() < end:
            if self.left:
                self.log(f"leave {self.job} {k}")
                raise self.left[0]
            time.sleep(0.005)
        self.trap("engine")
        if self.script.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        self.log(f"end {self.job} {k}")
        return Group(k, self.script.said(k))

    def outcome(self) -> Outcome:
        return self.script.outcome()

    def cancel(self, reason: BaseException) -> None:
        self.left.append(reason)

    def wait_until_released(self, seconds: float) -> None:
        """Does nothing, as there is no reader."""
