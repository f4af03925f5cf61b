"""Depth pruning: layers lie evenly, and are copied exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import WhisperConfig, WhisperForConditionalGeneration

from forescribe.distill.speech import kept_layers, pruned_whisper


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


@pytest.mark.parametrize(
    ("depth", "count", "kept"),
    [(4, 1, [0]), (4, 2, [0, 3]), (4, 3, [0, 2, 3]), (32, 2, [0, 31]), (32, 4, [0, 10, 21, 31])],
)
def test_layers_are_taken_evenly_from_the_first_to_the_last(depth, count, kept) -> None:
    assert kept_layers(depth, count) == kept


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
