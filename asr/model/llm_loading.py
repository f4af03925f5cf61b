"""Loading a speech LLM: a folder of transformers to a model that is ready to decode on a device.

The whole model is read by transformers' own class; its text tower is then run by an engine, over the same
weights. What would change words without a sign is refused by name: another vocabulary or encoder in a draft,
an adapter (LoRA) that cannot be merged, weights that are quantised. Knows folders, families and engines.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError, one_line
from forescribe.speculative.model_engines import ModelEngine, causal_engine, int8_engine
from forescribe.speculative.models.causal import positions_of, text_tower
from forescribe.speculative.models.checkpoint import damaged, method_of, quiet
from forescribe.speculative.models.heads.formats import holds_head, load_head
from forescribe.speculative.models.heads.records import TargetShape
from forescribe.speculative.models.hub import Role
from forescribe.speculative.models.quantized import float_model, quantize_causal

from ..errors import CapacityError, ModelError, out_of_memory
from .families import FAMILIES, NO_AUDIO, Family, Inputs
from .presets import Pair, mismatch, model_type
from .speech_llm import (
    ANSWER,
    HEARD,
    MARKS,
    PROMPT_ROOM,
    DraftHead,
    DraftLLM,
    PromptTokens,
    SpeechLLM,
    embeddings,
)
from .tokens import WhisperTokens, as_ids
from .whisper import Whisper

ADAPTER = "adapter_config.json"


def load_llm(
    pair: Pair,
    folder: Path,
    drafts: list[tuple[str | Path, Path]],
    device: Device,
    *,
    engine: ModelEngine,
    draft_device: Device,
    aligner: Callable[[str], Whisper | None],
) -> SpeechLLM:
    """The model in a folder with its draft; `aligner` finds a Whisper that times words of a language. Raises
    ModelError, as `loading.load`, and CapacityError where the device has no room."""
    family = FAMILIES[str(model_type(folder))]
    target, tower, runs = _model(folder, family, device, engine, "model")
    placeholder = int(target.config.audio_token_id)
    processor, tokenizer, ends = _processor(folder, family, placeholder, _ends(target))
    size = int(tower.config.vocab_size)
    positions = min(positions_of(tower.config), HEARD + MARKS + PROMPT_ROOM + ANSWER)
    named = {int(i) for i in tokenizer.added_tokens_decoder}
    tokens = PromptTokens(
        ends,
        placeholder,
        min(size, len(tokenizer)),
        frozenset({*named, placeholder, *ends}),
        family,
    )
    made = list[DraftLLM | DraftHead]()
    for name, place in drafts:
        if holds_head(place):
            made.append(_head(place, name, pair, target, tower))
            continue
        _check_draft(pair, folder, name, place)
        model, own, draft_runs = _model(place, family, draft_device, engine, "draft")
        _check_steps(pair, name, family.inputs(processor, NO_AUDIO), family, target, model)
        made.append(DraftLLM(model, own, draft_device, draft_runs, positions, size))
    return SpeechLLM(
        target,
        tower,
        processor,
        family,
        tokenizer,
        tokens,
        pair,
        device,
        runs,
        positions,
        tuple(made),
        aligner,
    )


def _model(
    folder: Path, family: Family, device: Device, engine: ModelEngine, role: Role
) -> tuple[Any, Any, ModelEngine]:
    """The model of a folder, its text tower, and the engine that runs it."""
    import transformers

    try:
        if device.int8 and role == "model":  # before the weights are read
            engine = int8_engine(engine)
        with quiet():
            config = transformers.AutoConfig.from_pretrained(folder)
        if hasattr(config, "thinker_config"):
            raise LoadError(
                "it has the form of Qwen's own package: take the repository of the same name with -hf"
            )
        if method_of(config) is not None:
            raise LoadError(
                f"its weights are quantised by {method_of(config)}: take the plain weights"
            )
        kind = getattr(transformers, family.model)
        model = device.placed(_merged(float_model(kind, folder, config, device.stored), folder))
        tower = text_tower(model)
        if device.int8:
            quantize_causal(tower)
        runs = causal_engine(tower, engine, stored=device.stored, draft=role == "draft")
        return model, tower, runs
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # safetensors, configurations and engines raise various errors
        name = f"--{role} {folder.name}"
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise CapacityError(f"{device.name} has no room for the weights of {name}") from error
        raise ModelError(
            f"{name} cannot be loaded as a speech model: {damaged(folder) or one_line(error)}"
        ) from error


def _head(place: Path, name: str | Path, pair: Pair, target: Any, tower: Any) -> DraftHead:
    """A head on the target's states. Raises ModelError for one that does not fit."""
    config = tower.config
    shape = TargetShape(
        str(pair.target), config.hidden_size, config.num_hidden_layers, config.vocab_size
    )
    try:
        head = load_head(place, shape, str(name), device=target.device, dtype=target.dtype)
    except LoadError as error:
        raise ModelError(f"--draft {error}", code="model_mismatch") from error
    return DraftHead(head)


def _merged(model: Any, folder: Path) -> Any:
    """The model with its adapter added to its weights: Granite Speech has one that is for audio alone."""
    needed = getattr(model.config, "has_lora_adapter", False)
    if not needed and not (folder / ADAPTER).is_file():
        return model
    if not getattr(model, "_hf_peft_config_loaded", False):
        raise LoadError(
            f"its weights have a LoRA adapter for audio, which needs {ADAPTER} and `pip install peft`"
        )
    for name, module in list(model.named_modules()):
        if hasattr(module, "get_delta_weight"):
            base = module.get_base_layer()
            for adapter in module.active_adapters:
                base.weight.data += module.get_delta_weight(adapter)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, base)
    return model


def _ends(model: Any) -> tuple[int, ...]:
    """The tokens at which `generate` ends. Raises ModelError where there are none."""
    for config in (model.generation_config, model.config, model.config.get_text_config()):
        if ends := as_ids(getattr(config, "eos_token_id", None)):
            return ends
    raise ModelError("--model: its generation_config.json has no eos_token_id: no answer would end")


def _processor(
    folder: Path, family: Family, placeholder: int, ends: tuple[int, ...]
) -> tuple[Any, WhisperTokens, tuple[int, ...]]:
    try:
        with quiet():
            processor = family.processor(folder)
        inner = processor.tokenizer
        backend = getattr(inner, "backend_tokenizer", None)
        if backend is None or "ByteLevel" not in str(backend.decoder):
            raise ValueError("its tokens are not bytes: it needs a tokenizer.json")
        if family.prompt(processor, None, "").count(placeholder) != 1:
            raise ValueError(f"its prompt has no place for audio, token {placeholder}")
        own = inner.eos_token_id  # with which answers end, of all
        ends = tuple(sorted(ends, key=lambda end: end != own))
        return processor, WhisperTokens(backend, ends[0], ends[0]), ends
    except Exception as error:
        raise ModelError(
            f"--model {folder.name} has no usable processor: {damaged(folder) or one_line(error)}"
        ) from error


def _check_draft(pair: Pair, folder: Path, name: str | Path, place: Path) -> None:
    """Raises ModelError for a draft that reads other tokens."""
    ours, theirs = model_type(folder), model_type(place)
    if ours != theirs:
        raise mismatch(name, pair.target, f"it is a {theirs}, and its target a {ours}")
    if _vocabulary(folder) != _vocabulary(place):
        raise mismatch(name, pair.target, "they have other tokens")


@torch.inference_mode()
def _check_steps(
    pair: Pair, name: str | Path, inputs: Inputs, family: Family, target: Any, draft: Any
) -> None:
    """Raises ModelError for a draft that makes other embeddings than its target of the same audio: a prompt
    has a place for each of the target's."""
    steps = len(embeddings(family, target, inputs))
    with suppress(RuntimeError, IndexError, ValueError):  # of shapes
        if len(embeddings(family, draft, inputs)) == steps:
            return
    raise mismatch(name, pair.target, "its encoder does not hear in the steps of its target's")


def _vocabulary(folder: Path) -> bytes | None:
    """The file with the tokens of a folder, Mistral's own where it has no other; None: it has neither."""
    files = (folder / name for name in ("tokenizer.json", "tekken.json"))
    return next((file.read_bytes() for file in files if file.is_file()), None)
