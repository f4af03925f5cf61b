"""Prompts with embeddings in place of tokens: the texts of whole speech LLMs, by their text models alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.models.voxtral_realtime import VoxtralRealtimeTextConfig

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.errors import LoadError, RequestError
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.speculative.models.causal import text_tower
from forescribe.speculative.models.lean import LeanCausalDecoder
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.models.quantized import quantize_causal
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.native.adapters import PROMPT, NativeCausalDecoder
from forescribe.speculative.protocols import Drafter
from forescribe.speculative.requests import Beams, Finish, Result
from forescribe.speculative.types import Embedded
from tests.speculative.drafters.heads import tiny_heads
from tests.speculative.models.causal_lms import EOS, causal_lm
from tests.speculative.models.causal_lms import FAMILIES as LANGUAGE_FAMILIES
from tests.speculative.models.speech_llms import (
    AUDIO,
    FAMILIES,
    Speech,
    generated,
    speech_llm,
    text_model,
)

MOST = 24
DRAFT = {"layers": 1, "seed": 1, "width": 32}
RAGGED = (
    Speech((5,), 1, (7, 8)),
    Speech((9, 10, 11), 3, (12,)),
    Speech((20, 21), 0, (22, 23, 24)),
    Speech((3, 3, 4, 6, 8), 2, (7, 30, 31, 32)),
    Speech((), 4, (40,)),
    Speech((50,), 0, (51,)),
)
NATIVE = pytest.mark.native
ENGINES = [ModelEngine.MODULES, ModelEngine.LEAN, pytest.param(ModelEngine.NATIVE, marks=NATIVE)]
ADAPTERS = [CausalDecoder, LeanCausalDecoder, pytest.param(NativeCausalDecoder, marks=NATIVE)]
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def drafter(kind: str, family: str) -> Drafter | None:
    if kind == "model":
        draft = text_model(family, **DRAFT)
        return ModelDrafter(causal_decoder(draft, pick=lambda states: states[1]))
    return NgramDrafter() if kind == "ngram" else None


def decoded(
    family: str, which: ModelEngine, kind: str, work: Any, *, batch: int, gamma: int
) -> dict[Speech, Result]:
    made = drafter(kind, family)
    draft = DRAFT if kind == "model" else None
    target = causal_decoder(
        text_model(family),
        engine=which,
        pick=(lambda states: states[0]) if draft else (lambda states: states),
    )
    engine = Engine(target, made, batch=batch, eos=(EOS,), schedule=Fixed(gamma if made else 0))
    assert target.engine == which
    results = list(engine.run(speech.request(family, MOST, draft) for speech in work))
    assert all(result.error is None for result in results)
    if made is not None and len(work) == len(RAGGED):
        assert engine.stats.drafted > 20
    return {result.request.tag: result for result in results}


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
@pytest.mark.parametrize("which", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_speech_and_text_in_fewer_rows_is_the_whole_models_own(family, which, kind):
    found = decoded(family, which, kind, RAGGED, batch=4, gamma=3)
    for speech in RAGGED:
        assert found[speech].tokens == generated(family, speech, MOST)


@pytest.mark.parametrize("which", ENGINES)
@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
@pytest.mark.parametrize("family", ["qwen3_asr", "voxtral"])
def test_heads_draft_and_the_text_is_the_whole_models_own(family, kind, which):
    size = {"layers": tiny_heads.LAYERS}
    text = text_model(family, **size)
    head = HeadDrafter(tiny_heads.made(kind, text).head)
    target = causal_decoder(text, engine=which)
    engine = Engine(target, head, batch=3, eos=(EOS,), schedule=Fixed(3))
    for result in engine.run(speech.request(family, MOST, **size) for speech in RAGGED):
        assert result.draft_error is None
        assert result.tokens == generated(family, result.request.tag, MOST, **size)
    assert engine.stats.drafted > 20


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("family", ["qwen3_asr", "granite_speech"])
@torch.inference_mode()
def test_logits_and_taps_of_a_prompt_are_those_of_the_modules_given_embeddings(family, adapter):
    """Of prompts in pieces, ragged, with embeddings over the seam of two pieces and without any."""
    model = text_model(family)
    runs = [Embedded(0, noise(PROMPT + 9)), None, Embedded(PROMPT - 5, noise(11))]
    tokens = torch.randint(2, AUDIO, (3, PROMPT + 20), generator=torch.Generator().manual_seed(1))
    embedded = model.get_input_embeddings()(tokens)
    for row, run in zip(embedded, runs, strict=True):
        if run is not None:
            row[run.at : run.end] = run.states
    hooked = copy.deepcopy(model)  # transformers leaves hooks in it
    expected = hooked(inputs_embeds=embedded, output_hidden_states=True)
    decoder: SlotModel = adapter(model)
    decoder.tap((0, 1, -1))
    decoder.allocate(3, PROMPT + 40)
    nodes = torch.tensor(
        [[0, PROMPT - 1, PROMPT], [PROMPT + 19, 5, 130], [PROMPT - 5, 0, PROMPT + 6]]
    )
    read = decoder.prefill(torch.arange(3), tokens, runs, nodes)
    for tap, layer in enumerate((0, 1, -1)):
        torch.testing.assert_close(read.taps[:, :, tap], expected.hidden_states[layer], **CLOSE)
    wanted = torch.stack([logits[at] for logits, at in zip(expected.logits, nodes, strict=True)])
    torch.testing.assert_close(read.logits, wanted, **CLOSE)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn((*shape, 16), generator=torch.Generator().manual_seed(2))


def prefilled(decoder: SlotModel, runs: list[Embedded | None]) -> torch.Tensor:
    """Logits behind three prompts of 20 tokens."""
    decoder.allocate(3, 40)
    return decoder.prefill(torch.arange(3), TOKENS, runs, torch.full((3, 1), 19)).logits


TOKENS = torch.randint(2, AUDIO, (3, 20), generator=torch.Generator().manual_seed(1))
FORMS = [torch.float32, torch.bfloat16, torch.int8]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("family", ["qwen3_asr", "granite_speech"])
@torch.inference_mode()
def test_embeddings_of_tokens_give_the_bits_of_these_tokens(family, adapter, form):
    """In every number format, and in the rows beside them, whatever those are given."""
    model = copy.deepcopy(text_model(family))
    if form is torch.int8:
        quantize_causal(model)
    else:
        model.to(form)
    decoder = adapter(model)
    plain = prefilled(decoder, [None] * 3)
    own = Embedded(4, decoder.embed(TOKENS[1, 4:11]).float())
    assert prefilled(decoder, [None, own, None]).equal(plain)
    other = Embedded(4, noise(7))
    mixed = prefilled(decoder, [None, other, None])
    assert mixed[[0, 2]].equal(plain[[0, 2]]) and not mixed[1].allclose(plain[1], atol=0.1)


@pytest.mark.parametrize("family", LANGUAGE_FAMILIES)
@torch.inference_mode()
def test_families_multiply_given_embeddings_as_they_multiply_their_own(family):
    decoder = CausalDecoder(causal_lm(family))
    plain = prefilled(decoder, [None] * 3)
    own = Embedded(4, decoder.embed(TOKENS[1, 4:11]))
    assert prefilled(decoder, [None, own, None]).equal(plain)


@pytest.mark.parametrize("form", FORMS, ids=str)
@NATIVE
def test_stored_in_fewer_bits_a_text_depends_neither_on_drafts_nor_on_the_batch(form):
    model = copy.deepcopy(text_model("voxtral"))
    if form is torch.int8:
        quantize_causal(model)
    else:
        model.to(form)

    def texts(batch: int, made: Drafter | None) -> dict[Speech, tuple[int, ...]]:
        target = causal_decoder(model, engine=ModelEngine.NATIVE)
        schedule = Fixed(0 if made is None else 3)
        engine = Engine(target, made, batch=batch, eos=(EOS,), schedule=schedule)
        work = (speech.request("voxtral", MOST) for speech in RAGGED)
        return {result.request.tag: result.tokens for result in engine.run(work)}

    plain = texts(1, None)
    draft = causal_decoder(text_model("voxtral"), engine=ModelEngine.LEAN)
    assert texts(4, None) == texts(4, NgramDrafter()) == texts(4, ModelDrafter(draft)) == plain


def test_beams_read_embeddings_of_tokens_as_these_tokens():
    model, found = text_model("glmasr"), []
    own = Embedded(4, model.get_input_embeddings()(TOKENS[1, 4:11]).detach())
    hidden = (*TOKENS[1, :4].tolist(), *[AUDIO] * 7, *TOKENS[1, 11:].tolist())
    for prompt, run in ((tuple(TOKENS[1].tolist()), None), (hidden, own)):
        engine = Engine(
            causal_decoder(model), batch=2, eos=(EOS,), beam_target=lambda: causal_decoder(model)
        )
        request = Request(prompt, run, max_new_tokens=12, beams=Beams(3))
        with pytest.raises(RequestError, match="have to end at 19, before its last token"):
            engine.submit(replace(request, encoder_states=Embedded(13, own.states)))
        found += engine.run([request])
    assert found[0].tokens == found[1].tokens and found[1].error is None


WRONG = {
    "qwen3 reads embeddings in its prompt, not a Tensor": noise(2),
    "embeddings of 15 numbers; those of the model have 16": Embedded(0, noise(2)[:, :15]),
    "embeddings end at place 5 of the prompt; they have to end at 4": Embedded(2, noise(3)),
}


@pytest.mark.parametrize("which", ENGINES)
@pytest.mark.parametrize(("message", "states"), WRONG.items())
def test_embeddings_that_do_not_fit_are_refused_and_the_others_are_decoded(which, message, states):
    engine = Engine(causal_decoder(text_model("qwen3_asr"), engine=which), batch=2, eos=(EOS,))
    bad = Request((2, 3, 4, 5, 6), encoder_states=states)
    with pytest.raises(RequestError, match=message):
        engine.submit(bad)
    good = [speech.request("qwen3_asr", MOST) for speech in RAGGED[:3]]
    results = list(engine.run([good[0], bad, *good[1:]]))
    assert [r.finish for r in results if r.request is bad] == [Finish.FAILED]
    for result in results:
        if result.request is not bad:
            assert result.tokens == generated("qwen3_asr", result.request.tag, MOST)


@pytest.mark.parametrize("which", ENGINES)
def test_embeddings_that_are_no_numbers_spoil_no_other_row(which):
    engine = Engine(causal_decoder(text_model("qwen3_asr"), engine=which), batch=3, eos=(EOS,))
    bad = Request(
        (2, 3, 4, 5, 6), encoder_states=Embedded(1, noise(2) * torch.nan), max_new_tokens=9
    )
    work = [bad, *(speech.request("qwen3_asr", MOST) for speech in RAGGED)]
    for result in engine.run(work):
        if result.request is not bad:
            assert result.tokens == generated("qwen3_asr", result.request.tag, MOST)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_the_text_model_is_the_whole_ones_own(family):
    """The same parameters, and to the last bit the same logits, which transformers 5.23 leaves unscaled in
    Granite Speech."""
    whole, text, speech = speech_llm(family), text_model(family), RAGGED[3]
    own = {id(weight) for weight in whole.parameters()}
    assert own.issuperset(map(id, text.parameters())) and not text.training
    run, tokens = speech.run(family), torch.tensor([speech.prompt(family)])
    embedded = text.get_input_embeddings()(tokens)
    embedded[0, run.at : run.end] = run.states
    found = text(inputs_embeds=embedded).logits * getattr(text.config, "logits_scaling", 1)
    assert found.equal(whole(input_ids=tokens, **speech.audio(family)).logits)


def test_a_model_without_a_text_model_of_a_plain_class_is_refused_by_name():
    with pytest.raises(LoadError, match="llama has no text model with an output layer"):
        text_tower(causal_lm("llama"))
    whole = copy.copy(speech_llm("voxtral"))
    whole._modules = {**whole._modules, "model": copy.copy(whole.model)}
    inner = whole.model
    inner._modules = {
        **inner._modules,
        "language_model": speech_llm("qwen3_asr").model.language_model,
    }
    assert type(text_tower(whole)).__name__ == "Qwen3ForCausalLM"
    odd = copy.copy(inner.language_model)
    odd.config = causal_lm("llama").config
    inner._modules["language_model"] = odd
    with pytest.raises(LoadError, match="voxtral: its text model is a Qwen3Model"):
        text_tower(whole)
    odd.config = VoxtralRealtimeTextConfig()
    with pytest.raises(LoadError, match="voxtral: its text model has no class of its own"):
        text_tower(whole)
