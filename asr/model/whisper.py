"""A pair of models that are ready to decode on a device: what they encode, and who reads their states.

Knows models, engines and devices; nothing of folders, names or recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.model_engines import ModelEngine, whisper_decoder
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.models.vocabularies import MappedVocabulary, TokenMap, mapped
from forescribe.speculative.models.weights import encoder_of
from forescribe.speculative.native.adapters import NativeEncoder, NativeWhisperDecoder

from ..audio.features import Extractor
from .presets import Pair
from .special_tokens import SpecialTokens


@dataclass(frozen=True)
class EncoderStates:
    """The encoder states `[S, D]` of a window: the target's, and those that each draft reads. `chosen` is the
    draft that proposes for this window."""

    target: Tensor
    by_draft: tuple[Tensor | DraftStates, ...] = ()
    chosen: int = 0

    @property
    def drafts(self) -> tuple[Tensor, ...]:
        """Those of all drafts."""
        return tuple(map(self.of_draft, range(len(self.by_draft))))

    @property
    def draft(self) -> Tensor | None:
        """Those of the draft that proposes; None without drafts."""
        return self.of_draft(self.chosen) if self.by_draft else None

    def of_draft(self, index: int) -> Tensor:
        """Those of a draft. May run its encoder."""
        states = self.by_draft[index]
        return states if isinstance(states, Tensor) else states.read()


class DraftStates:
    """The states of a window by a draft's own encoder. It runs when they are first read, for all windows of
    the batch that are still in use: plain rounds, which an adaptive draft length chooses where drafts do not
    pay, need none. Is used by one thread."""

    def __init__(self, encode: Callable[[Tensor], list[Tensor]], features: Tensor) -> None:
        self._encode, self.features = encode, features  # [M, F]
        self._batch: Sequence[ReferenceType[DraftStates]] = ()
        self._states: Tensor | None = None

    @classmethod
    def of(cls, encode: Callable[[Tensor], list[Tensor]], features: Tensor) -> list[DraftStates]:
        """Those of a batch, from its features `[B, M, F]`."""
        made = [cls(encode, row.clone()) for row in features]
        for each in made:
            each._batch = [ref(other) for other in made]
        return made

    @torch.inference_mode()
    def read(self) -> Tensor:
        """The states `[S, D]`. Numbers that are not finite are 0: a draft of them is a bad one, and no fault
        of the window."""
        if self._states is None:
            used = [each for reference in self._batch if (each := reference()) is not None]
            try:
                encoded = self._encode(torch.stack([each.features for each in used]))
            except Exception:
                if len(used) == 1:
                    raise
                used, encoded = [self], self._encode(self.features[None])
            for each, states in zip(used, encoded, strict=True):
                each._states = states.nan_to_num_(0.0, 0.0, 0.0)
                each.features, each._batch = states.new_empty(0), ()
        assert self._states is not None
        return self._states


@dataclass(frozen=True, eq=False)
class Whisper:
    """A target with its draft models, on one device.

    `drafts` are in the order of `Pair.drafts`; `extractors` are of the features that their encoders read, the
    target's first.
    """

    target: Any  # PlainWhisper, or WhisperForConditionalGeneration
    drafts: tuple[DraftModel, ...]
    tokenizer: Any
    extractors: tuple[Extractor, ...]
    tokens: SpecialTokens
    pair: Pair
    device: Device
    engine: ModelEngine = ModelEngine.AUTO  # what runs the target's decoder
    native_encoders: Mapping[Any, NativeEncoder] = field(default_factory=dict)  # by its modules

    def decoder(self) -> SlotModel:
        """The target's decoder, on its engine."""
        return target_decoder(self.target, self.engine, self.device)

    @property
    def drafting(self) -> bool:
        """Whether there is a model that drafts."""
        return bool(self.drafts)

    @property
    def extractor(self) -> Extractor:
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

    @torch.inference_mode()
    def encode(self, features: Tensor, *others: Tensor) -> list[EncoderStates]:
        """Encoder states of windows from features `[B, M, F]`, by one pass of the target's encoder. A draft's
        own encoder runs when its states are first read. `others` are the features of the further
        `extractors`, in their order. Raises ValueError where they are not as many."""
        given = (features, *others)
        if len(given) != len(self.extractors):
            raise ValueError(f"{len(given)} features; these models read {len(self.extractors)}")
        states = self._encoded(self.target, features)
        drafts: list[Sequence[Tensor | DraftStates]] = [
            states
            if draft.shared_encoder
            else DraftStates.of(partial(self._encoded, draft.model), given[draft.features])
            for draft in self.drafts
        ]
        return [EncoderStates(s, tuple(d[row] for d in drafts)) for row, s in enumerate(states)]

    def _encoded(self, model: Any, features: Tensor) -> list[Tensor]:
        """States `[S, D]` by row. They are copies: a view would keep the whole batch in memory as long as
        one of its windows is decoded again."""
        encoder, rows = encoder_of(model), len(features)
        if self.device.static_shapes:  # another batch size would be another shape
            padding = (1 << (rows - 1).bit_length()) - rows
            features = torch.cat([features, features[-1:].expand(padding, -1, -1)])
        native = self.native_encoders.get(encoder)
        if native is not None:
            return native(features)
        features = features.to(self.device.torch, encoder.conv1.weight.dtype)
        groups = [features] if self.device.rows_together else features.split(1)
        states = [row.clone() for group in groups for row in encoder(group).last_hidden_state]
        return states[:rows]

    @cached_property
    def _reader(self) -> NativeWhisperDecoder | None:
        made = self.decoder() if self.engine is ModelEngine.NATIVE else None
        return made if isinstance(made, NativeWhisperDecoder) else None

    @contextmanager
    def reading(self) -> Iterator[NativeWhisperDecoder | None]:
        """The target's native decoder with room for one row, to read texts beside the engine that decodes;
        None where modules read them: on the other engines."""
        decoder = self._reader
        if decoder is None:
            yield None
            return
        decoder.allocate(1, decoder.max_positions)
        try:
            yield decoder
        finally:
            decoder.release()

    @torch.inference_mode()
    def detect_language(
        self, encoded: list[EncoderStates], among: Sequence[Sequence[str]] | None = None
    ) -> list[tuple[str, float]]:
        """The most probable language of each window, of those of `among`, codes for each window, where it has
        any; and its probability among all that the model knows: low where another one is spoken.

        One decoder step over start-of-transcript (Radford et al. 2022, section 2.3).
        """
        if not self.tokens.multilingual:
            return [("en", 1.0)] * len(encoded)
        codes = list(self.tokens.languages)
        ids = torch.tensor([self.tokens.languages[c] for c in codes], device=self.device.torch)
        probabilities = self._first_logits(encoded)[:, ids].softmax(-1)
        if among is not None and any(among):
            others = [[bool(own) and code not in own for code in codes] for own in among]
            unlisted = torch.tensor(others, device=probabilities.device)
            probabilities = probabilities.masked_fill(unlisted, -1.0)
        best = probabilities.max(-1)
        return [
            (codes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _first_logits(self, encoded: Sequence[EncoderStates]) -> Tensor:
        """The logits `[B, V]` behind start-of-transcript of each window, in float32."""
        start = torch.full((len(encoded), 1), self.tokens.start, device=self.device.torch)
        with self.reading() as decoder:
            if decoder is not None:
                row = torch.zeros(1, dtype=torch.int64)
                read = [decoder.prefill(row, start[:1], [states]).logits for states in encoded]
                return torch.cat(read)[:, -1]
            states = torch.stack([each.target for each in encoded])
            hidden = self.target.model.decoder(
                input_ids=start, encoder_hidden_states=states, use_cache=False
            ).last_hidden_state
            logits: Tensor = self.target.proj_out(hidden)[:, 0].float()
            return logits


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A draft on a device, in its number format there.

    `features` says which of the pair's features its encoder reads, 0: the target's. `token_map` is None where
    its ids are the target's, `tokens` where it proposes all of them.
    """

    model: Any  # PlainWhisper, WhisperForConditionalGeneration or WhisperForCausalLM
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
                lambda states: states.of_draft(index),
                engine=self.engine,
                stored=self.device.stored,
                listed=listed,
            )

        if self.token_map is None:
            return build(self.listed)
        return mapped(build, self.token_map, self.listed)


def target_decoder(model: Any, engine: ModelEngine, device: Device) -> SlotModel:
    """The decoder of a target on its engine."""
    return whisper_decoder(model, lambda states: states.target, engine=engine, stored=device.stored)
