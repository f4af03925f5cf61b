"""Checkpoints: a folder of Whisper weights to a model that was checked, its tokenizer and its extractor.

Uses unmodified transformers classes and loaders. Knows one model at a time; nothing of pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.checkpoint import (
    CONFIG,
    GENERATION,
    damaged,
    miscounted,
    misshapen,
    quiet,
    shapes_in,
    strange_id,
)
from forescribe.speculative.models.engines import (
    ModelEngine,
    checked_whisper_engine,
    int8_engine,
    native_encoder,
)
from forescribe.speculative.models.hub import Role
from forescribe.speculative.models.quantized import BORROWED, float_model, quantize_whisper
from forescribe.speculative.models.weights import decoder_only, encoder_of
from forescribe.speculative.native.encoder import NativeEncoder

from ..errors import CapacityError, ModelError, out_of_memory
from .conversion.converting import origin
from .presets import as_ids

_ENDS = ("eos_token_id", "decoder_start_token_id")
_RULES = (
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_decoder_ids",
    "no_timestamps_token_id",
    "lang_to_id",
    "task_to_id",
)
USED_IDS: Mapping[Role, Mapping[str, tuple[str, ...]]] = {
    "model": {GENERATION: (*_ENDS, *_RULES), CONFIG: _ENDS},
    "draft": {GENERATION: _ENDS, CONFIG: _ENDS},
}
"""The settings whose token ids are used, by file. Rules are the target's, and a config.json has those of
another vocabulary by default."""

_FEATURES = ("preprocessor_config.json", "processor_config.json")  # one of them


def read_model(
    folder: Path, role: Role, device: Device, engine: ModelEngine, target: Any = None
) -> tuple[Any, ModelEngine]:
    """A model and the engine that runs its decoder; `target` lends a draft the weights that it lacks, see
    `read_weights`. Raises ModelError, and CapacityError where the device has no room."""
    from transformers import AutoConfig, WhisperForCausalLM, WhisperForConditionalGeneration

    if device.int8 and role == "model":  # before the weights are read
        engine = _supported(folder, role, lambda: int8_engine(engine))
    try:
        shapes = shapes_in(folder)
        wrong = miscounted(folder, shapes, {"decoder_layers": "decoder.layers."})
        if wrong is not None:
            raise ValueError(wrong)
        with quiet():
            config = AutoConfig.from_pretrained(folder)
        if config.model_type != "whisper":
            raise ValueError(f"its config.json says {config.model_type!r}")
        bare = decoder_only(config)
        if bare and role == "model":
            raise ValueError("it has no encoder, so it can only be a --draft")
        kind: Any = WhisperForCausalLM if bare else WhisperForConditionalGeneration
        wrong = None if bare else miscounted(folder, shapes, {"encoder_layers": "encoder.layers."})
        wrong = (
            wrong
            or strange_id(folder, config.vocab_size, USED_IDS[role])
            or misshapen(shapes, lambda: kind(copy.deepcopy(config)))
        )
        if wrong is not None:
            raise ValueError(wrong)
        model = read_weights(kind, folder, config, device.stored, target)
    except Exception as error:  # safetensors, pickle and configurations raise various errors
        raise ModelError(
            f"--{role} {origin(folder)} cannot be loaded as a Whisper model: "
            f"{damaged(folder) or _line(error)}"
        ) from error
    model = _placed(model, folder, role, device)
    if device.int8:
        quantize_whisper(model)
    found = _supported(
        folder, role, lambda: checked_whisper_engine(model, engine, draft=role == "draft")
    )
    if device.products:
        from forescribe.speculative.models.modules import use_products

        use_products(model)
    return model, found


def read_weights(
    kind: Any, folder: Path, config: Any, dtype: torch.dtype, target: Any = None
) -> Any:
    """The model of a folder, of a class of transformers. Weights of 8-bit integers become floats, and a draft
    without embeddings has those of `target`. Raises ValueError for weights that are missing, of another
    shape, or of integers without scales."""
    lent = {} if target is None else {n: target.get_parameter(n).detach().cpu() for n in BORROWED}
    return float_model(kind, folder, config, dtype, lent)


def _supported(folder: Path, role: Role, choose: Callable[[], ModelEngine]) -> ModelEngine:
    try:
        return choose()
    except LoadError as error:
        raise ModelError(f"--{role} {origin(folder)} is not supported: {error}") from error


def _placed(model: Any, folder: Path, role: Role, device: Device) -> Any:
    """Move a model to its device. Raises CapacityError."""
    try:
        return device.placed(model)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise CapacityError(
            f"{device.name} has no room for the weights of --{role} {origin(folder)}: free some, or take a "
            "smaller model or --dtype float16"
        ) from error


def read_tokenizer(folder: Path, config: Any) -> Any:
    from transformers import WhisperTokenizer

    try:
        tokenizer = WhisperTokenizer.from_pretrained(folder)
        if len(tokenizer) < max(
            as_ids(config.eos_token_id), default=1
        ):  # created without a vocabulary
            raise ValueError("it lacks tokenizer.json, or vocab.json with merges.txt")
    except Exception as error:  # a damaged tokenizer.json raises a bare Exception
        raise ModelError(
            f"{origin(folder)} has no usable tokenizer: {damaged(folder) or _line(error)}"
        ) from error
    return tokenizer


def read_extractor(folder: Path, config: Any) -> Any:
    """The extractor of the features that the target's encoder reads."""
    from transformers import WhisperFeatureExtractor

    try:
        if not any((folder / file).is_file() for file in _FEATURES):
            raise ValueError("it lacks preprocessor_config.json")
        extractor = WhisperFeatureExtractor.from_pretrained(folder)
    except Exception as error:
        raise ModelError(
            f"{origin(folder)} has no usable features: {damaged(folder) or _line(error)}"
        ) from error
    made = (extractor.feature_size, extractor.nb_max_frames)
    read = (config.num_mel_bins, 2 * config.max_source_positions)
    if made != read:
        raise ModelError(
            f"{origin(folder)} has no usable features: its feature extractor makes {made[0]} mel bins of "
            f"{made[1]} frames, its encoder reads {read[0]} of {read[1]}"
        )
    return extractor


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def native_encoders(
    model: Any, name: str, engine: ModelEngine, asked: ModelEngine
) -> dict[Any, NativeEncoder]:
    """The native encoder of a model by the modules that it stands for; empty where the modules encode."""
    try:
        native = native_encoder(model, engine, asked)
    except LoadError as error:
        raise ModelError(f"{name} is not supported: {error}") from error
    return {} if native is None else {encoder_of(model): native}
