"""MTP layers of targets with compressed attention, experts and gates, against transformers' MTP model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from forescribe.speculative import Engine
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.engine.schedule import Fixed
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.speculative.models.checkpoint import tensor_names
from forescribe.speculative.models.heads.formats import mtp_module_head, published_layers

from ...models.causal_lms import EOS, SHARED
from .test_head_drafts import GAMMA, Watched, requests, taps_of

LAYERS = 2
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 12, "first_k_dense_replace": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "head_dim": 4,
        "num_key_value_heads": 4,
    },
    "glm4_moe": {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1},
    "qwen3_next": {
        "layer_types": ["full_attention"] * (LAYERS + 1),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 12,
    },
}


def checkpoint(family: str, folder: Path) -> Path:
    """A target of two layers whose third became an MTP layer, with random weights."""
    torch.manual_seed(1)
    sizes = {**SHARED, "num_hidden_layers": LAYERS + 1, **FAMILIES[family]}
    if family != "qwen3_next":
        sizes["num_mtp_layers"] = 0
    whole = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**sizes))
    whole.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = LAYERS
    tensors = load_file(folder / "model.safetensors")
    prefix, width = f"model.layers.{LAYERS}.", SHARED["hidden_size"]
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}
    if family == "qwen3_next":
        config["layer_types"] = ["full_attention"] * LAYERS
        for name in [n for n in tensors if n.startswith(prefix)]:
            tensors[f"mtp.layers.0.{name.removeprefix(prefix)}"] = tensors.pop(name)
        prefix = "mtp."
        names = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc"}
        names["norm"] = "norm"
    else:
        config["num_nextn_predict_layers"] = 1
        config.pop("num_mtp_layers", None)
    for key in ("enorm", "hnorm", "norm"):
        tensors[f"{prefix}{names[key]}.weight"] = torch.rand(width) + 0.5
    tensors[f"{prefix}{names['eh_proj']}.weight"] = 0.4 * torch.randn(width, 2 * width)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def theirs(made: Any, model: Any, text: Sequence[int], count: int) -> list[int]:
    """Drafts of transformers' MTP model, which reads the whole text for each."""
    states = taps_of(model, text, [-1])[None, :, 0]
    tokens, drafts = list(text[1:]), list[int]()
    for _ in range(count):
        places = torch.arange(1, len(tokens) + 1)[None]
        made_states: Tensor = made.forward_layer(
            0, states, places, None, input_ids=torch.tensor([tokens])
        )
        drafts.append(int(made._project_to_logits(made_states)[0, -1].argmax()))
        tokens.append(drafts[-1])
        states = torch.cat([states, made_states[:, -1:]], 1)
    return drafts


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_those_of_transformers_mtp_model(family: str, tmp_path: Path) -> None:
    folder = checkpoint(family, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert model.config.num_hidden_layers == LAYERS
    head = mtp_module_head(model, tensor_names(folder), "target")
    drafter = Watched(HeadDrafter(head))

    def decoder() -> Any:
        return causal_decoder(model, engine=ModelEngine.MODULES)

    runner = Engine(decoder(), drafter, batch=3, eos=[EOS], schedule=Fixed(GAMMA))
    results = {r.request.tag: r for r in runner.run(requests())}
    for plain in Engine(decoder(), None, batch=3, eos=[EOS]).run(requests()):
        assert results[plain.request.tag].tokens == plain.tokens
        assert results[plain.request.tag].draft_error is None
    made = published_layers(model)
    assert len(drafter.seen) > 20
    for text, drafts in drafter.seen[::4]:
        assert drafts == theirs(made, model, text, len(drafts))


def test_a_target_without_the_layer_is_refused(tmp_path: Path) -> None:
    folder = checkpoint("glm4_moe", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if f"layers.{LAYERS}." not in n}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with pytest.raises(LoadError, match="target: its MTP layer cannot be loaded"):
        mtp_module_head(model, tensor_names(folder), "target")
    model.config.num_mtp_layers = 0
    with pytest.raises(LoadError, match="target has no MTP layer"):
        mtp_module_head(model, tensor_names(folder), "target")


def test_hybrids_are_refused_by_name() -> None:
    sizes = {**SHARED, "num_hidden_layers": 2, **FAMILIES["qwen3_next"]}
    sizes["layer_types"] = ["linear_attention", "full_attention"]
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["qwen3_next"](**sizes))
    with pytest.raises(LoadError, match=r"layers of linear_attention.*cannot be rolled back"):
        mtp_module_head(model, {"mtp.fc.weight"}, "target")
