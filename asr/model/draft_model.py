"""Draft models: a Whisper that drafts for another one, loaded and compared with it.

Determines what the two share by comparing, never from names: token ids by what they mean, encoders by their
weights, features by their extractors. Knows pairs of models; nothing of presets or languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.engines import ModelEngine, whisper_decoder
from forescribe.speculative.models.modules import encoder_of, same_encoder
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.models.vocabularies import MappedVocabulary, TokenMap, mapped

from ..errors import ModelError
from .checkpoint import read_extractor, read_model, read_tokenizer
from .id_map import token_map
from .whisper_vocabulary import WhisperVocabulary


@dataclass(frozen=True)
class EncoderStates:
    """The encoder states `[S, D]` of a window: the target's, and those that each draft reads. `chosen` is the
    draft that proposes for this window."""

    target: Tensor
    drafts: tuple[Tensor, ...] = ()
    chosen: int = 0

    @property
    def draft(self) -> Tensor | None:
        """Those of the draft that proposes; None without drafts."""
        return self.drafts[self.chosen] if self.drafts else None


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A draft on a device, in its number format there.

    `features` says which of the pair's features its encoder reads, 0: the target's. `token_map` is None where
    its ids are the target's, `tokens` where it proposes all of them.
    """

    model: Any  # WhisperForConditionalGeneration, or WhisperForCausalLM
    device: Device
    engine: ModelEngine = ModelEngine.AUTO
    shared_encoder: bool = False  # it uses the encoder states of the target
    features: int = 0
    token_map: TokenMap | None = None
    tokens: DraftTokens | None = None

    @property
    def listed(self) -> tuple[int, ...] | None:
        """The only tokens, in its own ids, that it proposes; None: all."""
        return None if self.tokens is None else self.tokens.ids

    def decoder(self, index: int = 0) -> SlotModel | MappedVocabulary:
        """Its decoder under the target's ids; `index` is that of its states in `EncoderStates.drafts`."""

        def build(listed: Sequence[int] | None) -> SlotModel:
            return whisper_decoder(
                self.model,
                lambda states: states.drafts[index],
                engine=self.engine,
                stored=self.device.stored,
                listed=listed,
            )

        if self.token_map is None:
            return build(self.listed)
        return mapped(build, self.token_map, self.listed)


@dataclass(frozen=True, eq=False)
class Target:
    """What a draft is compared with; `name` as the user gave it."""

    name: str | Path
    model: Any
    tokenizer: Any
    extractors: tuple[Any, ...]
    device: Device


def load_draft(
    name: str | Path,
    folder: Path,
    target: Target,
    device: Device,
    engine: ModelEngine,
    language: str | None,
) -> tuple[DraftModel, tuple[Any, ...]]:
    """The draft in a folder, and the pair's extractors with its own; `language` is that of the audio, where
    it is known. Raises ModelError for a folder without a Whisper model, and, as `model_mismatch`, for one
    that cannot draft for this target."""
    model, engine = read_model(folder, "draft", device, engine, target.model)
    _check_states(target, model, name)
    tokenizer = read_tokenizer(folder, model.config)
    shared = same_encoder(target.model, model, target.device.stored, device.stored)
    if shared and encoder_of(model) is not None:
        model.model.encoder = target.model.model.encoder  # one copy in memory
    features, extractors = 0, target.extractors
    if not shared:
        features, extractors = _features(folder, model, target, name)
    made = DraftModel(
        model,
        device,
        engine,
        shared,
        features,
        _token_map(target, model, tokenizer, name),
        _listed(folder, model.config.vocab_size, name, language),
    )
    return made, extractors


def _token_map(target: Target, model: Any, tokenizer: Any, name: str | Path) -> TokenMap | None:
    try:
        own, other = (
            WhisperVocabulary.of(m.config, t, getattr(m, "generation_config", None))
            for m, t in ((target.model, target.tokenizer), (model, tokenizer))
        )
        return token_map(own, other)
    except ValueError as error:
        raise _mismatch(target, name, str(error)) from error


def _listed(
    folder: Path, vocab_size: int, name: str | Path, language: str | None
) -> DraftTokens | None:
    try:
        return DraftTokens.beside(folder, vocab_size, language)
    except LoadError as error:
        raise ModelError(f"--draft {name}: {error}") from error


def _check_states(target: Target, model: Any, name: str | Path) -> None:
    """Reject a draft that cannot read a target's windows or encoder states. Raises ModelError."""
    ours, theirs = target.model.config, model.config
    problem = None
    if ours.max_source_positions != theirs.max_source_positions:
        problem = (
            f"their windows have {ours.max_source_positions} and {theirs.max_source_positions} "
            "encoder states"
        )
    elif theirs.max_target_positions < ours.max_target_positions:
        problem = (
            f"they have {ours.max_target_positions} and {theirs.max_target_positions} positions"
        )
    elif encoder_of(model) is None and ours.d_model != theirs.d_model:
        problem = (
            f"it has no encoder of its own and reads states of {theirs.d_model} numbers, its "
            f"target's have {ours.d_model}"
        )
    if problem is not None:
        raise _mismatch(target, name, problem)


def _features(
    folder: Path, model: Any, target: Target, name: str | Path
) -> tuple[int, tuple[Any, ...]]:
    """Which features the encoder of a draft reads, and all of the pair's."""
    ours = target.extractors[0]
    if model.config.num_mel_bins == ours.feature_size:
        return 0, target.extractors
    own = read_extractor(folder, model.config)
    if (own.hop_length, own.n_samples) != (ours.hop_length, ours.n_samples):
        raise _mismatch(
            target,
            name,
            f"their features have a frame every {ours.hop_length} and {own.hop_length} samples",
        )
    for index, known in enumerate(target.extractors):
        if own.n_fft == known.n_fft and np.array_equal(own.mel_filters, known.mel_filters):
            return index, target.extractors
    return len(target.extractors), (*target.extractors, own)


def _mismatch(target: Target, name: str | Path, problem: str) -> ModelError:
    return ModelError(
        f"{name} cannot draft for {target.name}: {problem}; --draft none",
        code="model_mismatch",
    )
