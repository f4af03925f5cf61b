"""Window by window, the tokens are those of transformers' own `generate` with the same rules.

transformers' result is taken from its first pass over the window: where a window ends in an
unfinished segment it seeks back and decodes the rest again, which is long-form, not the window.
"""

from __future__ import annotations

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.results import Decoded
from forescribe.asr.decode.transcriber import Options, Transcriber
from tests.asr.decode.whole_windows import whole
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
    """What transformers generates for a window before it looks at timestamps, and decodes the rest again."""
    inner = type(model).generate_with_fallback

    class Passed(Exception):
        """Ends `generate`, with its first result."""

    def spy(self, *args, **kwargs):
        raise Passed(inner(self, *args, **kwargs)[1])

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(type(model), "generate_with_fallback", spy)
        with pytest.raises(Passed) as passed:
            model.generate(features, num_beams=1, do_sample=False, temperature=0.0, **options)
    ((outputs,),) = passed.value.args
    sequence = outputs["sequences"] if isinstance(outputs, dict) else outputs
    return sequence.tolist()[prompt_length:]


@pytest.mark.parametrize("timestamps", [True, False], ids=["timestamps", "no timestamps"])
@pytest.mark.parametrize(
    "task", ["transcribe", pytest.param("translate", marks=pytest.mark.nightly)]
)
def test_tokens_equal_transformers_generate(pair, recordings, timestamps, task, monkeypatch):
    """Without and with drafts."""
    whole(monkeypatch)
    target, draft = map(str, pair)
    options = Options(
        language="de", task=task, timestamps=timestamps, vad=False, keep_encoder_states=True
    )
    ours: dict[int, dict[str, Decoded]] = {}
    for gamma in (0, 4):
        transcriber = Transcriber.load(target, draft, gamma=gamma, batch=2, device="cpu")
        outcomes = transcriber.transcribe(recordings, options)
        ours[gamma] = {o.source: decoded for o in outcomes for (decoded,) in [o.decoded]}
        assert ours[gamma].keys() == set(recordings)
        assert (transcriber.engine.stats.drafted > 0) == (gamma > 0)
    model = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32).eval()
    for path in recordings:
        theirs = first_pass(
            model,
            transcriber.whisper.mel([read_audio(path)]),
            len(ours[0][path].result.request.prompt),
            return_timestamps=timestamps,
            language="de",
            task=task,
        )
        assert len(theirs) > 20
        for gamma, decoded in ours.items():
            assert list(decoded[path].result.tokens) == theirs, gamma
