"""Depth pruning: distances are angles, the block that turns least is left out, layers are copied exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import WhisperConfig, WhisperForConditionalGeneration

from forescribe.asr.errors import UsageError
from forescribe.distill.speech import block_angles, check_layers, kept_layers, pruned_whisper


def whisper() -> Any:
    torch.manual_seed(0)
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    tokens = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    config = WhisperConfig(
        vocab_size=40,
        encoder_layers=1,
        decoder_layers=3,
        max_source_positions=8,
        max_target_positions=16,
        **sizes,
        **heads,
        **tokens,
    )
    return WhisperForConditionalGeneration(config).eval()


class Rotation(nn.Module):
    """A layer that turns states of two numbers by an angle, and lengthens them."""

    def __init__(self, angle: float) -> None:
        super().__init__()
        sine, cosine = math.sin(angle), math.cos(angle)
        self.matrix = torch.tensor([[cosine, -sine], [sine, cosine]])

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 1.7 * hidden_states @ self.matrix.T


@given(angles=st.lists(st.floats(0.01, 0.4), min_size=2, max_size=6))
def test_distances_are_the_angles_of_the_layers_between(angles: list[float]) -> None:
    layers = nn.ModuleList(Rotation(a) for a in angles)
    states = torch.randn(1, 9, 2, generator=torch.Generator().manual_seed(1))

    def forward() -> None:
        x = states
        for layer in layers:
            x = layer(hidden_states=x)

    place = torch.arange(9)
    for block in range(1, len(angles) + 1):
        found = block_angles(layers, block, [(forward, torch.zeros_like(place), place)])
        for first in range(len(angles) + 1 - block):
            turned = sum(angles[first : first + block]) / math.pi
            assert float(found[first]) == pytest.approx(turned, abs=1e-3)


def test_the_block_that_turns_least_is_left_out() -> None:
    assert kept_layers(torch.tensor([0.4, 0.1, 0.2]), 2) == [0, 3]
    assert kept_layers(torch.tensor([0.3, 0.1, 0.0, 0.2]), 1) == [0, 1, 3]
    assert kept_layers(torch.tensor([0.3, 0.3]), 3) == [0]  # the later of equals
    for layers in (0, 4, 9):
        with pytest.raises(UsageError, match=r"from 1 to 3 of the model's 4"):
            check_layers(layers, 4)


def test_with_all_layers_a_whisper_decoder_is_itself_without_its_encoder() -> None:
    model = whisper()
    states, tokens = torch.randn(2, 8, 16), torch.randint(0, 40, (2, 5))
    made = pruned_whisper(model, range(3)).eval()
    assert not hasattr(made.model, "encoder")
    hidden = model.model.decoder(input_ids=tokens, encoder_hidden_states=states).last_hidden_state
    ours = made.model.decoder(input_ids=tokens, encoder_hidden_states=states).last_hidden_state
    assert torch.allclose(made.proj_out(ours), model.proj_out(hidden), atol=1e-6)


def test_with_some_layers_it_skips_the_others() -> None:
    model = whisper()
    states, tokens = torch.randn(2, 8, 16), torch.randint(0, 40, (2, 5))
    made = pruned_whisper(model, (0, 2)).eval()
    model.model.decoder.layers = nn.ModuleList(
        [model.model.decoder.layers[0], model.model.decoder.layers[2]]
    )
    options = {"input_ids": tokens, "encoder_hidden_states": states, "use_cache": False}
    wanted = model.model.decoder(**options).last_hidden_state
    assert torch.allclose(made.model.decoder(**options).last_hidden_state, wanted, atol=1e-5)
