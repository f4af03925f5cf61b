"""Terms by the bundled pair on the samples: written where the model agrees, whatever drafts and engine do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forescribe.asr.decode.context import DecodingContext
from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.words.second_look import Held
from forescribe.speculative import Request
from tests.asr.recordings import SAMPLES, cut

pytestmark = pytest.mark.usefixtures("encoded_once")

MEMO = cut("memo.flac", (0, 25), (34.7, 39.2), (56.2, 62.7))
"""What the terms are in, and an end: two windows."""
SHORT = cut("memo.flac", (5.1, 10.4), (34.7, 39.2))
TERMS = ("Hellen Porter", "Tewsday *10", "Denvor", "Kubernetes", "broshures", "maine press")
OPTIONS = Options(language="en", guards=Guards(), words=True, terms=TERMS)
REPLACEMENTS = (
    "helen porter => Elena Portier",
    "new plant =>",
    "four hundred => 400",
    r"/September (\d+)/ => \1 September",
    "/(.|..)+[0-9#]$/ => never",
)


def load(**options) -> Transcriber:
    given = {
        "device": "cpu",
        "network": False,
        "language": "en",
        "batch": 4,
        "beam_size": 1,
    } | options
    return Transcriber.load("tiny.en", given.pop("draft", None), **given)


def made(transcriber: Transcriber, options: Options, source: object = MEMO) -> Transcript:
    (outcome,) = transcriber.transcribe([source], options)
    assert outcome.error is None
    return outcome.transcript


@pytest.fixture(scope="module")
def plain() -> Transcriber:
    return load(draft="none", gamma=0)


@pytest.fixture(scope="module")
def written(plain) -> Transcript:
    return made(plain, OPTIONS)


@pytest.fixture(scope="module")
def without(plain) -> Transcript:
    """No terms."""
    return made(plain, replace(OPTIONS, terms=()))


def told(transcript: Transcript) -> list[tuple[str, str]]:
    """What was heard and what is written, each where the correction says."""
    found = []
    for segment in transcript.segments:
        for own in segment.corrections:
            assert segment.text[own.at :].startswith(own.written)
            found.append((own.heard, own.written))
    return found


@pytest.mark.parametrize(
    ("lines", "terms", "corrections"),
    [
        # The last word is gone when an expression matches.
        (("listening =>", "/October/ => Oktober"), (), {("listening", ""), ("October", "Oktober")}),
        (("/(?i)porter/ => Portier",), ("Hellen Porter",), {("Helen Porter", "Hellen Portier")}),
        # From what was heard to what is written at last, not from what only the term has written.
        (
            ("hellen => Ms", "porter => Portier"),
            TERMS,
            {("Tuesday", "Tewsday"), ("Helen Porter", "Ms Portier")},
        ),
        ((), ("Denver. *9", "tHis *9"), set()),
    ],
)
def test_changes_behind_each_other_are_told(plain, lines, terms, corrections) -> None:
    transcript = made(plain, replace(OPTIONS, terms=terms, replacements=lines))
    assert set(told(transcript)) >= corrections and "Hellen" not in dict(told(transcript))
    assert ".." not in transcript.text and "THis" not in transcript.text


def test_terms_are_written_where_they_are_heard_and_nothing_else_changes(
    written, without, tmp_path
) -> None:
    changes = told(written)
    # The others are alike too, and the model is sure of what it has written.
    assert changes == [("Tuesday", "Tewsday"), ("Helen Porter", "Hellen Porter")]
    restored = written.text
    for old, new in changes:
        restored = restored.replace(new, old, 1)
    assert restored == without.text and told(without) == []
    assert "".join(word.text for word in written.words).strip() == written.text
    assert written.settings["terms"] == len(TERMS)
    assert {c.source for s in written.segments for c in s.corrections} == {"terms"}
    written.save(tmp_path / "memo.json")
    assert told(Transcript.load(tmp_path / "memo.json")) == changes


@pytest.mark.parametrize(
    "loading",
    [{"gamma": 1, "batch": 1}, {"gamma": 4}, {"draft": "none", "gamma": 4}],
    ids=lambda given: " ".join(f"{name}={value}" for name, value in given.items()),
)
def test_drafts_and_batch_change_nothing(written, loading) -> None:
    again = made(load(**loading), OPTIONS)
    assert again.text == written.text and told(again) == told(written)


@pytest.mark.native
def test_an_answer_that_the_engine_holds_is_scored_as_one_that_is_read_again(
    plain, written, monkeypatch
) -> None:
    held, found = DecodingContext.held, []

    def kept(self: DecodingContext, request: Request) -> Held | None:
        found.append(held(self, request))
        return found[-1]

    monkeypatch.setattr(DecodingContext, "held", kept)
    by_engine = made(plain, OPTIONS)
    assert found and None not in found and told(by_engine) == told(written)
    monkeypatch.setattr(DecodingContext, "held", lambda *_: None)
    assert made(plain, OPTIONS).segments == by_engine.segments


def test_the_engine_changes_nothing(plain) -> None:
    expected = made(plain, OPTIONS, SHORT)
    again = made(load(gamma=4, engine="modules", modules=True), OPTIONS, SHORT)
    assert again.text == expected.text and told(again) == told(expected) != []


def test_terms_are_known_without_timestamps(plain) -> None:
    assert "Hellen Porter" in made(plain, replace(OPTIONS, timestamps=False), SHORT).text


def test_no_term_is_written_into_noise_or_silence(plain) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 480_000).astype(np.float32)
    for source in ((noise, 16_000), str(SAMPLES / "silence.flac")):
        assert told(made(plain, replace(OPTIONS, vad=False), source)) == []


def test_replacements_keep_times_and_are_told(plain) -> None:
    before = made(plain, replace(OPTIONS, terms=("Hellen Porter",)), SHORT)
    after = made(plain, replace(OPTIONS, terms=(), replacements=REPLACEMENTS), SHORT)
    said = dict(told(after))
    assert said["Helen Porter"] == "Elena Portier" and said["new plant"] == ""
    assert said["September 14"] == "14 September"
    assert "the manager, Elena Portier." in after.text and "on 14 September" in after.text
    (name,) = (word for word in after.words if word.text.strip() == "Elena")
    (old,) = (word for word in before.words if word.text.strip() == "Hellen")
    assert abs(name.start - old.start) < 0.3
    assert [notice.code for notice in after.warnings] == ["slow_replacements"]
    assert "".join(word.text for word in after.words).strip() == after.text
    assert {c.source for s in after.segments for c in s.corrections} == {"replacements"}


def test_the_end_of_a_sentence_stays_when_its_last_word_goes(plain, without) -> None:
    last = without.text.rstrip(".").split()[-2:]
    after = made(plain, replace(OPTIONS, terms=(), replacements=(f"{last[1]} =>",)))
    assert after.text.endswith(f" {last[0]}.")
    own = after.segments[-1].corrections[-1]
    assert (own.heard, own.written) == (last[1], "")
    assert after.segments[-1].text[own.at :] == "."
    gone = made(plain, replace(OPTIONS, terms=(), replacements=tuple(f"{w} =>" for w in last)))
    assert gone.text.endswith(".") and last[0] not in gone.text.split()[-1]


def test_words_have_the_times_of_what_was_heard(plain, without) -> None:
    """However many words replace them: more than the model has positions for."""
    before = without
    every = sorted({w.text.strip(" .,?!").lower() for w in before.words})
    lines = tuple(f"{word} => {word} a b c d e f" for word in every if word.isalpha())
    after = made(plain, replace(OPTIONS, terms=(), replacements=lines))
    assert after.warnings == before.warnings and len(after.words) > 450
    first = [word for word in after.words if word.text.strip(" .,?!") not in tuple("abcdef")]
    assert [w.text.strip(" .,?!").lower() for w in first] == [
        w.text.strip(" .,?!").lower() for w in before.words if w.text.strip() not in ("a", "A")
    ]
    heard = [word for word in before.words if word.text.strip() not in ("a", "A")]
    off = [abs(new.start - old.start) for new, old in zip(first, heard, strict=True)]
    assert float(np.median(off)) < 0.05 and max(off) < 0.5


def test_a_term_that_is_a_special_token_is_refused(plain) -> None:
    with pytest.raises(UsageError, match="special token"):
        plain.transcribe([MEMO], Options(terms=("x <|endoftext|>",)))
