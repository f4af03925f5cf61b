"""Loads a language model by name: weights on a device, with their vocabulary.

Knows transformers' loaders; nothing of presets and decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError, one_line
from forescribe.speculative.model_engines import (
    ModelEngine,
    causal_decoder,
    causal_engine,
    int8_engine,
)
from forescribe.speculative.models.causal import positions_of
from forescribe.speculative.models.checkpoint import (
    GGUF,
    damaged,
    loading,
    method_of,
    missing,
    quiet,
    read_model,
)
from forescribe.speculative.models.hub import NO_FILES, Family, Role, locate
from forescribe.speculative.models.quantized import float_model, quantize_causal
from forescribe.speculative.models.slot_model import SlotModel

from .vocabulary import Vocabulary

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def _missing(folder: Path) -> str | None:
    """What a folder lacks; weights may have other names than transformers gives them."""
    lacks = missing(folder)
    if lacks == "weights" and any(True for pattern in _WEIGHTS for _ in folder.glob(pattern)):
        return None
    return lacks


LANGUAGE_MODEL = Family(
    patterns=(
        ("*.json", "*.txt", "*.jinja", "*.model", "*.safetensors"),
        ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
    ),
    contents="a language model has config.json, its weights and its tokenizer",
    missing=_missing,
    files=tuple(GGUF),
)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model of transformers, with its vocabulary."""

    name: str  # as the user knows it
    model: Any
    vocabulary: Vocabulary
    ends: frozenset[int]  # tokens that end a text
    engine: ModelEngine = ModelEngine.AUTO  # what runs its forward
    stored: torch.dtype | None = None  # of its weights in native kernels; None: the model's

    def decoder(self, positions: int | None = None, vocab: int | None = None) -> SlotModel:
        """Its decoder, on its engine; `positions` and `vocab` as of `CausalModel`."""
        return causal_decoder(self.model, positions, vocab, engine=self.engine, stored=self.stored)

    @property
    def vocab_size(self) -> int:
        """The size of its embedding: the vocabulary, padded."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def positions(self) -> int:
        """Positions at which it can be decoded: see `speculative.models.causal.positions_of`."""
        return positions_of(self.model.config.get_text_config())


@loading()
def load(
    name: str | Path,
    device: Device,
    *,
    role: Role = "model",
    network: bool = True,
    engine: ModelEngine = ModelEngine.AUTO,
) -> LanguageModel:
    """The language model of a folder, hub id or GGUF file, whose numbers transformers dequantises; `network`
    allows a download, `engine` runs its forward.

    Raises LoadError, in one line with the model's name: not found, not a language model, weights that do
    not fit their configuration, no tokenizer, a family that is not decoded exactly (transformers' modules
    are compared with their own forward here, see `speculative.models.causal`).
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    found = locate(name, LANGUAGE_MODEL, role=role, network=network)
    folder, source = (found.parent, {"gguf_file": found.name}) if found.is_file() else (found, {})
    try:
        if device.int8 and role == "model":  # before the weights are read
            engine = int8_engine(engine)
        with quiet():
            config = AutoConfig.from_pretrained(folder, **source)
        if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise LoadError(f"{config.model_type} is no causal language model")
        model = device.placed(read_weights(folder, config, device.stored, source))
        if device.int8:
            method = method_of(config)
            if method is not None:
                raise LoadError(
                    f"its weights are quantised by {method} already: leave out --quantize"
                )
            quantize_causal(model)
        engine = causal_engine(model, engine, stored=device.stored, draft=role == "draft")
    except torch.OutOfMemoryError:
        raise
    except LoadError as error:
        raise LoadError(f"--{role} {name} cannot be loaded as a language model: {error}") from error
    except Exception as error:  # safetensors, pickle and configurations raise various errors
        raise LoadError(
            f"--{role} {name} cannot be loaded as a language model: "
            f"{(None if source else damaged(folder)) or one_line(error)}"
        ) from error
    tokenizer = _tokenizer(folder, name, role, source)
    return LanguageModel(
        str(name),
        model,
        Vocabulary(tokenizer),
        _ends(model, tokenizer, f"--{role} {name}"),
        engine,
        device.stored,
    )


def read_weights(
    folder: Path, config: Any, dtype: torch.dtype, source: Mapping[str, str] = NO_FILES
) -> Any:
    """The model of a folder, or of the GGUF file in it that `source` names; weights of 8-bit integers with
    scales become floats, see `float_model`. Raises ValueError as
    `float_model`."""
    from transformers import AutoModelForCausalLM

    if not source and method_of(config) is None:
        return float_model(AutoModelForCausalLM, folder, config, dtype)
    model = read_model(AutoModelForCausalLM, folder, dtype=dtype, **source)
    if source:  # they have been dequantised
        model.config.__dict__.pop("quantization_config", None)
    return model


def _tokenizer(
    folder: Path, name: str | Path, role: Role, source: Mapping[str, str] = NO_FILES
) -> Any:
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, **source)
        if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):  # it has no files
            raise ValueError("it lacks tokenizer.json, or the files that it is made of")
    except Exception as error:
        raise LoadError(
            f"--{role} {name} has no usable tokenizer: {damaged(folder) or one_line(error)}"
        ) from error
    return tokenizer


def check_draft(target: LanguageModel, draft: LanguageModel) -> None:
    """Raises LoadError for a draft with other tokens than its target, with the first one that differs."""
    token = target.vocabulary.difference(draft.vocabulary)
    if token is not None:
        raise LoadError(
            f"{draft.name} cannot draft for {target.name}: they have {token}; take a draft with the "
            "same tokens, or --draft ngram"
        )


def _ends(model: Any, tokenizer: Any, name: str) -> frozenset[int]:
    """The tokens at which transformers' `generate` ends. Raises LoadError for the tokenizer's, which it has
    where the configuration names none, if the model does not have it."""
    for owner in (model.generation_config, model.config, tokenizer):
        found = getattr(owner, "eos_token_id", None)
        if found is not None:
            ends = frozenset([found] if isinstance(found, int) else found)
            size = int(model.config.get_text_config().vocab_size)
            strange = [end for end in ends if not 0 <= end < size]
            if strange:
                raise LoadError(
                    f"{name}: its tokenizer ends a text with token {strange[0]}, and its vocabulary has the "
                    f"ids 0 to {size - 1}; set eos_token_id in its generation_config.json"
                )
            return ends
    return frozenset()
