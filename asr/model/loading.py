"""Loading: names of weights to a pair of models that is ready to decode on a device.

Uses unmodified transformers classes and loaders. Determines whether the draft shares the target's
encoder by comparing their weights. Knows nothing of recordings or of presets' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.attention import use_products
from forescribe.speculative.models.checkpoint_files import damaged
from forescribe.speculative.models.families.model_engine import ModelEngine
from forescribe.speculative.models.families.whisper_encoders import native_encoder
from forescribe.speculative.models.families.whisper_engines import checked_engine
from forescribe.speculative.models.hub import Role
from forescribe.speculative.models.load_lock import loading
from forescribe.speculative.models.quiet import quiet
from forescribe.speculative.models.whisper_decoder import decoder_only, encoder_of, same_encoder
from forescribe.speculative.native.native_encoder import NativeEncoder

from ..errors import CapacityError, ModelError, out_of_memory
from .presets import Pair
from .published import as_ids, check_pair, locate
from .special_tokens import SpecialTokens

_FEATURES = ("preprocessor_config.json", "processor_config.json")  # one of them


@dataclass(frozen=True)
class EncoderStates:
    """The encoder states `[S, D]` of a window, for both models."""

    target: Tensor
    draft: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Whisper:
    """A target with its draft model, on one device."""

    target: Any  # WhisperForConditionalGeneration
    draft: Any | None  # the same, or WhisperForCausalLM
    tokenizer: Any
    extractor: Any
    tokens: SpecialTokens
    pair: Pair
    device: Device
    shared_encoder: bool  # the draft uses the encoder states of the target
    engine: ModelEngine = ModelEngine.AUTO  # what runs the target's decoder
    draft_engine: ModelEngine = ModelEngine.AUTO
    native_encoders: Mapping[Any, NativeEncoder] = field(default_factory=dict)  # by its modules
    draft_tokens: DraftTokens | None = None

    @property
    def listed(self) -> tuple[int, ...] | None:
        """The only tokens that the draft proposes; None: all."""
        return None if self.draft_tokens is None else self.draft_tokens.ids

    @torch.inference_mode()
    def encode(self, features: Tensor) -> list[EncoderStates]:
        """Encoder states of windows from features `[B, M, F]`, in one encoder pass or two."""
        rows = len(features)
        if self.device.static_shapes:  # another batch size would be another shape
            padding = (1 << (rows - 1).bit_length()) - rows
            features = torch.cat([features, features[-1:].expand(padding, -1, -1)])
        states = self._encoded(self.target, features)[:rows]
        if self.draft is None:
            return [EncoderStates(s) for s in states]
        drafts = states if self.shared_encoder else self._encoded(self.draft, features)[:rows]
        return [EncoderStates(s, d) for s, d in zip(states, drafts, strict=True)]

    def _encoded(self, model: Any, features: Tensor) -> list[Tensor]:
        """States `[S, D]` by row. They are copies: a view would keep the whole batch in memory as long as
        one of its windows is decoded again."""
        encoder = encoder_of(model)
        native = self.native_encoders.get(encoder)
        if native is not None:
            return native(features)
        features = features.to(self.device.torch, self.device.dtype)
        groups = [features] if self.device.rows_together else features.split(1)
        return [row.clone() for group in groups for row in encoder(group).last_hidden_state]

    @torch.inference_mode()
    def detect_language(self, encoded: list[EncoderStates]) -> list[tuple[str, float]]:
        """The most probable language of each window and its probability among the languages.

        One decoder step over start-of-transcript (Radford et al. 2022, section 2.3).
        """
        if not self.tokens.multilingual:
            return [("en", 1.0)] * len(encoded)
        start = torch.full((len(encoded), 1), self.tokens.start, device=self.device.torch)
        states = torch.stack([m.target for m in encoded])
        hidden = self.target.model.decoder(
            input_ids=start, encoder_hidden_states=states, use_cache=False
        ).last_hidden_state
        codes = list(self.tokens.languages)
        ids = torch.tensor([self.tokens.languages[c] for c in codes], device=hidden.device)
        probabilities = self.target.proj_out(hidden)[:, 0].float()[:, ids].softmax(-1)
        best = probabilities.max(-1)
        return [
            (codes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


@loading()
def load(
    pair: Pair,
    device: Device,
    *,
    network: bool = True,
    engine: ModelEngine = ModelEngine.AUTO,
) -> Whisper:
    """Load both models of a pair. Raises ModelError: not found, not a Whisper model, an incompatible pair, an
    `engine` that cannot run them."""
    folder = locate(pair.target, role="model", network=network)
    draft_folder = None
    if pair.draft is not None:
        draft_folder = locate(pair.draft, role="draft", network=network)
    target, target_engine = _model(folder, "model", device, engine)
    tokenizer, extractor = _tokenizer(folder, target.config), _extractor(folder, target.config)
    tokens = _special_tokens(target, tokenizer, pair)
    draft, shared, draft_engine, draft_tokens = None, False, engine, None
    if draft_folder is not None:
        draft, draft_engine = _model(draft_folder, "draft", device, engine)
        check_pair(
            target.config,
            draft.config,
            tokenizer,
            _tokenizer(draft_folder, draft.config),
            target=str(pair.target),
            draft=str(pair.draft),
        )
        _check_states(target, draft, pair)
        draft_tokens = _draft_tokens(draft_folder, draft.config.vocab_size, pair)
        shared = same_encoder(target, draft)
        if shared and encoder_of(draft) is not None:
            draft.model.encoder = target.model.encoder  # one copy in memory
    encoders = _native_encoders(target, f"--model {pair.target}", target_engine, engine)
    if draft is not None and encoder_of(draft) not in encoders:
        encoders |= _native_encoders(draft, f"--draft {pair.draft}", draft_engine, engine)
    return Whisper(
        target,
        draft,
        tokenizer,
        extractor,
        tokens,
        pair,
        device,
        shared,
        target_engine,
        draft_engine,
        encoders,
        draft_tokens,
    )


def _draft_tokens(folder: Path, vocab_size: int, pair: Pair) -> DraftTokens | None:
    try:
        return DraftTokens.beside(folder, vocab_size)
    except LoadError as error:
        raise ModelError(f"--draft {pair.draft}: {error}") from error


def _native_encoders(
    model: Any, name: str, engine: ModelEngine, asked: ModelEngine
) -> dict[Any, NativeEncoder]:
    """The native encoder of a model by the modules that it stands for; empty where the modules encode."""
    try:
        native = native_encoder(model, engine, asked)
    except LoadError as error:
        raise ModelError(f"{name} is not supported: {error}") from error
    return {} if native is None else {encoder_of(model): native}


def _special_tokens(target: Any, tokenizer: Any, pair: Pair) -> SpecialTokens:
    """The target's special tokens; its generation config is changed to single ids, as rules need them."""
    options = target.generation_config
    try:
        tokens = SpecialTokens.of(options, tokenizer)
        ids = (tokens.start, *tokens.ends, tokens.no_timestamps, *tokens.languages.values())
        if max(ids) >= target.config.vocab_size:
            raise ValueError(
                f"token {max(ids)} of its generation_config.json is not in its vocabulary"
            )
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"--model {pair.target} is not a Whisper model: {error}") from error
    options.eos_token_id, options.decoder_start_token_id = tokens.end, tokens.start
    return tokens


def _check_states(target: Any, draft: Any, pair: Pair) -> None:
    """Reject a draft that cannot read the encoder states. Raises ModelError."""
    ours, theirs = target.config, draft.config
    problem = None
    if ours.max_source_positions != theirs.max_source_positions:
        problem = (
            f"their windows have {ours.max_source_positions} and {theirs.max_source_positions} "
            "encoder states"
        )
    elif encoder_of(draft) is None and ours.d_model != theirs.d_model:
        problem = (
            f"it has no encoder of its own and reads states of {theirs.d_model} numbers, its "
            f"target's have {ours.d_model}"
        )
    if problem is not None:
        raise ModelError(
            f"{pair.draft} cannot draft for {pair.target}: {problem}; --draft none",
            code="model_mismatch",
        )


def _model(
    folder: Path, role: Role, device: Device, engine: ModelEngine
) -> tuple[Any, ModelEngine]:
    """A model and the engine that runs its decoder."""
    from transformers import AutoConfig, WhisperForCausalLM, WhisperForConditionalGeneration

    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder)
        if config.model_type != "whisper":
            raise ValueError(f"its config.json says {config.model_type!r}")
        bare = decoder_only(config)
        if bare and role == "model":
            raise ValueError("it has no encoder, so it can only be a --draft")
        kind: Any = WhisperForCausalLM if bare else WhisperForConditionalGeneration
        with quiet():
            # Mismatches are allowed here, to be reported by name below.
            model, report = kind.from_pretrained(
                folder, dtype=device.stored, output_loading_info=True, ignore_mismatched_sizes=True
            )
        _check_complete(report)
    except Exception as error:  # safetensors, pickle and configurations raise various errors
        raise ModelError(
            f"--{role} {folder} cannot be loaded as a Whisper model: "
            f"{damaged(folder) or _line(error)}"
        ) from error
    model = _placed(model, folder, role, device)
    try:
        engine = checked_engine(model, engine)
    except LoadError as error:
        raise ModelError(f"--{role} {folder} is not supported: {error}") from error
    if device.products:
        use_products(model)
    return model, engine


def _placed(model: Any, folder: Path, role: Role, device: Device) -> Any:
    """Move a model to its device. Raises CapacityError."""
    try:
        return device.placed(model)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise CapacityError(
            f"{device.name} has no room for the weights of --{role} {folder}: free some, or take a "
            "smaller model or --dtype float16"
        ) from error


def _check_complete(report: Mapping[str, Any]) -> None:
    """Raise ValueError that names a missing weight: transformers would fill it with random numbers."""
    missing = sorted(report["missing_keys"])
    mismatched = sorted(str(key[0]) for key in report["mismatched_keys"])
    if missing:
        raise ValueError(f"its weights lack {missing[0]} ({len(missing)} in all)")
    if mismatched:
        raise ValueError(f"{mismatched[0]} has another shape than its config.json says")


def _tokenizer(folder: Path, config: Any) -> Any:
    from transformers import WhisperTokenizer

    try:
        tokenizer = WhisperTokenizer.from_pretrained(folder)
        if len(tokenizer) < max(
            as_ids(config.eos_token_id), default=1
        ):  # created without a vocabulary
            raise ValueError("it lacks tokenizer.json, or vocab.json with merges.txt")
    except Exception as error:  # a damaged tokenizer.json raises a bare Exception
        raise ModelError(
            f"{folder} has no usable tokenizer: {damaged(folder) or _line(error)}"
        ) from error
    return tokenizer


def _extractor(folder: Path, config: Any) -> Any:
    """The extractor of the features that the target's encoder reads."""
    from transformers import WhisperFeatureExtractor

    try:
        if not any((folder / file).is_file() for file in _FEATURES):
            raise ValueError("it lacks preprocessor_config.json")
        extractor = WhisperFeatureExtractor.from_pretrained(folder)
    except Exception as error:
        raise ModelError(
            f"{folder} has no usable features: {damaged(folder) or _line(error)}"
        ) from error
    made = (extractor.feature_size, extractor.nb_max_frames)
    read = (config.num_mel_bins, 2 * config.max_source_positions)
    if made != read:
        raise ModelError(
            f"{folder} has no usable features: its feature extractor makes {made[0]} mel bins of {made[1]} "
            f"frames, its encoder reads {read[0]} of {read[1]}"
        )
    return extractor


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
