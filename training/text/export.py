"""Export the pair as folders that `forescribe.text` loads.

    python -m training.text.export                 # bundled/text and bundled/text-draft

Weights are stored in 8 bits (`stored_int8`), with "dtype": "float32" in config.json, which `as_floats` keeps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from forescribe.text.language_model import read_weights
from training.paths import BUNDLED
from training.stored import stored_int8
from training.text import model as pair
from training.text.tokenizer import WORK, load

NAMES = TARGET, DRAFT = "text", "text-draft"


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config, generation settings, weights and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    config.dtype = torch.float32
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        max_length=config.max_position_embeddings,
    ).save_pretrained(folder)
    weights = dict(model.state_dict())
    weights.pop("lm_head.weight")  # tied to the token embedding
    save_file(stored_int8(weights), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    load().save_pretrained(folder)


def opened(folder: Path) -> LlamaForCausalLM:
    """A model that `export` wrote, in float32."""
    return read_weights(folder, LlamaConfig.from_pretrained(folder), torch.float32).eval()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=WORK / "run")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    options = parser.parse_args()
    state = torch.load(options.run / "final.pt", weights_only=True)
    target, draft = pair.target(pair.LAYERS), pair.draft()
    target.load_state_dict(state["target"])
    draft.load_state_dict(state["draft"])
    export(target, options.out / TARGET)
    export(draft, options.out / DRAFT)


if __name__ == "__main__":
    main()
