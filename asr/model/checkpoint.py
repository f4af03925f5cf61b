"""Checkpoints: a folder of Whisper weights to a model that was checked, its tokenizer and its extractor.

Models and tokenizers have two doors. Folders of safetensors with a plain configuration and tokenizer.json are
read here, with the results that transformers has, whose import takes as long as torch's. transformers' own
loaders read all others, and what is wrong with a folder is told by them: where our own reading fails, it says
nothing. They also read what `modules` runs, distills or exports. Knows one model at a time; nothing of pairs.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError, one_line
from forescribe.speculative.models.checkpoint import (
    CONFIG,
    GENERATION,
    damaged,
    integer_weights,
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
from forescribe.speculative.models.plain import PlainWhisper, Settings, awake
from forescribe.speculative.models.quantized import (
    BORROWED,
    float_model,
    float_weights,
    quantize_whisper,
)
from forescribe.speculative.models.weights import ACTIVATIONS, decoder_only, encoder_of
from forescribe.speculative.native.encoder import NativeEncoder

from ..audio.features import Extractor
from ..errors import CapacityError, ModelError, out_of_memory
from .comparisons import ENCODER, Comparisons
from .conversion.converting import origin
from .presets import as_ids
from .tokenizer import WhisperTokens

log = logging.getLogger(__name__)

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

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "d_model": 384,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "activation_function": "gelu",
    "decoder_start_token_id": 50257,
    "eos_token_id": 50256,
    "pad_token_id": 50256,
    "tie_word_embeddings": True,
}
"""What a config.json that leaves them out means."""

_IGNORED = frozenset(
    "_name_or_path activation_dropout apply_spec_augment architectures attention_dropout "
    "begin_suppress_tokens bos_token_id classifier_proj_size decoder_layerdrop dropout dtype "
    "encoder_layerdrop forced_decoder_ids init_std is_encoder_decoder mask_feature_length "
    "mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob "
    "max_length median_filter_width model_type num_hidden_layers scale_embedding suppress_tokens "
    "torch_dtype transformers_version use_cache use_weighted_layer_sum".split()
)
"""Further settings of a config.json, of training, of classifiers or said by generation_config.json too: what
a model computes does not depend on them."""

_GENERATION = (
    "eos_token_id",
    "decoder_start_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
"""Settings that a generation_config.json may leave out."""

_SIZES = ("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft")
_FEATURES = ("preprocessor_config.json", "processor_config.json")
"""One of them; the second has the first one's content as its `feature_extractor`, which counts if it does."""


def read_model(
    folder: Path,
    role: Role,
    device: Device,
    engine: ModelEngine,
    target: Any = None,
    *,
    modules: bool = False,
    known: Comparisons,
) -> tuple[Any, ModelEngine]:
    """A model and the engine that runs its decoder; `target` lends a draft the weights that it lacks, see
    `read_weights`, and `known` are the comparisons that it has passed. With `modules` it is made of
    transformers' modules whatever runs it, else only where it has to be. A `PlainWhisper` can be read again.
    Raises ModelError, and CapacityError where the device has no room."""
    name = f"--{role} {origin(folder)}"
    if device.int8 and role == "model":  # before the weights are read
        with _supported(name):
            engine = int8_engine(engine)
    if not modules and engine is not ModelEngine.MODULES:
        plain = plain_model(folder, role, device, target)
        if plain is not None:
            plain.again = partial(_again, folder.absolute(), role, device, target)
            try:
                if device.kind != "cpu":  # where native kernels do not pack them
                    plain.wake("encoder")
                return _ready(plain, folder, role, device, engine, known)
            except LoadError as error:
                log.info("%s is read by transformers: %s", origin(folder), error)
    model = _of_modules(folder, role, device, target)
    with _supported(name):
        return _ready(model, folder, role, device, engine, known)


def plain_model(
    folder: Path, role: Role, device: Device, target: Any = None, part: str = "decoder"
) -> PlainWhisper | None:
    """The model of a folder by our own reading, as `read_model`, with the weights of one part; None where
    transformers has to read it."""
    try:
        stated = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        generation = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
        config = plain_config(stated)
        bare = "WhisperForCausalLM" in (stated.get("architectures") or [])
        shapes, counts = shapes_in(folder), {"decoder_layers": "decoder.layers."}
        if not bare:
            counts["encoder_layers"] = "encoder.layers."
        if config is None or not shapes or (bare and role == "model"):
            return None
        if miscounted(folder, shapes, counts) or strange_id(
            folder, config.vocab_size, USED_IDS[role]
        ):
            return None
        if integer_weights(folder)[1] is not None:
            return None
        lent = _lent(target) if lacking(folder) else {}
        shapes = {**{name: tuple(weight.shape) for name, weight in lent.items()}, **shapes}
        prefixes = ("model.encoder.",) if part == "encoder" else ("model.decoder.", "proj_out.")
        weights = float_weights(folder, lent if part == "decoder" else None, prefixes)
        model = PlainWhisper.of(config, shapes, weights, device.stored, encoder=not bare)
    except Exception:  # transformers says what is wrong with a damaged folder
        return None
    if model is not None:
        model.generation_config = Settings(**(dict.fromkeys(_GENERATION) | generation))
    return model


def _again(folder: Path, role: Role, device: Device, target: Any, part: str) -> PlainWhisper:
    """A part of the model that `read_model` read before. Raises LoadError where its files have changed."""
    model = plain_model(folder, role, device, target, part)
    if model is None:
        raise LoadError(f"--{role} {origin(folder)} cannot be read: its files have changed")
    device.placed(model)
    if device.int8 and part == "decoder":
        quantize_whisper(model)
    return model


def plain_config(stated: Mapping[str, Any]) -> Settings | None:
    """The settings of a config.json with what it leaves out; None where one is not known here."""
    config = {**_DEFAULTS, **{key: stated[key] for key in stated if key in _DEFAULTS}}
    numbers = [value for key, value in config.items() if isinstance(_DEFAULTS[key], int)]
    if (
        stated.get("model_type") != "whisper"
        or stated.keys() - _DEFAULTS.keys() - _IGNORED
        or config["activation_function"] not in ACTIVATIONS
        or not config["tie_word_embeddings"]
        or stated.get("num_hidden_layers", config["encoder_layers"]) != config["encoder_layers"]
        or any(type(value) is not int for value in numbers if value is not True)
    ):
        return None
    return Settings(architectures=stated.get("architectures"), model_type="whisper", **config)


def _of_modules(folder: Path, role: Role, device: Device, target: Any) -> Any:
    """The model of a folder as transformers' modules. Raises ModelError."""
    from transformers import AutoConfig, WhisperForCausalLM, WhisperForConditionalGeneration

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
        return read_weights(kind, folder, config, device.stored, target)
    except Exception as error:  # safetensors, pickle and configurations raise various errors
        raise ModelError(
            f"--{role} {origin(folder)} cannot be loaded as a Whisper model: "
            f"{damaged(folder) or one_line(error)}"
        ) from error


def _ready(
    model: Any,
    folder: Path,
    role: Role,
    device: Device,
    engine: ModelEngine,
    known: Comparisons,
) -> tuple[Any, ModelEngine]:
    """The model on its device, and the engine that runs it. Raises LoadError where none does, and
    CapacityError."""
    model = _placed(model, folder, role, device)
    if device.int8:
        quantize_whisper(model)
    found = checked_whisper_engine(model, engine, draft=role == "draft", passed=known.passed)
    known.add(found)
    if device.products and isinstance(model, PlainWhisper):
        model.use_products()
    elif device.products:
        from forescribe.speculative.models.modules import use_products

        use_products(model)
    return model, found


def read_weights(
    kind: Any, folder: Path, config: Any, dtype: torch.dtype, target: Any = None
) -> Any:
    """The model of a folder, of a class of transformers. Weights of 8-bit integers become floats, and a draft
    without embeddings has those of `target`. Raises ValueError for weights that are missing, of another
    shape, or of integers without scales."""
    return float_model(kind, folder, config, dtype, _lent(target))


def lacking(folder: Path) -> bool:
    """Whether a draft's folder leaves weights to its target."""
    shapes = shapes_in(folder)
    return bool(shapes) and any(name not in shapes for name in BORROWED)


def _lent(target: Any) -> dict[str, Tensor]:
    """What a draft may have from its target."""
    if target is None:
        return {}
    rests = isinstance(target, PlainWhisper) and "decoder" in target.resting
    awake(target)
    lent = {n: target.get_parameter(n).detach().cpu() for n in BORROWED}
    if rests:
        target.rest("decoder")
    return lent


@contextmanager
def _supported(name: str) -> Iterator[None]:
    """Raises LoadError, of an engine, as ModelError with the model's name."""
    try:
        yield
    except LoadError as error:
        raise ModelError(f"{name} is not supported: {error}") from error


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


def read_tokenizer(folder: Path, config: Any, *, modules: bool = False) -> Any:
    """The tokenizer of a folder: `WhisperTokens`, or with `modules`, and where it has to be, transformers'.
    Raises ModelError."""
    if not modules:
        with suppress(Exception):  # transformers says what is wrong with a damaged folder
            own = WhisperTokens.read(folder)
            if own is not None and len(own) >= max(as_ids(config.eos_token_id), default=1):
                return own
    from transformers import WhisperTokenizer

    try:
        tokenizer = WhisperTokenizer.from_pretrained(folder)
        if len(tokenizer) < max(
            as_ids(config.eos_token_id), default=1
        ):  # created without a vocabulary
            raise ValueError("it lacks tokenizer.json, or vocab.json with merges.txt")
    except Exception as error:  # a damaged tokenizer.json raises a bare Exception
        raise ModelError(
            f"{origin(folder)} has no usable tokenizer: {damaged(folder) or one_line(error)}"
        ) from error
    return tokenizer


def read_extractor(folder: Path, config: Any) -> Extractor:
    """The extractor of the features that the target's encoder reads. Raises ModelError."""
    try:
        stated: Any = None
        for file in _FEATURES:
            if (folder / file).is_file():
                found = json.loads((folder / file).read_text(encoding="utf-8"))
                stated = found if file == _FEATURES[0] else found.get("feature_extractor", stated)
        if stated is None:
            raise ValueError("it lacks preprocessor_config.json")
        sizes = {key: stated[key] for key in _SIZES if key in stated}
        for key, size in sizes.items():
            if type(size) is not int or size < 1:
                raise ValueError(f"{key} is {size!r:.60}")
        extractor = Extractor(**sizes)
    except Exception as error:  # any part of a damaged file
        raise ModelError(
            f"{origin(folder)} has no usable features: {damaged(folder) or one_line(error)}"
        ) from error
    made = (extractor.feature_size, extractor.nb_max_frames)
    read = (config.num_mel_bins, 2 * config.max_source_positions)
    if made != read:
        raise ModelError(
            f"{origin(folder)} has no usable features: its feature extractor makes {made[0]} mel bins of "
            f"{made[1]} frames, its encoder reads {read[0]} of {read[1]}"
        )
    return extractor


def native_encoders(
    model: Any,
    name: str,
    device: Device,
    engine: ModelEngine,
    asked: ModelEngine,
    known: Comparisons,
) -> dict[Any, NativeEncoder]:
    """The native encoder of a model by the modules that it stands for; empty where the modules encode. Its
    weights are read here in either case, not when the first window comes."""
    with _supported(name):
        awake(model, "encoder")
        native = native_encoder(
            model, engine, asked, int8=device.int8, passed=ENCODER in known.passed
        )
    if native is None:
        return {}
    known.add(ENCODER)
    return {encoder_of(model): native}
