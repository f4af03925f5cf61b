"""The systems of `bench text`: transformers' `generate` and this engine, on the same weights.

transformers drafts for one prompt at a time only, so its rows with drafts run the prompts one after
the other. Knows how systems generate; nothing of measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.stats import Stats
from forescribe.text.drafts import HeadDraft
from forescribe.text.generator import CONTEXT, TextGenerator
from forescribe.text.language_model import LanguageModel
from forescribe.text.presets import NGRAM
from forescribe.text.streaming import Options

OURS, THEIRS, PLAIN = "forescribe", "transformers", "plain"

Texts = list[tuple[int, ...]]  # without end-of-text tokens


@dataclass(frozen=True)
class System:
    """A row: its name, and how it continues prompts. Only this engine has `stats`."""

    name: str
    batch: int
    write: Callable[[Sequence[tuple[int, ...]]], Texts]
    stats: Callable[[], Stats] | None = None
    dtype: str = "float32"

    @property
    def label(self) -> str:
        return f"{self.name}, batch {self.batch}, {self.dtype}"

    @property
    def ours(self) -> bool:
        return self.name.startswith(OURS)

    @property
    def plain(self) -> bool:
        """Whether it is this engine's plain decoding of one prompt at a time."""
        return (self.name, self.batch) == (f"{OURS} {PLAIN}", 1)


class TransformersGenerate:
    """transformers' generate on loaded weights, greedy."""

    def __init__(self, target: LanguageModel, draft: LanguageModel | None, most: int) -> None:
        self.target, self.draft, self.most = target, draft, most

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[tuple[int, ...]], **options: Any) -> Texts:
        """One call; shorter prompts are padded on the left."""
        length = max(map(len, prompts))
        rows = [[0] * (length - len(p)) + list(p) for p in prompts]
        masks = [[0] * (length - len(p)) + [1] * len(p) for p in prompts]
        model = self.target.model
        output = model.generate(
            torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(masks, device=model.device),
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,  # some models' settings have one, which is not greedy decoding
            max_new_tokens=self.most,
            pad_token_id=min(self.target.ends, default=0),
            **options,
        )
        return [cut(row[length:], self.target.ends) for row in output.tolist()]

    def greedy(self, batch: int) -> Callable[[Sequence[tuple[int, ...]]], Texts]:
        def write(prompts: Sequence[tuple[int, ...]]) -> Texts:
            parts = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
            return [text for part in parts for text in self._generate(part)]

        return write

    def assisted(self, gamma: int | None) -> Callable[[Sequence[tuple[int, ...]]], Texts]:
        """With its default settings (None), or always `gamma` drafted tokens."""
        assert self.draft is not None
        assistant = self.draft.model
        settings = assistant.generation_config
        own = {
            name: getattr(settings, name, None)
            for name in ("num_assistant_tokens", "num_assistant_tokens_schedule",
                         "assistant_confidence_threshold")
        }  # fmt: skip
        always = {
            "num_assistant_tokens": gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }

        def write(prompts: Sequence[tuple[int, ...]]) -> Texts:
            # Read from the assistant's settings; as arguments of generate they have no effect.
            for name, value in (own if gamma is None else always).items():
                setattr(settings, name, value)
            return [self._generate([p], assistant_model=assistant)[0] for p in prompts]

        return write

    def lookup(self, gamma: int) -> Callable[[Sequence[tuple[int, ...]]], Texts]:
        return lambda prompts: [
            self._generate([p], prompt_lookup_num_tokens=gamma)[0] for p in prompts
        ]


def cut(ids: Sequence[int], ends: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens before end-of-text, which not all systems return."""
    end = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[:end])


def room(target: LanguageModel, draft: LanguageModel | HeadDraft | str | None) -> int:
    """Return the maximum length of prompt and text together."""
    both = [target, draft] if isinstance(draft, LanguageModel) else [target]
    return min(CONTEXT, *(model.positions for model in both))


def ours(
    target: LanguageModel,
    draft: LanguageModel | HeadDraft | str | None,
    device: Device,
    *,
    batch: int,
    gamma: int | None,
    most: int,
    dtype: str,
) -> System:
    generator = TextGenerator(
        target, draft, device=device, batch=batch, gamma=gamma, context=room(target, draft)
    )
    kind = PLAIN if draft is None else NGRAM if isinstance(draft, str) else "draft"
    length = "" if draft is None else " auto" if gamma is None else f" {gamma}"

    def write(prompts: Sequence[tuple[int, ...]]) -> Texts:
        done = generator.generate(prompts, Options(max_tokens=most))
        return [cut(each.ids, target.ends) for each in done]

    return System(f"{OURS} {kind}{length}", batch, write, lambda: generator.stats, dtype)


def systems(
    target: LanguageModel,
    draft: LanguageModel | None,
    own: LanguageModel | None,
    device: Device,
    *,
    batches: Sequence[int],
    gammas: Sequence[int],
    most: int,
    dtype: str,
) -> list[System]:
    """Return all systems, the reference first: transformers' greedy decoding of one prompt at a
    time, so `batches` begin with 1. `own` is this engine's copy of the draft. Raises LoadError if the
    draft does not fit."""
    theirs = TransformersGenerate(target, draft, most)
    rows = [
        System(f"{THEIRS} greedy", batch, theirs.greedy(batch), dtype=dtype) for batch in batches
    ]
    if draft is not None:
        name = f"{THEIRS} assisted"
        rows.append(System(f"{name}, its defaults", 1, theirs.assisted(None), dtype=dtype))
        rows += [System(f"{name} {g}", 1, theirs.assisted(g), dtype=dtype) for g in gammas]
    rows += [System(f"{THEIRS} lookup {g}", 1, theirs.lookup(g), dtype=dtype) for g in gammas]
    drafts: list[LanguageModel | str] = [NGRAM] if own is None else [own, NGRAM]
    return rows + own_rows(target, drafts, device, batches, gammas, most, dtype)


def further_systems(
    target: LanguageModel,
    draft: LanguageModel | None,
    own: LanguageModel | None,
    device: Device,
    *,
    batches: Sequence[int],
    gammas: Sequence[int],
    most: int,
    dtype: str,
) -> list[System]:
    """Return the systems of a further dtype: this engine, and transformers' greedy decoding of one prompt at
    a time, which computes with the same rounded weights."""
    theirs = TransformersGenerate(target, draft, most)
    rows = [System(f"{THEIRS} greedy", 1, theirs.greedy(1), dtype=dtype)]
    drafts: list[LanguageModel | str] = [NGRAM] if own is None else [own]
    return rows + own_rows(target, drafts, device, batches, gammas, most, dtype)


def own_rows(
    target: LanguageModel,
    drafts: Sequence[LanguageModel | str],
    device: Device,
    batches: Sequence[int],
    gammas: Sequence[int],
    most: int,
    dtype: str,
) -> list[System]:
    """Return this engine's rows: at each batch size plain, and with each draft and gamma."""
    rows = []
    for batch in batches:
        rows.append(ours(target, None, device, batch=batch, gamma=0, most=most, dtype=dtype))
        rows += [
            ours(target, each, device, batch=batch, gamma=gamma, most=most, dtype=dtype)
            for each in drafts
            for gamma in (*gammas, None)
        ]
    return rows
