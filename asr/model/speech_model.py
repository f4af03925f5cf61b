"""What decoding needs of a model that writes down speech, whatever its family.

A `SpeechModel` is a target with its drafts on one device: a `Whisper`, whose decoder attends to encoder
states, or a `SpeechLLM`, whose decoder is a text model that reads them in its prompt.
`EncoderStates` are what either gives for a window. Knows nothing of recordings and options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ReferenceType, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.protocols import Drafter, Processor
from forescribe.speculative.requests import Probe

from .languages import Spoken
from .presets import Pair
from .tokens import Task

Features = Tensor | Mapping[str, Tensor]
"""What an encoder reads of a window: `[M, F]` where it is Whisper's, else its arguments by name."""

Encode = Callable[[Sequence[Any]], list[Tensor]]
"""Encoder states of windows, from the features of each."""


class SpeechTokens(Protocol):
    """The tokens of a model, and what it can be asked for."""

    @property
    def only(self) -> str:
        """The answer to a request for another language, where it knows one alone."""

    @property
    def end(self) -> int:
        """A token that ends a text."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All of these."""

    @property
    def languages(self) -> Mapping[str, int]:
        """Its languages (ISO 639-1), where it knows several."""

    @property
    def multilingual(self) -> bool: ...

    @property
    def translates(self) -> bool:
        """Whether it can translate into English."""

    @property
    def conditions(self) -> bool:
        """Whether its prompt may hold other text."""

    @property
    def timestamp_begin(self) -> int | None:
        """The first timestamp; None where it writes none."""

    def is_text(self, token: int) -> bool:
        """Whether a token is text: no mark, no timestamp."""

    def stamp(self, token: int) -> int | None:
        """The place that a timestamp stands for, in samples of the window; None for other tokens."""

    def spoken(self, names: str | None) -> Spoken:
        """The codes of languages as a user names them. Raises UsageError for one that it does not know."""


class Drafts(Protocol):
    """A draft of a speech model."""

    def drafter(self, index: int, confidence: float) -> Drafter:
        """What proposes its tokens, as long as it is sure of them by `confidence`; `index` is that of its
        states in `EncoderStates.drafts`."""


class SpeechModel(Protocol):
    """A model that writes down what is spoken, with its drafts, on one device."""

    @property
    def pair(self) -> Pair: ...

    @property
    def device(self) -> Device: ...

    @property
    def engine(self) -> ModelEngine:
        """What runs the target's decoder."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def attends(self) -> bool:
        """Whether its decoder attends to the encoder states, as Whisper's. It writes timestamps then, that
        attention says when its words are spoken, and places of its answer can be looked at again."""

    @property
    def tokens(self) -> SpeechTokens: ...

    @property
    def drafts(self) -> Sequence[Drafts]:
        """In the order of `Pair.drafts`."""

    @property
    def drafting(self) -> bool:
        """Whether there is a model that drafts."""

    @property
    def shared_encoder(self) -> bool:
        """Whether the first draft uses the encoder states of the target."""

    @property
    def positions(self) -> int:
        """Tokens of a window's prompt and answer."""

    @property
    def prompt_room(self) -> int:
        """Tokens of other text that fit into a prompt."""

    def decoder(self) -> SlotModel:
        """The target's decoder, on its engine."""

    def aligner(self, language: str) -> Any:
        """The Whisper whose attention times words of a language; None where there is none."""

    def rules(self) -> tuple[Processor, ...]:
        """What its decoder may not write."""

    def features(
        self, windows: Sequence[NDArray[np.float32]], searched: Sequence[bool] = ()
    ) -> tuple[Any, ...]:
        """The features of windows, for `encode`: those that the target's encoder reads, then others."""

    def encode(self, *features: Any) -> list[EncoderStates]:
        """Encoder states of windows, by one pass of the target's encoder."""

    def hearing(self, features: Sequence[Any]) -> float:
        """What the drafts' own encoders take for a window, as a share of what the target's takes."""

    def detect_language(
        self, encoded: list[EncoderStates], among: Sequence[Sequence[str]] | None = None
    ) -> list[tuple[str, float]]:
        """The most probable language of each window, of those of `among` where it has any, and its
        probability."""

    def prompt(
        self,
        states: EncoderStates,
        language: str | None,
        task: Task,
        *,
        timestamps: bool,
        previous: Sequence[int] = (),
    ) -> tuple[tuple[int, ...], EncoderStates]:
        """The prompt of a window, behind the tokens of `previous` text, and its states for it."""

    def probe(self, prompt: Sequence[int], *, languages: bool = False) -> Probe:
        """Asks for the probability of no speech, and of all languages, behind the tokens of a prompt."""

    def generated(
        self, states: EncoderStates, prompt: Sequence[int], count: int
    ) -> tuple[int, ...] | None:
        """The answer by transformers' `generate`, `count` tokens at most; None where nothing but an engine
        runs the model."""


@dataclass(frozen=True)
class EncoderStates:
    """The encoder states `[S, D]` of a window: the target's, and those that each draft reads. `chosen` is the
    draft that proposes for this window. A model whose decoder reads them in its prompt has them `at` this
    place of it."""

    target: Tensor
    by_draft: tuple[Tensor | DraftStates, ...] = ()
    chosen: int = 0
    at: int = 0

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

    def __init__(self, encode: Encode, features: Features) -> None:
        self._encode, self.features = encode, features
        self._batch: Sequence[ReferenceType[DraftStates]] = ()
        self._states: Tensor | None = None

    @classmethod
    def of(cls, encode: Encode, features: Iterable[Features]) -> list[DraftStates]:
        """Those of a batch, from the features of its windows."""
        made = [cls(encode, row) for row in features]
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
                encoded = self._encode([each.features for each in used])
            except Exception:
                if len(used) == 1:
                    raise
                used, encoded = [self], self._encode([self.features])
            for each, states in zip(used, encoded, strict=True):
                each._states = states.nan_to_num_(0.0, 0.0, 0.0)
                each.features, each._batch = {}, ()
        assert self._states is not None
        return self._states
