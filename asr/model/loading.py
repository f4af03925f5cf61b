"""Loading: names of weights to models that are ready to decode on a device.

`load` makes a `Whisper` of a pair: a target with the drafts that the pair names, which are ordinary Whisper
models or a block head on the target's states. What a draft shares with its target is found by comparing,
never from names: token ids by what they mean, encoders by their weights, features by their extractors.

Knows pairs of models and languages; nothing of recordings or of presets' names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forescribe.speculative.device import Device, trim
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.checkpoint import GENERATION, loading
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.models.heads.whisper_block import (
    BlockShape,
    WhisperBlock,
    is_block,
    read_block,
)
from forescribe.speculative.models.hub import find
from forescribe.speculative.models.plain import PlainWhisper, awake
from forescribe.speculative.models.vocabularies import TokenMap
from forescribe.speculative.models.weights import encoder_of, same_encoder

from ..audio.features import Extractor
from ..errors import ModelError
from .checkpoint import lacking, native_encoders, read_extractor, read_model, read_tokenizer
from .comparisons import Comparisons
from .presets import Pair, locate, made_for
from .special_tokens import SpecialTokens, complete
from .tokenizer import same_tokenizer
from .vocabulary import TokenSettings, WhisperVocabulary, token_map
from .whisper import DraftModel, Whisper, target_decoder

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
) -> Whisper:
    """Load the models of a pair, drafts in the number format of `draft_device`, by default the target's. They
    read the target's encoder states where both encoders are equal but for that rounding. With `modules`
    models and tokenizer are transformers', to be distilled or exported. Raises ModelError: not found, not a
    Whisper model, an incompatible pair, an `engine` that cannot run them."""
    folder = locate(pair.target, role="model", network=network)
    pair = _without_absent(pair, network=network)
    folders = [(name, locate(name, role="draft", network=network)) for name in pair.drafts]
    known = Comparisons(folder, device)
    model, target_engine = read_model(folder, "model", device, engine, modules=modules, known=known)
    target = Target(
        pair.target,
        folder,
        model,
        read_tokenizer(folder, model.config, modules=modules),
        (read_extractor(folder, model.config),),
        device,
    )
    if not (folder / GENERATION).is_file():
        complete(model.generation_config, target.tokenizer, model.config.vocab_size)
    tokens = _special_tokens(model, target.tokenizer, pair)
    lends = any(is_block(each) or lacking(each) for _, each in folders)
    if not lends:
        _rest(model, target_engine, lambda: target_decoder(model, target_engine, device))
    encoders = native_encoders(
        model, f"--model {pair.target}", device, target_engine, engine, known
    )
    drafts, block = [], None
    for name, draft_folder in folders:
        if is_block(draft_folder):
            block = load_block(name, draft_folder, model, draft_device or device)
            continue
        place = draft_device or device
        known = Comparisons(draft_folder, place, lender=folder)
        draft, extractors = load_draft(
            name,
            draft_folder,
            target,
            place,
            known,
            engine,
            modules=modules,
        )
        target = replace(target, extractors=extractors)
        drafts.append(draft)
        if encoder_of(draft.model) not in encoders:
            encoders |= native_encoders(
                draft.model, f"--draft {name}", place, draft.engine, engine, known
            )
        own = not draft.shared_encoder and encoder_of(draft.model) in encoders
        _rest(draft.model, draft.engine, draft.decoder, encoder=own)
    whisper = Whisper(
        model,
        tuple(drafts),
        target.tokenizer,
        target.extractors,
        tokens,
        pair,
        device,
        target_engine,
        encoders,
        block,
    )
    if block is None:  # which reads embeddings and head
        _rest(model, target_engine, whisper.decoder, encoder=encoder_of(model) in encoders)
    trim()
    return whisper


@dataclass(frozen=True, eq=False)
class Target:
    """What a draft is compared with; `name` as the user gave it."""

    name: str | Path
    folder: Path
    model: Any
    tokenizer: Any
    extractors: tuple[Extractor, ...]
    device: Device


def load_draft(
    name: str | Path,
    folder: Path,
    target: Target,
    device: Device,
    known: Comparisons,
    engine: ModelEngine,
    *,
    modules: bool = False,
) -> tuple[DraftModel, tuple[Extractor, ...]]:
    """The draft in a folder, and the pair's extractors with its own. Raises ModelError for a folder without
    a Whisper model, and, as `model_mismatch`, for one that cannot draft for this target."""
    model, engine = read_model(
        folder, "draft", device, engine, target.model, modules=modules, known=known
    )
    _check_states(target, model, name)
    tokenizer = target.tokenizer
    if not same_tokenizer(target.folder, folder):
        tokenizer = read_tokenizer(folder, model.config)
    shared = _shared_encoder(target, model, device)
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
        _listed(folder, model.config.vocab_size, name),
    )
    return made, extractors


def _shared_encoder(target: Target, model: Any, device: Device) -> bool:
    """See `same_encoder`; encoders of other sizes are not read for it."""
    ours, theirs = target.model.config, model.config
    if encoder_of(model) is not None:
        if (ours.d_model, ours.encoder_layers) != (theirs.d_model, theirs.encoder_layers):
            return False
        awake(target.model, "encoder")
        awake(model, "encoder")
    return same_encoder(target.model, model, target.device.stored, device.stored)


def load_block(name: str | Path, folder: Path, target: Any, device: Device) -> WhisperBlock:
    """The block head in a folder, on a device and in its number format; `target` is the model that it is to
    draft for. Raises ModelError for a damaged folder, for 8-bit integers, and as `model_mismatch` for another
    target's head."""
    if device.int8:
        raise ModelError(f"--draft {name}: a block head has no 8-bit form; leave --draft-dtype out")
    try:
        head = read_block(folder)
    except LoadError as error:
        raise ModelError(f"--draft {name}: {error}") from error
    problem = _problem(head.shape, target.config)
    if problem is not None:
        raise ModelError(
            f"{name} is a block head that cannot draft for this target: {problem}; --draft none",
            code="model_mismatch",
        )
    return head.to(device.torch, device.stored)


def _rest(
    model: Any, engine: ModelEngine, decoder: Callable[[], object], *, encoder: bool = False
) -> None:
    """Lets go of the modules' weights where kernels compute with theirs: of the decoder, once `decoder` has
    packed them, and of the `encoder` if it is native."""
    if engine is not ModelEngine.NATIVE or not isinstance(model, PlainWhisper):
        return
    decoder()
    model.rest("decoder")
    if encoder:
        model.rest("encoder")


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
        strange = [i for i in (tokens.start, *tokens.ends) if not 0 <= i < size]
        if strange:  # of the tokenizer: those of the configuration have been checked
            raise ValueError(
                f"its tokenizer has the special token {strange[0]}, and its vocabulary has the ids 0 to "
                f"{size - 1}"
            )
        problem = tokens.unchoosable(options, size) or tokens.strange_alignment_heads(options)
        if problem is not None:
            raise ValueError(f"in its generation_config.json {problem}")
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"--model {pair.target} is not a Whisper model: {error}") from error
    options.eos_token_id, options.decoder_start_token_id = tokens.end, tokens.start
    _drop_alignment_heads_of_another_model(target, pair)
    return replace(tokens, made_for=made_for(pair.target))


def _drop_alignment_heads_of_another_model(target: Any, pair: Pair) -> None:
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


def _token_map(target: Target, model: Any, tokenizer: Any, name: str | Path) -> TokenMap | None:
    """The map between their tokens; None where all ids are the same. That is read from the settings where
    they have one tokenizer: to compare 50,000 tokens takes half a second."""
    ours, theirs = (
        TokenSettings.of(m.config, getattr(m, "generation_config", None))
        for m in (target.model, model)
    )
    if tokenizer is target.tokenizer and ours == theirs:
        return None
    try:
        own = WhisperVocabulary.of(ours, target.tokenizer)
        return token_map(own, WhisperVocabulary.of(theirs, tokenizer))
    except ValueError as error:
        raise _mismatch(target, name, str(error)) from error


def _listed(folder: Path, vocab_size: int, name: str | Path) -> DraftTokens | None:
    try:
        return DraftTokens.beside(folder, vocab_size)
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
) -> tuple[int, tuple[Extractor, ...]]:
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


def _problem(shape: BlockShape, config: Any) -> str | None:
    """Where the sizes that a head was made for differ from a target's."""
    compared = (
        ("states of {} numbers", shape.width, config.d_model),
        ("{} layers", shape.target_layers, config.decoder_layers),
        ("{} tokens", shape.vocab, config.vocab_size),
        ("{} positions", shape.positions, config.max_target_positions),
    )
    for what, ours, theirs in compared:
        if ours != theirs:
            return f"it was made for {what.format(ours)}, the target has {theirs}"
    return None
