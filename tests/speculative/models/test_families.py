"""Every family of language models is either right or refused by name when it is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Fixed, NgramDrafter, Request
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models import causal, modules, slot_model
from forescribe.speculative.models.causal import CHUNKED, SLIDING, WINDOWS, positions_of
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.models.slot_model import SlotModel
from tests.speculative.models.families import CHUNK, POSITIONS, WINDOW, tiny

ROPE = {"rope_theta": 10000.0}
NEO = [[["global", "local"], 2]]
NO_HEAD = {"head_dim": None}
MLA = {"head_dim": 4, "num_key_value_heads": 4}  # compressed attention: one key for each query


def rope(kind: str, factor: float, **more: float) -> tuple[str, dict[str, Any]]:
    settings = {**ROPE, "rope_type": kind, "factor": factor, **more}
    return "llama", {"rope_parameters": settings}


RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "afmoe apertus arcee aria_text bitnet codegen cohere cohere2 ctrl cwm diffllama dots1 "
        "ernie4_5 ernie4_5_moe exaone4 flex_olmo gemma gemma2 gemma3_text gemma4_text glm glm4 "
        "glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granitemoe granitemoeshared "
        "hunyuan_v1_dense llama llama4_text minimax_m2 ministral ministral3 mistral mixtral nanochat "
        "nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 "
        "qwen3_moe seed_oss smollm3 stablelm starcoder2 vaultgemma xglm"
    ).split()
} | {
    "falcon with rotary positions": ("falcon", {"alibi": False, **NO_HEAD}),
    "gemma3n_text": ("gemma3n_text", {"num_kv_shared_layers": 0}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "starcoder2 with a window": ("starcoder2", {"sliding_window": 7}),
    "lfm2 of attention alone": ("lfm2", {}),
    "deepseek_v2": ("deepseek_v2", MLA),
    "deepseek_v3": ("deepseek_v3", MLA),
    "minicpm3": ("minicpm3", MLA),
    "helium": ("helium", {"head_dim": 4}),
    "llama, linear": rope("linear", 2.0),
    "llama, yarn": rope("yarn", 2.0, original_max_position_embeddings=POSITIONS // 2),
    "llama, llama3": rope(
        "llama3",
        4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=POSITIONS // 4,
    ),
    "llama, dynamic": rope("dynamic", 2.0),
    "phi3, longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 26,
            "rope_parameters": {
                **ROPE,
                "rope_type": "longrope",
                "short_factor": [1.0] * 2,
                "long_factor": [4.0] * 2,
                "original_max_position_embeddings": 26,
            },
        },
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt_neo": (
        "gpt_neo",
        {"attention_types": NEO, "window_size": 6},
        "gpt_neo is not supported: beyond window_size 6",
    ),
    "bloom": ("bloom", {}, "bloom does not define how many positions it has"),
    "mpt": ("mpt", {}, "mpt does not define how many positions it has"),
    "falcon with alibi": ("falcon", {"alibi": True, **NO_HEAD}, "falcon "),
    "mamba": ("mamba", {}, "mamba does not define how many positions it has"),
    "rwkv": ("rwkv", {}, "rwkv "),
    "jamba": ("jamba", {}, "jamba: layers of linear_attention"),
    "qwen3_next": ("qwen3_next", {}, "qwen3_next: layers of linear_attention"),
    "deepseek_v32": ("deepseek_v32", {"head_dim": 4}, "deepseek_v32: layers of indexed_attention"),
    "falcon_h1": ("falcon_h1", {}, "falcon_h1: layers of hybrid"),
    "recurrent_gemma": ("recurrent_gemma", {}, "recurrent_gemma does not define"),
    "openai-gpt": ("openai-gpt", {}, "openai-gpt keeps no keys and values"),
    "roberta": ("roberta", {"is_decoder": True}, "roberta is not supported: it does not count"),
    "roformer": ("roformer", {"is_decoder": True}, "roformer is not supported: logits"),
    "bert, both ways": ("bert", {"is_decoder": False}, "bert: its layers do not cache"),
    "bart": ("bart", {}, "bart: its layers do not cache plain"),
    "doge": ("doge", {"keep_window_size": 8}, "doge is not supported: beyond keep_window_size 8"),
    "moshi": ("moshi", {}, "moshi is not supported: its layers do not read the windows"),
}
RAGGED = ((5,), (7, 8, 9), tuple(range(20, 37)), (3, 3))


@torch.inference_mode()
def choices(model: Any, text: tuple[int, ...], begin: int) -> tuple[int, ...]:
    """What the model's plain forward chooses at each position of a text from `begin` on: where it is
    the text itself, that is what greedy decoding one token at a time would have written."""
    logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return tuple(logits[begin - 1 : -1].argmax(-1).tolist())


@pytest.mark.parametrize("name", RIGHT)
def test_ragged_texts_in_one_batch_are_the_models_own(name):
    """Beyond every window, with drafts that are mostly wrong, to the last position."""
    kind, changes = RIGHT[name]
    model = tiny(kind, **changes)
    decoder = CausalDecoder(model)
    engine = Engine(decoder, NgramDrafter(), batch=3, eos=(), schedule=Fixed(3))
    results = list(engine.run(Request(prompt) for prompt in RAGGED))
    assert len(results) == len(RAGGED) and engine.stats.drafted > 30
    for result in results:
        prompt = result.request.prompt
        assert len(prompt + result.tokens) == decoder.max_positions
        assert result.tokens == choices(model, prompt + result.tokens, len(prompt))


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_by_name(name):
    kind, changes, said = REFUSED[name]
    with pytest.raises(LoadError) as caught:
        CausalDecoder(tiny(kind, **changes))
    message = str(caught.value)
    assert message.startswith(said) and "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"]
)
def test_rounding_is_told_from_what_is_wrong(monkeypatch, dtype):
    CausalDecoder(tiny("mistral").to(dtype))
    CausalDecoder(tiny("mixtral").to(dtype))  # where rounding turns a choice of experts
    monkeypatch.setattr(causal, "strange_windows", lambda *_: "")
    with pytest.raises(LoadError, match="gpt_neo is not supported: logits behind several tokens"):
        CausalDecoder(tiny("gpt_neo", attention_types=NEO, window_size=6).to(dtype))


def wider(mask, positions, window):
    return slot_model.window_mask(mask, positions, window + 1)


def shifted(mask, positions, chunk):
    return slot_model.chunk_mask(mask, positions + 1, chunk)


@pytest.mark.parametrize(
    ("kind", "layers", "name", "wrong"),
    [
        ("mistral", SLIDING, "window_mask", wider),
        ("gemma3_text", SLIDING, "window_mask", lambda mask, *_: mask),
        ("llama4_text", CHUNKED, "chunk_mask", shifted),
    ],
    ids=["a window too wide by one", "no window", "chunks off by one"],
)
def test_a_wrong_mask_is_found(monkeypatch, kind, layers, name, wrong):
    model = tiny(kind)
    monkeypatch.setattr(causal, name, wrong)
    with pytest.raises(LoadError, match=f"{kind} is not supported: logits behind .* with windows"):
        CausalDecoder(model)
    monkeypatch.undo()
    CausalDecoder(model)
    width = getattr(model.config, WINDOWS[layers])
    assert width in (WINDOW, CHUNK)  # as before the comparison


def test_wrong_positions_are_found(monkeypatch):
    """Rotary positions are relative, learned ones are not: a prefill and a round must count alike."""
    right = SlotModel._positions_at
    monkeypatch.setattr(
        SlotModel, "_positions_at", lambda self, slots: right(self, slots) + (slots.shape[1] == 4)
    )
    for kind in ("llama", "gpt2"):
        with pytest.raises(LoadError, match="logits behind several tokens at once"):
            CausalDecoder(tiny(kind))


def test_a_model_is_compared_once_and_keeps_no_memory(monkeypatch):
    model = tiny("llama")
    first = CausalDecoder(model)
    assert first.cache is None
    monkeypatch.setattr(modules, "check", lambda decoder: pytest.fail("it was asked again"))
    assert CausalDecoder(model, 20).max_positions == 20


def test_the_cost_of_the_comparison_does_not_grow_with_the_window():
    """A window of 4096 is compared on a few tokens."""
    model = tiny("mistral", sliding_window=4096, max_position_embeddings=32768)
    seen = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    CausalDecoder(model)
    handle.remove()
    assert len(seen) <= 9 and max(seen) <= 42
    assert model.config.sliding_window == 4096


def test_frequencies_that_follow_the_longest_text_end_where_training_did():
    kind, changes = RIGHT["phi3, longrope"]
    model = tiny(kind, **changes)
    assert positions_of(model.config) == 26 < model.config.max_position_embeddings
    with pytest.raises(LoadError, match="phi3 has 26 positions, not 27"):
        CausalDecoder(model, 27)


@pytest.mark.parametrize("name", ["phi3, longrope", "llama, dynamic"])
def test_rows_that_change_each_other_are_found(monkeypatch, name):
    """Whatever the reason: here frequencies whose limit is not known."""
    kind, changes = RIGHT[name]
    monkeypatch.setattr(causal, "positions_of", lambda config: POSITIONS + 1)
    with pytest.raises(LoadError, match="depends on how long the others in its batch are"):
        CausalDecoder(tiny(kind, **changes))


def test_logits_that_are_no_numbers_are_refused():
    model = tiny("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(LoadError, match="llama is not supported: its logits are no numbers"):
        CausalDecoder(model)
