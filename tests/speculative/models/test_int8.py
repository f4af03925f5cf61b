"""Products of 8-bit integers with a scale for each row, and models made of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative import model_engines
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import (
    ModelEngine,
    causal_decoder,
    causal_engine,
    whisper_engine,
)
from forescribe.speculative.models.quantized import (
    Int8Linear,
    balanced,
    int8_product,
    is_int8,
    quantize_causal,
    quantize_whisper,
    quantized,
    rounded,
)
from forescribe.speculative.models.weights import fused, linear_of
from forescribe.speculative.native import adapters as native_whisper
from forescribe.speculative.native.adapters import NativeCausalDecoder
from tests.speculative.models.causal_lms import causal_lm
from tests.speculative.native.cases import Shape, model


def rows_of(count: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    loudness = torch.logspace(-3, 3, count)[:, None]
    return torch.randn((count, columns), generator=generator) * loudness


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(2, 90), st.integers(1, 40), st.integers(0, 99))
def test_a_product_is_that_of_the_rounded_numbers(count, columns, outputs, seed):
    """The sums are those of 64-bit integers, and rounding is by half a step at most."""
    x, weight = rows_of(count, columns, seed), rows_of(outputs, columns, seed + 1)
    integers, scale = quantized(weight)
    own, rows = rounded(x)
    assert integers.abs().max() <= 127 and own.abs().max() <= 127
    assert bool(((own * rows[:, None] - x).abs() <= rows[:, None] * 0.5001).all())
    assert bool((own.abs().amax(1) == 127).all())
    sums = own.long() @ integers.t().long()
    found = int8_product(x, integers, scale, None)
    assert torch.equal(found, sums.float() * (rows[:, None] * scale))
    spread = x.norm(dim=1)[:, None] * weight.norm(dim=1)
    assert bool(((found - x @ weight.t()).abs() <= 0.05 * spread).all())


@settings(max_examples=30)
@given(st.integers(2, 24), st.integers(2, 90), st.integers(1, 40), st.integers(0, 99))
def test_a_row_has_the_same_bits_beside_any_other_rows(count, columns, outputs, seed):
    x, linear = rows_of(count, columns, seed), torch.nn.Linear(columns, outputs)
    made = Int8Linear.of(linear)
    together = made(x)
    for row in range(count):
        assert torch.equal(made(x[row : row + 1])[0], together[row])
        assert torch.equal(made(x[row:])[0], together[row])


def test_rows_of_zeros_and_of_no_numbers_stay_in_their_row():
    x = rows_of(5, 32, 1)
    made = Int8Linear.of(torch.nn.Linear(32, 16, bias=False))
    whole = made(x)
    x[1], x[2, 3], x[3, 4] = 0, float("nan"), float("inf")
    found = made(x)
    assert torch.equal(found[[0, 4]], whole[[0, 4]])
    assert bool((found[1] == 0).all()) and bool(found[2].isnan().all())
    assert not bool(found[3].isfinite().any())
    assert bool((made(torch.full((1, 32), 1e-38)) == 0).all())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scales", [None, (0.3, 1.0)])
def test_projections_of_one_input_are_one_matrix_of_integers(bias, scales):
    parts = [Int8Linear.of(torch.nn.Linear(24, n, bias=bias)) for n in (16, 8)]
    x = rows_of(3, 24, 5)
    apart = [p(x) * s for p, s in zip(parts, scales or (1.0, 1.0), strict=True)]
    joined = fused(parts, scales)
    assert joined.weight.dtype is torch.int8
    torch.testing.assert_close(joined(x), torch.cat(apart, 1), rtol=1e-5, atol=1e-6)
    assert (
        parts[1].weight.untyped_storage().data_ptr() == joined.weight.untyped_storage().data_ptr()
    )
    assert torch.equal(joined.rows(slice(5))(x), joined(x)[:, :5])


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_balancing_a_norm_and_its_projection_changes_no_bit_and_less_is_rounded_away(dtype):
    """As Whisper's last norm and head: where the norm's weight is large the head's column is small."""
    spread = torch.logspace(-2, 2, 48)
    norm, head = torch.nn.LayerNorm(48), torch.nn.Linear(48, 40, bias=False)
    norm.weight.copy_(spread)
    norm.bias.copy_(spread.flip(0) * 1e-3)
    head.weight.copy_(rows_of(1, 48 * 40, 7).view(40, 48) / spread)
    norm, head, x = norm.to(dtype), head.to(dtype), rows_of(6, 48, 8).to(dtype)
    before = norm.weight.clone(), head.weight.clone()
    smooth, even = balanced(norm, head)
    expected = head(norm(x))
    assert torch.equal(even(smooth(x)), expected)
    assert torch.equal(norm.weight, before[0]) and torch.equal(head.weight, before[1])
    rounded_head, rounded_even = Int8Linear.of(head)(norm(x)), Int8Linear.of(even)(smooth(x))
    assert (rounded_even - expected).norm() < 0.2 * (rounded_head - expected).norm()


def test_a_head_is_cut_to_a_list_of_tokens():
    head, listed = Int8Linear.of(torch.nn.Linear(24, 50, bias=False)), torch.tensor([3, 1, 40])
    x = rows_of(4, 24, 6)
    assert torch.equal(linear_of(head).rows(listed)(x), head(x)[:, listed])


def test_whispers_decoder_is_quantised_but_for_the_projections_of_encoder_states():
    whisper = copy.deepcopy(model(Shape()))
    embedding = whisper.model.decoder.embed_tokens.weight.clone()
    quantize_whisper(whisper)
    kept = {name for name, m in whisper.named_modules() if type(m) is torch.nn.Linear}
    assert kept == {
        f"model.decoder.layers.{i}.encoder_attn.{part}_proj" for i in range(2) for part in "kv"
    }
    assert isinstance(whisper.proj_out, Int8Linear) and is_int8(whisper)
    assert torch.equal(whisper.model.decoder.embed_tokens.weight, embedding)


def quantised_whisper(shape: Shape) -> Any:
    whisper = copy.deepcopy(model(shape))
    quantize_whisper(whisper)
    return whisper


def quantised_causal_lm(family: str) -> Any:
    lm = copy.deepcopy(causal_lm(family))
    quantize_causal(lm)
    return lm


@pytest.mark.parametrize("engine", [ModelEngine.LEAN, ModelEngine.MODULES, ModelEngine.AUTO])
def test_every_engine_runs_a_quantised_draft(engine):
    whisper = quantised_whisper(Shape(size=32, inner=64))
    assert whisper_engine(whisper, engine, draft=True) in ("native", "lean", "modules")
    assert causal_engine(quantised_causal_lm("llama"), engine, draft=True)


@pytest.mark.parametrize("engine", [ModelEngine.LEAN, ModelEngine.MODULES])
def test_a_quantised_target_is_refused_on_an_engine_whose_drafts_could_change_tokens(engine):
    whisper, lm = quantised_whisper(Shape(size=32, inner=64)), quantised_causal_lm("llama")
    for check, target in ((whisper_engine, whisper), (causal_engine, lm)):
        with pytest.raises(LoadError, match=f"int8 does not run on the {engine} engine.*native"):
            check(target, engine)


def test_a_quantised_target_does_not_fall_back_to_another_engine(monkeypatch):
    """Neither where the kernels are missing, nor where they have no form of the model."""
    with pytest.raises(LoadError, match=r"int8 needs the native engine \(gemma2 has none\)"):
        causal_engine(quantised_causal_lm("gemma2"))
    whisper = quantised_whisper(Shape(size=32, inner=64))
    for module in (model_engines, native_whisper):
        monkeypatch.setattr(module, "missing", lambda: "no compiler")
    with pytest.raises(LoadError, match=r"int8 needs the native engine \(no compiler\)"):
        whisper_engine(whisper)
    assert whisper_engine(whisper, draft=True) == "lean"


@pytest.mark.native
@torch.inference_mode()
def test_logits_of_several_tokens_have_the_bits_of_one_at_a_time():
    """Rounding to int8 turns a last bit into a whole step, so that drafts would change tokens."""
    lm = quantised_causal_lm("llama")
    assert causal_engine(lm) == "native"
    decoder = NativeCausalDecoder(lm)
    tokens = torch.randint(60, (3, 9), generator=torch.Generator().manual_seed(0))
    decoder.allocate(3, 16)
    decoder.prefill(torch.arange(3), tokens[:, :4], [None] * 3)
    start = torch.full((3,), 3)
    together = decoder.score(tokens[:, 3:], start, reach=9).logits
    decoder.release()
    for row in range(3):
        decoder.allocate(1, 16)
        decoder.prefill(torch.arange(1), tokens[row : row + 1, :4], [None])
        for at in range(3, 9):
            alone = decoder.score(
                tokens[row : row + 1, at : at + 1], start[:1] + at - 3, reach=at + 1
            )
            assert torch.equal(alone.logits[0, 0], together[row, at - 3])
        decoder.release()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mistral with a window"])
def test_a_quantised_causal_lm_has_an_engine(family):
    lm = copy.deepcopy(causal_lm(family))
    quantize_causal(lm)
    assert not any(type(module) is torch.nn.Linear for module in lm.modules())
    decoder = causal_decoder(lm)
    assert decoder.engine in (("modules",) if family == "gemma2" else ("native", "lean"))


def test_a_model_without_linear_projections_is_refused_by_name():
    with pytest.raises(LoadError, match="needs projections of torch.nn.Linear, and gpt2 has none"):
        quantize_causal(copy.deepcopy(causal_lm("gpt2")))
