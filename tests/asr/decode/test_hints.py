"""Hints: scripts and earlier text that drafts are copied from, and no word depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forescribe.asr.decode.requests import SCRIPT_SLOTS, hint_for, hint_tokens
from forescribe.asr.decode.transcriber import Options, Transcriber
from tests.asr.model import folders
from tests.asr.recordings import write

OPTIONS = Options(language="de", vad=False, keep_encoder_states=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return folders.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write(tmp_path_factory.mktemp("noise"), (35, 4), seed=1, noise=(0.1, 0.1))


def loaded(pair, draft: str | None = None, **options) -> Transcriber:
    target, own = map(str, pair)
    return Transcriber.load(target, draft or own, device="cpu", batch=3, **options)


def tokens_of(transcriber: Transcriber, recordings: list[str], options: Options) -> dict:
    outcomes = list(transcriber.transcribe(recordings, options))
    assert not transcriber.engine.faults
    return {o.name: [d.result.tokens for d in o.decoded] for o in outcomes}


@pytest.fixture(scope="module")
def plain(pair, recordings):
    """Tokens without drafts."""
    return tokens_of(loaded(pair, gamma=0), recordings, OPTIONS)


@pytest.mark.parametrize("gamma", [5, None])
@pytest.mark.parametrize("draft", [None, "none"])
def test_no_hint_changes_a_token(pair, recordings, plain, draft, gamma):
    one = loaded(pair, draft, gamma=gamma)
    right = one.whisper.tokenizer.decode(
        [t for windows in plain.values() for tokens in windows for t in tokens],
        skip_special_tokens=True,
    )
    odd = ("<|endoftext|> a <|0.00|> b", "a b " * 3000, "  ", None) if draft is None else ()
    for hint in (right, right[::-1], *odd):
        assert tokens_of(one, recordings, replace(OPTIONS, hint=hint)) == plain


def test_a_hint_is_a_windows_hint_and_holds_no_special_token(pair, recordings):
    one = loaded(pair, gamma=3)
    options = replace(OPTIONS, hint=" a b <|endoftext|> c ")
    (outcome,) = one.transcribe(recordings[:1], options)
    ids = hint_tokens(one.whisper, options.hint)
    assert ids and max(ids) < one.whisper.tokens.end
    assert len(outcome.decoded) > 1
    assert {decoded.result.request.hint for decoded in outcome.decoded} == {ids}


def test_of_a_very_long_text_a_window_gets_the_part_around_its_place():
    class Tag:
        class recording:
            class audio:
                declared_s: float | None = 100.0

        class window:
            start = 0

    hint = tuple(range(3 * SCRIPT_SLOTS))
    assert hint_for(Tag, hint)[0] == 0
    Tag.window.start = 50 * 16000
    assert hint_for(Tag, hint)[SCRIPT_SLOTS // 2] == len(hint) // 2
    Tag.window.start = 100 * 16000
    assert hint_for(Tag, hint)[-1] == hint[-1] and len(hint_for(Tag, hint)) == SCRIPT_SLOTS
    Tag.recording.audio.declared_s = None
    assert hint_for(Tag, hint) == hint[:SCRIPT_SLOTS]
    assert hint_for(Tag, hint[:9]) == hint[:9]
