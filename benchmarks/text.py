"""Compares text generation with transformers' own, on the same weights in one process.

    python -m benchmarks.text --batch 1,4 --gamma 3,5 --json text.json

The systems are transformers' greedy, assisted and prompt-lookup generation, and this engine plainly, with a
draft, and with n-grams. They take turns. transformers drafts for one prompt at a time only, so its rows with
drafts run the prompts one after the other. `equal` counts texts that equal transformers' greedy decoding of
one prompt at a time, `tokens` the tokens before the first difference. The exit status is 1 if a text of this
engine differs; below float32 near-ties flip, so that texts of systems that are all correct may differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from benchmarks import comparison, provenance
from benchmarks.comparison import (
    ACCEPTED,
    BATCH,
    DTYPES,
    FLOAT32,
    WALL,
    Column,
    Gamma,
    Row,
    check_drafts,
    compare,
    dtype_of,
    quantization_of,
    remarks,
    say,
    table,
)
from benchmarks.systems.jobs import OURS
from forescribe.asr.errors import UsageError
from forescribe.speculative.device import Device, choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.requests import Stats
from forescribe.text.generator import CONTEXT, TextGenerator
from forescribe.text.language_model import LanguageModel, check_draft, load
from forescribe.text.presets import MTP, NGRAM, Pair, resolve
from forescribe.text.streaming import Options

PROGRAM = "benchmarks.text"
THEIRS = "transformers"

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
    systems: Sequence[System], prompts: Sequence[tuple[int, ...]], repeats: int
) -> list[Row]:
    """Run all systems in turns, A B C A B C, after a warm-up with one prompt."""
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


def room(target: LanguageModel, draft: LanguageModel | str | None) -> int:
    """Return the maximum length of prompt and text together."""
    both = [target, draft] if isinstance(draft, LanguageModel) else [target]
    return min(CONTEXT, *(model.positions for model in both))


def ours(
    target: LanguageModel,
    draft: LanguageModel | str | None,
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
    kind = "plain" if draft is None else draft if isinstance(draft, str) else "draft"
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
    device: Device,
    *,
    batches: Sequence[int],
    gammas: Sequence[int],
    most: int,
    dtype: str,
) -> list[System]:
    """Return all systems, the reference first: transformers' greedy decoding of one prompt at a
    time, so `batches` begin with 1."""
    theirs = TransformersGenerate(target, draft, most)
    rows = [
        System(f"{THEIRS} greedy", batch, theirs.greedy(batch), dtype=dtype) for batch in batches
    ]
    if draft is not None:
        name = f"{THEIRS} assisted"
        rows.append(System(f"{name}, its defaults", 1, theirs.assisted(None), dtype=dtype))
        rows += [System(f"{name} {g}", 1, theirs.assisted(g), dtype=dtype) for g in gammas]
    rows += [System(f"{THEIRS} lookup {g}", 1, theirs.lookup(g), dtype=dtype) for g in gammas]
    drafts: list[LanguageModel | str] = [NGRAM] if draft is None else [draft, NGRAM]
    for batch in batches:
        rows.append(ours(target, None, device, batch=batch, gamma=0, most=most, dtype=dtype))
        rows += [
            ours(target, each, device, batch=batch, gamma=gamma, most=most, dtype=dtype)
            for each in drafts
            for gamma in (*gammas, None)
        ]
    return rows


def load_pair(
    pair: Pair, device: Device, engine: ModelEngine
) -> tuple[LanguageModel, LanguageModel | None]:
    """Load the target, and the draft if it is a model. Raises SpeculativeError."""
    target = load(pair.target, device, network=False, engine=engine)
    if pair.draft is None or pair.draft == NGRAM:
        return target, None
    if pair.draft == MTP:
        raise LoadError(
            f"--draft {pair.draft} is no model: this benchmark gives transformers the same draft; "
            "`forescribe generate --compare` measures any"
        )
    draft = load(pair.draft, device, role="draft", network=False, engine=engine)
    check_draft(target, draft)
    return target, draft


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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    made = comparison.parser(PROGRAM, __doc__)
    add = made.add_argument
    add("--model", help="preset, downloaded Hugging Face id or folder  [default: demo-text]")
    add("--prompts", type=Path, metavar="FILE", help="one per line  [default: eight built-in ones]")
    add("--chat", action=argparse.BooleanOptionalAction,
        help="prompts are a user's messages  [default: if the model has a chat template]")  # fmt: skip
    add("--max-tokens", type=int, default=128, metavar="N", help="of a text")
    add("--batch", type=comparison.numbers(1024), default=(1, 4, 8), metavar="N,N")
    add("--gamma", type=comparison.numbers(64), default=(5,), metavar="N,N",
        help="drafted tokens per round; auto is always measured")  # fmt: skip
    add("--device", default="cpu")
    add("--dtype", choices=("auto", "float16", *DTYPES), default=FLOAT32)
    add("--threads", type=int, default=0, help="0 leaves the number to PyTorch")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the pair and run all systems; nothing is downloaded.

    Raises UsageError for the options, SpeculativeError for names, weights, device and prompts that do not
    fit.
    """
    options = parse(arguments)
    comparison.check_record(options.json)
    logging.set_verbosity_error()  # it writes a warning per assisted round, which is no cost of decoding
    lines = None if options.prompts is None else read_prompts(options.prompts)
    pair = resolve(options.model, options.draft)
    device = choose(options.device, dtype_of(options.dtype), quantization_of(options.dtype))
    if options.threads:
        torch.set_num_threads(options.threads)
    target, draft = load_pair(pair, device, ModelEngine.of(options.engine))
    prompts = encoded(target, lines, options.chat)
    check_room(prompts, options.max_tokens, room(target, draft), target.name)
    chosen = systems(
        target,
        draft,
        device,
        batches=sorted({1, *options.batch}),
        gammas=options.gamma,
        most=options.max_tokens,
        dtype=options.dtype,
    )
    rows = compared(take_turns(chosen, prompts, options.repeats))
    record = {
        "device": provenance.device() | {"kind": device.name},
        "model": _name(pair.target),
        "draft": None if pair.draft is None else _name(pair.draft),
        "weights": {
            "target": _weights(pair.target),
            "draft": None if pair.draft in (None, NGRAM) else _weights(pair.draft),
        },
        "dtype": options.dtype,
        "native_kernels": provenance.instruction_set(),
        "engine": target.engine,
        "threads": torch.get_num_threads(),
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "max_tokens": options.max_tokens,
        "rows": [
            row.record("system", "batch", "wall_s", "walls_s", "equality", "steady")
            | {"tokens": _count(row)}
            | row.record("acceptance_rate", "mean_acceptance_length")
            for row in rows
        ],
    }
    complaints = [f"{row.label}: differs from {rows[0].label}" for row in differing(rows)]
    return comparison.report(PROGRAM, options.json, text(rows), record, complaints)


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with their equality and their speed, both relative to the first one."""
    return [
        replace(
            row,
            equality=compare(rows[0].tokens, row.tokens),
            base=rows[0],
            notes=() if row.steady else ("its turns gave different texts",),
        )
        for row in rows
    ]


def differing(rows: Sequence[Row]) -> list[Row]:
    """The rows of this engine whose texts differ from the first one's."""
    ours = [row for row in rows if row.system.startswith(OURS)]
    return [row for row in ours if row.equality is None or not row.equality.complete]


def text(rows: Sequence[Row]) -> str:
    """The table, and below it the rows whose turns gave different texts."""
    columns = [
        Column("system", lambda row: row.system),
        BATCH,
        WALL,
        Column("tokens/s", lambda row: _count(row) / (row.wall_s or 1), "{:.1f}"),
        Column("x greedy", lambda row: row.speed_up, "{:.2f}"),
        Column("equal", lambda row: row.equality and row.equality.in_windows),
        Column("tokens", lambda row: row.equality),
        ACCEPTED,
        Column("length", lambda row: row.mean_acceptance_length, "{:.2f}"),
    ]
    head = [provenance.machine(torch.get_num_threads())]
    head += ["equal: to transformers' greedy texts of one prompt at a time", ""]
    return "\n".join([*head, *table(columns, rows), *remarks(rows, lambda row: row.label)])


def read_prompts(path: Path) -> list[str]:
    """Read one prompt per line; empty lines are skipped. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} cannot be read as UTF-8 text: {error}") from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise UsageError(f"--prompts {path} has no prompt: write one per line")
    return prompts


def _count(row: Row) -> int:
    return sum(map(len, row.tokens))


def _name(place: str | Path) -> str:
    """The name without the path on this machine; the digests of the weights identify the model."""
    return place.name if isinstance(place, Path) else place


def _weights(name: str | Path) -> dict[str, str]:
    """The sha256 of each file of weights."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(name), local_files_only=True))  # it has been loaded
    return provenance.weights(folder)


if __name__ == "__main__":
    comparison.start(main)
