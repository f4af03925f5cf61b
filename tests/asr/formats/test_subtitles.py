"""Subtitle lines: within their limits, cut where a reader would cut, and without losing a word."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.errors import UsageError
from forescribe.asr.formats.files import formats, srt, tsv, txt, vtt
from forescribe.asr.formats.subtitles import PLAIN, LineRules, cues
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Word

RATE = 16_000


def spoken(*sentences: str, pause: float = 0.0, each: float = 0.4) -> Transcript:
    """A segment per sentence; a word takes `each` seconds, `pause` seconds pass between segments."""
    at, segments = 0.0, []
    for number, sentence in enumerate(sentences):
        words = []
        for text in re.findall(r"\s*\S+", " " + sentence):
            words.append(Word(text, round(at * RATE), round((at + each) * RATE), 0.9))
            at += each
        start, end = words[0].start_sample, words[-1].end_sample
        text = " " + sentence
        segments.append(Segment(number, 0, 0, start, end, text, words=tuple(words)))
        at += pause
    count = max(1, round(at * RATE))
    return Transcript(tuple(segments), count, Coverage((Span(0, count, "decoded"),)))


def shown(transcript: Transcript, **rules: int) -> list[list[str]]:
    """The lines of each cue."""
    return [cue.text.split("\n") for cue in cues(transcript, LineRules(**rules))]


BEACH = (
    "The beach was a popular spot. People were swimming, and nobody knew that it would rain soon."
)

words = st.text("abcxyz", min_size=1, max_size=14)
ends = st.sampled_from(["", "", "", ",", ".", "?", '."'])
sentences = st.lists(st.builds(str.__add__, words, ends), min_size=1, max_size=14).map(" ".join)
transcripts = st.builds(
    lambda texts, pause: spoken(*texts, pause=pause),
    st.lists(sentences, max_size=3),
    st.sampled_from([0.0, 1.0, 4.0]),
)
sizes = st.none() | st.integers(1, 30)


@settings(max_examples=40)
@given(transcripts, sizes, st.none() | st.integers(1, 3), st.none() | st.integers(1, 6))
def test_no_line_is_too_long_no_cue_too_high_and_no_word_lost(
    transcript, width, count, most
) -> None:
    if width is None and most is None:
        count = None
    found = shown(transcript, width=width, count=count, words=most)
    assert " ".join(line for lines in found for line in lines) == transcript.text
    for lines in found:
        assert count is None or len(lines) <= count
        for line in lines:
            assert most is None or len(line.split()) <= most
            assert width is None or len(line) <= width or " " not in line


@settings(max_examples=40)
@given(transcripts, st.integers(1, 30), st.booleans())
def test_cues_stay_in_order_apart_and_inside_the_audio(transcript, width, highlight) -> None:
    found = cues(transcript, LineRules(width=width, count=2, highlight=highlight))
    assert all(one.end_ms <= two.start_ms for one, two in pairwise(found))
    assert all(cue.start_ms < cue.end_ms for cue in found)
    assert not found or found[-1].end_ms <= transcript.sample_count // 16 + 1


@settings(max_examples=40)
@given(transcripts, st.integers(1, 40), st.integers(1, 3))
def test_no_block_could_be_joined_with_the_next_for_nothing(transcript, width, count) -> None:
    """Few blocks: two neighbours that would fit into one are apart for a reason, a pause of more
    than 3 s or the end of a sentence or a clause."""
    rules = LineRules(width=width, count=count)
    for one, two in pairwise(cues(transcript, rules)):
        text = " ".join([*one.text.split(), *two.text.split()])
        far = two.start_ms - one.end_ms > 3000
        if len(text) <= width and not far:
            assert one.text.rstrip('"')[-1] in ",.?", (one, two)


# Where it cuts


def test_sentences_end_lines_and_cues() -> None:
    assert shown(spoken(BEACH), width=42, count=2) == [
        ["The beach was a popular spot."],
        ["People were swimming,", "and nobody knew that it would rain soon."],
    ]


def test_clauses_come_before_the_midst_of_words() -> None:
    text = "when it rains, the road is closed for cars"
    assert shown(spoken(text), width=30, count=1) == [
        ["when it rains,"], ["the road is closed for cars"]
    ]  # fmt: skip
    assert shown(spoken(text.replace(",", "")), width=30, count=1) == [
        ["when it rains the road"], ["is closed for cars"]
    ]  # fmt: skip  # even, where no place is better


def test_a_pause_is_a_better_place_than_none() -> None:
    made = spoken("one two three four", "five six seven", pause=0.5)
    assert shown(made, words=4, count=1) == [["one two three four"], ["five six seven"]]
    assert shown(made, words=6, count=1) == [["one two three four"], ["five six seven"]]


def test_a_long_pause_always_ends_a_cue() -> None:
    assert shown(spoken("a", "b", pause=4.0), width=40, count=2) == [["a"], ["b"]]
    assert shown(spoken("a", "b", pause=1.0), width=40, count=2) == [["a b"]]


def test_segments_are_joined_only_with_a_number_of_lines() -> None:
    made = spoken("We went home", "by the river.")
    assert shown(made, width=40, count=1) == [["We went home by the river."]]
    assert shown(made, width=40) == [["We went home"], ["by the river."]]
    assert shown(made, width=8) == [["We went", "home"], ["by the", "river."]]


def test_text_without_spaces_is_cut_at_its_words() -> None:
    pieces = [
        Word(text, n * RATE, (n + 1) * RATE)
        for n, text in enumerate("今日は|いい|天気。".split("|"))
    ]
    segment = Segment(0, 0, 0, 0, 3 * RATE, "今日はいい天気。", words=tuple(pieces))
    made = Transcript((segment,), 3 * RATE, Coverage((Span(0, 3 * RATE, "decoded"),)))
    assert shown(made, width=5, count=1) == [["今日は"], ["いい天気。"]]


VOICES = ("Ann", "Bob", None)


@st.composite
def conversations(draw: st.DrawFn) -> Transcript:
    """Segments whose words change speakers anywhere, with times as Whisper gives them: some beyond the end,
    some touching. Word `w7` is said by the speaker whose number is behind the underscore: `w7_1`."""
    at, number, segments = 0, 0, []
    for index in range(draw(st.integers(1, 5))):
        start, said = at, []
        main = draw(st.sampled_from((0, 1)))
        for _ in range(draw(st.integers(1, 6))):
            who = draw(st.sampled_from((0, 1, 2)))
            heard = main if VOICES[who] is None else who  # an unknown word is the segment's
            long = draw(st.integers(0, 2 * RATE))
            said.append(Word(f" w{number}_{heard}", at, at + long, speaker=VOICES[who]))
            at, number = at + long, number + 1
        timed = draw(st.booleans()) or len({word.text[-1] for word in said}) > 1
        heard = VOICES[main if timed else int(said[0].text[-1])]
        text = "".join(word.text for word in said)
        kept = tuple(said) if timed else None
        segments.append(Segment(index, 0, 0, start, at, text, words=kept, speaker=heard))
    count = draw(st.integers(RATE, max(RATE, at)))
    whole = Coverage((Span(0, count, "decoded"),))
    return Transcript(tuple(segments), count, whole, diarized=True)


@settings(max_examples=300)
@given(
    conversations(),
    st.sampled_from([PLAIN, LineRules(width=20), LineRules(width=14, count=2), LineRules(words=2)]),
    st.sampled_from(["srt", "vtt"]),
)
def test_no_cue_spans_a_change_of_speaker_and_no_word_is_lost(
    transcript: Transcript, rules: LineRules, kind: str
) -> None:
    document = (srt if kind == "srt" else vtt)(transcript, rules)
    label = r"\[(\w+)\]: " if kind == "srt" else r"<v (\w+)>"
    texts = re.findall(r"-->.*\n((?:.+\n)+)", document)
    for text in texts:
        named = re.match(label, text)
        assert named is not None
        said = re.findall(r"w\d+_(\d)", text)
        assert {VOICES[int(who)] for who in said} == {named[1]}, document
    found = re.findall(r"w(\d+)_", document)
    assert found == [str(n) for n in range(len(found))]
    assert len(found) == sum(segment.text.count("w") for segment in transcript.segments)
    times = [(c.start_ms, c.end_ms) for c in cues(transcript, rules)]
    assert all(one[1] <= two[0] for one, two in pairwise(times)) and len(times) == len(texts)


def test_a_segment_without_word_times_stays_whole() -> None:
    segments = (
        Segment(0, 0, 0, 0, RATE, " no times for these", words=None),
        Segment(1, 0, 0, RATE, 2 * RATE, " nor these", words=()),
    )
    made = Transcript(segments, 2 * RATE, Coverage((Span(0, 2 * RATE, "decoded"),)))
    assert shown(made, width=8, count=1) == [["no times", "for", "these"], ["nor", "these"]]
    highlit = cues(made, LineRules(highlight=True))
    assert [(cue.text, cue.mark) for cue in highlit] == [
        ("no times for these", None), ("nor these", None)
    ]  # fmt: skip


# Highlighting


def test_each_word_is_underlined_while_it_is_said() -> None:
    made = spoken("Hi & <you>", each=0.5)
    assert srt(made, LineRules(highlight=True)) == (
        "1\n00:00:00,000 --> 00:00:00,500\n<u>Hi</u> & <you>\n\n"
        "2\n00:00:00,500 --> 00:00:01,000\nHi <u>&</u> <you>\n\n"
        "3\n00:00:01,000 --> 00:00:01,500\nHi & <u><you></u>\n\n"
    )
    assert "Hi &amp; <u>&lt;you></u>" in vtt(made, LineRules(highlight=True))


@settings(max_examples=40)
@given(transcripts, st.integers(1, 30))
def test_highlighting_changes_neither_text_nor_times(transcript, width) -> None:
    plain = cues(transcript, LineRules(width=width, count=2))
    lit = cues(transcript, LineRules(width=width, count=2, highlight=True))
    for cue in plain:
        parts = [part for part in lit if cue.start_ms <= part.start_ms < cue.end_ms]
        assert {part.text for part in parts} == {cue.text}
        assert (parts[0].start_ms, parts[-1].end_ms) == (cue.start_ms, cue.end_ms)
        marked = [part.text[slice(*part.mark)] for part in parts if part.mark]
        assert marked == cue.text.split()


# The rules themselves, and the formats


@pytest.mark.parametrize("rules", [{"width": 0}, {"count": -1, "width": 5}, {"words": 0}])
def test_rules_that_make_no_sense_are_refused(rules) -> None:
    with pytest.raises(UsageError, match="must be 1 or more"):
        LineRules(**rules)


def test_a_number_of_lines_needs_the_size_of_one() -> None:
    with pytest.raises(UsageError, match="--max-line-width or --max-words-per-line"):
        LineRules(count=2)


def test_without_rules_nothing_changes_and_with_them_subtitles_only(tmp_path) -> None:
    made, rules = spoken(BEACH, "And so on."), LineRules(width=20, count=1)
    assert LineRules() == PLAIN and PLAIN.plain
    assert srt(made, PLAIN) == srt(made) and vtt(made, PLAIN) == vtt(made)
    render = {f.name: f.render(made) for f in formats("all", rules)}
    assert (render["txt"], render["tsv"]) == (txt(made), tsv(made))
    assert render["srt"] == srt(made, rules) != srt(made)
    assert render["vtt"] == vtt(made, rules) != vtt(made)
    assert made.save(tmp_path / "a.srt", rules).read_text() == srt(made, rules)
