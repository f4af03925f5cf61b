"""Depth pruning: distances are angles, whole models are copied exactly, layers are named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from typer.testing import CliRunner

from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.distill.pruning import (
    AngularDistances,
    angular_distances,
    pruned_causal,
    pruned_whisper,
    spaced,
)

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()


def whisper() -> Any:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=40,
        d_model=16,
        encoder_layers=1,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=8,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=2,
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
    found = angular_distances(layers, [(forward, torch.zeros_like(place), place)])
    assert found.tokens == 9
    for block, row in found.of.items():
        for first, distance in enumerate(row):
            turned = sum(angles[first : first + block])
            assert distance == pytest.approx(turned / math.pi, abs=1e-3)


def test_the_block_that_turns_least_is_left_out() -> None:
    found = AngularDistances(
        {1: (0.3, 0.1, 0.0, 0.2), 2: (0.4, 0.1, 0.2), 3: (0.5, 0.3), 4: (0.6,)}, 9
    )
    assert found.kept(2) == (0, 3)
    assert found.kept(3) == (0, 1, 3)
    assert found.kept(1) == (0,)
    for layers in (0, 4, 9):
        with pytest.raises(UsageError, match=r"from 1 to 3 of the model's 4"):
            found.kept(layers)


def test_single_layers_that_turn_least_may_lie_apart() -> None:
    found = AngularDistances(
        {1: (0.3, 0.0, 0.2, 0.0), 2: (0.3, 0.2, 0.2), 3: (0.4, 0.2), 4: (0.5,)}, 9
    )
    assert found.most_turning(2) == (0, 2)
    assert found.most_turning(3) == (0, 1, 2)


def test_spacing_keeps_the_first_and_the_last() -> None:
    assert spaced(2, 12) == (0, 11)
    assert spaced(3, 5) == (0, 2, 4)
    assert spaced(1, 5) == (0,)
    with pytest.raises(UsageError, match="from 1 to 4"):
        spaced(5, 5)


@pytest.mark.parametrize("make", [llama, lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()])
def test_with_all_layers_a_language_model_is_itself_and_with_some_it_skips_the_others(
    make: Any,
) -> None:
    model = make()
    tokens = torch.randint(0, 40, (2, 7))
    assert torch.equal(pruned_causal(model, range(4)).eval()(tokens).logits, model(tokens).logits)
    some = pruned_causal(model, (1, 3)).eval()
    model.model.layers = nn.ModuleList([model.model.layers[1], model.model.layers[3]])
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = number
    model.config.num_hidden_layers = 2
    assert torch.allclose(
        some(tokens, use_cache=False).logits, model(tokens, use_cache=False).logits, atol=1e-5
    )


def test_with_all_layers_a_whisper_decoder_is_itself_without_its_encoder() -> None:
    model = whisper()
    states, tokens = torch.randn(2, 8, 16), torch.randint(0, 40, (2, 5))
    made = pruned_whisper(model, range(3)).eval()
    assert not hasattr(made.model, "encoder")
    hidden = model.model.decoder(input_ids=tokens, encoder_hidden_states=states).last_hidden_state
    ours = made.model.decoder(input_ids=tokens, encoder_hidden_states=states).last_hidden_state
    assert torch.allclose(made.proj_out(ours), model.proj_out(hidden), atol=1e-6)
    assert pruned_whisper(model, (0, 2)).config.decoder_layers == 2


@pytest.mark.parametrize("layers", [(), (0, 0), (2, 1), (0, 4)])
def test_layers_that_are_not_there_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="from 0 to 3, each once, in order"):
        pruned_causal(llama(), layers)


def test_a_family_with_other_layers_is_refused_by_name() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2))
    with pytest.raises(UsageError, match=r"gpt2 models cannot be pruned"):
        pruned_causal(model, (0,))


def prune(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["prune", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_pruned_text_draft_loads_and_its_text_is_that_of_plain_decoding(tmp_path: Path) -> None:
    from forescribe.speculative.models import hub
    from forescribe.text import Options, TextGenerator

    data = tmp_path / "words.txt"
    data.write_text(
        "The board approved the merger after a long debate.\n\nHeavy snow closed the pass."
    )
    out = tmp_path / "draft"
    made = prune("demo-text", "-o", out, "--layers", 4, "--choose", "single", "--data", data)
    assert "layers 0, 4, 8, 12 of 16" in made.stdout  # those that the target began with
    report = json.loads((out / "prune.json").read_text())
    assert report["kept"] == [0, 4, 8, 12]
    assert len(report["distances"]["1"]) == 16
    target = hub.path("text")
    drafted = TextGenerator.load(target, out, batch=2, gamma=4)
    prompts = ["Heavy snow closed the", "She wore a green"]
    options = Options(max_tokens=24)
    texts = drafted.generate(prompts, options)
    assert [t.ids for t in texts] == [t.ids for t in drafted.plain().generate(prompts, options)]
    assert drafted.stats.acceptance_rate > 0.9
    with pytest.raises(UsageError, match="--overwrite"):
        prune("demo-text", "-o", out, "--layers", 2, "--data", data)


def test_without_data_layers_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data"):
        prune("demo-text", "-o", tmp_path / "d", "--layers", 2)
