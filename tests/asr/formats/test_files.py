"""Output formats, read back by small parsers that share no code with the writers."""

from __future__ import annotations

import errno
import html
import json
import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.errors import OutputError, UsageError
from forescribe.asr.formats.files import FORMATS, formats, rttm, srt, tsv, txt, vtt
from forescribe.asr.formats.subtitles import milliseconds
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Turn

RATE = 16_000


@dataclass(frozen=True)
class Read:
    """What a parser found: times in milliseconds."""

    start: int
    end: int
    text: str


def read_srt(document: str) -> list[Read]:
    cues = []
    for number, block in enumerate(document.split("\n\n")[:-1], start=1):
        index, times, text = block.split("\n")
        assert index == str(number)
        clock = r"(\d\d+):(\d\d):(\d\d),(\d{3})"
        match = re.fullmatch(f"{clock} --> {clock}", times)
        assert match, times
        cues.append(Read(_ms(match.groups()[:4]), _ms(match.groups()[4:]), text))
    assert document == "" or document.endswith("\n\n")
    return cues


def read_vtt(document: str) -> list[Read]:
    header, *blocks, last = document.split("\n\n")
    assert header == "WEBVTT" and last == ""
    cues = []
    for block in blocks:
        times, text = block.split("\n")
        clock = r"(?:(\d\d+):)?(\d\d):(\d\d)\.(\d{3})"
        match = re.fullmatch(f"{clock} --> {clock}", times)
        assert match, times
        assert "<" not in re.sub(r"^<v [^<>&]*>", "", text) and "-->" not in text
        cues.append(Read(_ms(match.groups()[:4]), _ms(match.groups()[4:]), html.unescape(text)))
    return cues


def read_tsv(document: str) -> list[Read]:
    header, *rows, last = document.split("\n")
    assert header == "start\tend\ttext" and last == ""
    fields = [row.split("\t") for row in rows]
    return [Read(int(start), int(end), text) for start, end, text in fields]


def _ms(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, ms = (int(part or 0) for part in parts)
    assert minutes < 60 and seconds < 60
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms


PARSERS: dict[str, tuple[Callable[[Transcript], str], Callable[[str], list[Read]]]] = {
    "srt": (srt, read_srt),
    "vtt": (vtt, read_vtt),
    "tsv": (tsv, read_tsv),
}

words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@st.composite
def disorderly(draw: st.DrawFn) -> Transcript:
    """Segments as a model may give them: touching, equal, reversed in order, or behind the audio's
    end."""
    count = draw(st.integers(1, 4000 * RATE))
    times = st.integers(0, count + 30 * RATE)
    segments = []
    for index in range(draw(st.integers(0, 6))):
        start, end = sorted((draw(times), draw(times)))
        text = " " + draw(words | st.sampled_from(["-->", "a\tb", "<b>&", "x\n\ny", "", "  "]))
        segments.append(Segment(index, 0, 0, start, end, text))
    return Transcript(tuple(segments), count, Coverage((Span(0, count, "decoded"),)))


@pytest.mark.parametrize("name", PARSERS)
@given(transcript=disorderly())
def test_cues_are_ordered_apart_and_inside_the_audio(name: str, transcript: Transcript) -> None:
    render, parse = PARSERS[name]
    cues = parse(render(transcript))
    limit = max(1, round(transcript.sample_count / 16 + 1e-9))
    assert all(cue.start < cue.end <= limit for cue in cues)
    assert all(one.end <= two.start for one, two in zip(cues, cues[1:], strict=False))


@pytest.mark.parametrize("name", PARSERS)
@given(transcript=disorderly())
def test_no_cue_loses_text(name: str, transcript: Transcript) -> None:
    render, parse = PARSERS[name]
    spoken = sorted(transcript.segments, key=lambda segment: segment.start_sample)
    wanted = "".join(segment.text for segment in spoken).replace("-->", "->").split()
    found = " ".join(cue.text for cue in parse(render(transcript)))
    assert found.replace("-->", "->").split() == wanted  # harmless in tsv, forbidden in subtitles


@pytest.mark.parametrize("name", PARSERS)
@given(cuts=st.lists(st.integers(0, 20_000 * RATE), min_size=2, max_size=9))
def test_orderly_times_come_back_within_half_a_millisecond(name: str, cuts: list[int]) -> None:
    edges = sorted({edge - edge % 320 for edge in cuts})  # Whisper's grid of 20 ms
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    transcript = said(*[(start, end, " word") for start, end in pairs], total=edges[-1] or 1)
    render, parse = PARSERS[name]
    got = [(cue.start, cue.end) for cue in parse(render(transcript))]
    assert got == [(start // 16, end // 16) for start, end in pairs]


def test_srt_is_written_as_players_expect_it() -> None:
    document = srt(said((0, 53_120, " The beach was a popular spot."), (53_120, 83_200, " Swim.")))
    assert document == (
        "1\n00:00:00,000 --> 00:00:03,320\nThe beach was a popular spot.\n\n"
        "2\n00:00:03,320 --> 00:00:05,200\nSwim.\n\n"
    )


def test_vtt_is_written_as_players_expect_it() -> None:
    document = vtt(said((0, 53_120, " The beach was a popular spot.")))
    assert document == "WEBVTT\n\n00:00.000 --> 00:03.320\nThe beach was a popular spot.\n\n"


def test_rounding_carries_into_the_minute() -> None:
    almost = round(59.9996 * RATE)
    assert milliseconds(almost) == 60_000
    document = srt(said((0, almost, " a"), total=61 * RATE))
    assert "00:00:00,000 --> 00:01:00,000" in document


def test_nothing_said_is_a_valid_file_in_every_format() -> None:
    empty = Transcript((), 0, Coverage())
    assert (txt(empty), srt(empty)) == ("", "")
    assert vtt(empty) == "WEBVTT\n\n"
    assert tsv(empty) == "start\tend\ttext\n"
    data = json.loads(FORMATS["json"].render(empty))
    assert (data["text"], data["segments"], data["warnings"]) == ("", [], [])


def test_an_arrow_in_the_text_is_no_time_line() -> None:
    transcript = said((0, RATE, " a --> b ---> c"))
    assert read_srt(srt(transcript))[0].text == "a -> b -> c"
    assert "-->" not in vtt(transcript).split("\n")[3]


def test_speakers_are_labelled_in_each_format_its_own_way() -> None:
    transcript = said(
        (0, RATE, " Hi."),
        (RATE, 2 * RATE, " I am Ann."),
        (2 * RATE, 3 * RATE, " Bob."),
        (3 * RATE, 4 * RATE, " Hm."),
        speakers=("Speaker A", "Speaker A", "A<B>", None),
    )
    assert txt(transcript) == "Speaker A: Hi. I am Ann.\nA<B>: Bob.\nUnknown speaker: Hm.\n"
    assert [cue.text for cue in read_srt(srt(transcript))][0] == "[Speaker A]: Hi."
    assert "<v Speaker A>Hi.\n" in vtt(transcript) and "<v A&lt;B&gt;>Bob.\n" in vtt(transcript)
    assert read_tsv(tsv(transcript))[3].text == "[Unknown speaker]: Hm."


FORGED = "Eve]: Hi.\n\n2\n00:00:09,000 --> 00:00:10,000\nforged"


@pytest.mark.parametrize("speaker", [FORGED, "A\tB\r\nC", "A\x1b[2J\x00B", "A\u2028B\x85C", "A--"])
def test_a_speakers_label_cannot_break_a_format(speaker: str) -> None:
    """What parsers read back: as many cues, lines and columns as there are segments."""
    transcript = said((0, RATE, " Hi."), (RATE, 2 * RATE, " > Yes."), speakers=(speaker, "B"))
    srt_cues, vtt_text, rows = read_srt(srt(transcript)), vtt(transcript), tsv(transcript)
    assert [cue.text.endswith(end) for cue, end in zip(srt_cues, ("Hi.", "> Yes."), strict=True)]
    blocks = vtt_text.rstrip("\n").split("\n\n")
    assert [block.count("\n") for block in blocks] == [0, 1, 1]
    assert vtt_text.count("-->") == 2 and srt(transcript).count("-->") == 2
    assert [row.count("\t") for row in rows.splitlines()] == [2, 2, 2]
    assert len(txt(transcript).splitlines()) == 2
    for text in (srt(transcript), vtt_text, rows, txt(transcript), rttm(_with_turns(transcript))):
        shown = text.replace("\n", "").replace("\t", "")
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
    assert len(rttm(_with_turns(transcript)).split()) == 20


def _with_turns(transcript: Transcript) -> Transcript:
    turns = tuple(Turn(s.start_sample, s.end_sample, str(s.speaker)) for s in transcript.segments)
    return replace(transcript, turns=turns)


def test_txt_has_a_trimmed_line_per_segment() -> None:
    assert (
        txt(said((0, RATE, " One. "), (RATE, 2 * RATE, ""), (RATE, 2 * RATE, " Two.")))
        == "One.\nTwo.\n"
    )


def test_an_unknown_format_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="'doc'; known: txt, srt, vtt, tsv, json, rttm, md, docx, all"
    ):
        formats("txt,doc")
    with pytest.raises(UsageError, match="no output format; known: txt"):
        formats([])


def test_a_file_appears_in_a_new_folder_like_any_new_file_and_nothing_else_does(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new" / "deep"
    path = said((0, RATE, " Grüße")).save(folder / "v1.2 talk.txt")
    assert list(folder.iterdir()) == [path] and path.read_bytes() == "Grüße\n".encode()
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = said((0, RATE, " old")).save(tmp_path / "a.txt")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left") as caught:
        said((0, RATE, " new")).save(old)
    assert caught.value.code == "storage_full"
    assert list(tmp_path.iterdir()) == [old] and old.read_text() == "old\n"


def test_a_folder_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="name another place") as caught:
        said().save(tmp_path / "out" / "a.txt")
    assert caught.value.code == "unwritable_output" and "\n" not in str(caught.value)


def said(
    *parts: tuple[int, int, str], total: int | None = None, speakers: tuple[str | None, ...] = ()
) -> Transcript:
    count = total or max([end for _, end, _ in parts], default=RATE)
    segments = tuple(
        Segment(n, 0, 0, start, end, text, speaker=speakers[n] if speakers else None)
        for n, (start, end, text) in enumerate(parts)
    )
    return Transcript(segments, count, Coverage((Span(0, count, "decoded"),)))
