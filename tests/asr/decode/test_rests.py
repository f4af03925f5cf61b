"""No voiced second stays undecoded unnoticed: windows go on behind their last word, and voice without words
is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from itertools import count, cycle, pairwise
from unittest.mock import Mock

import jiwer
import numpy as np
import pytest
import soundfile
import torch

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode import judge
from forescribe.asr.decode.context import DecodingContext
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.guards import Judgement
from forescribe.asr.decode.judge import (
    LAST_WORD,
    LEAST,
    NOTHING_MORE,
    REPEATED,
    STRETCHED,
    answer_of,
    reached,
    wordless_of,
)
from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.planned import Group
from forescribe.asr.decode.requests import previous_text
from forescribe.asr.decode.results import Decoded
from forescribe.asr.decode.text import Stretch, written
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.segment.vad import Loudness
from forescribe.asr.segment.windows import Window
from forescribe.asr.words.timing import TokenTimes
from forescribe.speculative.requests import Finish, Request, Result, Source
from tests.asr.decode.ways import Ear, running

pytestmark = pytest.mark.usefixtures("encoded_once")

SECONDS = 34
"""Of the memo: two windows."""
MOST = 3  # parts of a window that hardly advances

RATE = 16_000
ENGLISH = Options(language="en")


@pytest.fixture(scope="module")
def demo() -> Transcriber:
    return Transcriber.load("tiny.en", batch=3, device="cpu", beam_size=1)


@pytest.fixture(scope="module")
def memo(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("memo") / "memo.wav")
    soundfile.write(path, read_audio("samples/memo.flac")[: SECONDS * RATE], RATE, "FLOAT")
    return path


@pytest.fixture(scope="module")
def whole(demo, memo) -> Outcome:
    (outcome,) = demo.transcribe([memo], ENGLISH)
    assert outcome.transcript.coverage.wordless_samples == 0
    return outcome


@pytest.fixture(scope="module")
def closed(demo, memo) -> Callable[..., Outcome]:
    """What becomes of answers that are closed early or late, each decoded once, with word times; parts read
    the text before them where they are `conditioned`."""

    @cache
    def read(moment: str, conditioned: bool = True) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            answers(patch, CLOSED[moment](demo))
            options = replace(ENGLISH, words=True, keep_encoder_states=True)
            if not conditioned:
                rest = Window.rest
                patch.setattr(Window, "rest", lambda *args, alone: rest(*args, alone=True))
            (outcome,) = demo.transcribe([memo], options)
        return outcome

    return read


def cut_short(transcriber: Transcriber, tokens: tuple[int, ...]) -> int:
    """How many tokens of an answer are left when it is closed behind its first segment; 0 for all."""
    begin = transcriber.whisper.tokens.timestamp_begin
    stamps = [i for i, token in enumerate(tokens) if token >= begin]
    return stamps[1] + 1 if len(stamps) > 2 else 0


def answers(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Result], Result], only: int | None = None
) -> None:
    """Have the engine's answers changed; `only` the first ones."""
    original, turns = DecodingContext.ended, count()

    def changed(self: DecodingContext, results: Iterable[Result]) -> list[Result]:
        ended = original(self, results)
        return [change(each) if only is None or next(turns) < only else each for each in ended]

    monkeypatch.setattr(DecodingContext, "ended", changed)


def with_tokens(result: Result, tokens: tuple[int, ...]) -> Result:
    count = len(tokens)
    return replace(
        result,
        tokens=tokens,
        logprobs=(*result.logprobs, *([-0.1] * count))[:count],
        sources=(*result.sources, *result.sources[:1] * count)[:count],
    )


def closed_early(transcriber: Transcriber) -> Callable[[Result], Result]:
    def change(result: Result) -> Result:
        left = cut_short(transcriber, result.tokens)
        if not left:
            return result
        # As Whisper does: the last timestamp twice, and the end.
        kept = result.tokens[:left]
        return with_tokens(result, (*kept, kept[-1], transcriber.whisper.tokens.end))

    return change


def closed_late(transcriber: Transcriber) -> Callable[[Result], Result]:
    """As whisper-base closed eighteen tokens at the end of 23.5 s of speech."""
    special = transcriber.whisper.tokens

    def change(result: Result) -> Result:
        if result.request.tag.window.part:
            return result
        text = [t for t in result.tokens if t < special.end]
        stamps = [t for t in result.tokens if special.stamp(t) is not None]
        return with_tokens(result, (stamps[0], *text[:12], stamps[-1], special.end))

    return change


CLOSED = {"early": closed_early, "late": closed_late}


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalnum() or c == " ").split()


def test_an_answer_that_is_closed_early_loses_no_words(whole, closed) -> None:
    outcome = closed("early")
    made = outcome.transcript
    assert sum(d.continued for d in outcome.decoded) >= 3
    found = jiwer.process_words(" ".join(words(whole.transcript.text)), " ".join(words(made.text)))
    # Without the words before it, the model may write one otherwise; none is left out or written twice.
    assert found.deletions + found.insertions <= 1 and found.substitutions <= 3
    assert made.coverage.sample_count == made.sample_count == whole.transcript.sample_count
    assert made.coverage.failed_samples == made.coverage.wordless_samples == 0
    assert [w.code for w in made.warnings] == []
    starts = [s.start_sample for s in made.segments]
    assert starts == sorted(starts)
    assert "".join(w.text for s in made.segments for w in s.words).strip() == made.text
    for part in outcome.decoded:
        own = [s for s in made.segments if s.window_sample == part.start]
        assert all(
            part.start <= w.start_sample <= w.end_sample <= part.end for s in own for w in s.words
        )


def test_a_part_is_what_its_samples_are_alone(demo, memo, closed) -> None:
    """Where it does not read the text before it."""
    outcome = closed("early", conditioned=False)
    samples = read_audio(memo)
    ends = {d.index: d.end for d in outcome.decoded}  # of the last part: the window's own
    parts = [d for d in outcome.decoded if d.start not in (0, *(e for e in ends.values()))]
    assert len(parts) >= 3
    plain = Transcriber(demo.whisper, batch=1, gamma=0, beam_size=1)
    alone = replace(ENGLISH, vad=False, keep_encoder_states=True)
    for part in parts:
        (found,) = plain.transcribe([(samples[part.start : ends[part.index]], RATE)], alone)
        expected = found.decoded[0].result.tokens
        left = cut_short(demo, expected) or len(expected)
        assert part.result.tokens[:left] == expected[:left]


def continued(outcome: Outcome) -> list[tuple[Decoded, Decoded]]:
    """Each further part of a window, behind the one before it."""
    return [(a, b) for a, b in pairwise(outcome.decoded) if a.continued]


def test_a_part_reads_the_text_before_it(demo, memo, monkeypatch, closed) -> None:
    outcome = closed("early")
    special = demo.whisper.tokens
    assert len(continued(outcome)) >= 3
    for before, part in continued(outcome):
        text = previous_text(before.tokens, special)
        prompt = special.prompt("en", "transcribe", timestamps=True, previous=text)
        assert len(text) > 5 and part.result.request.prompt == prompt
    plain = Transcriber(demo.whisper, batch=1, gamma=0, beam_size=1)
    answers(monkeypatch, closed_early(plain))
    (alone,) = plain.transcribe([memo], ENGLISH)
    assert alone.transcript.text == outcome.transcript.text


@pytest.mark.parametrize(
    ("repeats", "logprob", "no_speech"),
    [
        (True, -0.1, 0.0),
        pytest.param(False, -1.1, 0.0, marks=pytest.mark.nightly),
        (False, -1.1, 0.9),
        (False, -0.1, 0.0),
    ],
)
def test_a_part_that_its_text_misleads_is_decoded_without_it(
    demo, memo, monkeypatch, closed, repeats, logprob, no_speech
) -> None:
    """It says the text again, or the guards reject its answer."""
    special, change, parts = demo.whisper.tokens, closed_early(demo), set[int]()

    def again(result: Result) -> Result:
        window = result.request.tag.window
        if not window.part or special.previous not in result.request.prompt:
            return change(result)
        parts.add(window.start)
        text = [t for t in window.before if t < special.end]
        said = with_tokens(
            result, (special.timestamp_begin, *text[-8:][: 8 * repeats], special.end)
        )
        said = replace(said, logprobs=(logprob,) * len(said.tokens))
        return replace(said, probe=(no_speech, *said.probe[1:]))

    answers(monkeypatch, again)
    guards = Guards(temperatures=(0.0, 0.4))
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, guards=guards))
    expected = closed("early", conditioned=False).transcript
    assert len(parts) >= 2
    assert (outcome.transcript.text == expected.text) == (repeats or logprob < -1)


def test_a_session_goes_on_as_a_call_does(demo, memo, monkeypatch, closed) -> None:
    """Without word times."""
    called = closed("late")
    answers(monkeypatch, closed_late(demo))
    with running(Session(demo.context, readers=1)) as session:
        listener = Ear()
        session.submit(memo, ENGLISH, listener)
        outcome = listener.outcome()
    assert outcome.transcript.text == called.transcript.text
    assert outcome.transcript.coverage == called.transcript.coverage
    assert "".join(part.text for part in listener.parts).strip() == called.transcript.text
    parts = [d for d in outcome.decoded if d.continued]
    assert parts and any(len(d.tokens) < len(d.result.tokens) for d in parts)
    groups = [Group(outcome.decoded, (None,) * len(outcome.decoded), "en", 1.0)]
    (kept,) = [Group.from_dict(json.loads(json.dumps(g.to_dict()))) for g in groups]
    assert [d.tokens for d in kept.decoded] == [d.tokens for d in outcome.decoded]


def test_without_timestamps_windows_go_on_behind_the_last_word(
    demo, memo, whole, monkeypatch
) -> None:
    def half(result: Result) -> Result:
        text = [t for t in result.tokens if t < demo.whisper.tokens.end]
        return with_tokens(result, (*text[: len(text) // 2], demo.whisper.tokens.end))

    answers(monkeypatch, half, only=2)
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, timestamps=False))
    made = outcome.transcript
    assert len(made.text) > 0.95 * len(whole.transcript.text)
    assert made.coverage.failed_samples == 0


def test_a_closing_timestamp_behind_words_that_are_not_written_is_not_believed(
    whole, closed
) -> None:
    outcome = closed("late")
    made = outcome.transcript
    assert {d.index for d in outcome.decoded if d.continued} == {0, 1}
    found = jiwer.process_words(" ".join(words(whole.transcript.text)), " ".join(words(made.text)))
    assert found.deletions + found.insertions == 0 and found.substitutions <= 2
    starts = [s.start_sample for s in made.segments]
    assert starts == sorted(starts)
    assert all(a.end_sample <= b.start_sample for a, b in pairwise(made.segments))


@pytest.mark.parametrize(
    ("closed_s", "short_from", "sampled"), [(0.1, 0.0, False), (30.0, 0.0, False), (0.1, 0.2, True)]
)
def test_a_short_answer_in_a_long_window_is_not_sampled(
    demo, memo, whole, monkeypatch, closed_s, short_from, sampled
) -> None:
    """What it leaves of the window is decoded as a part, also where its timestamp leaves nothing. One that
    was sampled ends nothing."""
    special, asked = demo.whisper.tokens, list[Result]()

    def change(result: Result) -> Result:
        asked.append(result)
        window = result.request.tag.window
        if window.start:
            return result
        stop = special.timestamp_begin + round(50 * min(closed_s, window.end / RATE))
        if result.request.temperature < short_from:
            return replace(result, logprobs=(-1.2,) * len(result.tokens))
        changed = with_tokens(result, (*result.tokens[:4], stop, special.end))
        return replace(changed, logprobs=(*4 * [-0.2], -6.2, -0.2))

    answers(monkeypatch, change)
    guards = Guards(temperatures=(0.0, 0.4))
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, guards=guards))
    made, tried = outcome.transcript, {result.request.temperature for result in asked}
    assert tried == ({0.0, 0.4} if sampled else {0.0})
    assert made.text.startswith("This is a")
    assert made.segments[0].doubt == "improbable (mean log-probability -1.20)"
    if not sampled:
        assert len(made.text) > 0.9 * len(whole.transcript.text)
        assert not any(segment.doubt for segment in made.segments[1:])


def test_a_voice_without_words_is_told(demo, memo, whole, monkeypatch) -> None:
    end = demo.whisper.tokens.end
    answers(monkeypatch, lambda result: with_tokens(result, (end,)), only=1)
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, keep_encoder_states=True))
    made = outcome.transcript
    (silent,) = [d for d in outcome.decoded if d.result.tokens == (end,)]
    assert not silent.continued and silent.reach == silent.start
    (lost,) = [span for span in made.coverage.spans if span.state == "failed"]
    assert (lost.start_sample, lost.end_sample) == (silent.start, silent.end)
    assert made.coverage.wordless_samples > 0.5 * silent.length
    (notice,) = [w for w in made.warnings if w.code == "voice_without_words"]
    assert f"{made.coverage.wordless_samples / 16_000:.1f} s" in notice.message
    assert len(made.text) < 0.9 * len(whole.transcript.text)


@pytest.mark.parametrize(
    ("logprob", "text", "kept"),
    [(-0.9, " Thank you.", False), (-1.5, " Thank you.", False), (-0.3, " Thank you.", True)],
)
def test_the_end_of_a_word_behind_a_rounded_timestamp_is_no_missed_speech(
    demo, memo, whole, monkeypatch, logprob, text, kept
) -> None:
    """whisper-base closed a reader's answer at 14.00 s, 0.7 s before its end, and wrote "types." there."""
    special, seen = demo.whisper.tokens, list[Window]()
    words = demo.whisper.tokenizer.encode(text, add_special_tokens=False)

    def change(result: Result) -> Result:
        window = result.request.tag.window
        if window.part:
            seen.append(window)
            changed = with_tokens(result, (special.timestamp_begin, *words, special.end))
            return replace(changed, logprobs=(logprob,) * len(changed.tokens))
        *kept, _ = (t for t in result.tokens if t != special.end)
        stop = (
            special.timestamp_begin + round(50 * (window.voiced[-1][1] - window.start) / RATE) - 35
        )
        return with_tokens(result, (*kept, stop, stop, special.end))

    answers(monkeypatch, change)
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, words=True, guards=Guards()))
    made = outcome.transcript
    if kept:
        assert "Thank you." in made.text
        return
    assert len(seen) == 2  # once for each window: nothing was sampled
    assert made.text == whole.transcript.text and not made.warnings
    assert made.coverage.wordless_samples == 0
    ends = [span.end_sample for span in made.coverage.spans if span.reason == LAST_WORD]
    assert ends == sorted(window.end for window in seen)
    # Its end is part of the word before it.
    spoken = [word for segment in made.segments for word in segment.words]
    for window in seen:
        assert any(w.start_sample < window.start < w.end_sample for w in spoken)


@pytest.mark.parametrize(
    ("text", "first", "others", "no_speech", "reason"),
    [
        # Behind a finished sentence: people in the background, and a sentence of its own.
        (" Thank you.", -1.6, -0.1, 0.8, NOTHING_MORE),
        (" Thank you.", -0.3, -0.1, 0.8, None),
        (" Thank you.", -1.6, -0.1, 0.3, None),
        # The rest of an open sentence: its sound alone would say less.
        (" Thank you", -2.0, -3.0, 0.8, "no speech"),
    ],
)
def test_a_short_part_is_judged_once_with_the_text_before_it(
    demo, memo, monkeypatch, text, first, others, no_speech, reason
) -> None:
    special, parts = demo.whisper.tokens, list[Result]()
    before = demo.whisper.tokenizer.encode(
        f" The press prints{'.' * (text[-1] == '.')}", add_special_tokens=False
    )
    words = demo.whisper.tokenizer.encode(text, add_special_tokens=False)

    def change(result: Result) -> Result:
        window = result.request.tag.window
        begin = special.timestamp_begin
        if not window.part:
            end = begin + round(50 * (window.voiced[-1][1] - window.start) / RATE) - 45
            return with_tokens(result, (begin, *before, end, end, special.end))
        parts.append(result)
        changed = with_tokens(result, (begin, *words, special.end))
        logprobs = (-0.1, first, *[others] * (len(words) - 1), -0.1)
        return replace(changed, logprobs=logprobs, probe=(no_speech,))

    answers(monkeypatch, change)
    monkeypatch.setattr(judge, "LEAST", 1)
    monkeypatch.setattr(judge, "reached", lambda *args: (_closed_at(args), args[4]))
    guards = Guards(temperatures=(0.0,))
    (outcome,) = demo.transcribe(
        [(read_audio(memo)[: 9 * RATE], RATE)], replace(ENGLISH, guards=guards)
    )
    assert len(parts) == 1
    doubts = [s.doubt for s in outcome.transcript.segments if s.text.startswith(" Thank")]
    told = [span.reason for span in outcome.transcript.coverage.spans]
    if reason == NOTHING_MORE:
        assert not doubts and NOTHING_MORE in told
    else:
        assert len(doubts) == 1 and (doubts[0] or "").startswith(reason or "")


def _closed_at(args: tuple) -> int:
    """The sample at which an answer's last segment ends."""
    _, _, window, _, _, parts, *_ = args
    return window.start + parts[-1].end


def test_what_was_cut_off_comes_back_where_a_part_has_no_more_words(demo, memo, whole, monkeypatch):
    """Other people's voices make a word last long: nothing was left out there."""
    cut = judge._first_stretched

    def stretched(whisper, language, tokens, bounds, voiced):
        return cut(whisper, language, tokens, bounds, voiced) or (6 if len(tokens) > 20 else None)

    monkeypatch.setattr(judge, "_first_stretched", stretched)
    monkeypatch.setattr(judge, "_leaves_room", lambda *args: True)
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, words=True, keep_encoder_states=True))
    parts = [decoded for decoded in outcome.decoded if decoded.continued]
    assert parts and outcome.transcript.coverage.failed_samples == 0
    assert words(outcome.transcript.text) == words(whole.transcript.text)


@pytest.mark.parametrize(
    ("faint_db", "share", "kept"), [(25.0, 0.3, 0), (25.0, 0.0, 2), (15.0, 0.3, 2), (None, 0.3, 2)]
)
def test_a_doubtful_window_far_below_the_loud_voices_holds_no_words(
    demo, memo, monkeypatch, faint_db, share, kept
) -> None:
    """whisper-base wrote 27 words of a quiet room between two speakers (AMI, trn04)."""

    def change(result: Result) -> Result:
        few = round(share * len(result.tokens))
        return replace(result, logprobs=(*[-0.8] * few, *[-0.1] * (len(result.tokens) - few)))

    answers(monkeypatch, change)
    monkeypatch.setattr(Loudness, "faint_db", lambda self, samples, heard=None: faint_db)
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, guards=Guards()))
    made = outcome.transcript
    assert len({s.window for s in made.segments}) == kept
    told = [span.reason for span in made.coverage.spans if span.state == "silent"]
    assert any(re.match(r"25 dB below the loud voices, and \d+ of", r or "") for r in told) == (
        not kept
    )


@pytest.mark.parametrize(("share", "doubtful"), [(0.0, False), (0.1, False), (0.3, True)])
def test_a_text_of_improbable_words_is_told(demo, memo, monkeypatch, share, doubtful) -> None:
    """The guards keep it, as its mean log-probability is above theirs."""

    def change(result: Result) -> Result:
        few = round(share * len(result.tokens))
        logprobs = (*[-0.8] * few, *[-0.1] * (len(result.tokens) - few))
        return replace(result, logprobs=logprobs)

    answers(monkeypatch, change)
    (outcome,) = demo.transcribe([memo], replace(ENGLISH, guards=Guards()))
    made = outcome.transcript
    assert bool([s for s in made.segments if s.doubt]) == doubtful
    assert [w.code for w in made.warnings] == ["doubtful_text"] * doubtful
    if doubtful:
        (notice,) = made.warnings
        reasons = {s.doubt for s in made.segments}
        assert all(re.fullmatch(r"\d+ of \d+ words are improbable", r) for r in reasons)
        assert all(reason in notice.message for reason in reasons)
        assert reasons == {s.reason for s in made.coverage.spans if s.state == "decoded"}


def test_an_answer_that_hardly_advances_ends(demo, memo, monkeypatch) -> None:
    """Each part would go on 0.02 s later; the voice that is left is told."""
    monkeypatch.setattr(judge, "MOST_PARTS", MOST)
    made, parts = _stuck(
        demo, memo, monkeypatch, [f" {word}" for word in "a the of to in it is on at or".split()]
    )
    assert len(parts) == MOST + 1
    assert made.coverage.failed_samples > 0.5 * made.sample_count
    assert made.coverage.wordless_samples > 0.3 * made.sample_count
    assert "voice_without_words" in [w.code for w in made.warnings]


@pytest.mark.parametrize("timestamps", [True, False])
def test_a_part_that_repeats_the_one_before_it_is_left_out(
    demo, memo, monkeypatch, timestamps
) -> None:
    """whisper-base wrote "Et" eight times for 30 s of English that began with French."""
    made, parts = _stuck(demo, memo, monkeypatch, [" Et"], timestamps=timestamps)
    assert [d.state for d in parts] == ["decoded", "failed"]
    assert parts[1].reason == REPEATED and made.text.split()[0] == "Et"
    assert made.coverage.failed_samples > 0.5 * made.sample_count
    assert made.coverage.wordless_samples > 0.3 * made.sample_count
    assert "failed_windows" in [w.code for w in made.warnings]


def _stuck(demo, memo, monkeypatch, texts, *, timestamps=True):
    """The transcript and the parts of a window in which every answer is one word, of `texts` in turn, and
    advances by 0.02 s."""
    special = demo.whisper.tokens
    turns = cycle(
        demo.whisper.tokenizer.encode(text, add_special_tokens=False)[0] for text in texts
    )
    begin = special.timestamp_begin

    def one_word(result: Result) -> Result:
        if not timestamps:
            return with_tokens(result, (next(turns), special.end))
        return with_tokens(result, (begin, next(turns), begin + 1, begin + 1, special.end))

    answers(monkeypatch, one_word)
    options = replace(ENGLISH, timestamps=timestamps, keep_encoder_states=True)
    (outcome,) = demo.transcribe([(read_audio(memo)[: 20 * RATE], RATE)], options)
    first = outcome.decoded[0].index
    return outcome.transcript, [d for d in outcome.decoded if d.index == first]


def test_where_no_voice_was_detected_no_speech_is_what_its_own_token_says(demo) -> None:
    """The first number of a probe; the others are those of languages."""
    tokens = demo.whisper.tokenizer.encode(" Nobody else was there.", add_special_tokens=False)
    said, pending = len(tokens), Mock(window=Mock(unheard=True))
    for probe, judgement in (((0.9, 0.0), Judgement.SILENCE), ((0.0, 0.9), Judgement.KEEP)):
        result = Result(Request((1,)), tuple(tokens), (-0.1,) * said, (Source.PLAIN,) * said,
                        Finish.STOP, rounds=said, drafted=0, accepted=0, probe=probe)  # fmt: skip
        assert answer_of(demo.whisper, None, result, pending).judgement is judgement


def test_voice_between_segments_is_counted_where_it_is_more_than_a_word_lasts() -> None:
    of = partial(wordless_of, RATE, RATE + 20 * LEAST, ((RATE, RATE + 20 * LEAST),))
    few = [Stretch(0, 8 * LEAST, (1,)), Stretch(8 * LEAST + STRETCHED, 20 * LEAST, (1,))]
    assert of(few) == ((), None)
    more = [Stretch(0, 8 * LEAST, (1,)), Stretch(9 * LEAST + STRETCHED, 20 * LEAST, (1,))]
    assert of(more) == (((RATE + 8 * LEAST, RATE + 9 * LEAST + STRETCHED),), None)
    found, reach = of([Stretch(LEAST + STRETCHED, 19 * LEAST, (1,))])
    assert reach == RATE + 19 * LEAST
    assert found == ((RATE, RATE + LEAST + STRETCHED), (reach, RATE + 20 * LEAST))


@pytest.mark.parametrize("between", ["voice", "silence", "words, by the attention"])
def test_an_answer_goes_no_further_than_to_voice_between_its_segments(
    demo, monkeypatch, between
) -> None:
    """In a window within a recording. With silence between them the attention is not asked; where that puts
    their words elsewhere, the timestamps were wrong."""
    special, begin = demo.whisper.tokens, demo.whisper.tokens.timestamp_begin
    encode = partial(demo.whisper.tokenizer.encode, add_special_tokens=False)
    few, many = encode(" Yes."), encode(" and then the two of them went on to tell us" * 2)
    # Quick speech: with fewer tokens for its voice, the second segment alone would be doubtful.
    tokens = (begin, *few, begin + 25, begin + 150, *many, begin + 350, special.end)
    start, asked = 30 * RATE, []

    def attention(whisper, utterances, beside):
        asked.append(utterances)
        first = [0, RATE // 4, 17 * RATE // 10, 32 * RATE // 10]  # both words reach over the gap
        if between.startswith("words"):
            first = [0, RATE // 4, RATE // 2, 8 * RATE // 10]
        left = len(few) + len(many) + 1 - len(first)
        rest = [first[-1] + (7 * RATE - first[-1]) * n // left for n in range(1, left + 1)]
        boundaries = (*first, *rest)
        return [TokenTimes(boundaries, (1.0,) * (len(boundaries) - 1))]

    monkeypatch.setattr(judge, "token_times", attention)
    end, said = start + 7 * RATE, ((start, start + RATE // 2), (start + 3 * RATE, start + 7 * RATE))
    samples = np.zeros(10 * RATE, np.float32)
    voiced = said if between == "silence" else ((start, end),)
    window = Window(0, start, start + 10 * RATE, True, samples, voiced)
    parts, states = written(demo.whisper, tokens, window.length), EncoderStates(torch.zeros(1))
    found = reached(demo.whisper, ENGLISH, window, "en", tokens, parts, states)
    if between == "voice":
        kept = tokens[: tokens.index(begin + 150) + 1]
        assert found == (start + RATE // 2, kept)
    else:
        assert (found, bool(asked)) == ((end, tokens), between != "silence")
