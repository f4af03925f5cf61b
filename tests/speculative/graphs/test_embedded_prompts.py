"""Prompts with embeddings on devices with static shapes: of padded lengths, in repeated rows."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative import Device, Engine, ModelDrafter, NgramDrafter
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from tests.speculative.engine.test_engine import Planned
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.fake_hpu import HPU, Compiled
from tests.speculative.models.causal_lms import EOS
from tests.speculative.models.speech_llms import Speech, generated, text_model

FAMILY, MOST = "qwen3_asr", 24
WORK = [Speech((5 + n,) * (1 + n % 3), n % 5, tuple(range(7, 9 + n % 4))) for n in range(9)]


def engine_on(device: Device, which: ModelEngine, kind: str) -> Engine:
    text = text_model(FAMILY)
    draft = ModelDrafter(causal_decoder(text, engine=ModelEngine.LEAN))
    return Engine(
        causal_decoder(text, engine=which),
        draft if kind == "model" else NgramDrafter(),
        batch=5,
        eos=(EOS,),
        schedule=Planned(3, 0, 2),
        device=device,
    )


@pytest.fixture(scope="module")
def texts() -> dict[Speech, tuple[int, ...]]:
    """Those of transformers, before there is a device to stop."""
    return {speech: generated(FAMILY, speech, MOST) for speech in WORK}


def check(engine: Engine, texts: dict[Speech, tuple[int, ...]]) -> None:
    found = list(engine.run([speech.request(FAMILY, MOST) for speech in WORK]))
    assert engine.captured and not engine.faults
    assert {result.request.tag: result.tokens for result in found} == texts


@pytest.mark.parametrize("kind", ["model", "ngram"])
@pytest.mark.parametrize("which", [ModelEngine.LEAN, ModelEngine.MODULES])
def test_texts_on_cuda_are_the_whole_models_own(texts, cuda: FakeCuda, which, kind) -> None:
    engine = engine_on(CudaOnCpu("cuda", torch.float32), which, kind)
    with running(cuda, engine):
        check(engine, texts)


@pytest.mark.parametrize("kind", ["model", "ngram"])
@pytest.mark.parametrize("which", [ModelEngine.LEAN, ModelEngine.MODULES])
def test_texts_on_gaudi_are_the_whole_models_own(texts, compiled: Compiled, which, kind) -> None:
    check(engine_on(HPU, which, kind), texts)
    assert compiled.recipes
