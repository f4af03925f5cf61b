"""A speech LLM that is ready to decode on a device: a text model whose prompt holds what its encoder heard.

    transformers' model --> encoder, projector   embeddings [n, D] of a window, one window at a time
                        --> text tower           on an engine, as any causal LM

A window is decoded like one of Whisper: a request with a prompt and the encoder's states, which the decoder
reads in place of the prompt's placeholders. There are no timestamps and no attention to the audio: words are
timed by an `aligner`, a small Whisper that reads the text, where there is one. Without a language in the
prompt a family may name it itself: then the most probable of its names is taken (`detect_language`), and the
prompt holds it. Knows models, engines and processors; nothing of recordings or options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.drafters.model_drafter import ModelDrafter, TreeDrafter
from forescribe.speculative.model_engines import ModelEngine, causal_decoder
from forescribe.speculative.models.heads.records import Head
from forescribe.speculative.models.slot_model import SlotModel
from forescribe.speculative.protocols import Processor
from forescribe.speculative.requests import Probe
from forescribe.speculative.types import Embedded

from ..errors import UsageError
from .families import Family, Inputs
from .languages import Spoken, read_languages
from .presets import Pair
from .states import DraftStates, EncoderStates
from .tokens import Task, WhisperTokens
from .whisper import Whisper

HEARD, MARKS, ANSWER = 400, 64, 448
"""Tokens of a window of 30 s, of the marks of a prompt, and of an answer, at most: families have 300 to 390
tokens for a window, and Whisper no more for an answer."""

PROMPT_ROOM = 512
"""Tokens of other text in a prompt: every row has room for them, and each takes 115 KB of a 1.7B model."""


@dataclass(frozen=True)
class PromptTokens:
    """Token ids of a speech LLM. `text` are those below it which are no marks."""

    ends: tuple[int, ...]
    placeholder: int
    text: int
    marks: frozenset[int]
    family: Family
    only: ClassVar[str] = "this model does not translate"
    translates: ClassVar[bool] = False
    made_for: ClassVar[None] = None
    timestamp_begin: ClassVar[None] = None

    @property
    def end(self) -> int:
        return self.ends[0]

    @property
    def languages(self) -> Mapping[str, int]:
        """All languages that its prompt may name; their tokens are not single ones."""
        return dict.fromkeys(self.family.languages, self.placeholder)

    @property
    def multilingual(self) -> bool:
        return self.family.detects

    @property
    def conditions(self) -> bool:
        return self.family.conditions

    def is_text(self, token: int) -> bool:
        return 0 <= token < self.text and token not in self.marks

    def stamp(self, token: int) -> int | None:
        """None: it has no timestamps."""
        return None

    def spoken(self, names: str | None) -> Spoken:
        named = read_languages(names, self.family.languages)
        if len(named.codes) > 1 and not self.family.detects:
            raise UsageError(
                f"languages {named.text}: this model does not say which it hears; name one, or auto"
            )
        return named


@dataclass(frozen=True, eq=False)
class SpeechLLM:
    """A target with its draft, on one device.

    `target` is the model of transformers, whose text tower `tower` an engine runs. `aligner` has a Whisper
    for a language, which times words; without one they have no times.
    """

    target: Any
    tower: Any
    processor: Any
    family: Family
    tokenizer: WhisperTokens
    tokens: PromptTokens
    pair: Pair
    device: Device
    engine: ModelEngine
    positions: int
    drafts: tuple[DraftLLM | DraftHead, ...] = ()
    aligner: Callable[[str], Whisper | None] = lambda language: None
    _prompts: dict[tuple[str | None, tuple[int, ...]], tuple[int, ...]] = field(
        default_factory=dict, init=False
    )
    attends: ClassVar[bool] = False
    beams: ClassVar[int] = 1
    shared_encoder: ClassVar[bool] = False
    prompt_room: ClassVar[int] = PROMPT_ROOM

    def decoder(self) -> SlotModel:
        """The text tower, on its engine."""
        return causal_decoder(
            self.tower,
            self.positions,
            engine=self.engine,
            stored=self.device.stored,
            pick=lambda states: Embedded(states.at, states.target),
        )

    def rules(self) -> tuple[Processor, ...]:
        """None: `generate` has none."""
        return ()

    def features(
        self, windows: Sequence[NDArray[np.float32]], searched: Sequence[bool] = ()
    ) -> tuple[Any, ...]:
        """What the encoder reads of each window, as the processor of the model makes it."""
        return ([self.family.inputs(self.processor, window) for window in windows],)

    @torch.inference_mode()
    def encode(self, *features: Sequence[Inputs]) -> list[EncoderStates]:
        """The embeddings `[n, D]` of windows: each alone, so that they do not depend on the others."""
        (inputs,) = features
        heard = [embeddings(self.family, self.target, own) for own in inputs]
        drafted: list[Sequence[Tensor | DraftStates]] = [
            DraftStates.of(partial(draft.embeddings, self.family), inputs)
            if isinstance(draft, DraftLLM)
            else heard
            for draft in self.drafts
        ]
        return [
            EncoderStates(target, tuple(by_draft))
            for target, *by_draft in zip(heard, *drafted, strict=True)
        ]

    def hearing(self, features: Sequence[Inputs]) -> float:
        """0: what a draft's encoder takes is measured when it runs."""
        return 0.0

    def prompt(
        self,
        states: EncoderStates,
        language: str | None,
        task: Task,
        *,
        timestamps: bool,
        previous: Sequence[int] = (),
    ) -> tuple[tuple[int, ...], EncoderStates]:
        """The prompt of a window, with a placeholder for each of its embeddings."""
        asked = self._asked(language or None, tuple(previous))
        return self._with(states, asked)

    def _with(
        self, states: EncoderStates, asked: tuple[int, ...]
    ) -> tuple[tuple[int, ...], EncoderStates]:
        at, count = asked.index(self.tokens.placeholder), len(states.target)
        # Some placeholders are no token of the text model, which reads nothing there.
        known = self.tokens.placeholder < self.tower.config.vocab_size
        one = self.tokens.placeholder if known else self.tokens.end
        return (*asked[:at], *(one,) * count, *asked[at + 1 :]), replace(states, at=at)

    def _asked(self, language: str | None, previous: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt with a single placeholder, from the template of the processor."""
        known = self._prompts
        if (language, previous) not in known:
            if len(known) > 64:
                known.clear()
            context = self.tokenizer.text(previous).strip()
            known[language, previous] = tuple(self.family.prompt(self.processor, language, context))
        return known[language, previous]

    def probe(self, prompt: Sequence[int], *, languages: bool = False) -> Probe:
        """Whether the answer is empty: the probability that it ends at once."""
        return Probe(len(prompt) - 1, self.tokens.ends[:1])

    @torch.inference_mode()
    def generated(
        self, states: EncoderStates, prompt: Sequence[int], count: int
    ) -> tuple[int, ...] | None:
        """By the unmodified model; None where its text tower has been rounded to 8-bit integers."""
        if self.device.int8:
            return None
        tokens = torch.tensor([list(prompt)], device=self.device.torch)
        embeds = self.target.get_input_embeddings()(tokens).clone()
        embeds[0, states.at : states.at + len(states.target)] = states.target
        answer = self.target.generate(
            inputs_embeds=embeds,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=count,
        )
        return tuple(answer[0].tolist())

    @torch.inference_mode()
    def detect_language(
        self, encoded: list[EncoderStates], among: Sequence[Sequence[str]] | None = None
    ) -> list[tuple[str, float]]:
        """The language that the answer would name, token by token, where only names of languages may follow;
        and its probability. A family that names none: no language, and 1."""
        if not self.family.detects:
            return [("", 1.0)] * len(encoded)
        decoder, asked = self.decoder(), among or [()] * len(encoded)
        decoder.allocate(1, self.positions)
        try:
            return [
                self._named(decoder, states, tuple(own) or tuple(self.family.languages))
                for states, own in zip(encoded, asked, strict=True)
            ]
        finally:
            decoder.release()

    def _named(
        self, decoder: SlotModel, states: EncoderStates, codes: Sequence[str]
    ) -> tuple[str, float]:
        """As `detect_language`, of one window."""
        open_prompt = self._asked(None, ())
        endings = {code: self._asked(code, ())[len(open_prompt) :] for code in codes}
        prompt, own = self._with(states, open_prompt)
        place = torch.zeros(1, dtype=torch.int64, device=self.device.torch)
        tokens = torch.tensor([prompt], device=self.device.torch)
        last = place[None] + len(prompt) - 1
        logits = decoder.prefill(place, tokens, [own], last).logits[0, 0]
        written, logprob = 0, 0.0
        while len(endings) > 1:
            following = sorted({ending[written] for ending in endings.values()})
            shares = logits.float().log_softmax(-1)[following]
            best = int(shares.argmax())
            logprob += float(shares[best])
            endings = {c: e for c, e in endings.items() if e[written] == following[best]}
            written += 1
            if len(endings) > 1:
                start = place + len(prompt) + written - 1
                fed = torch.tensor([[following[best]]], device=self.device.torch)
                logits = decoder.score(fed, start, reach=len(prompt) + written).logits[0, 0]
        (code,) = endings
        return code, float(np.exp(logprob))


@dataclass(frozen=True, eq=False)
class DraftLLM:
    """A draft on a device: a smaller model of the same family, with an encoder of its own."""

    model: Any
    tower: Any
    device: Device
    engine: ModelEngine
    positions: int
    vocab_size: int  # of the target

    def decoder(self, index: int = 0) -> SlotModel:
        """Its text tower; `index` is that of its states in `EncoderStates.drafts`."""
        return causal_decoder(
            self.tower,
            self.positions,
            self.vocab_size,
            engine=self.engine,
            stored=self.device.stored,
            pick=lambda states: Embedded(states.at, states.of_draft(index)),
        )

    def drafter(self, index: int, confidence: float) -> ModelDrafter:
        return ModelDrafter(self.decoder(index), confidence=confidence)

    def tree_drafter(self) -> TreeDrafter:
        """The same behind beams."""
        return TreeDrafter(self.decoder())

    def embeddings(self, family: Family, windows: Sequence[Inputs]) -> list[Tensor]:
        """Those of windows, by its encoder."""
        return [embeddings(family, self.model, inputs) for inputs in windows]


@dataclass(frozen=True, eq=False)
class DraftHead:
    """A head on the target's states, as EAGLE-3's."""

    head: Head

    def drafter(self, index: int, confidence: float) -> HeadDrafter:
        return HeadDrafter(self.head, confidence=confidence)


def embeddings(family: Family, model: Any, inputs: Inputs) -> Tensor:
    """The embeddings `[n, D]` of a window."""
    weight = next(model.parameters())
    own = {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)
        for name, value in inputs.items()
    }
    return family.embeddings(model, own).clone()
