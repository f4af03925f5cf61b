"""The bundled pair, tiny.en and its draft: right on the samples, lossless on them, and what transformers
makes of the same numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jiwer
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, WhisperForConditionalGeneration, WhisperProcessor

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.results import Decoded
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber
from forescribe.asr.errors import UsageError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.speculative import Request, Stats, choose
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models import hub
from forescribe.speculative.models.quantized import as_floats
from forescribe.speculative.models.weights import encoder_of
from tests.asr.decode.test_equality import first_pass

pytestmark = pytest.mark.usefixtures("encoded_once")

SAMPLES = Path(__file__).parents[3] / "samples"
NAMES = ("memo", "conversation", "noisy", "silence")
FILES = [str(SAMPLES / f"{name}.flac") for name in NAMES]


def words(text: str) -> str:
    return " ".join(re.findall(r"[\w']+", text.lower()))


@pytest.fixture(scope="module")
def whisper():
    return load(resolve("tiny.en", None, None, 1), choose("cpu"), network=False)


@pytest.fixture(scope="module")
def floats(tmp_path_factory) -> dict[str, Path]:
    """The folders of target and draft in float32, which transformers alone can load."""
    out, names = tmp_path_factory.mktemp("floats"), ("tiny.en", "tiny.en-draft")
    return {n: as_floats(hub.path(n), out / n, hub.path("tiny.en")) for n in names}


def test_the_pair_knows_english_alone(whisper):
    assert whisper.tokens.made_for == {"en"} and not whisper.tokens.languages
    for options in (Options(language="de"), Options(task="translate")):
        with pytest.raises(UsageError):
            Transcriber(whisper, gamma=0).transcribe(["never opened"], options)


@pytest.fixture(scope="module")
def plain(whisper) -> dict[str, Outcome]:
    """Every sample decoded plainly, one window at a time."""
    transcriber = Transcriber(whisper, batch=1, gamma=0, beam_size=1)
    options = Options(language="en", keep_encoder_states=True)
    return {o.name: o for o in transcriber.transcribe(FILES, options)}


@pytest.fixture(scope="module")
def drafted(whisper) -> tuple[dict[str, Outcome], Stats]:
    """Two samples decoded with drafts, eight windows at a time."""
    transcriber = Transcriber(whisper, batch=8, gamma=5, beam_size=1)
    options = Options(language="en", keep_encoder_states=True)
    outcomes = {o.name: o for o in transcriber.transcribe(FILES[:3:2], options)}
    return outcomes, transcriber.engine.stats


def every(outcomes: dict[str, Outcome]) -> list[Decoded]:
    return [decoded for file in FILES for decoded in outcomes[file].decoded]


def test_the_draft_reads_the_targets_encoder_states_and_has_its_embeddings(whisper):
    assert whisper.shared_encoder and encoder_of(whisper.drafts[0].model) is None
    lean = load(whisper.pair, choose("cpu"), engine=ModelEngine.LEAN)  # which keeps its weights
    draft, target = (m.model.decoder for m in (lean.drafts[0].model, lean.target))
    assert 1 <= len(draft.layers) <= len(target.layers) / 2
    assert torch.equal(draft.embed_tokens.weight, target.embed_tokens.weight)
    assert torch.equal(draft.embed_positions.weight, target.embed_positions.weight)
    assert len(whisper.drafts[0].tokens.ids) < target.embed_tokens.num_embeddings / 3


def understood(name: str, outcome: Outcome) -> bool:
    reference = (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")
    assert outcome.transcript is not None and outcome.transcript.warnings == ()
    return bool(jiwer.wer(words(reference), words(outcome.transcript.text)) <= 0.08)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_understood(plain, name):
    assert understood(name, plain[str(SAMPLES / f"{name}.flac")])


def test_samples_are_understood_by_the_default_search(whisper):
    files = {str(SAMPLES / f"{name}.flac"): name for name in ("noisy", "silence")}
    transcriber = Transcriber(whisper, batch=4, gamma=0)
    for outcome in transcriber.transcribe(list(files), Options(language="en")):
        assert understood(files[outcome.name], outcome)
        assert outcome.transcript.settings["beam_size"] == 5


@pytest.mark.parametrize(
    "most", [24, pytest.param(None, marks=pytest.mark.nightly)], ids=["24 tokens", "whole"]
)
@pytest.mark.parametrize(("gamma", "batch"), [(0, 4), (5, 1), (5, 16)])
def test_every_window_has_the_same_tokens_at_every_batch_size(whisper, plain, gamma, batch, most):
    """The same requests again, with the encoder states they had; `plain` is gamma 0 at batch 1."""
    engine = Transcriber(whisper, batch=batch, gamma=gamma).engine
    work = [
        replace(d.result.request, encoder_states=d.encoder_states, max_new_tokens=most, tag=i)
        for i, d in enumerate(every(plain)[: 8 if most else None])
    ]
    found = {r.request.tag: r.tokens for r in engine.run(work)}
    assert len(work) >= 8
    assert [found[i] for i in range(len(work))] == [
        d.result.tokens[:most] for d in every(plain)[: len(work)]
    ]
    if gamma:
        assert 0 < engine.stats.accepted < engine.stats.drafted  # rows really were ragged


def test_tokens_equal_transformers_generate_window_by_window(whisper, plain, floats):
    model = WhisperForConditionalGeneration.from_pretrained(floats["tiny.en"]).eval()
    transcriber = Transcriber(whisper, batch=1, gamma=0)
    for file in FILES[:1]:
        audio = read_audio(file)
        for decoded in plain[file].decoded[:2]:
            theirs = first_pass(
                model,
                transcriber.whisper.mel([audio[decoded.start : decoded.end]]),
                len(decoded.result.request.prompt),
                return_timestamps=True,
            )
            assert list(decoded.result.tokens) == theirs


def test_transformers_alone_transcribes_with_the_numbers_as_floats(floats):
    model = WhisperForConditionalGeneration.from_pretrained(floats["tiny.en"]).eval()
    processor = WhisperProcessor.from_pretrained(floats["tiny.en"])
    assert model.dtype == torch.float32
    audio = read_audio(FILES[0])[: 16000 * 10]
    features = processor(audio, sampling_rate=16000, return_tensors="pt").input_features
    heard = {"encoder_outputs": model.model.encoder(features), "return_timestamps": True}
    ids = model.generate(features, **heard)
    (text,) = processor.batch_decode(ids, skip_special_tokens=True)
    assert len(words(text).split()) > 10
    draft = AutoModelForCausalLM.from_pretrained(floats["tiny.en-draft"]).eval()
    assert model.generate(features, **heard, assistant_model=draft).equal(ids)


@pytest.mark.parametrize("kind", ["silence", "white noise", "brown noise", "hum"])
def test_no_words_come_out_of_what_is_not_speech(whisper, kind):
    generator, n = np.random.default_rng(3), 16000 * 60
    white = generator.standard_normal(n)
    brown = np.cumsum(white)
    signal = {
        "silence": np.zeros(n),
        "white noise": 0.05 * white,
        "brown noise": 0.3 * (brown - brown.mean()) / np.abs(brown).max(),
        "hum": 0.1 * np.sin(np.arange(n) * 2 * np.pi * 50 / 16000),
    }[kind].astype(np.float32)
    transcriber = Transcriber(whisper, batch=2, gamma=5)
    (outcome,) = transcriber.transcribe([(signal, 16000)], Options(language="en"))
    assert outcome.transcript.text == ""
    assert outcome.transcript.coverage.failed_samples == 0


def test_the_last_of_448_positions_is_kept(whisper, plain):
    """A prompt that leaves 8 positions: the row ends there, with drafts beyond the limit in flight."""
    encoder_states, special = plain[FILES[0]].decoded[0].encoder_states, whisper.tokens
    answer = plain[FILES[0]].decoded[0].result.tokens
    own = special.prompt("en", "transcribe", timestamps=True)
    prompt = (special.previous, *(answer * 20)[: 439 - len(own)], *own)
    assert len(prompt) == 440
    results = []
    for gamma in (0, 5):
        engine = Transcriber(whisper, batch=1, gamma=gamma).engine
        results += engine.run([Request(prompt=prompt, encoder_states=encoder_states)])
    assert results[0].tokens == results[1].tokens
    assert len(results[0].tokens) == 8 or results[0].tokens[-1] == special.end


def test_a_language_that_it_does_not_know_is_refused_when_it_is_loaded() -> None:
    for language, name in (("xx", "xx"), ("de", "knows English only"), ("en,xx", "xx")):
        with pytest.raises(UsageError, match=name):
            Transcriber.load("tiny.en", "none", language=language, device="cpu")
