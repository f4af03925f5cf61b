"""The bundled pair: loaded by transformers as it is, right on the samples, and lossless on them."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soundfile
import torch
from transformers import AutoModelForCausalLM, WhisperForConditionalGeneration, WhisperProcessor

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.audit import audit
from forescribe.asr.decode.guards import Guards
from forescribe.asr.decode.outcome import Decoded
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber
from forescribe.asr.errors import UsageError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.speculative import Request, Stats, choose
from forescribe.speculative.models import bundled
from forescribe.speculative.models.whisper_decoder import encoder_of
from tests.asr.decode.test_equality import first_pass

SAMPLES = Path(__file__).parents[3] / "samples"
NAMES = ("memo", "conversation", "noisy", "silence")
FILES = [str(SAMPLES / f"{name}.flac") for name in NAMES]

# Strict: the first pair that reaches the aim must take this mark away.
MISSED = pytest.mark.xfail(
    strict=True, reason="a fan 14 dB below the voice is too much for the pair; the aim stands"
)


def words(text: str) -> str:
    return " ".join(re.findall(r"[\w']+", text.lower()))


@pytest.fixture(scope="module")
def whisper():
    return load(resolve("demo", None), choose("cpu"), network=False)


def test_the_pair_knows_english_alone(whisper):
    """Its tokens name a hundred languages, as those of distilled models do."""
    assert whisper.tokens.made_for == {"en"} and len(whisper.tokens.languages) > 90
    for options in (Options(language="de"), Options(task="translate")):
        with pytest.raises(UsageError):
            Transcriber(whisper, gamma=0).transcribe(["never opened"], options)


@pytest.fixture(scope="module")
def plain(whisper) -> dict[str, Outcome]:
    """Every sample decoded plainly, one window at a time."""
    transcriber = Transcriber(whisper, batch=1, gamma=0)
    options = Options(language="en", keep_encoder_states=True)
    return {o.name: o for o in transcriber.transcribe(FILES, options)}


@pytest.fixture(scope="module")
def drafted(whisper) -> tuple[dict[str, Outcome], Stats]:
    """Every sample decoded with drafts, eight windows at a time."""
    transcriber = Transcriber(whisper, batch=8, gamma=5)
    options = Options(language="en", keep_encoder_states=True)
    outcomes = {o.name: o for o in transcriber.transcribe(FILES, options)}
    return outcomes, transcriber.engine.stats


def every(outcomes: dict[str, Outcome]) -> list[Decoded]:
    return [decoded for file in FILES for decoded in outcomes[file].decoded]


def test_the_draft_hears_through_the_targets_encoder(whisper):
    assert whisper.shared_encoder and encoder_of(whisper.draft) is None
    assert len(whisper.target.model.decoder.layers) >= 6
    draft, target = (len(m.model.decoder.layers) for m in (whisper.draft, whisper.target))
    assert 1 <= draft <= target / 4


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=MISSED) if n == "noisy" else n for n in NAMES]
)
def test_samples_are_understood(plain, name):
    transcript = plain[str(SAMPLES / f"{name}.flac")].transcript
    reference = (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")
    assert jiwer.wer(words(reference), words(transcript.text)) <= 0.10


@pytest.mark.xfail(strict=True, reason="the aim is met on held-out sentences, not on the samples")
def test_drafts_are_accepted_as_the_aim_says(drafted):
    assert len(drafted[0]) == len(FILES)
    assert drafted[1].acceptance_rate >= 0.75


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_covered_in_order(plain, name):
    transcript = plain[str(SAMPLES / f"{name}.flac")].transcript
    assert len(transcript.segments) > 2
    assert transcript.coverage.sample_count == transcript.sample_count
    ends = [s.end_sample for s in transcript.segments]
    assert ends == sorted(ends) and ends[-1] <= transcript.sample_count


@pytest.mark.parametrize(
    "most", [40, pytest.param(None, marks=pytest.mark.slow)], ids=["40 tokens", "whole"]
)
@pytest.mark.parametrize(("gamma", "batch"), [(0, 4), (0, 16), (5, 1), (5, 4), (5, 16)])
def test_every_window_has_the_same_tokens_at_every_batch_size(whisper, plain, gamma, batch, most):
    """The same requests again, with the encoder states they had; `plain` is gamma 0 at batch 1."""
    engine = Transcriber(whisper, batch=batch, gamma=gamma).engine
    work = [
        replace(d.result.request, encoder_states=d.encoder_states, max_new_tokens=most, tag=i)
        for i, d in enumerate(every(plain))
    ]
    found = {r.request.tag: r.tokens for r in engine.run(work)}
    assert len(work) >= 8
    assert [found[i] for i in range(len(work))] == [d.result.tokens[:most] for d in every(plain)]
    if gamma:
        assert 0 < engine.stats.accepted < engine.stats.drafted  # rows really were ragged


def test_every_sample_has_the_same_tokens_with_drafts_in_a_batch(drafted, plain):
    outcomes, stats = drafted
    for file in FILES:
        ours = [d.result.tokens for d in outcomes[file].decoded]
        assert ours == [d.result.tokens for d in plain[file].decoded]
    assert 0 < stats.accepted < stats.drafted


def test_tokens_equal_transformers_generate_window_by_window(whisper, plain):
    model = WhisperForConditionalGeneration.from_pretrained(bundled.path("demo")).eval()
    transcriber = Transcriber(whisper, batch=1, gamma=0)
    for file in FILES[:1]:
        audio = read_audio(file)
        for decoded in plain[file].decoded:
            theirs = first_pass(
                model,
                transcriber.context.mel([audio[decoded.start : decoded.end]]),
                len(decoded.result.request.prompt),
                return_timestamps=True,
                language="en",
                task="transcribe",
            )
            assert list(decoded.result.tokens) == theirs


def test_transformers_alone_loads_and_transcribes_with_the_folders():
    folder = bundled.path("demo")
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    processor = WhisperProcessor.from_pretrained(folder)
    assert model.dtype == torch.float32
    audio = read_audio(FILES[0])[: 16000 * 10]
    inputs = processor(audio, sampling_rate=16000, return_tensors="pt")
    asked = {"language": "en", "task": "transcribe", "return_timestamps": True}
    ids = model.generate(**inputs, **asked)
    (text,) = processor.batch_decode(ids, skip_special_tokens=True)
    assert len(words(text).split()) > 10
    draft = AutoModelForCausalLM.from_pretrained(bundled.path("demo-draft")).eval()
    assert model.generate(**inputs, **asked, assistant_model=draft).equal(ids)


def test_the_pair_is_small():
    weights = [
        p for name in ("demo", "demo-draft") for p in bundled.path(name).glob("*.safetensors")
    ]
    assert 1e6 < sum(p.stat().st_size for p in weights) <= 41e6


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
    file = io.BytesIO()
    soundfile.write(file, signal, 16000, format="WAV", subtype="FLOAT")
    for vad in (True, False):  # without voice activity the model itself must not invent words
        options = Options(language="en", vad=vad)
        (outcome,) = transcriber.transcribe([file.getvalue()], options)
        assert outcome.transcript.text == ""


def test_the_last_of_448_positions_is_kept(whisper, plain):
    """A prompt that leaves 8 positions: the row ends there, with drafts beyond the limit in flight."""
    encoder_states, special = plain[FILES[0]].decoded[0].encoder_states, whisper.tokens
    answer = plain[FILES[0]].decoded[0].result.tokens
    previous = (special.previous, *(answer * 20)[: 440 - 4])
    prompt = (*previous, *special.prompt("en", "transcribe", timestamps=True))
    assert len(prompt) == 440
    results = []
    for gamma in (0, 5):
        engine = Transcriber(whisper, batch=1, gamma=gamma).engine
        results += engine.run([Request(prompt=prompt, encoder_states=encoder_states)])
    assert results[0].tokens == results[1].tokens
    assert len(results[0].tokens) == 8 or results[0].tokens[-1] == special.end


def test_an_audit_of_a_sample_finds_no_difference(whisper, tmp_path):
    short = tmp_path / "memo.wav"
    soundfile.write(short, read_audio(FILES[0])[: 16000 * 20], 16000)
    (report,) = audit(whisper, [str(short)], Options(language="en"), gamma=5, batch=4)
    assert report.error is None and report.differences == ()
    assert report.tokens > 50 and report.acceptance_rate > 0


def test_ctranslate2_accepts_the_folder(tmp_path):
    converters = pytest.importorskip("ctranslate2.converters", reason="needs the bench group")
    converter = converters.TransformersConverter(
        str(bundled.path("demo")), copy_files=["tokenizer.json", "preprocessor_config.json"]
    )
    converter.convert(str(tmp_path / "ct2"), quantization="float32")
    assert (tmp_path / "ct2" / "model.bin").stat().st_size > 1e7


def test_only_what_does_not_sound_like_its_domain_carries_a_warning(whisper, plain) -> None:
    """Speech played backwards has the voice and the levels of a sample, and no English."""
    for name, outcome in plain.items():
        assert outcome.transcript is not None and outcome.transcript.warnings == (), name
    file = io.BytesIO()
    backwards = read_audio(FILES[0])[::-1][: 12 * 16_000]
    soundfile.write(file, backwards, 16_000, format="WAV")
    transcriber = Transcriber(whisper, batch=1, gamma=0)
    options = Options(language="en", guards=Guards(temperatures=(0.0, 0.2)))
    (outcome,) = transcriber.transcribe([file.getvalue()], options)
    made = outcome.transcript
    assert made is not None and made.segments
    assert [notice.code for notice in made.warnings] == ["doubtful_text", "demo_model"]
    assert "improbable (mean log-probability -" in made.warnings[0].message
    assert "synthetic English" in made.warnings[1].message
    assert all(segment.doubt for segment in made.segments)
