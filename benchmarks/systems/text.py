"""Systems that generate text: transformers' `generate` and this engine, on the same weights in one process.

They take turns, A B C A B C. transformers drafts for one prompt at a time only, so its rows with drafts run
the prompts one after the other. Knows how systems generate and are timed; nothing of what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.rows import Row, check_drafts
from benchmarks.systems.jobs import FLOAT32, OURS, Gamma, dtype_of, quantization_of
from forescribe.asr.errors import UsageError
from forescribe.speculative.device import Device, choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine, draft_device
from forescribe.speculative.requests import Stats
from forescribe.text import presets
from forescribe.text.drafts import HeadDraft, load_draft
from forescribe.text.generator import CONTEXT, TextGenerator
from forescribe.text.language_model import LanguageModel, check_draft, load
from forescribe.text.presets import MTP, NGRAM, Pair
from forescribe.text.streaming import Options

THEIRS, PLAIN = "transformers", "plain"

Texts = list[tuple[int, ...]]  # without end-of-text tokens
Turn = tuple[float, Texts, Stats]  # wall seconds

TEXTS = (
    "The train was late that morning, and",
    "A good map shows three things:",
    "When the rain stopped, the children",
    "To make bread you need flour, water,",
    "The river begins in the mountains and",
    "She opened the letter and read:",
    "In the year when the bridge was built,",
    "There are two ways to learn a language:",
)

QUESTIONS = (
    'Define "harbour".',
    'Use "quiet" in a sentence.',
    "Write the minutes of the sales meeting on March 3.",
    'Define "lantern".',
    "Write the minutes of the legal meeting on May 12.",
    'Use "carry" in a sentence.',
    "Write the minutes of the design meeting on June 9.",
    'Define "gentle".',
)
"""For chat models; the bundled pair was trained on such prompts."""


@dataclass(frozen=True)
class System:
    """A row: its name, and how it continues prompts. Only this engine has `stats`."""

    name: str
    batch: int
    write: Callable[[Sequence[tuple[int, ...]]], Texts]
    stats: Callable[[], Stats] | None = None
    dtype: str = FLOAT32
    gamma: Gamma = None


def take_turns(
    systems: Sequence[System],
    prompts: Sequence[tuple[int, ...]],
    repeats: int,
    say: Callable[[str], None],
) -> list[Row]:
    """Run all systems in turns, after a warm-up with one prompt; `say` gets a line per turn."""
    turns: list[list[Turn]] = [[] for _ in systems]
    for system in systems:
        system.write(prompts[:1])
    for number in range(1, repeats + 1):
        for system, done in zip(systems, turns, strict=True):
            before, started = system.stats() if system.stats else Stats(), time.perf_counter()
            texts = system.write(prompts)
            wall_s = time.perf_counter() - started
            stats = system.stats() - before if system.stats else before
            check_drafts(stats)
            done.append((wall_s, texts, stats))
            label = f"{system.name}, batch {system.batch}, {system.dtype}"
            say(f"{number}/{repeats} {label}: {wall_s:.2f} s")
    return [row_of(system, done) for system, done in zip(systems, turns, strict=True)]


def row_of(system: System, turns: Sequence[Turn]) -> Row:
    """The turns of a system, with the texts of the median one."""
    _, texts, stats = sorted(turns, key=lambda turn: turn[0])[(len(turns) - 1) // 2]
    return Row(
        system.name,
        system.batch,
        system.gamma,
        system.dtype,
        walls_s=[wall_s for wall_s, _, _ in turns],
        tokens=texts,
        stats=stats,
        steady=all(each == texts for _, each, _ in turns),
    )


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
    kind = PLAIN if draft is None else draft if isinstance(draft, str) else "draft"
    length = "" if draft is None else " auto" if gamma is None else f" {gamma}"

    def write(prompts: Sequence[tuple[int, ...]]) -> Texts:
        done = generator.generate(prompts, Options(max_tokens=most))
        return [cut(each.ids, target.ends) for each in done]

    name = f"{OURS} {kind}{length}"
    drafts: Gamma = "auto" if gamma is None else gamma
    return System(name, batch, write, lambda: generator.stats, dtype, drafts)


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


def choose_format(device: str, name: str) -> Device:
    """The device for a number format. Raises DeviceError."""
    return choose(device, dtype_of(name), quantization_of(name))


def load_pair(
    pair: Pair, device: Device, engine: ModelEngine, draft_dtype: str | None = None
) -> tuple[LanguageModel, LanguageModel | None, LanguageModel | None]:
    """Load the target, and the draft if it is a model: once as transformers' assistant, in the target's
    number format, and once as this engine's draft, in `draft_dtype`. Raises SpeculativeError."""
    target = load(pair.target, device, network=False, engine=engine)
    if pair.draft is None or pair.draft == NGRAM:
        return target, None, None
    if pair.draft in (MTP, *presets.names()):
        raise LoadError(
            f"--draft {pair.draft} is no model: this benchmark gives transformers the same draft; "
            "`forescribe generate --compare` measures any"
        )
    draft = load(pair.draft, device, role="draft", network=False, engine=engine)
    check_draft(target, draft)
    place = draft_device(device, draft_dtype, engine)
    if place == device:
        return target, draft, draft
    return target, draft, load(pair.draft, place, role="draft", network=False, engine=engine)


def own_draft(
    name: str | Path, target: LanguageModel, device: Device, engine: ModelEngine, dtype: str
) -> LanguageModel | HeadDraft | str:
    """A draft in its own number format; a head, which has no format of its own, in the target's. Raises
    SpeculativeError."""
    if name == NGRAM:
        return str(name)
    found = load_draft(name, target, device, network=False, engine=engine)
    place = draft_device(device, dtype, engine)
    if isinstance(found, HeadDraft) or place == device:
        return found
    return load(name, place, role="draft", network=False, engine=engine)


def encoded(
    target: LanguageModel, lines: Sequence[str] | None, chat: bool | None
) -> list[tuple[int, ...]]:
    """Encode the prompts, as chat messages if `chat` or if it is None and the model has a template;
    `lines` None takes eight built-in prompts. Raises RequestError for a model without a chat
    template."""
    words = target.vocabulary
    chat = words.converses if chat is None else chat
    if lines is None:
        lines = QUESTIONS if chat else TEXTS
    if chat:
        return [words.chat([{"role": "user", "content": line}]) for line in lines]
    return [words.encode(line) for line in lines]


def check_room(prompts: Sequence[tuple[int, ...]], most: int, positions: int, name: str) -> None:
    """Check that no text is cut at the end of the model's context, where texts may differ although no
    system is wrong. Raises UsageError."""
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    if len(prompts[longest]) + most > positions:
        raise UsageError(
            f"--max-tokens {most}: prompt {longest + 1} has {len(prompts[longest])} tokens, and {name} "
            f"has {positions} for both; ask for fewer, or shorten the prompt"
        )
