"""Export the pair as folders that transformers' Auto classes load.

    python -m training.text.export                 # bundled/text and bundled/text-draft

Weights are in float16, with "dtype": "float32" in config.json so that loading converts them to float32.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, LlamaForCausalLM

from training.paths import BUNDLED
from training.text import model as pair
from training.text.tokenizer import WORK, load

NAMES = TARGET, DRAFT = "text", "text-draft"


def export(model: LlamaForCausalLM, folder: Path, log: Path) -> None:
    """Write config, generation settings, weights, tokenizer and training log."""
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
    half = {
        name: value.half().contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the token embedding
    }
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    load().save_pretrained(folder)
    shutil.copyfile(log, folder / "training-log.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=WORK / "run")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    options = parser.parse_args()
    state = torch.load(options.run / "final.pt", weights_only=True)
    target, draft = pair.target(pair.LAYERS), pair.draft()
    target.load_state_dict(state["target"])
    draft.load_state_dict(state["draft"])
    export(target, options.out / TARGET, options.run / "log.jsonl")
    export(draft, options.out / DRAFT, options.run / "draft-log.jsonl")


if __name__ == "__main__":
    main()
