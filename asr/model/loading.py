"""Loading: names of weights to models that are ready to decode on a device.

`load` makes a `Whisper` of a pair: a target with the drafts that the pair names, which are ordinary Whisper
models. What a draft shares with its target is found by comparing, never from names: token ids by what they
mean, encoders by their weights, features by their extractors.

Knows pairs of models and languages; nothing of recordings or of presets' names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from forescribe.speculative.device import Device, choose, trim
from forescribe.speculative.drafters.model_drafter import DraftTokens
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models import hub
from forescribe.speculative.models.checkpoint import GENERATION, loading
from forescribe.speculative.models.hub import find
from forescribe.speculative.models.vocabularies import TokenMap
from forescribe.speculative.models.weights import encoder_of
from forescribe.speculative.native.adapters import NativeEncoder

from ..errors import ModelError
from .checkpoint import Checkpoint, read_extractor, read_tokenizer, shared_encoder
from .presets import (
    ALIGNER,
    BUNDLED,
    SPEECH_LLMS,
    Pair,
    beams_of,
    locate,
    made_for,
    mismatch,
    model_type,
    only_answer,
)
from .speech_model import SpeechModel
from .tokens import SpecialTokens, TokenSettings, complete, same_tokenizer
from .vocabulary import WhisperVocabulary, token_map
from .whisper import DraftModel, Extractor, Whisper, attending, target_decoder

log = logging.getLogger(__name__)


@loading()
def load(
    pair: Pair,
    device: Device,
    *,
    network: bool = True,
    engine: ModelEngine = ModelEngine.AUTO,
    draft_device: Device | None = None,
    modules: bool = False,
) -> SpeechModel:
    """Load the models of a pair, drafts in the number format of `draft_device`, by default the target's. They
    read the target's encoder states where both encoders are equal but for that rounding. With `modules`
    models and tokenizer are transformers', to be distilled or exported. Raises ModelError: not found, not a
    speech model, an incompatible pair, an `engine` that cannot run them."""
    folder = locate(pair.target, role="model", network=network)
    attends = model_type(folder) not in SPEECH_LLMS
    pair = _without_absent(pair, network=network) if attends else pair
    folders = [(name, locate(name, role="draft", network=network)) for name in pair.drafts]
    beside = draft_device or device
    if attends:
        made: SpeechModel = _load_whisper(pair, folder, folders, device, beside, engine, modules)
    else:
        from .llm_loading import load_llm

        aligner = _aligner(device)
        made = load_llm(
            pair, folder, folders, device, engine=engine, draft_device=beside, aligner=aligner
        )
    trim()
    return made


def _load_whisper(
    pair: Pair,
    folder: Path,
    folders: list[tuple[str | Path, Path]],
    device: Device,
    draft_device: Device,
    engine: ModelEngine,
    modules: bool,
) -> Whisper:
    checkpoint = Checkpoint.of(folder, "model")
    pack = partial(target_decoder, device=device)
    loaded = checkpoint.load(device, engine, pack, modules=modules)
    tokenizer = read_tokenizer(folder, checkpoint.config, modules=modules)
    extractors = (read_extractor(folder, checkpoint.config),)
    target = Target(pair.target, checkpoint, loaded.model, tokenizer, extractors, device)
    if not (folder / GENERATION).is_file():
        complete(loaded.model.generation_config, tokenizer, checkpoint.config.vocab_size)
    tokens = _special_tokens(loaded.model, tokenizer, pair)
    encoders = {encoder_of(loaded.model): loaded.native} if loaded.native is not None else {}
    drafts = []
    for name, place in folders:
        draft, target, native = load_draft(name, place, target, draft_device, engine, modules)
        drafts.append(draft)
        if native is not None:
            encoders[encoder_of(draft.model)] = native
    return Whisper(
        loaded.model,
        tuple(drafts),
        tokenizer,
        target.extractors,
        tokens,
        pair,
        device,
        loaded.engine,
        beams_of(pair.target, folder) or 1,
        encoders,
    )


def _aligner(device: Device) -> Callable[[str], Whisper | None]:
    """Finds the Whisper that times the words of a speech LLM in a language, loaded when it is first
    needed."""

    @cache
    def reader(name: str | Path) -> Whisper | None:
        if find(name) is None:
            return None
        return attending(load(Pair(name), choose(device.name), network=False), "word times")

    return lambda language: reader(hub.FOLDER / BUNDLED if language == "en" else ALIGNER)


@dataclass(frozen=True, eq=False)
class Target:
    """What a draft is compared with; `name` as the user gave it."""

    name: str | Path
    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    extractors: tuple[Extractor, ...]
    device: Device


def load_draft(
    name: str | Path,
    folder: Path,
    target: Target,
    device: Device,
    engine: ModelEngine,
    modules: bool,
) -> tuple[DraftModel, Target, NativeEncoder | None]:
    """The draft in a folder, the target with its extractor among those of the pair, and its native encoder.
    Raises ModelError for a folder without a Whisper model, and, as `model_mismatch`, for one that cannot
    draft for this target."""
    checkpoint = Checkpoint.of(folder, "draft")
    _check_states(target, checkpoint, name)
    tokenizer = target.tokenizer
    if not same_tokenizer(target.checkpoint.folder, folder):
        tokenizer = read_tokenizer(folder, checkpoint.config)
    shared = shared_encoder(target.checkpoint, checkpoint, target.device.stored, device.stored)
    features = 0
    if not shared:
        features, extractors = _features(folder, checkpoint.config, target, name)
        target = replace(target, extractors=extractors)
    try:
        tokens = DraftTokens.beside(folder, checkpoint.config.vocab_size)
    except LoadError as error:
        raise ModelError(f"--draft {name}: {error}") from error
    draft = partial(
        DraftModel,
        device=device,
        shared_encoder=shared,
        features=features,
        token_map=_token_map(target, checkpoint, tokenizer, name),
        tokens=tokens,
    )
    loaded = checkpoint.load(
        device,
        engine,
        lambda model, runs: draft(model, engine=runs).decoder(),
        lender=target.checkpoint.folder,
        lending=target.model if target.device.stored is device.stored else None,
        encoder=not shared,
        modules=modules,
    )
    if shared and not checkpoint.bare:
        loaded.model.model.encoder = target.model.model.encoder  # one copy in memory
    return draft(loaded.model, engine=loaded.engine), target, loaded.native


def _without_absent(pair: Pair, *, network: bool) -> Pair:
    """The pair without a draft for other languages that nobody asked for by name and that is not here. This
    costs time and no word, so that a machine without a network goes on with the models that it has."""
    if pair.rest is None or network or find(pair.rest) is not None:
        return pair
    log.warning(
        "%s is not on this machine: other languages than %s are decoded without drafts; `hf download %s` "
        "changes that",
        pair.rest,
        ", ".join(sorted(pair.draft_languages or ())),
        pair.rest,
    )
    return replace(pair, rest=None)


def _special_tokens(target: Any, tokenizer: Any, pair: Pair) -> SpecialTokens:
    """The target's special tokens; its generation config is changed to single ids, as rules need them."""
    options = target.generation_config
    try:
        tokens = SpecialTokens.of(options, tokenizer)
        size = target.config.vocab_size
        strange = [i for i in tokens.special if not 0 <= i < size]
        if strange:
            raise ValueError(
                f"its generation_config.json or its tokenizer has the special token {strange[0]}, and its "
                f"vocabulary the ids 0 to {size - 1}"
            )
        _check_alignment_heads(target, pair)
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"--model {pair.target} is not a Whisper model: {error}") from error
    options.eos_token_id, options.decoder_start_token_id = tokens.end, tokens.start
    return replace(tokens, made_for=made_for(pair.target), only=only_answer(pair.target))


def _check_alignment_heads(target: Any, pair: Pair) -> None:
    """Distilled checkpoints are published with the heads of the model that they were distilled from, some in
    layers that they do not have: their words are timed as if no heads were listed."""
    layers, heads = target.config.decoder_layers, target.config.decoder_attention_heads
    listed = getattr(target.generation_config, "alignment_heads", None) or ()
    if any(layer >= layers or head >= heads for layer, head in listed):
        log.warning(
            "--model %s: its alignment_heads are of a model with more layers or heads; words are timed by "
            "all heads of the upper half of its layers, which is less exact",
            pair.target,
        )
        target.generation_config.alignment_heads = None


def _token_map(
    target: Target, checkpoint: Checkpoint, tokenizer: Any, name: str | Path
) -> TokenMap | None:
    """The map between their tokens; None where all ids are the same. That is read from the settings where
    they have one tokenizer: to compare 50,000 tokens takes half a second."""
    ours = TokenSettings.of(target.checkpoint.config, target.checkpoint.generation)
    theirs = TokenSettings.of(checkpoint.config, checkpoint.generation)
    if tokenizer is target.tokenizer and ours == theirs:
        return None
    try:
        own = WhisperVocabulary.of(ours, target.tokenizer)
        return token_map(own, WhisperVocabulary.of(theirs, tokenizer))
    except ValueError as error:
        raise mismatch(name, target.name, str(error)) from error


def _check_states(target: Target, checkpoint: Checkpoint, name: str | Path) -> None:
    """Reject a draft that cannot read a target's windows or encoder states. Raises ModelError."""
    ours, theirs = target.checkpoint.config, checkpoint.config
    states = ours.max_source_positions, ours.d_model
    read = theirs.max_source_positions, theirs.d_model if checkpoint.bare else ours.d_model
    if read != states:
        raise mismatch(
            name, target.name, f"it reads encoder states of {read}, its target's are {states}"
        )
    if theirs.max_target_positions < ours.max_target_positions:
        problem = (
            f"they have {ours.max_target_positions} and {theirs.max_target_positions} positions"
        )
        raise mismatch(name, target.name, problem)


def _features(
    folder: Path, config: Any, target: Target, name: str | Path
) -> tuple[int, tuple[Extractor, ...]]:
    """Which features the encoder of a draft reads, and all of the pair's."""
    ours = target.extractors[0]
    if config.num_mel_bins == ours.feature_size:
        return 0, target.extractors
    own = read_extractor(folder, config)
    for index, known in enumerate(target.extractors):
        if own.n_fft == known.n_fft and np.array_equal(own.mel_filters, known.mel_filters):
            return index, target.extractors
    return len(target.extractors), (*target.extractors, own)
