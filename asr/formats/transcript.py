"""The transcript: what was said, when, by whom, and what became of every sample; and its JSON form.

A wrong file fails with the name of the key. Knows nothing of audio files or models; needs neither numpy nor
torch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from ..errors import UsageError, clipped, one_line
from . import documents, files
from .transcript_parts import (
    Correction,
    Coverage,
    Json,
    Notice,
    Segment,
    Span,
    Turn,
    Word,
    beginning,
    merged,
    samples_at,
    seconds,
)


@dataclass(frozen=True)
class Transcript:
    """The result for one recording. Every output format is a pure function of it.

    With `diarized`, the key `speaker` is always written, null meaning unknown, and `turns` holds
    who speaks when. `settings` explains the result (model, options, versions), `stats` its cost.
    Equal warnings become one, and their number is bounded (`merged`). Raises ValueError if the coverage
    does not account for exactly `sample_count` samples."""

    segments: tuple[Segment, ...]
    sample_count: int
    coverage: Coverage
    language: str | None = None
    language_probability: float | None = None
    warnings: tuple[Notice, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict)
    stats: Mapping[str, Json] = field(default_factory=dict)
    diarized: bool = False
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "warnings", merged(self.warnings))
        if self.coverage.sample_count != self.sample_count:
            raise ValueError(
                f"coverage of {self.coverage.sample_count} of {self.sample_count} samples"
            )

    @property
    def text(self) -> str:
        """The concatenated text of the segments, stripped."""
        return "".join(map(attrgetter("text"), self.segments)).strip()

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return seconds(self.sample_count)

    @property
    def words(self) -> tuple[Word, ...]:
        """The timed words of all segments, in order. Empty unless asked for: with `words=True` or
        `diarize=True` of `forescribe.transcribe`, or `Options(words=True)`."""
        return tuple(word for segment in self.segments for word in segment.words or ())

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers in order of first appearance; empty without diarization."""
        heard = [*(turn.speaker for turn in self.turns), *(s.speaker for s in self.segments)]
        return tuple(dict.fromkeys(speaker for speaker in heard if speaker is not None))

    def __repr__(self) -> str:
        told = f"{self.duration:.1f} s, language={self.language!r}, segments={len(self.segments)}"
        speakers = f", speakers={len(self.speakers)}" if self.diarized else ""
        return f"Transcript({told}{speakers}, {beginning(self.text)!r})"

    save = files.save
    to_txt, to_srt, to_vtt, to_tsv = files.txt, files.srt, files.vtt, files.tsv
    to_json, to_rttm, to_md, to_docx = files.json_, files.rttm, documents.md, documents.docx

    def renamed(self, names: Mapping[str, str | None]) -> Transcript:
        """With other names for speakers; equal names make one of two, None takes the name away. Raises
        UsageError for a speaker that is not in it, and for a name that is no text or blank."""
        for old, name in names.items():
            if old not in self.speakers:
                known = ", ".join(self.speakers) or "none"
                raise UsageError(f"no speaker {old!r} in this transcript; there are: {known}")
            if name is not None and not (isinstance(name, str) and name.strip()):
                raise UsageError(
                    f"the name of {old!r} is {name!r}; give a name, or None to take it away"
                )

        def called(label: str | None) -> str | None:
            return None if label is None else names.get(label, label)

        segments = tuple(
            replace(
                s,
                speaker=called(s.speaker),
                words=s.words and tuple(word.renamed(called) for word in s.words),
            )
            for s in self.segments
        )
        turns = tuple(replace(t, speaker=told) for t in self.turns if (told := called(t.speaker)))
        return replace(self, segments=segments, turns=turns)

    def corrected(self, wrong: str, right: str) -> Transcript:
        """With `right` in every place of `wrong` in its segments, as `str.replace` has it. New words share
        the time of those that they replace, and have no probability. Raises UsageError where there is no
        `wrong`."""
        if not wrong or not any(wrong in segment.text for segment in self.segments):
            raise UsageError(f"no segment of this transcript holds {wrong!r}")
        segments = tuple(
            replace(
                segment,
                text=segment.text.replace(wrong, right),
                tokens=(),
                words=segment.words and tuple(_reworded(segment.words, wrong, right)),
            )
            if wrong in segment.text
            else segment
            for segment in self.segments
        )
        return replace(self, segments=segments)

    def to_dict(self) -> dict[str, Json]:
        """Whisper's JSON with additional keys. Numbers that are not finite become null."""
        turns: dict[str, Json] = {"turns": list(map(turn_to_dict, self.turns))}
        whole: dict[str, Json] = {
            "text": self.text,
            "segments": [_segment_to_dict(segment, self.diarized) for segment in self.segments],
            **(turns if self.diarized else {}),
            "language": self.language,
            "language_probability": self.language_probability,
            "duration": self.duration,
            "diarized": self.diarized,
            "warnings": [notice_to_dict(notice) for notice in self.warnings],
            "coverage": coverage_to_dict(self.coverage),
            "settings": dict(self.settings),
            "stats": dict(self.stats),
        }
        return cast(dict[str, Json], _without_nan(whole))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Transcript:
        """Read a transcript from its JSON. Raises UsageError for a file that is none."""
        try:
            return cls.read(Path(path).read_bytes())
        except OSError as error:
            raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except UNREADABLE as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else one_line(str(error))
            raise UsageError(f"{str(path)!r} is not a transcript of this program: {why}") from error

    @classmethod
    def read(cls, data: bytes) -> Transcript:
        """Read its JSON. Where the text of a segment was edited by hand, its words are those of the text.
        Raises one of `UNREADABLE`."""
        made = cls.from_dict(json.loads(data))
        return replace(made, segments=tuple(map(_followed, made.segments)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Transcript:
        """The inverse of `to_dict`. Raises one of `UNREADABLE` for other data."""
        fields = _Fields(data)
        return cls(
            segments=tuple(map(_segment_from_dict, fields("segments", list))),
            sample_count=fields.sample("duration"),
            coverage=_coverage_from_dict(fields("coverage", dict)),
            language=fields("language", str, None),
            language_probability=fields("language_probability", float, None),
            warnings=tuple(map(notice_from_dict, fields("warnings", list))),
            settings=fields("settings", dict),
            stats=fields("stats", dict),
            diarized=fields("diarized", bool),
            turns=tuple(map(_turn_from_dict, fields("turns", list, ()))),
        )


UNREADABLE = (KeyError, TypeError, ValueError, ArithmeticError, RecursionError)
"""What reading a JSON file that is no transcript may raise."""

FIGURES = ("temperature", "avg_logprob", "compression_ratio", "no_speech_prob")
"""Of a segment."""


class _Fields:
    """The values of a JSON object, by type. Raises TypeError for another one, KeyError for one that is not
    there, and ValueError for NaN and Infinity, which Python's reader takes."""

    def __init__(self, data: object) -> None:
        if not isinstance(data, Mapping):
            raise TypeError(f"{_brief(data)} stands where an object is needed")
        self.data = data

    def __call__(self, key: str, kind: type, default: object = ...) -> Any:
        """The value of `key`; with a `default` it may lack, or be null."""
        value: Any = self.data[key] if default is ... else self.data.get(key)
        if value is None and default is not ...:
            return default
        known = isinstance(value, int | float if kind is float else kind)
        if not known or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{key!r} is {_brief(value)}; it must be of type {kind.__name__}")
        return _finite(value) if kind is float else value

    def sample(self, key: str) -> int:
        """The sample at a time in seconds."""
        return samples_at(self(key, float))

    def place(self) -> dict[str, Any]:
        return {"start_sample": self.sample("start"), "end_sample": self.sample("end")}


def _brief(value: object) -> str:
    return clipped(json.dumps(value), 40)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return value


def _reworded(words: Sequence[Word], wrong: str, right: str) -> Iterator[Word]:
    """The words with `right` in every place of `wrong`."""
    joined = "".join(word.text for word in words)
    places = [match.span() for match in re.finditer(re.escape(wrong), joined)]
    run, at = list[Word](), 0
    for n, word in enumerate(words, start=1):
        run.append(word)
        at += len(word.text)
        if n < len(words) and any(start < at < end for start, end in places):
            continue  # the place goes on in the next word
        text = "".join(old.text for old in run)
        yield from _shared_out(run, text.replace(wrong, right)) if wrong in text else run
        run = []


def _followed(segment: Segment) -> Segment:
    """With the words of its text, in the time of those it has, where the text holds others."""
    words = segment.words
    if not words or "".join(word.text for word in words).split() == segment.text.split():
        return segment
    return replace(segment, words=tuple(_shared_out(words, segment.text)))


def _shared_out(run: Sequence[Word], text: str) -> Iterator[Word]:
    """The words of `text` in the time of `run`, by their lengths."""
    first, start, at = run[0], run[0].start_sample, 0
    length = run[-1].end_sample - start
    for match in re.finditer(r"\s*\S+", text):
        begin, at = at, match.end()
        span = (start + length * begin // len(text), start + length * at // len(text))
        yield replace(
            first,
            text=match[0],
            start_sample=span[0],
            end_sample=span[1],
            probability=None,
            sources=None,
        )


def notice_to_dict(notice: Notice) -> dict[str, Json]:
    """Code and message; count and places, in seconds, of one that applies several times."""
    data: dict[str, Json] = {"code": notice.code, "message": notice.message}
    if notice.count > 1:
        data |= {"count": notice.count, "places": list(notice.places)}
    return data


def notice_from_dict(data: object) -> Notice:
    """The inverse of `notice_to_dict`."""
    fields = _Fields(data)
    places = tuple(map(_finite, fields("places", list, ())))
    return Notice(fields("code", str), fields("message", str), fields("count", int, 1), places)


def _segment_to_dict(segment: Segment, diarized: bool) -> dict[str, Json]:
    """Whisper's keys and ours; with `diarized` the speaker, None if unknown."""
    data: dict[str, Json] = {
        "id": segment.id,
        "seek": segment.seek,
        "window": segment.window,
        "window_start": seconds(segment.window_sample),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        **{name: getattr(segment, name) for name in FIGURES},
    }
    if segment.doubt is not None:
        data["doubt"] = segment.doubt
    if segment.continues:
        data["continues"] = True
    if segment.corrections:
        data["corrections"] = [dict[str, Json](asdict(own)) for own in segment.corrections]
    if segment.words is not None:
        data["words"] = [_word_to_dict(word, diarized) for word in segment.words]
    if diarized:
        data["speaker"] = segment.speaker
        data["speaker_confidence"] = segment.speaker_confidence
    return data


def _segment_from_dict(data: object) -> Segment:
    fields = _Fields(data)
    words = fields("words", list, None)
    return Segment(
        id=fields("id", int),
        window=fields("window", int),
        window_sample=fields.sample("window_start"),
        **fields.place(),
        text=fields("text", str),
        tokens=tuple(map(int, fields("tokens", list))),
        **{name: fields(name, float, None) for name in FIGURES},
        words=None if words is None else tuple(map(_word_from_dict, words)),
        speaker=fields("speaker", str, None),
        speaker_confidence=fields("speaker_confidence", float, None),
        doubt=fields("doubt", str, None),
        continues=fields("continues", bool, False),
        corrections=tuple(map(_correction_from_dict, fields("corrections", list, ()))),
    )


def _correction_from_dict(data: object) -> Correction:
    fields = _Fields(data)
    heard, written, source = (fields(key, str) for key in ("heard", "written", "source"))
    return Correction(fields("at", int), heard, written, source)


def _word_to_dict(word: Word, diarized: bool) -> dict[str, Json]:
    data: dict[str, Json] = {
        "word": word.text,
        "start": word.start,
        "end": word.end,
        "probability": word.probability,
    }
    if word.sources is not None:
        data["sources"] = list[Json](word.sources)
    if diarized:
        data["speaker"] = word.speaker
        data["speaker_confidence"] = word.speaker_confidence
        data["overlap"] = word.overlap
        if word.others:
            data["other_speakers"] = list[Json](word.others)
    return data


def _word_from_dict(data: object) -> Word:
    fields = _Fields(data)
    sources = fields("sources", list, None)
    return Word(
        text=fields("word", str),
        **fields.place(),
        probability=fields("probability", float, None),
        speaker=fields("speaker", str, None),
        speaker_confidence=fields("speaker_confidence", float, None),
        overlap=fields("overlap", bool, None),
        sources=None if sources is None else tuple(sources),
        others=tuple(map(str, fields("other_speakers", list, ()))),
    )


def turn_to_dict(turn: Turn) -> dict[str, Json]:
    """Times in seconds; `confidence` only where it is known."""
    told: dict[str, Json] = {"start": turn.start, "end": turn.end, "speaker": turn.speaker}
    if turn.confidence is not None:
        told["confidence"] = round(turn.confidence, 3)
    return told


def _turn_from_dict(data: object) -> Turn:
    fields = _Fields(data)
    confidence = fields("confidence", float, None)
    return Turn(**fields.place(), speaker=fields("speaker", str), confidence=confidence)


def coverage_to_dict(coverage: Coverage) -> dict[str, Json]:
    """Totals and spans, in seconds."""
    wordless, unwritten = coverage.wordless_samples, coverage.unwritten_turn_samples
    loud_db = coverage.loud_db
    return {
        "decoded_s": seconds(coverage.decoded_samples),
        "silent_s": seconds(coverage.silent_samples),
        "failed_s": seconds(coverage.failed_samples),
        "voice_without_words_s": None if wordless is None else seconds(wordless),
        **({} if unwritten is None else {"turns_without_words_s": seconds(unwritten)}),
        "loud_silence_s": seconds(coverage.loud_samples),
        "loud_silence_db": None if loud_db is None else round(loud_db, 1),
        "spans": [
            {
                "start": seconds(span.start_sample),
                "end": seconds(span.end_sample),
                "state": span.state,
                "reason": span.reason,
                **({} if span.level_db is None else {"level_db": round(span.level_db, 1)}),
            }
            for span in coverage.spans
        ],
    }


def _coverage_from_dict(data: object) -> Coverage:
    """The inverse of `coverage_to_dict`; transcripts of earlier versions do not say what has no words."""
    fields = _Fields(data)
    times = (fields(f"{what}_without_words_s", float, None) for what in ("voice", "turns"))
    wordless, unwritten = (None if time is None else samples_at(time) for time in times)
    return Coverage(tuple(map(_span_from_dict, fields("spans", list))), wordless, unwritten)


def _span_from_dict(data: object) -> Span:
    fields = _Fields(data)
    return Span(
        **fields.place(),
        state=fields("state", str),
        reason=fields("reason", str, None),
        level_db=fields("level_db", float, None),
    )


def _without_nan(value: Json) -> Json:
    """Replace numbers that are not finite by None: JSON has none, and other readers refuse the
    whole file."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
