"""Lean and native Llama-like decoders beside transformers' modules: the same logits for the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.hub import path
from forescribe.speculative.models.lean import LeanCausalDecoder
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.models.quantized import as_floats
from forescribe.speculative.native.adapters import NativeCausalDecoder, native_causal_gap
from tests.speculative.models.causal_lms import VOCAB, causal_lm
from tests.speculative.models.families import tiny
from tests.speculative.models.lean.pairs import Pair, close

FAMILIES = ("llama", "qwen2", "qwen2 with a window", "qwen3", "granite", "mistral with a window")
TYPES = ("cwm", "granite", "llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3")
SLOTS = 70


@dataclass(frozen=True)
class Kind:
    """An engine, the numbers in which it is compared, and how far its logits may lie from the modules'."""

    decoder: type[LeanCausalDecoder] | type[NativeCausalDecoder]
    dtype: torch.dtype
    bound: float

    def pair(self, model: Any, batch: int, *, slots: int = SLOTS, **options: Any) -> Pair:
        ours = self.decoder(model, **options)
        return Pair(CausalDecoder(model, **options), ours, batch=batch, slots=slots)


# In float64, except that transformers' RMS norms compute in float32: up to 7e-6 of logits up to 6.
LEAN = Kind(LeanCausalDecoder, torch.float64, 2e-5)
# Of float32 logits up to 60 of the tiny models, whose weights are drawn wide.
NATIVE = Kind(NativeCausalDecoder, torch.float32, 2e-4)

engines = pytest.mark.parametrize(
    "engine", [LEAN, pytest.param(NATIVE, marks=pytest.mark.native)], ids=["lean", "native"]
)


@engines
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 6, 12]), st.lists(st.integers(0, 12), min_size=5)),
        min_size=1,
        max_size=4,
    ),
)
def test_ragged_rounds_give_the_logits_of_the_modules(engine, family, batch, length, rounds):
    """Behind every window, and past the last position (48): it is clamped, the slots are not."""
    pair = engine.pair(causal_lm(family, dtype=engine.dtype), batch)
    pair.prefill(list(range(batch))[::-1], length, [None] * batch)
    for count, kept in rounds:
        if engine is NATIVE and "window" in family and int(pair.starts.max()) + count > 48:
            break  # behind the last position windows end elsewhere; those scores are cut off
        assert close(pair.score(count), engine.bound)
        pair.starts += torch.tensor(kept[:batch]).clamp_max(count)


@engines
@pytest.mark.parametrize("kind", TYPES)
def test_every_type_that_is_named_has_both_forms(engine, kind):
    """Grouped queries, with positions, biases and norms as the type has them."""
    pair = engine.pair(tiny(kind, hidden_size=32).to(engine.dtype), 2)
    pair.prefill([1, 0], 5, [None] * 2)
    assert close(pair.score(12), engine.bound)
    pair.starts += torch.tensor([12, 3])
    assert close(pair.score(6), engine.bound)


@engines
@pytest.mark.parametrize(
    "sizes",
    [
        {"intermediate_size": 40},
        {"head_dim": 24, "num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 18},
        {"head_dim": 80, "hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        {"mlp_bias": True, "attention_bias": True},
    ],
    ids=["an inner width of 40", "three queries of one key", "wide heads", "positions", "biases"],
)
def test_other_sizes(engine, sizes):
    model, random = tiny("llama", **sizes).to(engine.dtype), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=random))
    pair = engine.pair(model, 3)
    pair.prefill([1, 0, 2], 7, [None] * 3)
    for count in (1, 6, 12):
        assert close(pair.score(count), engine.bound)


@engines
@pytest.mark.parametrize("vocab", [50, 60, 70])
def test_a_vocabulary_of_another_size(engine, vocab):
    """Fewer tokens than the model has are cut off; of more, the others are never proposed."""
    pair = engine.pair(causal_lm("llama", dtype=engine.dtype), 2, vocab=vocab)
    pair.prefill([0, 1], 4, [None] * 2)
    theirs, ours = pair.score(3)
    assert ours.shape == (2, 3, vocab) and ours.is_contiguous()
    torch.testing.assert_close(ours, theirs, atol=engine.bound, rtol=0)
    if vocab > VOCAB:
        late = torch.full((2, 1), vocab - 1)
        known = torch.full((2, 1), VOCAB - 1)
        starts = torch.tensor([4, 4])
        first, second = (pair.models[1].score(t, starts, reach=9).logits for t in (late, known))
        assert torch.equal(first, second)


@engines
@pytest.mark.parametrize("name", ["text", "text-draft"])
@torch.inference_mode()
def test_the_bundled_weights_in_float32(engine, name, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(as_floats(path(name), tmp_path / name)).eval()
    pair = engine.pair(model, 3, slots=530)
    pair.prefill([2, 0], 140, [None] * 2)  # more than one call of the kernels takes
    pair.prefill([1], 7, [None])
    for starts in ([139, 6, 139], [300, 40, 77], [505, 511, 512]):
        pair.starts = torch.tensor(starts)
        for count in (1, 2, 6, 12):
            assert close(pair.score(count), 1e-4)


def test_one_node_has_the_logits_that_a_whole_score_gives_it():
    pair = LEAN.pair(causal_lm("qwen3", dtype=torch.float64), 2)
    pair.prefill([0, 1], 4, [None] * 2)
    ours, new = pair.models[1], pair.tokens(2, 3)
    whole = ours.score(new, pair.starts, reach=9).logits
    node = torch.tensor([2, 0])
    one = ours.score_at(new, pair.starts, node, reach=9)
    assert one.shape == (2, 1, whole.shape[2])
    torch.testing.assert_close(one[:, 0], whole[torch.arange(2), node])


def test_a_lean_decoder_holds_no_second_copy_of_the_weights():
    """Query, key and value, and both halves of the feed-forward, are one matrix that the modules share."""
    model = tiny("qwen2")
    values = {name: weight.clone() for name, weight in model.state_dict().items()}
    logits = model(input_ids=torch.arange(9)[None]).logits
    first, second = LeanCausalDecoder(model), LeanCausalDecoder(model)
    for layer, other, module in zip(
        first.weights.layers, second.weights.layers, model.model.layers, strict=True
    ):
        attention, mlp = module.self_attn, module.mlp
        assert layer.qkv.weight.data_ptr() == attention.q_proj.weight.data_ptr()
        assert layer.qkv.weight[-1].data_ptr() == attention.v_proj.weight[-1].data_ptr()
        assert layer.gate_up.weight.data_ptr() == mlp.gate_proj.weight.data_ptr()
        assert layer.gate_up.weight[-1].data_ptr() == mlp.up_proj.weight[-1].data_ptr()
        assert layer.down.weight.data_ptr() == mlp.down_proj.weight.data_ptr()
        assert other.qkv.weight.data_ptr() == layer.qkv.weight.data_ptr()
    assert all(torch.equal(weight, values[name]) for name, weight in model.state_dict().items())
    assert torch.equal(model(input_ids=torch.arange(9)[None]).logits, logits)


@pytest.mark.native
def test_models_that_the_kernels_do_not_have_are_refused_with_a_reason():
    narrow = tiny("llama", head_dim=4)
    assert "multiple of 8" in str(native_causal_gap(narrow))
    with pytest.raises(LoadError, match="multiple of 8"):
        NativeCausalDecoder(narrow)
    assert "gelu_new" in str(native_causal_gap(tiny("llama", hidden_act="gelu_new")))
    assert "float64" in str(native_causal_gap(tiny("llama").double()))
    assert native_causal_gap(tiny("gemma")) is not None
