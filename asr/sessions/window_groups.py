"""Groups: the results of a group of windows, as a record that outlives its process.

Knows the JSON form of decoded windows and words; nothing of where groups are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from forescribe.speculative.requests import Finish, Guarantee, Request, Result, Source

from ..decode.outcome import Decoded
from ..formats.transcript import Segment, Word


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


_RESULT_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "sources": lambda values: tuple(Source(value) for value in values),
    "finish": Finish,
    "guarantee": Guarantee,
}


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
            "guarantee": result.guarantee.value,
        },
    }


_SEPARATE = frozenset({"result", "encoder_states"})
_REQUEST_FIELDS = ("prompt", "temperature", "seed", "gamma")
"""The fields of a request that a transcript reports; its encoder states are gigabytes."""


def _decoded_from_dict(data: Mapping[str, Any]) -> Decoded:
    # A group written by an earlier version lacks fields that were added later.
    plain = {
        f.name: _frozen(data[f.name]) for f in fields(Decoded) if f.name in data.keys() - _SEPARATE
    }
    result = {
        name: _RESULT_FIELDS.get(name, _frozen)(value) for name, value in data["result"].items()
    }
    request = Request(**{name: _frozen(value) for name, value in data["request"].items()})
    return Decoded(**plain, result=Result(request=request, **result))


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
    """A value from JSON with tuples in place of lists."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
