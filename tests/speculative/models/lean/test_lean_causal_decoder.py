"""Lean Llama-like decoders beside transformers' modules: the same logits for the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from forescribe.speculative.models.hub import path
from forescribe.speculative.models.lean import LeanCausalDecoder
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.models.quantized import as_floats
from tests.speculative.models.causal_lms import causal_lm
from tests.speculative.models.families import tiny
from tests.speculative.models.lean.pairs import TREE, Pair, close

EXACT = 2e-5
"""In float64, except that transformers' RMS norms compute in float32: up to 7e-6 of logits up to 6."""

FAMILIES = ("llama", "qwen2", "qwen2 with a window", "qwen3", "mistral with a window")
TYPES = ("cwm", "llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3")


def pair_of(model: Any, batch: int, **options: Any) -> Pair:
    return Pair(
        CausalDecoder(model, **options), LeanCausalDecoder(model, **options), batch=batch, slots=70
    )


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 6, 12]), st.lists(st.integers(0, 12), min_size=4)),
        min_size=1,
        max_size=4,
    ),
)
def test_ragged_rounds_give_the_logits_of_the_modules(family, batch, length, rounds):
    """Behind every window, and past the last position (48): it is clamped, the slots are not."""
    pair = pair_of(causal_lm(family, dtype=torch.float64), batch)
    pair.prefill(list(range(batch))[::-1], length, [None] * batch)
    for count, kept in rounds:
        assert close(pair.score(count), EXACT)
        pair.starts += torch.tensor(kept[:batch]).clamp_max(count)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_that_is_named_has_a_lean_form(kind):
    """Grouped queries, with positions, biases and norms as the type has them."""
    pair = pair_of(tiny(kind).double(), 2)
    pair.prefill([1, 0], 5, [None] * 2)
    assert close(pair.score(12), EXACT)
    pair.starts += torch.tensor([12, 3])
    assert close(pair.score(6), EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_and_their_accepted_paths_give_the_logits_of_the_modules(family):
    pair = pair_of(causal_lm(family, dtype=torch.float64), 3)
    pair.prefill([0, 1, 2], 4, [None] * 3)
    pair.score(12)
    pair.starts = torch.tensor([4, 9, 14])
    assert close(pair.score(len(TREE.depths), TREE), EXACT)
    pair.commit(torch.tensor([[0, 2, 5], [0, 1, 4], [0, 1, 3]]))
    pair.starts += 3
    assert close(pair.score(2), EXACT)


@pytest.mark.parametrize("vocab", [50, 60, 70])
def test_a_vocabulary_of_another_size(vocab):
    """Fewer tokens than the model has are cut off; of more, the others are never proposed."""
    pair = pair_of(causal_lm("llama", dtype=torch.float64), 2, vocab=vocab)
    pair.prefill([0, 1], 4, [None] * 2)
    theirs, ours = pair.score(3)
    assert ours.shape == (2, 3, vocab) and ours.is_contiguous()
    torch.testing.assert_close(ours, theirs, atol=EXACT, rtol=0)


@pytest.mark.parametrize("name", ["text", "text-draft"])
@torch.inference_mode()
def test_the_bundled_weights_in_float32(name, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(as_floats(path(name), tmp_path / name)).eval()
    pair = Pair(CausalDecoder(model), LeanCausalDecoder(model), batch=3, slots=530)
    pair.prefill([2, 0], 40, [None] * 2)
    pair.prefill([1], 7, [None])
    for starts in ([39, 6, 39], [300, 40, 77], [505, 511, 512]):
        pair.starts = torch.tensor(starts)
        for count in (1, 2, 6, 12):
            assert close(pair.score(count), 1e-4)


def test_one_node_has_the_logits_that_a_whole_score_gives_it():
    pair = pair_of(causal_lm("qwen3", dtype=torch.float64), 2)
    pair.prefill([0, 1], 4, [None] * 2)
    ours, tokens = pair.models[1], pair.tokens(2, 3)
    whole = ours.score(tokens, pair.starts, reach=9).logits
    node = torch.tensor([2, 0])
    one = ours.score_at(tokens, pair.starts, node, reach=9)
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
