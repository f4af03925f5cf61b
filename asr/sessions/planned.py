"""Planned: a recording whose windows were cut before, group by group, some of them decoded already.

    plan = plan_of(recording, detector, options.windows)          # once; the rest may happen elsewhere
    session.enter(Planned(transcriber, audio, options, listener, plan=plan, kept=groups, grouped=keep))

For work that must survive its process: the plan and each group are records, in and out of JSON, and
a submission that is given the groups it had before writes what it would have written undisturbed.
Knows nothing of where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forescribe.speculative.requests import Finish, Guarantee, Request, Result, Source

from ..audio.reading import Input, Recording, Samples
from ..decode.call import Job, Ticket
from ..decode.isolation import Ended
from ..decode.options import Options
from ..decode.outcome import Decoded
from ..formats.transcript import Notice, Segment, Word, seconds
from ..model.loading import EncoderStates
from ..segment.vad import Detector
from ..segment.windows import Window, WindowOptions, cut
from .submission import Listener, Submission

if TYPE_CHECKING:
    from ..decode.transcriber import Transcriber

GROUP = 8
"""Windows with speech that are kept together: four minutes of work at most are done twice."""


@dataclass(frozen=True)
class Plan:
    """Where a recording was cut: samples [start, end) and whether there is speech, in order.

    Raises ValueError unless the spans partition the recording.
    """

    spans: tuple[tuple[int, int, bool], ...]
    warnings: tuple[Notice, ...] = ()

    def __post_init__(self) -> None:
        at = 0
        for start, end, _ in self.spans:
            if start != at or end <= start:
                raise ValueError(f"a plan with a gap or an overlap at sample {at}")
            at = end

    @property
    def sample_count(self) -> int:
        return self.spans[-1][1] if self.spans else 0

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The windows with speech, by index, in groups."""
        spoken = [index for index, (_, _, speech) in enumerate(self.spans) if speech]
        return tuple(tuple(spoken[at : at + GROUP]) for at in range(0, len(spoken), GROUP))

    def until_s(self, k: int) -> float:
        """Seconds of the recording that are behind us once group `k` is: up to the next window
        with speech."""
        groups = self.groups
        if k + 1 < len(groups):
            return seconds(self.spans[groups[k + 1][0]][0])
        return seconds(self.sample_count)

    def to_dict(self) -> dict[str, Any]:
        return {
            "spans": [list(span) for span in self.spans],
            "warnings": [[notice.code, notice.message] for notice in self.warnings],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        return cls(
            tuple((start, end, speech) for start, end, speech in data["spans"]),
            tuple(Notice(code, message) for code, message in data["warnings"]),
        )


@dataclass(frozen=True)
class Group:
    """What became of a group of windows: `decoded` in order, and for each the words of its segments,
    None where none were timed. `language` is the recording's, as far as it is known; `segments` are
    what a reader may see at once."""

    k: int
    decoded: tuple[Decoded, ...]
    words: tuple[tuple[tuple[Word, ...], ...] | None, ...]
    language: str | None
    language_probability: float | None
    segments: tuple[Segment, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON. `segments` become start, end and text; the way back leaves them out."""
        return {
            "k": self.k,
            "language": self.language,
            "language_probability": self.language_probability,
            "windows": [
                {**_decoded_to_dict(decoded), "words": _words_to_lists(words)}
                for decoded, words in zip(self.decoded, self.words, strict=True)
            ],
            "segments": [{"start": s.start, "end": s.end, "text": s.text} for s in self.segments],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Group:
        windows = data["windows"]
        return cls(
            data["k"],
            tuple(_decoded_from_dict(window) for window in windows),
            tuple(_words_from_lists(window["words"]) for window in windows),
            data["language"],
            data["language_probability"],
        )


Grouped = Callable[[Group], None]


def plan_of(recording: Recording, detector: Detector | None, options: WindowOptions) -> Plan:
    """The plan of a recording, which is read to its end. Raises what its decoder raises."""
    windows = cut(recording.blocks(), detector, options)
    spans = tuple((window.start, window.end, window.speech) for window in windows)
    return Plan(spans, recording.warnings)


def planned(blocks: Iterable[Samples], plan: Plan, skip: frozenset[int]) -> Iterator[Window]:
    """The plan's windows but those of `skip`, from the recording's blocks [any length].

    Raises ValueError where the blocks are not the recording that was planned.
    """
    index, at = 0, 0
    held: list[Samples] = []
    for block in blocks:
        while len(block):
            if index == len(plan.spans):
                raise ValueError(f"the recording is longer than the {at} samples of its plan")
            start, end, speech = plan.spans[index]
            part, block = block[: end - at], block[end - at :]
            at += len(part)
            if speech and index not in skip:
                held.append(part)
            if at == end:
                if index not in skip:
                    own = np.concatenate(held) if speech else part[:0].copy()
                    yield Window(index, start, end, speech, own)
                index, held = index + 1, []
    if index < len(plan.spans):
        raise ValueError(f"the recording ends at {at} of the {plan.sample_count} samples planned")


class Planned(Submission):
    """A submission that follows a plan. `kept` are groups of it that were decoded before, from the
    first on, none left out; `grouped` hears of each further one as soon as its last window is done,
    on the engine's thread, groups in any order.

    Words are timed by group, whatever ended first, so that a disturbed run has the batches of an
    undisturbed one.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        source: Input,
        options: Options,
        listener: Listener,
        *,
        plan: Plan,
        grouped: Grouped,
        kept: Sequence[Group] = (),
        arrived_s: float = 0.0,
        name: str | None = None,
    ) -> None:
        assert [group.k for group in kept] == list(range(len(kept)))
        self.plan, self.kept, self.grouped = plan, tuple(kept), grouped
        self._group_of = {i: k for k, group in enumerate(plan.groups) for i in group}
        self._missing = {
            k: set(group) for k, group in enumerate(plan.groups[len(kept) :], len(kept))
        }
        # What is skipped is not waited for: its place in the queue is that of its next window.
        behind_s = plan.until_s(len(kept) - 1) if kept else 0.0
        super().__init__(
            transcriber, source, options, listener, arrived_s=arrived_s - behind_s, name=name
        )

    # -- in a reader's thread ---------------------------------------------------------------------

    def _windows(self, recording: Recording) -> Iterator[Window]:
        assert self.job is not None  # and nobody looks at it before its first window
        for group in self.kept:
            self._keep(self.job, group)
        skip = frozenset(decoded.index for decoded in self.job.done)
        self.job.windows = len(skip)
        return planned(recording.blocks(), self.plan, skip)

    def _keep(self, job: Job, group: Group) -> None:
        job.language, job.language_probability = group.language, group.language_probability
        for decoded, words in zip(group.decoded, group.words, strict=True):
            job.done.append(decoded)
            self._over[decoded.index] = decoded
            if words is not None:
                job.words[decoded.index] = list(words)

    # -- in the engine's thread -------------------------------------------------------------------

    def _take(self, ended: Ended) -> Decoded | None:
        decoded = super()._take(ended)
        if decoded is not None and self.job is not None:
            k = self._group_of[decoded.index]
            self._missing[k].discard(decoded.index)
            if not self._missing[k]:
                self.grouped(self._whole(self.job, k))
        return decoded

    def _time(self, ticket: Ticket, decoded: Decoded, encoder_states: EncoderStates) -> None:
        """Later, with the rest of its group. Costs the memories of the groups that are under way."""
        self.untimed.append((ticket, replace(decoded, encoder_states=encoder_states)))

    def _whole(self, job: Job, k: int) -> Group:
        own = set(self.plan.groups[k])
        others = [one for one in self.untimed if one[1].index not in own]
        self.untimed = sorted(
            (one for one in self.untimed if one[1].index in own), key=lambda one: one[1].index
        )
        self._time_all()
        self.untimed = others
        decoded = sorted((d for d in job.done if d.index in own), key=lambda d: d.index)
        return Group(
            k,
            tuple(decoded),
            tuple(_frozen_words(job.words.get(d.index)) for d in decoded),
            job.language,
            job.language_probability,
            tuple(segment for d in decoded for segment in self._segments(job, d)),
        )


def _frozen_words(words: list[tuple[Word, ...]] | None) -> tuple[tuple[Word, ...], ...] | None:
    return None if words is None else tuple(words)


# -- records in and out of JSON -------------------------------------------------------------------

_OF_RESULT: Mapping[str, Callable[[Any], Any]] = {
    "sources": lambda values: tuple(Source(value) for value in values),
    "finish": Finish,
    "guarantee": Guarantee,
}


def _decoded_to_dict(decoded: Decoded) -> dict[str, Any]:
    result, request = decoded.result, decoded.result.request
    told = {f.name: getattr(result, f.name) for f in fields(Result) if f.name != "request"}
    return {
        **{f.name: getattr(decoded, f.name) for f in fields(Decoded) if f.name not in _APART},
        "request": {name: getattr(request, name) for name in _OF_REQUEST},
        "result": {
            **told,
            "sources": [int(source) for source in result.sources],
            "finish": result.finish.value,
            "guarantee": result.guarantee.value,
        },
    }


_APART = frozenset({"result", "encoder_states"})
_OF_REQUEST = ("prompt", "temperature", "seed", "gamma")
"""What a transcript tells of a request; its memory is gigabytes, its rules are the model's."""


def _decoded_from_dict(data: Mapping[str, Any]) -> Decoded:
    # A group that an earlier version has left lacks the fields that are new.
    plain = {
        f.name: _frozen(data[f.name]) for f in fields(Decoded) if f.name in data.keys() - _APART
    }
    told = {name: _OF_RESULT.get(name, _frozen)(value) for name, value in data["result"].items()}
    request = Request(**{name: _frozen(value) for name, value in data["request"].items()})
    return Decoded(**plain, result=Result(request=request, **told))


def _words_to_lists(words: tuple[tuple[Word, ...], ...] | None) -> Any:
    return None if words is None else [[asdict(word) for word in own] for own in words]


def _words_from_lists(lists: Any) -> tuple[tuple[Word, ...], ...] | None:
    if lists is None:
        return None
    return tuple(
        tuple(Word(**{name: _frozen(value) for name, value in word.items()}) for word in own)
        for own in lists
    )


def _frozen(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
