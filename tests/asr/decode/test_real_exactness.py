"""Published Whisper weights on human voices: the tokens of transformers' `generate`, other number formats.

Needs `scripts/setup real`, which fetches the models, and recordings of people, which do not ship with the
repository: FORESCRIBE_VOICES names their folder (FLAC files with their text beside them).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperForConditionalGeneration

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.presets import locate
from tests.real import BASE, READ, TINY, errors, model, voice

pytestmark = [pytest.mark.weights, pytest.mark.usefixtures("encoded_once")]

ENGLISH = Options(language="en", keep_encoder_states=True)


@pytest.mark.parametrize(
    "stored",
    [{"quantize": "int8"}, pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.nightly)],
    ids=str,
)
def test_other_number_formats_write_as_few_wrong_words(stored) -> None:
    """Measured on all English voices, 357 words: float32, int8 and bfloat16 have 11 errors each."""
    made = Transcriber.load(str(model(BASE)), None, batch=8, device="cpu", beam_size=1, **stored)
    paths = [str(voice(name)) for name in READ[1:]]
    found = {Path(o.source).stem: o for o in made.transcribe(paths, Options(language="en"))}
    counted = errors(found)
    assert counted.deletions == 0 and counted.wer <= 0.05


@pytest.mark.parametrize(
    ("target", "draft", "gamma", "batch", "engine", "names"),
    [
        pytest.param(BASE, TINY, 5, 1, "auto", READ[1:], marks=pytest.mark.nightly),
        pytest.param(BASE, TINY, 5, 8, "lean", READ[1:], marks=pytest.mark.nightly),
        (BASE, TINY, None, 8, "auto", READ),
        pytest.param(BASE, TINY, 5, 8, "modules", READ[1:], marks=pytest.mark.nightly),
        (BASE, None, 0, 1, "auto", READ[1:]),
        (TINY, None, 5, 8, "auto", READ[1:]),  # text that was written before drafts
    ],
)
def test_tokens_equal_generate_on_human_voices(
    tmp_path, target, draft, gamma, batch, engine, names
) -> None:
    """Every window and every part of one, against transformers' plain greedy decoding of its samples behind
    the same previous text; where an answer ends early, `generate` goes on by itself, with a timestamp of 0 s.
    Of the longest recording the first 35 s: two windows."""
    folders = [None if name is None else str(model(name)) for name in (target, draft)]
    speculative = Transcriber.load(
        *folders,
        gamma=gamma,
        batch=batch,
        engine=engine,
        device="cpu",
        dtype="float32",
        beam_size=1,
    )
    paths = [str(voice(name)) for name in names]
    if "lj-1" in names:
        paths[0] = str(tmp_path / "lj-1.flac")
        soundfile.write(paths[0], read_audio(str(voice("lj-1")))[: 35 * 16_000], 16_000)
    for outcome in speculative.transcribe(paths, ENGLISH):
        samples, ends = read_audio(outcome.source), {d.index: d.end for d in outcome.decoded}
        assert outcome.transcript is not None, outcome.error
        for part in outcome.decoded:
            assert part.result.request.temperature == 0
            prompt = part.result.request.prompt
            expected = generated(target, samples[part.start : ends[part.index]], prompt)
            written, end = part.result.tokens[:-1], part.result.tokens[-1]
            assert end == speculative.whisper.tokens.end
            assert written == expected[: len(written)], (outcome.source, part.start)
            assert expected[len(written) :][:1] in ((), expected[:1])


@cache
def reference(name: str) -> tuple[WhisperForConditionalGeneration, object]:
    from transformers import WhisperFeatureExtractor

    folder = locate(model(name))
    loaded = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return loaded, WhisperFeatureExtractor.from_pretrained(folder)


KNOWN: dict[tuple[str, bytes, tuple[int, ...]], tuple[int, ...]] = {}


def generated(name: str, samples: np.ndarray, prompt: tuple[int, ...]) -> tuple[int, ...]:
    key = (name, samples.tobytes(), prompt)
    if key not in KNOWN:
        loaded, extractor = reference(name)
        features = extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
        named = {} if name.endswith(".en") else {"language": "en", "task": "transcribe"}
        start = prompt.index(loaded.generation_config.decoder_start_token_id)
        if start:
            named["prompt_ids"] = torch.tensor(prompt[:start])
        with torch.inference_mode():
            rows = loaded.generate(
                features, return_timestamps=True, num_beams=1, do_sample=False, **named
            )
        ids = rows[0].tolist()
        zero = loaded.generation_config.no_timestamps_token_id + 1
        begin = 0 if start else ids.index(zero)  # behind previous text only what is new is returned
        end = loaded.generation_config.eos_token_id
        KNOWN[key] = tuple(t for t in ids[begin:] if t != end)
    return KNOWN[key]
