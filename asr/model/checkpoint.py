"""Checkpoints: a folder of Whisper weights to a model that was checked, its tokenizer and its extractor.

Weights have one door: they are read by name (`float_weights`) into a `PlainWhisper`, one part after the
other, and a part that native kernels have packed lets go of them. transformers' modules, which `modules`
runs, distills or exports, get the same weights. Its import takes as long as torch's, so it is asked only
there, and for tokenizers without a plain tokenizer.json. Knows one model at a time; nothing of pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError, one_line
from forescribe.speculative.model_engines import (
    ModelEngine,
    int8_engine,
    native_encoder,
    whisper_engine,
)
from forescribe.speculative.models.checkpoint import (
    CONFIG,
    GENERATION,
    check_size,
    damaged,
    quiet,
    tensor_names,
)
from forescribe.speculative.models.hub import Role
from forescribe.speculative.models.plain import PlainWhisper, Settings
from forescribe.speculative.models.quantized import (
    BORROWED,
    float_model,
    float_weights,
    floats,
    quantize_whisper,
    stored_weights,
)
from forescribe.speculative.native.adapters import NativeEncoder

from ..errors import CapacityError, ModelError, out_of_memory
from .conversion.converting import origin
from .tokens import WhisperTokens, as_ids
from .whisper import Extractor

_GENERATION = ("eos_token_id", "decoder_start_token_id", "suppress_tokens", "begin_suppress_tokens")
"""Settings of a generation_config.json that older folders have in their config.json."""

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
}
"""What a config.json that leaves them out means. What a model computes depends on no other setting."""

_LISTED = ("eos_token_id", "pad_token_id")
"""Those that may be several, or none."""

_SIZES = ("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft")
_FEATURES = ("preprocessor_config.json", "processor_config.json")
"""One of them; the second has the first one's content as its `feature_extractor`, which counts if it does."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model on a device, what runs its decoder, and its native encoder, if that encodes."""

    model: Any  # PlainWhisper, or with `modules` a class of transformers
    engine: ModelEngine
    native: NativeEncoder | None = None


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A folder with its settings. `bare`: it has no encoder."""

    folder: Path
    role: Role
    config: Settings
    generation: Settings
    bare: bool

    @classmethod
    def of(cls, folder: Path, role: Role) -> Checkpoint:
        """Raises ModelError, with what is damaged or wrong."""
        with _told(folder, role):
            stated = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            bare = "WhisperForCausalLM" in (stated.get("architectures") or [])
            if bare and role == "model":
                raise ValueError("it has no encoder, so it can only be a --draft")
            config = plain_config(stated)
            check_size(folder, stated)
            generation = {key: stated.get(key) for key in _GENERATION}
            if (folder / GENERATION).is_file():
                found = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
                generation = dict.fromkeys(generation) | found
            return cls(folder, role, config, Settings(**generation), bare)

    def load(
        self,
        device: Device,
        asked: ModelEngine,
        pack: Callable[[Any, ModelEngine], object],
        *,
        lender: Path | None = None,
        lending: Any = None,
        encoder: bool = True,
        modules: bool = False,
    ) -> Loaded:
        """The model on a device. `pack` builds its decoder on an engine, as it will be built again; `lender`
        is the folder with the weights that a draft lacks, `lending` its model if that is in the same number
        format: they are one copy in memory while it holds them. With `encoder` it has one of its own. With
        `modules` it is made of transformers' modules whatever runs it. Raises ModelError, and CapacityError
        where the device has no room."""
        draft = self.role == "draft"
        if device.int8 and not draft:  # before the weights are read
            with self._supported():
                asked = int8_engine(asked)
        with _told(self.folder, self.role):
            names = frozenset[str]() if lender is None else tensor_names(self.folder)
        absent = tuple(name for name in BORROWED if names and name not in names)
        lent: Mapping[str, Tensor] = {}
        if absent and lending is not None and not getattr(lending.model.decoder, "released", False):
            lent = {name: lending.get_parameter(name).detach().cpu() for name in absent}
        elif absent and lender is not None:
            # Rounded now: tiny.en's take 80 MB in float32, which would stay until the draft is packed.
            read = float_weights(lender, None, absent)
            lent = {name: weight.to(device.stored) for name, weight in read.items()}
            del read
        if modules or asked is ModelEngine.MODULES:
            model = self._of_modules(device, lent)
        else:
            with _told(self.folder, self.role):
                model = PlainWhisper(self.config, encoder=encoder and not self.bare)
            model.generation_config = self.generation
            if device.products:
                model.use_products()
            self._take(model, "decoder", device, lent)
        if device.int8:
            quantize_whisper(model)
        with self._supported():
            engine = whisper_engine(model, asked, draft=draft)
        plain = isinstance(model, PlainWhisper)
        if plain and engine is ModelEngine.NATIVE:
            pack(model, engine)
            model.release("decoder")
        if not encoder or self.bare:
            return Loaded(model, engine)
        if plain:
            self._take(model, "encoder", device, {})
        with self._supported():
            native = native_encoder(model, engine, asked, int8=device.int8)
        if plain and native is not None:
            model.release("encoder")
        return Loaded(model, engine, native)

    def _take(
        self, model: PlainWhisper, part: str, device: Device, lent: Mapping[str, Tensor]
    ) -> None:
        def placed(weight: Tensor) -> Tensor:
            found = weight.to(device.stored).to(device.torch)
            return found if device.weights is None else found.to(device.dtype)

        prefixes = (f"model.{part}.", *(("proj_out.",) if part == "decoder" else ()))
        with _told(self.folder, self.role, device):
            model.take(part, float_weights(self.folder, lent, prefixes), placed)

    def _of_modules(self, device: Device, lent: Mapping[str, Tensor]) -> Any:
        from transformers import AutoConfig, WhisperForCausalLM, WhisperForConditionalGeneration

        kind: Any = WhisperForCausalLM if self.bare else WhisperForConditionalGeneration
        with _told(self.folder, self.role, device):
            with quiet():
                config = AutoConfig.from_pretrained(self.folder)
            model = device.placed(float_model(kind, self.folder, config, device.stored, lent))
            if device.products:
                from forescribe.speculative.models.modules import use_products

                use_products(model)
            return model

    @contextmanager
    def _supported(self) -> Iterator[None]:
        """Raises LoadError, of an engine, as ModelError with the model's name."""
        try:
            yield
        except LoadError as error:
            name = f"--{self.role} {origin(self.folder)}"
            raise ModelError(f"{name} is not supported: {error}") from error


def plain_config(stated: Mapping[str, Any]) -> Settings:
    """The settings of a config.json with what it leaves out. Raises ValueError for other models than
    Whisper's."""
    if stated.get("model_type") != "whisper":
        raise ValueError(f"its config.json says model_type {stated.get('model_type')!r:.60}")
    if stated.get("quantization_config"):
        raise ValueError("its weights are quantised: take the plain weights, with --quantize int8")
    config = {key: stated.get(key, default) for key, default in _DEFAULTS.items()}
    for key, value in config.items():
        if key not in _LISTED and type(value) is not type(_DEFAULTS[key]):
            raise ValueError(f"its config.json says {key} {value!r:.60}")
    return Settings(architectures=stated.get("architectures"), model_type="whisper", **config)


def shared_encoder(ours: Checkpoint, theirs: Checkpoint, *stored: torch.dtype) -> bool:
    """Whether the encoders of a target and a draft have equal weights, so that one's output serves both.
    Weights that are `stored` in other dtypes are compared after rounding both to each of them.

    Compared tensor by tensor, never assumed from names: a fine-tuned encoder of the same shape would
    silently cost acceptance.
    """
    if theirs.bare:
        return True
    a, b = ours.config, theirs.config
    if (a.d_model, a.encoder_layers) != (b.d_model, b.encoder_layers):  # other sizes are not read
        return False
    with _told(theirs.folder, theirs.role):
        weights, others = (stored_weights(c.folder, ("model.encoder.",)) for c in (ours, theirs))
        if _equal(weights, others):  # which takes no memory
            return True
        weights, others = floats(weights), floats(others)

    def rounded(weight: Tensor, own: torch.dtype) -> Tensor:
        for dtype in (own, *(stored if len(set(stored)) > 1 else ())):
            weight = weight.to(dtype)
        return weight

    return _equal(
        {name: rounded(weight, stored[0]) for name, weight in weights.items()},
        {name: rounded(weight, stored[1]) for name, weight in others.items()},
    )


def _equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        weight.dtype is theirs[name].dtype and torch.equal(weight, theirs[name])
        for name, weight in ours.items()
    )


@contextmanager
def _told(folder: Path, role: Role, device: Device | None = None) -> Iterator[None]:
    """Raises whatever is wrong with a folder as ModelError, with the file that is damaged, and CapacityError
    where the `device` that its weights go to has no room."""
    try:
        yield
    except (ModelError, CapacityError):
        raise
    except Exception as error:  # safetensors, pickle and configurations raise various errors
        name = f"--{role} {origin(folder)}"
        if device is not None and isinstance(error, RuntimeError) and out_of_memory(error):
            raise CapacityError(
                f"{device.name} has no room for the weights of {name}: free some, or take a smaller model "
                "or --dtype float16"
            ) from error
        raise ModelError(
            f"{name} cannot be loaded as a Whisper model: {damaged(folder) or one_line(error)}"
        ) from error


def read_tokenizer(folder: Path, config: Any, *, modules: bool = False) -> Any:
    """The tokenizer of a folder: `WhisperTokens`, or with `modules`, and where it has to be, transformers'.
    Raises ModelError."""
    least = max(as_ids(config.eos_token_id), default=1)
    if not modules:
        with suppress(Exception):  # transformers says what is wrong with a damaged folder
            own = WhisperTokens.read(folder)
            if own is not None and len(own) >= least:
                return own
    from transformers import WhisperTokenizer

    try:
        tokenizer = WhisperTokenizer.from_pretrained(folder)
        if len(tokenizer) < least:  # created without a vocabulary
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
        extractor = Extractor(**{key: stated[key] for key in _SIZES if key in stated})
        made = (extractor.feature_size, extractor.n_samples // extractor.hop_length)
    except Exception as error:  # any part of a damaged file
        raise ModelError(
            f"{origin(folder)} has no usable features: {damaged(folder) or one_line(error)}"
        ) from error
    read = (config.num_mel_bins, 2 * config.max_source_positions)
    if made != read:
        raise ModelError(
            f"{origin(folder)} has no usable features: its feature extractor makes {made[0]} mel bins of "
            f"{made[1]} frames, its encoder reads {read[0]} of {read[1]}"
        )
    return extractor
