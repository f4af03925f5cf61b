"""Native Llama-like decoders against transformers' modules, and against themselves in other batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.hub import path
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.models.quantized import as_floats
from forescribe.speculative.native import decoder as native_causal
from forescribe.speculative.native.decoder import NativeCausalDecoder, native_causal_gap
from tests.speculative.models.causal_lms import VOCAB, WINDOW, causal_lm
from tests.speculative.models.families import tiny
from tests.speculative.models.lean.pairs import TREE, Pair, close

from .cases import float32_arithmetic

pytestmark = pytest.mark.native

NEAR = 2e-4
"""Of float32 logits up to 60 of the tiny models, whose weights are drawn wide."""

FAMILIES = ("llama", "qwen2", "qwen2 with a window", "qwen3", "mistral with a window")
TYPES = ("cwm", "llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3")
SLOTS = 70


def pair_of(model: Any, batch: int, **options: Any) -> Pair:
    ours = NativeCausalDecoder(model, **options)
    return Pair(CausalDecoder(model, **options), ours, batch=batch, slots=SLOTS)


def native(family: str, batch: int, prompt: int = 6) -> NativeCausalDecoder:
    """A decoder whose rows have read a prompt."""
    decoder = NativeCausalDecoder(causal_lm(family))
    decoder.allocate(batch, SLOTS)
    decoder.prefill(torch.arange(batch), tokens(batch, prompt, 2), [None] * batch)
    return decoder


def tokens(batch: int, count: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, count), generator=generator)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 6, 12]), st.lists(st.integers(0, 12), min_size=5)),
        min_size=1,
        max_size=4,
    ),
)
def test_ragged_rounds_give_the_logits_of_the_modules(family, batch, length, rounds):
    """Behind every window, and past the last position (48): it is clamped, the slots are not."""
    pair = pair_of(causal_lm(family), batch)
    pair.prefill(list(range(batch))[::-1], length, [None] * batch)
    for count, kept in rounds:
        if "window" in family and int(pair.starts.max()) + count > 48:
            break  # behind the last position windows end elsewhere; those scores are cut off
        assert close(pair.score(count), NEAR)
        pair.starts += torch.tensor(kept[:batch]).clamp_max(count)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_with_a_lean_form_runs_natively(kind):
    """Grouped queries, with positions, biases and norms as the type has them."""
    pair = pair_of(tiny(kind, hidden_size=32), 2)
    assert pair.models[1].engine == "native"
    pair.prefill([1, 0], 5, [None] * 2)
    assert close(pair.score(12), NEAR)
    pair.starts += torch.tensor([12, 3])
    assert close(pair.score(6), NEAR)


@pytest.mark.parametrize(
    "sizes",
    [
        {"intermediate_size": 40},
        {"head_dim": 24, "num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 18},
        {"head_dim": 80, "hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    ],
    ids=["an inner width of 40", "three queries of one key", "wide heads", "scaled positions"],
)
def test_other_sizes(sizes):
    pair = pair_of(tiny("llama", **sizes), 3)
    pair.prefill([1, 0, 2], 7, [None] * 3)
    for count in (1, 6, 12):
        assert close(pair.score(count), NEAR)


def test_biases_are_added():
    model = tiny("llama", mlp_bias=True, attention_bias=True)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=random))
    pair = pair_of(model, 2)
    pair.prefill([1, 0], 7, [None] * 2)
    assert close(pair.score(6), NEAR)


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_and_their_accepted_paths_give_the_logits_of_the_modules(family):
    pair = pair_of(causal_lm(family), 3)
    pair.prefill([0, 1, 2], 4, [None] * 3)
    pair.score(12)
    pair.starts = torch.tensor([4, 9, 14])
    assert close(pair.score(len(TREE.depths), TREE), NEAR)
    pair.commit(torch.tensor([[0, 2, 5], [0, 1, 4], [0, 1, 3]]))
    pair.starts += 3
    assert close(pair.score(2), NEAR)


@torch.inference_mode()
def test_a_path_of_a_tree_has_the_bits_of_the_same_chain():
    decoder, start, new = native("qwen3", 1), torch.tensor([5]), tokens(1, 7)
    tree = decoder.score(new, start, reach=SLOTS, topology=TREE).logits
    chain = decoder.score(new[:, [0, 2, 5]], start, reach=SLOTS).logits
    assert torch.equal(tree[:, [0, 2, 5]], chain)


@pytest.mark.parametrize("vocab", [50, 60, 70])
def test_a_vocabulary_of_another_size(vocab):
    """Fewer tokens than the model has are cut off; of more, the others are never proposed."""
    pair = pair_of(causal_lm("llama"), 2, vocab=vocab)
    pair.prefill([0, 1], 4, [None] * 2)
    theirs, ours = pair.score(3)
    assert ours.shape == (2, 3, vocab) and ours.is_contiguous()
    torch.testing.assert_close(ours, theirs, atol=NEAR, rtol=0)
    if vocab > VOCAB:
        late = torch.full((2, 1), vocab - 1)
        known = torch.full((2, 1), VOCAB - 1)
        starts = torch.tensor([4, 4])
        first, second = (pair.models[1].score(t, starts, reach=9).logits for t in (late, known))
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["text", "text-draft"])
@torch.inference_mode()
def test_the_bundled_weights(name, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(as_floats(path(name), tmp_path / name)).eval()
    pair = Pair(CausalDecoder(model), NativeCausalDecoder(model), batch=3, slots=530)
    pair.prefill([2, 0], 140, [None] * 2)  # more than one call takes
    pair.prefill([1], 7, [None])
    for starts in ([139, 6, 139], [300, 40, 77], [505, 511, 512]):
        pair.starts = torch.tensor(starts)
        for count in (1, 2, 6, 12):
            assert close(pair.score(count), 1e-4)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(FAMILIES), st.integers(1, 7), st.integers(1, 2), st.integers(1, 9))
def test_a_rows_bits_depend_neither_on_the_batch_nor_on_nodes_nor_on_threads(
    family, batch, threads, part
):
    new, start = tokens(batch, 12), torch.arange(batch) % 3 + 2
    before, size = torch.get_num_threads(), native_causal.PROMPT
    try:
        torch.set_num_threads(threads)
        native_causal.PROMPT = part
        together = native(family, batch)
        scored = together.score(new, start, reach=SLOTS).logits
    finally:
        torch.set_num_threads(before)
        native_causal.PROMPT = size
    alone = NativeCausalDecoder(causal_lm(family))
    alone.allocate(1, SLOTS)
    for row in range(batch):
        alone.prefill(torch.tensor([0]), tokens(batch, 6, 2)[row : row + 1], [None])
        for node in range(new.shape[1]):
            one = alone.score(new[row, node, None, None], start[row, None] + node, reach=SLOTS)
            assert torch.equal(one.logits[0, 0], scored[row, node])


@pytest.mark.parametrize("family", ["llama", "mistral with a window"])
def test_slots_that_are_masked_never_reach_a_result(family):
    decoder, start, new = native(family, 3, 12), torch.tensor([3, 12, 9]), tokens(3, 4)
    clean = decoder.score(new, start, reach=SLOTS).logits
    for keys, values in decoder.cache.layers:
        for row, first in enumerate(start.tolist()):
            keys[row, :, first:] = values[row, :, first:] = float("nan")
            if "window" in family:
                late = max(0, first + 1 - WINDOW)
                keys[row, :, :late] = values[row, :, :late] = float("nan")
    assert torch.equal(decoder.score(new, start, reach=SLOTS).logits, clean)
    assert torch.isfinite(clean).all()


def test_nan_stays_in_its_row():
    decoder, start, new = native("qwen2", 3), torch.tensor([5, 6, 4]), tokens(3, 4)
    clean = decoder.score(new, start, reach=SLOTS).logits
    decoder.cache.layers[0][0][1, :, 2] = float("nan")
    found = decoder.score(new, start, reach=SLOTS).logits
    assert found[1].isnan().all()
    assert torch.equal(found[0::2], clean[0::2])
    decoder.prefill(torch.tensor([1]), tokens(3, 6, 2)[1:2], [None])  # and leaves with its request
    assert torch.equal(decoder.score(new, start, reach=SLOTS).logits, clean)


def test_slots_from_reach_on_are_not_read_by_rows_that_ended():
    pair = pair_of(causal_lm("llama"), 2)
    pair.prefill([0, 1], 20, [None] * 2)
    start, new = torch.tensor([18, 4]), tokens(2, 3)  # row 0 has ended: reach is that of row 1
    theirs, ours = (m.score(new, start, reach=8).logits for m in pair.models)
    torch.testing.assert_close(ours, theirs, atol=NEAR, rtol=0)


def test_one_node_has_the_bits_it_has_among_all():
    decoder, start, new = native("qwen3", 3), torch.tensor([5, 6, 4]), tokens(3, 4)
    node = torch.tensor([3, 0, 1])
    every = decoder.score(new, start, reach=SLOTS).logits
    one = decoder.score_at(new, start, node, reach=SLOTS)
    assert one.shape == (3, 1, VOCAB)
    assert torch.equal(one[:, 0], every[torch.arange(3), node])
    with pytest.raises(IndexError):
        decoder.score_at(new, start, node + 1, reach=SLOTS)


def test_wrong_indices_are_refused_before_anything_is_written():
    decoder = native("llama", 2)
    before = decoder.cache.kv.clone()
    one, places = torch.tensor([[1], [1]]), torch.tensor([3, 3])
    with pytest.raises(IndexError, match="token"):
        decoder.score(torch.tensor([[1], [VOCAB]]), places, reach=SLOTS)
    with pytest.raises(IndexError, match="slot"):
        decoder.score(one, torch.tensor([3, SLOTS]), reach=SLOTS)
    with pytest.raises(IndexError, match="slot"):
        decoder.prefill(torch.tensor([2]), tokens(1, 3), [None])
    with pytest.raises(ValueError, match="prompts"):
        decoder.prefill(torch.tensor([0, 1]), tokens(1, 3), [None])
    with pytest.raises(ValueError, match="shape"):
        decoder.score(one, places, reach=SLOTS + 1)
    assert torch.equal(decoder.cache.kv, before)


def test_models_that_the_kernels_do_not_have_are_refused_with_a_reason():
    narrow = tiny("llama", head_dim=4)
    assert "multiple of 8" in str(native_causal_gap(narrow))
    with pytest.raises(LoadError, match="multiple of 8"):
        NativeCausalDecoder(narrow)
    assert "gelu_new" in str(native_causal_gap(tiny("llama", hidden_act="gelu_new")))
    assert "float64" in str(native_causal_gap(tiny("llama").double()))
    assert native_causal_gap(tiny("gemma")) is not None


def test_weights_in_bfloat16_give_the_logits_of_the_rounded_weights():
    """In float32 arithmetic: nearer to the rounded weights in float32 than bfloat16 modules are."""
    half = causal_lm("qwen3", seed=5, dtype=torch.bfloat16)
    pair = Pair(CausalDecoder(half), NativeCausalDecoder(half), batch=2, slots=SLOTS)
    exact = CausalDecoder(causal_lm("qwen3", seed=6).float())
    exact.model.load_state_dict(half.state_dict())
    exact.allocate(2, SLOTS)
    prompt, new, start = tokens(2, 6), tokens(2, 4, 7), torch.tensor([5, 6])
    found = []
    with float32_arithmetic():
        for decoder in (*pair.models, exact):
            decoder.prefill(torch.arange(2), prompt, [None] * 2)
            found.append(decoder.score(new, start, reach=SLOTS).logits)
    modules, ours, truth = found
    assert (ours - truth).abs().mean() < 0.5 * (modules - truth).abs().mean()


def test_instruction_sets_agree():
    decoder, start, new = native("qwen3", 2), torch.tensor([5, 6]), tokens(2, 6)
    results = {}
    try:
        for name in decoder.library.instruction_sets():
            decoder.library.choose(name)
            results[name] = decoder.score(new, start, reach=SLOTS).logits
    finally:
        decoder.library.choose(None)
    for found in results.values():
        torch.testing.assert_close(found, results["generic"], atol=NEAR, rtol=0)
