"""The transcript record: its invariants, and JSON that gives it back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import (
    Coverage,
    Json,
    Notice,
    Segment,
    Span,
    State,
    Turn,
    Word,
    samples_at,
    seconds,
)

SPOKEN = (" The", " land", " lord", " called.", " The", " land", " lord?")


def test_people_get_names_and_words_are_corrected_in_their_time() -> None:
    words = tuple(
        Word(text, 100 * n, 100 * n + 90, 0.9, "B", others=("A",)) for n, text in enumerate(SPOKEN)
    )
    segments = (
        Segment(0, 0, 0, 0, 700, "".join(SPOKEN), (1, 2), words=words, speaker="B"),
        Segment(1, 0, 0, 700, 800, " Yes.", (3,), speaker="A"),
    )
    heard = Coverage((Span(0, 800, "decoded"),))
    turns = (Turn(0, 700, "B"), Turn(700, 800, "A"))
    told = Transcript(segments, 800, heard, diarized=True, turns=turns)

    named = told.renamed({"B": "Laura"})
    assert named.speakers == ("Laura", "A") and named.segments[0].words is not None
    assert {(w.speaker, w.others) for w in named.words} == {("Laura", ("A",))}
    one = told.renamed({"B": "A"})
    assert one.speakers == ("A",) and {w.others for w in one.words} == {()}, "two are one"
    assert told.renamed({"A": None, "B": None}).speakers == ()
    with pytest.raises(UsageError, match="no speaker 'C'.*: B, A"):
        told.renamed({"C": "Laura", None: "Peter"})
    with pytest.raises(UsageError, match="the name of 'B' is ' '"):
        told.renamed({"B": " "})

    right = told.corrected("land lord", "landlord")
    assert right.text == "The landlord called. The landlord? Yes."
    assert [w.text for w in right.words] == [" The", " landlord", " called.", " The", " landlord?"]
    assert [(w.start_sample, w.end_sample) for w in right.words][1:3] == [(100, 290), (300, 390)]
    assert right.segments[1] is segments[1] and right.segments[0].tokens == ()
    more = told.corrected(" called", " has called me")
    times = [(w.text, w.start_sample, w.end_sample) for w in more.words[3:6]]
    assert [text for text, *_ in times] == [" has", " called", " me."]
    assert times[0][1] == 300 and times[-1][2] == 390
    assert all(a[2] == b[1] for a, b in zip(times, times[1:], strict=False))
    assert [w.text for w in told.corrected(" land", "").words] == [
        *(" The", " lord", " called.", " The", " lord?")
    ]
    with pytest.raises(UsageError, match="'house'"):
        told.corrected("house", "home")


HOURS_100 = 100 * 3600 * 16_000

texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
speakers = st.none() | st.sampled_from(["Speaker A", "Zoë"])


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    lengths = draw(st.lists(st.integers(1, 40 * 16_000), max_size=5))
    total = sum(lengths)
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    states = st.sampled_from(cast(list[State], ["decoded", "silent", "failed"]))
    spans = tuple(
        Span(end - length, end, draw(states), draw(st.none() | texts))
        for end, length in zip(ends, lengths, strict=True)
    )
    diarized = draw(st.booleans())

    def stretch() -> tuple[int, int]:
        start, end = sorted((draw(st.integers(0, total)), draw(st.integers(0, total))))
        return start, end

    def word() -> Word:
        if not diarized:
            return Word(draw(texts), *stretch(), draw(numbers))
        heard = draw(speakers), draw(numbers), draw(st.none() | st.booleans())
        return Word(draw(texts), *stretch(), draw(numbers), *heard)

    def turn() -> Turn:
        start, end = stretch()
        return Turn(start, end + 1, draw(st.sampled_from(["Speaker A", "Zoë"])))

    def segment(index: int) -> Segment:
        return Segment(
            index,
            draw(st.integers(0, 9)),
            draw(st.integers(0, total)),
            *stretch(),
            text=draw(texts),
            tokens=tuple(draw(st.lists(st.integers(0, 51_865), max_size=4))),
            temperature=draw(numbers),
            avg_logprob=draw(numbers),
            compression_ratio=draw(numbers),
            no_speech_prob=draw(numbers),
            words=tuple(word() for _ in range(draw(st.integers(0, 2))))
            if draw(st.booleans())
            else None,
            speaker=draw(speakers) if diarized else None,
            speaker_confidence=draw(numbers) if diarized else None,
        )

    return Transcript(
        segments=tuple(segment(index) for index in range(draw(st.integers(0, 3)))),
        sample_count=total,
        coverage=Coverage(spans),
        language=draw(st.none() | st.sampled_from(["en", "de"])),
        language_probability=draw(numbers),
        warnings=tuple(Notice(draw(texts), draw(texts)) for _ in range(draw(st.integers(0, 2)))),
        settings={"model": "tiny.en", "gamma": 5, "draft": None},
        stats={"rounds": draw(st.integers(0, 9))},
        diarized=diarized,
        turns=tuple(turn() for _ in range(draw(st.integers(0, 2)))) if diarized else (),
    )


@given(transcripts())
def test_json_gives_back_the_same_transcript(transcript: Transcript) -> None:
    written = json.dumps(transcript.to_dict(), allow_nan=False)
    assert Transcript.from_dict(json.loads(written)) == transcript


@given(st.integers(0, HOURS_100))
def test_seconds_lose_no_sample(samples: int) -> None:
    assert samples_at(seconds(samples)) == samples


def test_text_is_the_joined_segments_and_segments_keep_their_leading_space() -> None:
    transcript = spoken(" Good morning,", " everyone.")
    assert transcript.text == "Good morning, everyone."
    assert segments(transcript)[1]["text"] == " everyone."


def test_a_number_that_is_not_finite_becomes_null() -> None:
    segment = Segment(0, 0, 0, 0, 1600, " a", no_speech_prob=math.nan, avg_logprob=-math.inf)
    stats: dict[str, Json] = {"nested": [{"loss": math.nan}]}
    data = Transcript((segment,), 1600, decoded(1600), stats=stats).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False))["segments"][0]["no_speech_prob"] is None
    assert data["stats"] == {"nested": [{"loss": None}]}


@pytest.mark.parametrize("diarized", [False, True])
def test_the_speaker_key_is_there_exactly_when_speakers_were_looked_for(diarized: bool) -> None:
    segment = Segment(0, 0, 0, 0, 1600, " a", words=(Word(" a", 0, 1600),))
    data = Transcript((segment,), 1600, decoded(1600), diarized=diarized).to_dict()
    first = cast(list[dict[str, Any]], data["segments"])[0]
    assert ("speaker" in first) == ("speaker" in first["words"][0]) == ("turns" in data) == diarized


def test_words_are_absent_where_nobody_asked_and_empty_where_there_are_none() -> None:
    asked = Segment(0, 0, 0, 0, 1600, "", words=())
    unasked = Segment(1, 0, 0, 0, 1600, "")
    first, second = segments(Transcript((asked, unasked), 1600, decoded(1600)))
    assert first["words"] == [] and "words" not in second


def test_coverage_adds_up() -> None:
    coverage = Coverage((Span(0, 10, "decoded"), Span(10, 15, "silent"), Span(15, 18, "failed")))
    totals = coverage.decoded_samples, coverage.silent_samples, coverage.failed_samples
    assert totals == (10, 5, 3) and coverage.sample_count == 18


@pytest.mark.parametrize("make", [lambda: Word("a", 5, 4), lambda: Segment(0, 0, 0, -1, 4, "a")])
def test_time_does_not_run_backwards(make: Any) -> None:
    with pytest.raises(ValueError, match="runs from sample"):
        make()


def decoded(samples: int) -> Coverage:
    return Coverage((Span(0, samples, "decoded"),))


def spoken(*sentences: str) -> Transcript:
    parts = tuple(
        Segment(n, 0, 0, n * 16_000, (n + 1) * 16_000, text) for n, text in enumerate(sentences)
    )
    return Transcript(parts, len(parts) * 16_000, decoded(len(parts) * 16_000), language="en")


def segments(transcript: Transcript) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], transcript.to_dict()["segments"])


# What a Python user does with it


def _meeting(text: str = " Good morning.", **speaker: str) -> Transcript:
    words = tuple(
        Word(w, n, n + 4000, 0.5, **speaker) for w, n in ((" Good", 0), (" morning.", 8000))
    )
    first = Segment(0, 0, 0, 0, 24_000, text, words=words, **speaker)
    rest = Segment(1, 0, 0, 24_000, 48_000, " Bye.", **speaker)
    spans = Coverage((Span(0, 64_000, "decoded"),))
    return Transcript((first, rest), 64_000, spans, "en", diarized=bool(speaker))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hello", "Expecting value: line 1"),
        ("[]", r"\[\] stands where an object is needed"),
        ('{"duration": 1}', "it has no 'segments'"),
        ('{"segments": [3], "duration": 1}', "3 stands where an object"),
        ('{"segments": null, "duration": 1}', "'segments' is null; it must be of type list"),
        ('{"segments": [], "duration": true}', "'duration' is true; it must be of type float"),
    ],
)
def test_a_file_that_is_no_transcript_is_told_in_words(wrong: str, said: str, tmp_path: Path):
    (tmp_path / "a.json").write_text(wrong)
    with pytest.raises(UsageError, match="'.*a.json' is not a transcript of this program: " + said):
        Transcript.load(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a.doc", "a", "a.all", "srt"])
def test_an_extension_that_is_no_format_is_refused(name: str, tmp_path: Path):
    with pytest.raises(UsageError, match="names no output format; known: txt, srt, vtt"):
        _meeting().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_saving_knows_the_home_folder_and_refuses_addresses(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _meeting().save("~/a.srt") == tmp_path / "a.srt"
    with pytest.raises(UsageError, match="'s3://bucket/a.srt' is an address"):
        _meeting().save("s3://bucket/a.srt")


def test_records_are_rows_of_a_table_with_seconds():
    assert replace(_meeting().words[0], start_sample=1600).start == 0.1
    assert Transcript((), 0, Coverage()).words == ()
    pandas = pytest.importorskip("pandas")
    words = pandas.DataFrame(_meeting(speaker="Zoë").words)
    assert list(words.columns[:3]) == ["start", "end", "text"]
    assert words["start"].tolist() == [0.0, 0.5] and set(words["speaker"]) == {"Zoë"}
    assert pandas.DataFrame(_meeting().segments)["end"].tolist() == [1.5, 3.0]
