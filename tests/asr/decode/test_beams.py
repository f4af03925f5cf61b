"""Windows that are searched with beams: everywhere, or where their most probable words are doubtful."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, WhisperFeatureExtractor

from forescribe.asr.decode import judge
from forescribe.asr.decode.options import Guards
from forescribe.asr.decode.transcriber import Decoded, Options, Transcriber
from forescribe.asr.errors import UsageError
from forescribe.asr.model.presets import BEAMS
from forescribe.asr.model.rules import whisper_rules
from forescribe.speculative.requests import Beams
from tests.asr.model import folders
from tests.asr.recordings import cut
from tests.real import TINY, model, voice
from tests.speculative.plain_beams import searched_plainly

from .ways import WAYS, called

pytestmark = pytest.mark.usefixtures("encoded_once")

PARTS = [cut("noisy.flac", span) for span in ((0, 6.6), (30.9, 36), (44.4, 49.3))]
WORN = cut("memo.flac", (20, 25))
"""Its words are others with beams ("are worn") than without ("were worn")."""
KNOWN: list[tuple[int, ...]] = []
"""Texts of plain beam search of these, which take long."""


@pytest.fixture(scope="module")
def one() -> Transcriber:
    return Transcriber.load("tiny.en", device="cpu", dtype="float32", batch=2, beam_size=1)


def searched(plain: Transcriber, decoded: Decoded) -> tuple[int, ...]:
    """The tokens of a window by plain beam search over transformers' modules."""
    assert decoded.encoder_states is not None
    whisper, states = plain.whisper, decoded.encoder_states.target[None].float()
    target, heard = whisper.target, DynamicCache()

    def forward(text: Tensor) -> Tensor:
        """Over all of the text each time. Keys and values of what is heard stay, and only the last position
        is asked for a word: both are most of the cost otherwise."""
        cache = EncoderDecoderCache(DynamicCache(), heard)
        read = target.model.decoder(
            text[None], encoder_hidden_states=states, past_key_values=cache, use_cache=True
        )
        logits: Tensor = target.proj_out(read.last_hidden_state[:, -1:])[0]
        return logits

    positions = target.config.max_target_positions
    text, _ = searched_plainly(
        forward,
        decoded.result.request,
        eos=whisper.tokens.end,
        longest=positions // 2,
        positions=positions,
        processors=whisper_rules(target.generation_config, target.config),
    )
    return text


@WAYS
def test_every_window_has_the_text_of_its_beams(way, one) -> None:
    beams = Beams(2, patience=1.5, length_penalty=0.5)
    options = Options(
        beam_size=2, patience=1.5, length_penalty=0.5, keep_encoder_states=True, guards=Guards()
    )
    windows = [window for outcome in way(one, PARTS, options) for window in outcome.decoded]
    assert len(windows) == len(PARTS)
    if not KNOWN:
        plain = Transcriber.load("tiny.en", "none", device="cpu", engine="modules", modules=True)
        KNOWN.extend(searched(plain, window) for window in windows)
    assert [window.result.tokens for window in windows] == KNOWN
    assert all(window.result.request.beams == beams for window in windows)
    assert one.context.idle and one.engine.free == 2


@pytest.mark.parametrize(
    ("gamma", "batch"),
    [
        pytest.param(1, 2, marks=pytest.mark.nightly),
        pytest.param(4, 1, marks=pytest.mark.nightly),
        (None, 3),
    ],
)
def test_drafts_behind_beams_change_neither_words_nor_probabilities(gamma, batch, one) -> None:
    """Also behind previous text, with patience and where terms are sought."""
    drafted = Transcriber(one.whisper, batch=batch, gamma=gamma)
    plain = Transcriber(one.whisper, batch=batch, gamma=0)
    for given in (
        {},
        {"patience": 2.0, "initial_prompt": "A talk about machines."},
        {"terms": ("rollers", "Birch"), "timestamps": False},
    ):
        options = Options(beam_size=BEAMS, language="en", **given)
        found, expected = (
            [d.result for o in called(made, PARTS, options) for d in o.decoded]
            for made in (drafted, plain)
        )
        assert [r.tokens for r in found] == [r.tokens for r in expected]
        for result, other in zip(found, expected, strict=True):
            assert result.logprobs == pytest.approx(other.logprobs, abs=1e-5)
            assert result.draft_error is None and result.rounds <= other.rounds
    assert drafted.stats().accepted > 0 == plain.stats().drafted


@pytest.mark.nightly  # CI searches the bundled model
@pytest.mark.weights
def test_published_weights_have_the_text_of_their_beams() -> None:
    options = Options(language="en", beam_size=BEAMS, keep_encoder_states=True)
    folder, path = str(model(TINY)), str(voice("jfk"))
    (outcome,) = called(Transcriber.load(folder, "none", device="cpu"), [path], options)
    plain = Transcriber.load(folder, "none", device="cpu", engine="modules", modules=True)
    for decoded in outcome.decoded:
        assert decoded.result.tokens == searched(plain, decoded)


def test_doubtful_windows_alone_are_searched(one, monkeypatch) -> None:
    kept = Options(guards=Guards(), keep_encoder_states=True)
    found = {}
    for size, between in ((1, False), (BEAMS, False), ("auto", True)):
        if between:
            means = sorted(sum(r.logprobs) / len(r.logprobs) for r in found[1].values())
            monkeypatch.setattr(judge, "DOUBTFUL_LOGPROB", (means[0] + means[-1]) / 2)
        outcomes = called(one, PARTS, replace(kept, beam_size=size))
        found[size] = {n: outcome.decoded[0].result for n, outcome in enumerate(outcomes)}
    with_beams = {part for part, result in found["auto"].items() if result.request.beams}
    assert 0 < len(with_beams) < len(found["auto"])
    for part, result in found["auto"].items():
        if part in with_beams:
            assert result.request.beams == Beams(BEAMS)
        else:
            assert result.tokens == found[1][part].tokens


@pytest.mark.parametrize("size", [1, 2, "auto"])
def test_beams_everywhere_hear_zeros_behind_a_window(one, size) -> None:
    """As openai/whisper's `transcribe` pads; others hear silence, as transformers' extractor pads."""
    samples, rate = PARTS[0]
    (outcome,) = called(one, [PARTS[0]], Options(beam_size=size, keep_encoder_states=True))
    plain = Transcriber.load(
        "tiny.en", "none", device="cpu", engine="modules", modules=True
    ).whisper
    extract = WhisperFeatureExtractor(feature_size=plain.target.config.num_mel_bins)
    short = [d for d in outcome.decoded if d.length < 25 * rate]
    assert short
    for decoded in short:
        assert decoded.encoder_states is not None
        heard = samples[decoded.start : decoded.end]
        features = extract(heard, sampling_rate=rate, return_tensors="pt").input_features
        if size == 2:
            features[..., -(-len(heard) // 160) :] = 0
        states = plain.target.model.encoder(features).last_hidden_state[0]
        assert torch.allclose(decoded.encoder_states.target, states, atol=0.02)


def test_beams_of_several_sizes_take_turns(one) -> None:
    for size in (2, 3):
        (outcome,) = called(one, ["samples/silence.flac", PARTS[0]], Options(beam_size=size))[1:]
        assert outcome.transcript is not None and list(one.engine._groups) == [size]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"beam_size": 0}, "beam_size is 0"),
        ({"beam_size": 1000}, "from 1 to 32"),
        ({"beam_size": "five"}, "beam_size is .*five"),
        ({"beam_size": True}, "beam_size is True"),
        ({"beam_size": 2.5}, "beam_size is 2.5"),
        ({"beam_size": 5, "patience": -1}, "patience is -1"),
        ({"beam_size": 5, "length_penalty": 2}, "from 0 to 1"),
        ({"beam_size": 1, "patience": 2.0}, "give beam_size 2 or more"),
    ],
)
def test_impossible_options_are_refused(fields, told) -> None:
    with pytest.raises(UsageError, match=told):
        Options(**fields)


KEPT = Options(language="en", keep_encoder_states=True)


def test_a_call_is_searched_as_its_transcriber_is_and_that_as_its_model(one) -> None:
    """Five beams with the bundled model; what a call asks for goes first."""
    assert one.whisper.beams == BEAMS
    by_size = {}
    for made, asked, told in (
        (None, None, BEAMS),
        (None, 1, 1),
        (BEAMS, None, BEAMS),
        (1, None, 1),
        ("auto", None, "auto"),
        (1, BEAMS, BEAMS),
    ):
        transcriber = Transcriber(one.whisper, batch=2, gamma=0, beam_size=made)
        (outcome,) = called(transcriber, [WORN], replace(KEPT, beam_size=asked))
        assert outcome.transcript.settings["beam_size"] == told
        if told != "auto":
            expected = None if told == 1 else Beams(told)
            assert {d.result.request.beams for d in outcome.decoded} == {expected}
            by_size.setdefault(told, set()).add(outcome.transcript.text)
    assert [len(texts) for texts in by_size.values()] == [1, 1]
    assert by_size[1] != by_size[BEAMS]


def test_what_a_call_leaves_out_is_checked_with_its_transcribers_beams(one) -> None:
    searched, plain = (
        Transcriber(one.whisper, batch=1, gamma=4, beam_size=size) for size in (None, 1)
    )
    with pytest.raises(UsageError, match="give beam_size 2 or more"):
        plain.transcribe(["never opened"], Options(patience=2.0))
    (outcome,) = called(searched, [WORN], replace(KEPT, patience=2.0))
    assert {d.result.request.beams for d in outcome.decoded} == {Beams(BEAMS, patience=2.0)}


def test_a_folder_is_searched_with_the_beams_that_it_names(tmp_path) -> None:
    target = folders.write(tmp_path / "target", max_target_positions=24)
    options = json.loads((target / "generation_config.json").read_text())
    for number in (3, None):
        options["num_beams"] = number
        (target / "generation_config.json").write_text(json.dumps(options))
        loaded = Transcriber.load(str(target), device="cpu", network=False)
        assert loaded.whisper.beams == (number or BEAMS)  # it is narrow
