"""A causal language model with a draft: forward passes of training, the engine as a generator builds it,
prompts and their labels.

The embedding of tokens, which is the output head too in small models, is frozen unless the caller says
otherwise. A prompt is a text that the target continues or a request that it answers: a `.jsonl` file has an
object per line with `prompt`, `messages` (a conversation) or `text`, and optionally a `kind`, by which the
report groups; of any other text, each paragraph is continued from its first words. Labels are what the
target writes, half of it greedy and half at temperature 1, as both are used, and what a target writes at
one temperature is no measure of the other. Prompts are answered in groups; each group is a file of labels.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError
from forescribe.speculative.device import Device
from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.drafters.model_drafter import ModelDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.engines import causal_decoder
from forescribe.speculative.models.hub import locate
from forescribe.speculative.protocols import Schedule
from forescribe.speculative.requests import Finish, Request, Result
from forescribe.speculative.rounds.accept import BlockVerification
from forescribe.text.generator import TextGenerator
from forescribe.text.language_model import LANGUAGE_MODEL, LanguageModel, read_weights

from .draft_lists import files_of, read
from .files import copy_companions, save_weights
from .labels import GENERAL, CutHead, LabelBatch, LabelRow, LabelStore, SparseDistribution, collate
from .pair import Hook, StepSize
from .pruning import causal_layers, pruned_causal
from .speech import Skipped, blank, with_wanted

GROUP = 64
"""Prompts of a file of labels."""

TOGETHER = 16
"""Texts whose distributions are computed at a time."""

PASSES = 2
"""Times that a prompt is answered at most: once greedily, once by drawing."""

LINES = ".jsonl"
BEGINNING, LEAST = 24, 4
"""Tokens of a paragraph that are given at most, and tokens that a paragraph needs."""


@dataclass(frozen=True, eq=False)
class TextPair:
    """A loaded language model; see `DraftPair`. `embeddings` are trained too where it says so; answers have
    at most `longest` tokens."""

    model: LanguageModel
    place: Device
    embeddings: bool = False
    longest: int = 160

    @property
    def device(self) -> Device:
        return self.place

    @property
    def target(self) -> Any:
        return self.model.model

    @property
    def target_folder(self) -> Path:
        return locate(self.model.name, LANGUAGE_MODEL, network=False)

    @property
    def text_ids(self) -> int:
        return self.model.vocab_size

    @property
    def step_size(self) -> StepSize:
        return StepSize(tokens=1280, rows=32)

    def open(self, folder: Path) -> Any:
        draft = self._loaded(folder)
        if draft.config.vocab_size != self.model.vocab_size:
            raise UsageError(
                f"{folder} has {draft.config.vocab_size} tokens, its target {self.model.vocab_size}: only a "
                "draft with the target's tokens is distilled"
            )
        return self._frozen(draft)

    def pruned(self, layers: Sequence[int]) -> Any:
        return self._frozen(pruned_causal(self.target, layers))

    def logits(self, draft: Any, batch: LabelBatch, head: CutHead | None = None) -> Tensor:
        logits: Tensor = draft(input_ids=batch.tokens, use_cache=False).logits
        predicted = logits[batch.row, batch.place]
        return predicted if head is None else predicted[:, head.ids]

    @torch.no_grad()
    def target_logits(self, batch: LabelBatch, begins: Tensor) -> Tensor:
        logits: Tensor = self.target(input_ids=batch.tokens, use_cache=False).logits
        return logits[batch.row, batch.place].float()

    def request(self, row: LabelRow, tag: int) -> Request:
        return Request(
            prompt=row.tokens[: row.begin],
            max_new_tokens=row.answered,
            temperature=0.0 if row.greedy else 1.0,
            seed=tag,
            tag=tag,
        )

    def engine(
        self,
        draft: Path | None,
        schedule: Schedule,
        batch: int,
        listed: DraftTokens | None = None,
    ) -> Engine:
        drafter = None
        if draft is not None:
            model = self.place.placed(self._loaded(draft))
            listed = listed or DraftTokens.beside(draft, model.config.vocab_size)
            drafter = ModelDrafter(
                causal_decoder(
                    model,
                    None,
                    self.model.vocab_size,
                    stored=self.place.stored,
                    listed=None if listed is None else listed.ids,
                )
            )
        return Engine(
            self.model.decoder(),
            drafter,
            batch=batch,
            eos=self.model.ends,
            schedule=schedule,
            device=self.place,
            sampled=BlockVerification(),
            max_tokens=min(self.model.positions, 4096),
        )

    def save(self, draft: Any, folder: Path) -> None:
        copy_companions(self.target_folder, folder)
        self.target.generation_config.save_pretrained(folder)
        tied = bool(getattr(draft.config, "tie_word_embeddings", False))
        save_weights(draft, folder, tied="lm_head.weight" if tied else None)

    def layers(self, draft: Any) -> Any:
        return causal_layers(draft)

    @loading()
    def _loaded(self, folder: Path) -> Any:
        from transformers import AutoConfig

        return read_weights(folder, AutoConfig.from_pretrained(folder), torch.float32)

    def _frozen(self, draft: Any) -> Any:
        draft.requires_grad_(True)
        if not self.embeddings:
            draft.get_input_embeddings().requires_grad_(False)
            draft.get_output_embeddings().requires_grad_(False)
        return draft.eval()


@dataclass(frozen=True)
class TextPrompt:
    """Token ids to continue, where they are from, and which kind of text it is."""

    tokens: tuple[int, ...]
    source: str
    kind: str


def prompts_of(
    generator: TextGenerator, names: Sequence[str], kind: str, *, seed: int
) -> tuple[list[TextPrompt], list[Skipped]]:
    """All prompts of the files and folders, shuffled by `seed`, and what was skipped and why.

    Their kind is the one that a line names, else `kind`; general data have no other. Raises UsageError for a
    name that is not there."""
    prompts: dict[tuple[int, ...], TextPrompt] = {}
    skipped: list[Skipped] = []
    for file in [found for name in names for found in _files(name)]:
        try:
            for tokens, named in _of_file(generator, file):
                prompts.setdefault(
                    tokens, TextPrompt(tokens, file, kind if kind == GENERAL else named or kind)
                )
        except (UsageError, SpeculativeError) as error:
            skipped.append(Skipped(file, str(error)))
    ordered = list(prompts.values())
    random.Random(seed).shuffle(ordered)
    return ordered, skipped


def label_prompts(
    generator: TextGenerator,
    pair: TextPair,
    store: LabelStore,
    prompts: Sequence[TextPrompt],
    *,
    seed: int,
    until: Callable[[], bool],
    stop: Stop,
    hook: Hook,
) -> None:
    """Label prompts, group by group, until all have been answered `PASSES` times, the time is over or an end
    is requested. Raises OutputError."""
    groups = [
        (number, start) for number in range(PASSES) for start in range(0, len(prompts), GROUP)
    ]
    began = time.monotonic()
    for done, (number, start) in enumerate(groups):
        hook("labels", done * GROUP, len(groups) * GROUP, f"{time.monotonic() - began:.0f} s")
        if until() or stop.requested:
            return
        chosen = prompts[start : start + GROUP]
        key = store.key(seed, number, start, *(" ".join(map(str, p.tokens)) for p in chosen))
        if not store.has(key):
            store.add(key, answered(generator, pair, chosen, seed, number, start))
    hook("labels", len(groups) * GROUP, len(groups) * GROUP, "")


def answered(
    generator: TextGenerator,
    pair: TextPair,
    prompts: Sequence[TextPrompt],
    seed: int,
    number: int,
    start: int,
) -> list[LabelRow]:
    """Rows of prompts from number `start` on: every second one greedily, the others at temperature 1; the
    other way round in the next pass."""
    requests = [
        Request(
            prompt=prompt.tokens,
            max_new_tokens=pair.longest,
            temperature=float((start + place + number) % 2),
            seed=hash_of(seed, number, start + place),
            tag=place,
        )
        for place, prompt in enumerate(prompts)
    ]
    results = sorted(generator.engine.run(requests), key=lambda r: int(r.request.tag))
    rows = [
        _row(prompts[int(result.request.tag)], result)
        for result in results
        if result.finish in (Finish.STOP, Finish.LENGTH) and result.tokens
    ]
    rows.sort(key=lambda row: len(row.tokens))
    found: list[LabelRow] = []
    for begin in range(0, len(rows), TOGETHER):
        found += _labelled(pair, rows[begin : begin + TOGETHER])
    return found


def hash_of(*numbers: int) -> int:
    """A seed for one text."""
    value = 0
    for number in numbers:
        value = (value * 1_000_003 + number + 1) % (1 << 62)
    return value


def _row(prompt: TextPrompt, result: Result) -> LabelRow:
    return LabelRow(
        prompt.source,
        prompt.kind,
        (*prompt.tokens, *result.tokens),
        len(prompt.tokens),
        result.request.temperature == 0,
        blank(len(result.tokens)),
    )


def _labelled(pair: TextPair, rows: Sequence[LabelRow]) -> list[LabelRow]:
    batch = collate(rows).to(pair.device.torch)
    begins = torch.tensor([row.begin for row in rows], device=pair.device.torch)
    return with_wanted(rows, SparseDistribution.of(pair.target_logits(batch, begins)))


def _files(name: str) -> list[str]:
    folder = Path(name).expanduser()
    lines = [str(p) for p in sorted(folder.rglob(f"*{LINES}"))] if folder.is_dir() else []
    try:
        return [*lines, *files_of([name])]
    except UsageError:
        if lines:
            return lines
        raise


def _of_file(generator: TextGenerator, file: str) -> Iterator[tuple[tuple[int, ...], str | None]]:
    if file.endswith(LINES):
        yield from _of_lines(generator, file)
        return
    for piece in read(file):
        for paragraph in re.split(r"\n\s*\n", piece.text):
            tokens = generator.encode(paragraph.strip())[: generator.context - 1]
            if len(tokens) >= LEAST:
                yield tokens[: max(2, min(BEGINNING, len(tokens) // 2))], None


def _of_lines(generator: TextGenerator, file: str) -> Iterator[tuple[tuple[int, ...], str | None]]:
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _of_line(generator, line, f"{file}, line {number}")


def _of_line(generator: TextGenerator, line: str, where: str) -> tuple[tuple[int, ...], str | None]:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}") from error
    prompt = (
        data.get("prompt", data.get("messages", data.get("text")))
        if isinstance(data, dict)
        else None
    )
    if prompt is None:
        raise UsageError(f"{where} has neither a prompt, nor messages, nor a text")
    kind = data.get("kind")
    return generator.encode(prompt), None if kind is None else str(kind)
