"""Plans: where a recording was cut, as a record that outlives its process.

    plan = plan_of(recording.blocks(), detector, options.windows)
    plan = Plan.from_dict(plan.to_dict())

A plan's windows with speech form groups, which are decoded and kept one after the other. Knows nothing
of decoding or of where plans are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.transcript import notice_from_dict, notice_to_dict
from ..formats.transcript_parts import Notice, seconds
from .cutter import cut
from .vad import Detector
from .windows import Samples, Window, WindowOptions, WindowSpan

GROUP_SIZE = 8
"""Windows with speech that are kept together in new plans: after a crash at most four minutes are decoded
again."""


@dataclass(frozen=True)
class Plan:
    """Where a recording was cut: its windows in order, and how many with speech form a group. The groups that
    are kept are numbered, so a plan states their size: a later version may have another `GROUP_SIZE`.

    Raises ValueError unless the spans partition the recording.
    """

    spans: tuple[WindowSpan, ...]
    warnings: tuple[Notice, ...] = ()
    group_size: int = GROUP_SIZE

    def __post_init__(self) -> None:
        at = 0
        for span in self.spans:
            if span.start != at or span.end <= span.start:
                raise ValueError(f"a plan with a gap or an overlap at sample {at}")
            at = span.end

    @property
    def sample_count(self) -> int:
        return self.spans[-1].end if self.spans else 0

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The windows with speech, by index, in groups."""
        spoken = [index for index, span in enumerate(self.spans) if span.speech]
        size = self.group_size
        return tuple(tuple(spoken[at : at + size]) for at in range(0, len(spoken), size))

    def until_s(self, k: int) -> float:
        """Seconds of the recording that are done after group `k`: up to the next window with speech."""
        groups = self.groups
        if k + 1 < len(groups):
            return seconds(self.spans[groups[k + 1][0]].start)
        return seconds(self.sample_count)

    def to_dict(self) -> dict[str, Any]:
        return {
            "spans": [list(span) for span in self.spans],
            "warnings": [notice_to_dict(notice) for notice in self.warnings],
            "group_size": self.group_size,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        return cls(
            tuple(span_of(values) for values in data["spans"]),
            tuple(notice_from_dict(item) for item in data["warnings"]),
            data["group_size"],
        )


def span_of(values: Sequence[Any]) -> WindowSpan:
    """A span from JSON. Raises TypeError or ValueError for other values."""
    start, end, speech, voiced, *levels = values  # versions before knew one level
    runs = None if voiced is None else tuple((int(a), int(b)) for a, b in voiced)
    known = (None if level is None else float(level) for level in levels)
    return WindowSpan(int(start), int(end), bool(speech), runs, *known)


def plan_of(
    blocks: Iterable[Samples],
    detector: Detector,
    options: WindowOptions,
    *,
    skip_silence: bool = True,
) -> Plan:
    """The plan of a recording, from all of its samples."""
    windows = cut(blocks, detector, options, skip_silence=skip_silence)
    return Plan(tuple(window.span for window in windows), group_size=GROUP_SIZE)


def planned_windows(
    blocks: Iterable[Samples], spans: Iterable[WindowSpan], skip: frozenset[int] = frozenset()
) -> Iterator[Window]:
    """The windows of `spans` except those of `skip`, from the recording's blocks [any length]. A list may
    grow meanwhile: a span is needed with the first of its samples.

    Raises ValueError where the blocks are not the recording that was cut.
    """
    coming, index, at = iter(spans), -1, 0
    span: WindowSpan | None = None
    held: list[Samples] = []
    for block in blocks:
        while len(block):
            if span is None:
                span, index = next(coming, None), index + 1
                if span is None:
                    raise ValueError(f"the recording is longer than the {at} samples of its plan")
            start, end, speech, voiced, *levels = span
            part, block = block[: end - at], block[end - at :]
            at += len(part)
            if speech and index not in skip:
                held.append(part)
            if at == end:
                if index not in skip:
                    own = np.concatenate(held) if speech else part[:0].copy()
                    level, faint = levels
                    yield Window(
                        index, start, end, speech, own, voiced, level_db=level, faint_db=faint
                    )
                span, held = None, []
    if span is not None or next(coming, None) is not None:
        raise ValueError(f"the recording ends at sample {at}, before its plan does")
