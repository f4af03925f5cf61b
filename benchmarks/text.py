"""Text generation beside transformers' own, on the same weights in one process.

    python -m benchmarks.text --json text.json
    python -m benchmarks.text --model ./target --draft ./draft --batch 1 4 8 --gamma 3 5

Systems take turns, A B C A B C; a row's wall is the median of its turns. `equal` counts texts that are
those of transformers' greedy decoding, one prompt at a time; `tokens` those before the first difference.
transformers drafts for one prompt at a time only: in its drafting rows the prompts of a batch follow one
another, which is what its users have to do. Exit status: 0, 1 where one of our own texts differs, 2 where
nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from api.text.presets import NGRAM, NO_DRAFT, resolve
from benchmarks import provenance
from benchmarks.equality import Equality, compare
from benchmarks.table import layout
from speculative.device import Device, choose
from speculative.errors import SpeculativeError
from speculative.models.loading import LanguageModel, check_draft, load
from speculative.stats import Stats
from speculative.text import Options, TextGenerator

OURS, THEIRS = "forescribe", "transformers"
HEAD = (
    "system",
    "batch",
    "wall s",
    "tokens/s",
    "x greedy",
    "equal",
    "tokens",
    "accepted",
    "length",
)

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
"""For models that converse; the bundled pair was made for such ones."""

Texts = list[tuple[int, ...]]  # without the token that ends them


@dataclass(frozen=True)
class System:
    """One row: how it is called, and what it does with prompts. `stats` are ours alone."""

    name: str
    batch: int
    write: Callable[[Sequence[tuple[int, ...]]], Texts]
    stats: Callable[[], Stats] | None = None

    @property
    def ours(self) -> bool:
        return self.name.startswith(OURS)


@dataclass
class Row:
    """A system's turns."""

    system: System
    walls: list[float] = field(default_factory=list)
    texts: Texts = field(default_factory=list)
    steady: bool = True  # all turns wrote the same
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None

    @property
    def wall_s(self) -> float:
        return statistics.median(self.walls)

    def turn(self, prompts: Sequence[tuple[int, ...]]) -> None:
        before = self.system.stats() if self.system.stats else None
        started = time.perf_counter()
        texts = self.system.write(prompts)
        self.walls.append(time.perf_counter() - started)
        self.steady = self.steady and (not self.texts or texts == self.texts)
        self.texts = texts
        if before is not None and self.system.stats is not None:
            found = self.system.stats() - before
            if found.drafted:
                self.acceptance_rate = found.acceptance_rate
                self.mean_acceptance_length = found.mean_acceptance_length


class Theirs:
    """transformers' generate on loaded weights."""

    def __init__(self, target: LanguageModel, draft: LanguageModel | None, most: int) -> None:
        self.target, self.draft, self.most = target, draft, most

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[tuple[int, ...]], **options: Any) -> Texts:
        """One call; shorter prompts are padded on the left."""
        length = max(map(len, prompts))
        rows = [[0] * (length - len(p)) + list(p) for p in prompts]
        masks = [[0] * (length - len(p)) + [1] * len(p) for p in prompts]
        model = self.target.model
        made = model.generate(
            torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(masks, device=model.device),
            do_sample=False,
            num_beams=1,
            max_new_tokens=self.most,
            pad_token_id=min(self.target.ends, default=0),
            **options,
        )
        return [cut(row[length:], self.target.ends) for row in made.tolist()]

    def greedy(self, batch: int) -> Callable[[Sequence[tuple[int, ...]]], Texts]:
        def write(prompts: Sequence[tuple[int, ...]]) -> Texts:
            parts = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
            return [text for part in parts for text in self._generate(part)]

        return write

    def assisted(self, gamma: int | None) -> Callable[[Sequence[tuple[int, ...]]], Texts]:
        """With its own settings (None), or always `gamma` drafts."""
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
            # Read from the assistant's own settings; in the call to generate they have no effect.
            for name, value in (own if gamma is None else always).items():
                setattr(settings, name, value)
            return [self._generate([p], assistant_model=assistant)[0] for p in prompts]

        return write

    def lookup(self, gamma: int) -> Callable[[Sequence[tuple[int, ...]]], Texts]:
        return lambda prompts: [
            self._generate([p], prompt_lookup_num_tokens=gamma)[0] for p in prompts
        ]


def cut(ids: Sequence[int], ends: frozenset[int]) -> tuple[int, ...]:
    """Up to the token that ends it, which not all return."""
    end = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[:end])


def ours(
    target: LanguageModel,
    draft: LanguageModel | str | None,
    device: Device,
    *,
    batch: int,
    gamma: int | None,
    most: int,
) -> System:
    made = TextGenerator(target, draft, device=device, batch=batch, gamma=gamma)
    kind = "plain" if draft is None else NGRAM if isinstance(draft, str) else "draft"
    length = "" if draft is None else " auto" if gamma is None else f" {gamma}"

    def write(prompts: Sequence[tuple[int, ...]]) -> Texts:
        done = made.generate(prompts, Options(max_tokens=most))
        return [cut(each.ids, target.ends) for each in done]

    return System(f"{OURS} {kind}{length}", batch, write, lambda: made.stats)


def systems(
    target: LanguageModel, draft: LanguageModel | None, device: Device, options: argparse.Namespace
) -> list[System]:
    """The reference first: greedy decoding by transformers, one prompt at a time."""
    theirs, most = Theirs(target, draft, options.max_tokens), options.max_tokens
    found = [System(f"{THEIRS} greedy", batch, theirs.greedy(batch)) for batch in options.batch]
    if draft is not None:
        found.append(System(f"{THEIRS} assisted, its defaults", 1, theirs.assisted(None)))
        found += [
            System(f"{THEIRS} assisted {gamma}", 1, theirs.assisted(gamma))
            for gamma in options.gamma
        ]
    found += [
        System(f"{THEIRS} lookup {gamma}", 1, theirs.lookup(gamma)) for gamma in options.gamma
    ]
    drafts: list[LanguageModel | str] = [NGRAM] if draft is None else [draft, NGRAM]
    for batch in options.batch:
        found.append(ours(target, None, device, batch=batch, gamma=0, most=most))
        found += [
            ours(target, each, device, batch=batch, gamma=gamma, most=most)
            for each in drafts
            for gamma in (*options.gamma, None)
        ]
    return found


def measure(found: Sequence[System], prompts: Sequence[tuple[int, ...]], repeats: int) -> list[Row]:
    """All systems in turn, then all again. A first round over one prompt is not counted."""
    rows = [Row(system) for system in found]
    for row in rows:
        row.system.write(prompts[:1])
    for turn in range(repeats):
        for row in rows:
            print(f"turn {turn + 1}: {row.system.name}, batch {row.system.batch}", file=sys.stderr)
            row.turn(prompts)
    return rows


def encoded(target: LanguageModel, options: argparse.Namespace) -> list[tuple[int, ...]]:
    """The prompts, as conversations where the model is made for them or it was asked for."""
    words = target.vocabulary
    chat = words.converses if options.chat is None else options.chat
    lines: Sequence[str] = QUESTIONS if chat else TEXTS
    if options.prompts is not None:
        lines = [x for x in options.prompts.read_text(encoding="utf-8").splitlines() if x.strip()]
    if chat:
        return [words.chat([{"role": "user", "content": line}]) for line in lines]
    return [words.encode(line) for line in lines]


def equality(row: Row, reference: Row) -> Equality:
    return compare(reference.texts, row.texts)


def describe(row: Row, reference: Row) -> dict[str, object]:
    """For machines; tokens are counted, not listed."""
    return {
        "system": row.system.name,
        "batch": row.system.batch,
        "wall_s": row.wall_s,
        "walls_s": row.walls,
        "tokens": sum(map(len, row.texts)),
        "equality": asdict(equality(row, reference)),
        "steady": row.steady,
        "acceptance_rate": row.acceptance_rate,
        "mean_acceptance_length": row.mean_acceptance_length,
    }


def table(rows: Sequence[Row]) -> str:
    reference = rows[0]

    def cells(row: Row) -> tuple[str, ...]:
        same, rate, length = (
            equality(row, reference),
            row.acceptance_rate,
            row.mean_acceptance_length,
        )
        return (
            row.system.name,
            str(row.system.batch),
            f"{row.wall_s:.2f}",
            f"{sum(map(len, row.texts)) / row.wall_s:.1f}",
            f"{reference.wall_s / row.wall_s:.2f}",
            f"{same.windows} of {same.windows_of}",
            f"{same.tokens} of {same.tokens_of}",
            "-" if rate is None else f"{rate:.1%}",
            "-" if length is None else f"{length:.2f}",
        )

    return "\n".join(layout([HEAD, *map(cells, rows)]))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--model", help="preset, hub id in the cache, or folder  [default: demo-text]")
    add("--draft", help="likewise; the model's own by default, none for no draft model")
    add("--prompts", type=Path, metavar="FILE", help="one a line")
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="prompts are a user's words  [default: where the model has a chat template]",
    )
    add("--max-tokens", type=int, default=128)
    add("--batch", nargs="+", type=int, default=[1, 4, 8])
    add("--gamma", nargs="+", type=int, default=[5])
    add("--repeats", type=int, default=3)
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    from transformers.utils import logging

    options = parse(arguments)
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # assisted, it writes a warning per round: no cost of decoding
    if min(options.batch) != 1:
        options.batch = [1, *options.batch]
    options.batch = sorted(set(options.batch))
    try:
        device, pair = choose(options.device, options.dtype), resolve(options.model, options.draft)
        target = load(pair.target, device, network=False)
        draft = None
        if pair.draft not in (None, NGRAM, NO_DRAFT):
            assert pair.draft is not None
            draft = load(pair.draft, device, role="draft", network=False)
            check_draft(target, draft)
        prompts = encoded(target, options)
        rows = measure(systems(target, draft, device, options), prompts, options.repeats)
    except (SpeculativeError, OSError) as error:
        print(f"benchmarks.text: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    if options.json is not None:
        record = provenance.record("benchmarks.text") | {"benchmark": "text", "device": device.name}
        record |= {
            "model": str(pair.target),
            "draft": None if draft is None else draft.name,
            "dtype": options.dtype,
            "threads": options.threads,
            "prompts": len(prompts),
            "prompt_tokens": sum(map(len, prompts)),
            "max_tokens": options.max_tokens,
            "rows": [describe(row, rows[0]) for row in rows],
        }
        options.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return int(not all(equality(r, rows[0]).complete for r in rows if r.system.ours))


if __name__ == "__main__":
    sys.exit(main())
