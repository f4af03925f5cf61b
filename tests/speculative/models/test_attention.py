"""Attention as products of matrices, against PyTorch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from forescribe.speculative.models import modules
from forescribe.speculative.models.modules import attend, use_products
from forescribe.speculative.models.plain import FEW, MANY
from tests.speculative.models.whispers import SOT, whisper


class Crossing(torch.nn.Module):
    is_causal = False


class Causal(torch.nn.Module):
    is_causal = True


@settings(max_examples=20)
@given(
    st.integers(1, 3),
    st.integers(1, FEW + 2),
    st.integers(MANY - 1, MANY + 40),
    st.sampled_from([None, 1.0, 0.3]),
    st.booleans(),
)
def test_it_is_attention(batch, few, many, scaling, masked):
    generator = torch.Generator().manual_seed(few * many)
    query, key, value = (
        torch.randn(batch, 2, length, 8, generator=generator, dtype=torch.float64)
        for length in (few, many, many)
    )
    mask = None
    if masked:
        reads = torch.rand(batch, 1, few, many, generator=generator) < 0.5
        reads[..., 0] = True
        mask = torch.zeros(reads.shape, dtype=torch.float64)
        mask = mask.masked_fill(~reads, torch.finfo(torch.float64).min)
    found, weights = attend(Crossing(), query, key, value, mask, scaling=scaling)
    wanted = scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    assert weights is None
    assert torch.allclose(found, wanted.transpose(1, 2), atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "few", "many", "dtype", "products"),
    [
        (Crossing, FEW, MANY, torch.float32, True),
        (Crossing, FEW + 1, MANY, torch.float32, False),
        (Crossing, FEW, MANY - 1, torch.float32, False),
        (Crossing, FEW, MANY, torch.bfloat16, False),
        (Causal, FEW, MANY, torch.float32, False),  # without a mask, it says itself who reads what
    ],
)
def test_only_few_queries_over_many_keys_are_taken_from_the_fused_kernel(
    monkeypatch, kind, few, many, dtype, products
):
    fused = []
    monkeypatch.setattr(
        modules, "sdpa_attention_forward", lambda *a, **k: fused.append(a) or (a[1], None)
    )
    query, key = torch.zeros(1, 2, few, 8, dtype=dtype), torch.zeros(1, 2, many, 8, dtype=dtype)
    attend(kind(), query, key, key, None)
    assert (not fused) is products


def test_an_unmodified_model_takes_it_by_name():
    theirs = whisper(dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    use_products(ours)
    tokens = torch.tensor([[SOT, 7, 8, 9]])
    states = torch.randn(1, MANY, 16, generator=torch.Generator().manual_seed(1)).double()

    def scores(model):
        return model.model.decoder(
            input_ids=tokens, encoder_hidden_states=states, use_cache=False
        ).last_hidden_state

    assert ours.config._attn_implementation == modules.NAME
    assert theirs.config._attn_implementation != modules.NAME
    assert torch.allclose(scores(ours), scores(theirs), atol=1e-12)
