"""Sequential long-form: token for token transformers' own, with and without previous text."""

from __future__ import annotations

import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import UsageError
from tests.asr.model import folders
from tests.asr.recordings import write

SECONDS = (62, 33)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return folders.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    return write(folder, SECONDS, seed=2, noise=(0.01, 0.2))


def theirs(target, path, *, conditioned: bool) -> list[int]:
    """All tokens that count in transformers' long-form generation."""
    model = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32).eval()
    features = WhisperFeatureExtractor.from_pretrained(target)(
        read_audio(path),
        sampling_rate=16000,
        truncation=False,
        padding="longest",
        return_attention_mask=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        result = model.generate(
            features["input_features"],
            attention_mask=features["attention_mask"],
            return_timestamps=True,
            return_segments=True,
            language="de",
            task="transcribe",
            condition_on_prev_tokens=conditioned,
            temperature=0.0,
            num_beams=1,
            do_sample=False,
        )
    return [int(t) for segment in result["segments"][0] for t in segment["tokens"]]


@pytest.fixture(scope="module")
def expected(pair, recordings):
    """By path and whether there is previous text."""
    cases = [(path, conditioned) for path in recordings for conditioned in (True, False)]
    return {case: theirs(str(pair[0]), case[0], conditioned=case[1]) for case in cases}


@pytest.fixture(scope="module")
def transcribers(pair):
    """By draft length."""
    names = list(map(str, pair))
    return {n: Transcriber.load(*names, gamma=n, batch=2, device="cpu") for n in (0, 4)}


@pytest.mark.parametrize("conditioned", [True, False], ids=["previous text", "no previous text"])
@pytest.mark.parametrize("gamma", [0, 4])
def test_tokens_equal_transformers_long_form(
    transcribers, recordings, expected, gamma, conditioned
):
    transcriber = transcribers[gamma]
    options = Options(
        language="de",
        long_form="sequential",
        condition_on_previous_text=conditioned,
        keep_encoder_states=True,
    )
    outcomes = {o.source: o for o in transcriber.transcribe(recordings, options)}
    for path in recordings:
        outcome = outcomes[path]
        ours = [token for d in outcome.decoded for token in d.tokens]
        assert ours == expected[path, conditioned]
        assert len(outcome.decoded) >= 2
        if conditioned:
            assert len(outcome.decoded[1].result.request.prompt) > 4


def test_every_sample_is_covered_once(transcribers, recordings):
    transcriber = transcribers[4]
    options = Options(language="de", long_form="sequential")
    for outcome in transcriber.transcribe(recordings, options):
        coverage = outcome.transcript.coverage
        assert coverage.sample_count == outcome.transcript.sample_count
        assert coverage.sample_count == len(read_audio(outcome.source))
        ends = [span.end_sample for span in coverage.spans]
        assert ends[:-1] == [span.start_sample for span in coverage.spans[1:]]


def test_it_needs_timestamps():
    with pytest.raises(UsageError, match="cannot do without"):
        Options(long_form="sequential", timestamps=False)
