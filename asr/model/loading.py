"""Loading: names of weights to models that are ready to decode on a device.

A target, and the drafts that a pair names for it. Knows nothing of recordings or of presets' names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.models.checkpoint import GENERATION, loading
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.models.heads.whisper_block import WhisperBlock, is_block
from forescribe.speculative.models.modules import encoder_of
from forescribe.speculative.native.encoder import NativeEncoder

from ..errors import ModelError
from .block_draft import load_block
from .checkpoint import native_encoders, read_extractor, read_model, read_tokenizer
from .draft_model import DraftModel, EncoderStates, Target, load_draft
from .presets import Pair, made_for
from .published import find, locate
from .special_tokens import SpecialTokens, complete

__all__ = ["DraftModel", "EncoderStates", "Whisper", "load"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Whisper:
    """A target with its draft models, on one device.

    `drafts` are in the order of `Pair.drafts`; `extractors` are of the features that their encoders read, the
    target's first.
    """

    target: Any  # WhisperForConditionalGeneration
    drafts: tuple[DraftModel, ...]
    tokenizer: Any
    extractors: tuple[Any, ...]
    tokens: SpecialTokens
    pair: Pair
    device: Device
    engine: ModelEngine = ModelEngine.AUTO  # what runs the target's decoder
    native_encoders: Mapping[Any, NativeEncoder] = field(default_factory=dict)  # by its modules
    block: WhisperBlock | None = None  # a head that drafts in place of a model

    @property
    def drafting(self) -> bool:
        """Whether there is a model or a head that drafts."""
        return bool(self.drafts) or self.block is not None

    @property
    def extractor(self) -> Any:
        """The extractor of the target's features."""
        return self.extractors[0]

    @property
    def draft(self) -> Any | None:
        """The first draft's model; None without drafts."""
        return self.drafts[0].model if self.drafts else None

    @property
    def shared_encoder(self) -> bool:
        """Whether the first draft uses the encoder states of the target."""
        return bool(self.drafts) and self.drafts[0].shared_encoder

    @property
    def draft_engine(self) -> ModelEngine:
        """What runs the first draft's decoder."""
        return self.drafts[0].engine if self.drafts else self.engine

    @property
    def draft_place(self) -> Device:
        """The device of the drafts, in their number format."""
        return self.drafts[0].device if self.drafts else self.device

    @property
    def listed(self) -> tuple[int, ...] | None:
        """The only tokens that the first draft proposes; None: all."""
        return self.drafts[0].listed if self.drafts else None

    @torch.inference_mode()
    def encode(self, features: Tensor, *others: Tensor) -> list[EncoderStates]:
        """Encoder states of windows from features `[B, M, F]`, by one pass of each encoder. `others` are
        those of the further `extractors`, in their order. Raises ValueError where they are not as many."""
        given = (features, *others)
        if len(given) != len(self.extractors):
            raise ValueError(f"{len(given)} features; these models read {len(self.extractors)}")
        rows = len(features)
        if self.device.static_shapes:  # another batch size would be another shape
            padding = (1 << (rows - 1).bit_length()) - rows
            given = tuple(torch.cat([f, f[-1:].expand(padding, -1, -1)]) for f in given)
        states = self._encoded(self.target, given[0])[:rows]
        drafts = [
            states if draft.shared_encoder else self._encoded(draft.model, given[draft.features])
            for draft in self.drafts
        ]
        return [EncoderStates(s, tuple(d[row] for d in drafts)) for row, s in enumerate(states)]

    def _encoded(self, model: Any, features: Tensor) -> list[Tensor]:
        """States `[S, D]` by row. They are copies: a view would keep the whole batch in memory as long as
        one of its windows is decoded again."""
        encoder = encoder_of(model)
        native = self.native_encoders.get(encoder)
        if native is not None:
            return native(features)
        features = features.to(self.device.torch, encoder.conv1.weight.dtype)
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
    draft_device: Device | None = None,
) -> Whisper:
    """Load the models of a pair, drafts in the number format of `draft_device`, by default the target's. They
    read the target's encoder states where both encoders are equal but for that rounding. Raises ModelError:
    not found, not a Whisper model, an incompatible pair, an `engine` that cannot run them."""
    folder = locate(pair.target, role="model", network=network)
    pair = _without_absent(pair, network=network)
    folders = [(name, locate(name, role="draft", network=network)) for name in pair.drafts]
    model, target_engine = read_model(folder, "model", device, engine)
    target = Target(
        pair.target,
        model,
        read_tokenizer(folder, model.config),
        (read_extractor(folder, model.config),),
        device,
    )
    if not (folder / GENERATION).is_file():
        complete(model.generation_config, target.tokenizer, model.config.vocab_size)
    tokens = _special_tokens(model, target.tokenizer, pair)
    encoders = native_encoders(model, f"--model {pair.target}", target_engine, engine)
    drafts, block = [], None
    for name, draft_folder in folders:
        if is_block(draft_folder):
            block = load_block(name, draft_folder, model, draft_device or device)
            continue
        draft, extractors = load_draft(
            name, draft_folder, target, draft_device or device, engine, pair.language
        )
        target = replace(target, extractors=extractors)
        drafts.append(draft)
        if encoder_of(draft.model) not in encoders:
            encoders |= native_encoders(draft.model, f"--draft {name}", draft.engine, engine)
    return Whisper(
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
