"""Planned submissions: a recording whose windows were cut earlier, decoded and reported in groups.

    plan = plan_of(recording.blocks(), detector, options.windows)  # once; the rest may happen elsewhere
    session.enter(planned(context, audio, options, listener, plan=plan, kept=groups, grouped=keep))

In a call a `Resumable` file is decoded so without a plan: each of its windows is a group.

For work that must survive its process: plans (`asr.segment.cut_plan`) and groups are records that convert to
JSON, and a submission that receives its earlier groups produces the same result as without the interruption.
Knows nothing of where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Finish, Request, Result, Source

from ..audio.inputs import Input
from ..formats.transcript_parts import Segment, Word
from ..segment.cut_plan import Plan
from ..words.edits import Change
from .context import DecodingContext
from .options import Options
from .recording import Submission
from .requests import bind
from .results import Decoded, Listener
from .sources import Kept, plan_source

_RESULT_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "sources": lambda values: tuple(Source(value) for value in values),
    "finish": Finish,
    "draft_error": lambda text: text and SpeculativeError(text),
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
    grouped: Callable[[Group], None],
    kept: Sequence[Group] = (),
    arrived_s: float = 0.0,
    name: str | None = None,
) -> Submission:
    """A submission that follows `plan`, without the windows of its first groups, which are `kept`, in order.
    `grouped` is called with each further group as soon as its last window has ended, on the engine's thread,
    groups in any order.

    Words are timed by group, whatever ended first, so that a disturbed run has the same batches as an
    undisturbed one; this keeps the encoder states of all groups that are being decoded.
    """
    assert [group.k for group in kept] == list(range(len(kept)))
    # Restored groups take no time: the submission's place in the queue is that of its next window.
    restored_s = plan.until_s(len(kept) - 1) if kept else 0.0
    return Submission(
        context,
        source,
        bind(options, context),
        listener,
        arrived_s=arrived_s - restored_s,
        name=name,
        windows=plan_source(plan, kept),
        grouped=lambda recording, k: grouped(_group(recording, plan, k)),
    )


def restored(windows: Sequence[Mapping[str, Any]]) -> Kept:
    """Windows of a recording that were kept by themselves, each once and those that are whole, in order."""
    groups = dict[int, Group]()
    for window in windows:
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # decoded again
            group = Group.from_dict(window)
            if all(decoded.index == group.k for decoded in group.decoded):
                groups[group.k] = group
    known = Kept()
    for _, group in sorted(groups.items()):
        known = known.joined(group)
    return known


def _group(recording: Submission, plan: Plan, k: int) -> Group:
    indices = plan.groups[k]
    segments = [
        segment
        for pending in recording.windows
        if pending.ended.index in indices
        for segment in recording.timed_segments(pending)
    ]
    return Group(**vars(recording.kept(indices)), k=k, segments=tuple(segments))


@dataclass(frozen=True)
class Group(Kept):
    """Group `k` of a plan, once it is decoded; `segments` are for progress displays."""

    k: int = 0
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
            tuple(_decoded_from_dict(window) for window in windows),
            tuple(_words_from_lists(window["words"]) for window in windows),
            data["language"],
            data["language_probability"],
            data["k"],
        )


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
            "draft_error": result.draft_error and str(result.draft_error),
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
