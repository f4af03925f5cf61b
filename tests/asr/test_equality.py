"""Window by window, the tokens are those of transformers' own `generate` with the same rules.

transformers' result is taken from its first pass over the window: where a window ends in an
unfinished segment it seeks back and decodes the rest again, which is long-form, not the window.
"""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperForConditionalGeneration

from asr.audio import read_audio
from asr.transcriber import Options, Transcriber
from tests.asr import folders

SECONDS = (30, 17, 4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target")
    return target, folders.write_distilled(root / "draft", target)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    root, rng, paths = tmp_path_factory.mktemp("noise"), np.random.default_rng(1), []
    for s in SECONDS:
        paths.append(root / f"{s}.wav")
        tone = np.sin(np.arange(16000 * s) * rng.uniform(0.02, 0.3)) * rng.uniform(0.05, 0.5)
        noise = rng.standard_normal(16000 * s) * 0.1
        soundfile.write(paths[-1], (tone + noise).astype(np.float32), 16000, subtype="FLOAT")
    return paths


def first_pass(model, features, prompt_length: int, **options) -> list[int]:
    """What transformers generates for a window before it looks at timestamps."""
    kept = {}
    inner = type(model).generate_with_fallback

    def spy(self, *args, **kwargs):
        out = inner(self, *args, **kwargs)
        kept.setdefault("tokens", out[1])
        return out

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(type(model), "generate_with_fallback", spy)
        model.generate(features, num_beams=1, do_sample=False, temperature=0.0, **options)
    (outputs,) = kept["tokens"]
    sequence = outputs["sequences"] if isinstance(outputs, dict) else outputs
    return sequence.tolist()[prompt_length:]


@pytest.mark.parametrize("timestamps", [True, False], ids=["timestamps", "no timestamps"])
@pytest.mark.parametrize("gamma", [0, 4])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_tokens_equal_transformers_generate(pair, recordings, timestamps, gamma, task):
    target, draft = map(str, pair)
    transcriber = Transcriber.load(target, draft, gamma=gamma, batch=2, device="cpu")
    options = Options(language="de", task=task, timestamps=timestamps, vad=False, keep_memory=True)
    outcomes = {o.source: o for o in transcriber.transcribe(recordings, options)}
    model = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32).eval()
    for path in recordings:
        (ours,) = outcomes[path].decoded
        theirs = first_pass(
            model,
            transcriber.mel([read_audio(path)]),
            len(ours.result.request.prompt),
            return_timestamps=timestamps,
            language="de",
            task=task,
        )
        assert list(ours.result.tokens) == theirs
        assert len(theirs) > 20
