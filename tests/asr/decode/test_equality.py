"""Window by window, the tokens are those of transformers' own `generate` with the same rules.

transformers' result is taken from its first pass over the window: where a window ends in an
unfinished segment it seeks back and decodes the rest again, which is long-form, not the window.
"""

from __future__ import annotations

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.transcriber import Options, Transcriber
from tests.asr.model import folders
from tests.asr.recordings import write

SECONDS = (30, 17, 4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return folders.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    return write(folder, SECONDS, seed=1, noise=(0.1, 0.1))


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
    options = Options(
        language="de", task=task, timestamps=timestamps, vad=False, keep_encoder_states=True
    )
    outcomes = {o.source: o for o in transcriber.transcribe(recordings, options)}
    model = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32).eval()
    for path in recordings:
        (ours,) = outcomes[path].decoded
        theirs = first_pass(
            model,
            transcriber.context.mel([read_audio(path)]),
            len(ours.result.request.prompt),
            return_timestamps=timestamps,
            language="de",
            task=task,
        )
        assert list(ours.result.tokens) == theirs
        assert len(theirs) > 20
