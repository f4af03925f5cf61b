"""Planned submissions: a recording whose windows were cut earlier, decoded and reported in groups.

    plan = plan_of(recording.blocks(), detector, options.windows)  # once; the rest may happen elsewhere
    session.enter(planned(context, audio, options, listener, plan=plan, kept=groups, grouped=keep))

For work that must survive its process: plans (`asr.segment.cut_plan`) and groups are records that convert to
JSON, and a submission that receives its earlier groups produces the same result as without the interruption.
Knows nothing of where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from forescribe.speculative.requests import Finish, Request, Result, Source

from ..audio.inputs import Input
from ..formats.transcript_parts import Segment, Word
from ..segment.cut_plan import Plan, planned_windows
from ..segment.windows import Samples, Window
from ..words.edits import Change
from .context import DecodingContext
from .options import Decoded, Listener, Options
from .recording import RecordingState, WordTimer, timed_segments
from .requests import BoundOptions, bind
from .submission import CutWindows, Submission

_RESULT_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "sources": lambda values: tuple(Source(value) for value in values),
    "finish": Finish,
}
"""How fields of a result are read from JSON; the others are plain values."""

_SEPARATE = frozenset({"result", "encoder_states", "spoken", "origin"})
"""The fields of a decoded window that are not kept as they are: words are kept with their times, and what was
heard where personal data is redacted is not kept at all."""

_REQUEST_FIELDS = ("prompt", "temperature", "seed", "gamma")
"""The fields of a request that a transcript reports; its encoder states are gigabytes."""


def planned(
    context: DecodingContext,
    source: Input,
    options: Options,
    listener: Listener,
    *,
    plan: Plan,
    grouped: OnGroup,
    kept: Sequence[Group] = (),
    arrived_s: float = 0.0,
    name: str | None = None,
) -> Submission:
    """A submission that follows a plan. Arguments as of `PlannedWindows` and `Submission`."""
    bound = bind(options, context)
    windows = PlannedWindows(context, bound, plan, kept, grouped)
    # Restored groups take no time: the submission's place in the queue is that of its next window.
    restored_s = plan.until_s(len(kept) - 1) if kept else 0.0
    return Submission(
        context,
        source,
        bound,
        listener,
        arrived_s=arrived_s - restored_s,
        name=name,
        windows=windows,
    )


class PlannedWindows(CutWindows):
    """The windows of a plan, without those of the groups in `kept`.

    `kept` are the first groups of the plan, in order. `grouped` is called with each further group as
    soon as its last window has ended, on the engine's thread, groups in any order. Words are timed by
    group, whatever ended first, so that a disturbed run has the same batches as an undisturbed one;
    this keeps the encoder states of all groups that are being decoded.
    """

    def __init__(
        self,
        context: DecodingContext,
        bound: BoundOptions,
        plan: Plan,
        kept: Sequence[Group],
        grouped: OnGroup,
    ) -> None:
        super().__init__(context, bound)
        self.timing_batch = None
        assert [group.k for group in kept] == list(range(len(kept)))
        self.plan, self.kept, self.grouped = plan, tuple(kept), grouped
        self._group_of = {i: k for k, group in enumerate(plan.groups) for i in group}
        self._missing = {
            k: set(group) for k, group in enumerate(plan.groups[len(kept) :], len(kept))
        }

    def restore(self, recording: RecordingState) -> None:
        """Put the windows of the kept groups into a recording."""
        for group in self.kept:
            recording.restore(
                group.decoded, group.words, group.language, group.language_probability
            )

    def read(self, recording: RecordingState, blocks: Iterator[Samples]) -> Iterator[Window]:
        """The windows of the plan that have not been restored."""
        skip = frozenset(decoded.index for group in self.kept for decoded in group.decoded)
        windows = planned_windows(blocks, self.plan.spans, skip)
        return recording.spoken_windows(windows)

    def ended(self, recording: RecordingState, decoded: Decoded, timer: WordTimer) -> None:
        """Report the group of a window if it was the last one missing."""
        if decoded.continued:
            return
        k = self._group_of[decoded.index]
        self._missing[k].discard(decoded.index)
        if not self._missing[k]:
            timer.run(self.plan.groups[k])
            self.grouped(self._group(recording, k))

    def _group(self, recording: RecordingState, k: int) -> Group:
        indices, whisper = set(self.plan.groups[k]), self.context.whisper
        decoded = [d for d in recording.decoded if d.index in indices]
        words = [recording.words.get(d.start) for d in decoded]
        return Group(
            k,
            tuple(decoded),
            tuple(None if own is None else tuple(own) for own in words),
            recording.language,
            recording.language_probability,
            tuple(s for d in decoded for s in timed_segments(whisper, recording, d)),
        )


@dataclass(frozen=True)
class Group:
    """The results of a group of windows.

    `decoded` is in order, `words` holds for each window the words of its segments, None where none
    were timed. `language` is the recording's, None as long as it is unknown; `segments` are for
    progress displays.
    """

    k: int
    decoded: tuple[Decoded, ...]
    words: tuple[tuple[tuple[Word, ...], ...] | None, ...]
    language: str | None
    language_probability: float | None
    segments: tuple[Segment, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A record for JSON. `segments` become start, end and text; `from_dict` ignores them."""
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


OnGroup = Callable[[Group], None]
"""Receives a group as soon as its last window has ended."""


def _decoded_to_dict(decoded: Decoded) -> dict[str, Any]:
    result, request = decoded.result, decoded.result.request
    plain = {f.name: getattr(result, f.name) for f in fields(Result) if f.name != "request"}
    return {
        **{f.name: getattr(decoded, f.name) for f in fields(Decoded) if f.name not in _SEPARATE},
        "request": {name: getattr(request, name) for name in _REQUEST_FIELDS},
        "result": {
            **plain,
            "sources": [int(source) for source in result.sources],
            "finish": result.finish.value,
        },
    }


def _decoded_from_dict(data: Mapping[str, Any]) -> Decoded:
    # A group written by an earlier version lacks fields that were added later, and has some that are gone.
    plain = {
        f.name: _frozen(data[f.name]) for f in fields(Decoded) if f.name in data.keys() - _SEPARATE
    }
    known = {f.name for f in fields(Result)}
    result = {
        name: _RESULT_FIELDS.get(name, _frozen)(value)
        for name, value in data["result"].items()
        if name in known
    }
    request = Request(**{name: _frozen(value) for name, value in data["request"].items()})
    plain["changes"] = tuple(Change(*change) for change in plain.get("changes", ()))
    return Decoded(**plain, result=Result(request=request, **result))


def _words_to_lists(words: tuple[tuple[Word, ...], ...] | None) -> Any:
    names = [f.name for f in fields(Word) if f.init]
    if words is None:
        return None
    return [[{name: getattr(word, name) for name in names} for word in own] for own in words]


def _words_from_lists(lists: Any) -> tuple[tuple[Word, ...], ...] | None:
    if lists is None:
        return None
    return tuple(
        tuple(Word(**{name: _frozen(value) for name, value in word.items()}) for word in own)
        for own in lists
    )


def _frozen(value: Any) -> Any:
    """A value from JSON with tuples in place of lists."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
