"""Folders of tiny random language models, written by transformers itself: what loaders must read.

Tokens are the 256 bytes, a few words, and specials; a chat template where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

POSITIONS = 96
SPECIALS = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
MERGES = (("h", "e"), ("Ġ", "a"), ("e", "r"), ("Ġ", "t"), ("he", "r"), ("o", "n"))
TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('no ' + m.role) }}{% endif %}"
    "<|user|>{{ m.content }}{% endfor %}<|assistant|>"
)


def tokenizer(
    merges: Sequence[tuple[str, str]] = MERGES, *, letters: str | None = None, chat: bool = True
) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2 and all that follow it; over some `letters` alone, what a random model
    writes is text."""
    tokens = sorted(letters or pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in merges]
    inner = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, list(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=SPECIALS[0],
        eos_token=SPECIALS[1],
        additional_special_tokens=list(SPECIALS[2:]),
    )
    if chat:
        made.chat_template = TEMPLATE
    return made


def write(
    folder: Path,
    *,
    family: str = "llama",
    layers: int = 2,
    seed: int = 0,
    tokens: PreTrainedTokenizerFast | None = None,
    padding: int = 0,
    near: Path | None = None,
    positions: int = POSITIONS,
) -> Path:
    """A model of random weights; `padding` is the number of unused token ids. `near` is a model of the
    same shape: the weights are its own with some noise, so that as a draft it is often right."""
    tokens = tokens or tokenizer()
    sizes = {
        "vocab_size": len(tokens) + padding,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": positions,
    }
    if family == "gpt2":
        sizes = {
            "vocab_size": len(tokens) + padding,
            "n_embd": 16,
            "n_layer": layers,
            "n_head": 2,
            "n_positions": positions,
        }
    torch.manual_seed(seed)
    ids = dict(zip(("bos_token_id", "eos_token_id"), (tokens.bos_token_id, tokens.eos_token_id),
                   strict=True))  # fmt: skip
    config = CONFIG_MAPPING[family](**sizes, **ids, pad_token_id=0, initializer_range=0.4)
    model = AutoModelForCausalLM.from_config(config)
    if near is not None:
        source = AutoModelForCausalLM.from_pretrained(near).state_dict()
        noise = {name: 0.02 * torch.randn_like(weight) for name, weight in source.items()}
        model.load_state_dict({name: source[name] + noise[name] for name in source})
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder
