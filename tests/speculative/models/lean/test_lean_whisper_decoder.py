"""The lean Whisper decoder beside transformers' modules: the same logits for the same tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperForCausalLM, WhisperForConditionalGeneration

from forescribe.speculative.models.hub import path
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.models.quantized import as_floats
from tests.speculative.models.lean.pairs import Pair, close
from tests.speculative.models.whispers import FRAMES, WIDTH, encoder_states, whisper

BUNDLED = {"tiny.en": WhisperForConditionalGeneration, "tiny.en-draft": WhisperForCausalLM}
BUNDLED_BOUND = 5e-4
"""Of logits up to 48, of which it is 1e-5; the largest difference seen was 1.1e-4."""
EXACT = 2e-6
"""Logits are returned in float32, whose rounding is all that is left of two float64 computations."""


def tiny(batch: int, slots: int = 60) -> Pair:
    model = whisper(dtype=torch.float64)
    return Pair(WhisperDecoder(model), LeanWhisperDecoder(model), batch=batch, slots=slots)


def states(count: int) -> list[torch.Tensor]:
    return [encoder_states(seed, torch.float64) for seed in range(count)]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 6, 12]), st.lists(st.integers(0, 12), min_size=4)),
        min_size=1,
        max_size=4,
    ),
)
def test_ragged_rounds_give_the_logits_of_the_modules(batch, length, rounds):
    """Positions past the last learned one (40) included: they are clamped, their slots are not."""
    pair = tiny(batch, slots=80)
    assert close(pair.prefill(list(range(batch))[::-1], length, states(batch)), EXACT)
    for count, kept in rounds:
        assert close(pair.score(count), EXACT)
        pair.starts += torch.tensor(kept[:batch]).clamp_max(count)


@pytest.mark.parametrize("name", BUNDLED)
@torch.inference_mode()
def test_the_bundled_weights_in_float32_up_to_the_end_of_the_positions(tmp_path, name):
    folder = as_floats(path(name), tmp_path / name, path("tiny.en"))
    model = BUNDLED[name].from_pretrained(folder).eval()
    pair = Pair(WhisperDecoder(model), LeanWhisperDecoder(model), batch=3, slots=470)
    generator = torch.Generator().manual_seed(1)
    windows = list(torch.randn((3, 1500, model.config.d_model), generator=generator))
    assert close(pair.prefill([2, 0], 17, windows[:2]), BUNDLED_BOUND)
    assert close(pair.prefill([1], 3, windows[2:]), BUNDLED_BOUND)
    for count in (1, 2, 6, 12):
        assert close(pair.score(count), BUNDLED_BOUND)
        pair.starts += torch.tensor([1, 0, count])
    pair.starts = torch.tensor([430, 446, 449])
    for count in (1, 2, 6, 12):
        assert close(pair.score(count), BUNDLED_BOUND)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 8), st.integers(8, 20))
def test_no_nan_of_an_earlier_sequence_reaches_the_next(first, later, prompt, length):
    """Row 0 computes NaN: in its prompt, in rounds, and after its end with more nodes."""
    pair = tiny(2)
    broken = torch.full((FRAMES, WIDTH), float("nan"), dtype=torch.float64)
    pair.prefill([0, 1], length, [broken, states(2)[1]])
    for count in (first, later):
        ours = pair.score(count)[1]
        assert ours[0].isnan().all() and ours[1].isfinite().all()
        pair.starts[0] += first  # the row has ended: later rounds write from here on
    assert close(pair.prefill([0], prompt, states(1)), EXACT)
    for count in (1, 12, 12, 12):
        assert close(pair.score(count), EXACT)
        pair.starts += count


def test_only_queries_are_copied():
    """Keys and values, of self-attention and of the encoder states, are parts of matrices of their own."""
    model = copy.deepcopy(whisper())
    values = {name: weight.clone() for name, weight in model.state_dict().items()}
    LeanWhisperDecoder(model)
    weights = LeanWhisperDecoder(model).weights
    decoder, width = model.model.decoder, WIDTH
    assert weights.head.weight.data_ptr() == decoder.embed_tokens.weight.data_ptr()
    for i, (layer, module) in enumerate(zip(weights.layers, decoder.layers, strict=True)):
        cross = weights.cross_kv.weight[2 * width * i :]
        own = layer.qkv.weight
        assert own[width].data_ptr() == module.self_attn.k_proj.weight.data_ptr()
        assert own[2 * width].data_ptr() == module.self_attn.v_proj.weight.data_ptr()
        assert cross.data_ptr() == module.encoder_attn.k_proj.weight.data_ptr()
        assert cross[width].data_ptr() == module.encoder_attn.v_proj.weight.data_ptr()
        assert layer.up.weight.data_ptr() == module.fc1.weight.data_ptr()
        assert not own.requires_grad
    assert all(torch.equal(weight, values[name]) for name, weight in model.state_dict().items())


def test_one_node_has_the_logits_that_a_whole_score_gives_it():
    pair = tiny(2)
    pair.prefill([0, 1], 4, states(2))
    ours, tokens = pair.models[1], pair.tokens(2, 3)
    whole = ours.score(tokens, pair.starts, reach=9).logits
    node = torch.tensor([2, 0])
    one = ours.score_at(tokens, pair.starts, node, reach=9)
    assert one.shape == (2, 1, whole.shape[2])
    torch.testing.assert_close(one[:, 0], whole[torch.arange(2), node])
