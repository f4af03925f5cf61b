"""Compares text generation with transformers' own, on the same weights in one process.

    result = measured(Options(gamma=(3, 5)), say=print)
    print(result.text())

Systems take turns, A B C A B C; the wall time of a row is the median of its turns. `equal` counts
texts that equal transformers' greedy decoding of one prompt at a time, `tokens` the tokens before the
first difference. Rows of a further dtype are compared with this engine's plain decoding in that dtype,
and their tokens counted against the first row's too. Knows the turns and the result; nothing of commands.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks import provenance
from benchmarks.provenance import Equality, compare, dtype_of, layout, quantization_of
from benchmarks.systems.text import System, Texts, further_systems, room, systems
from forescribe.asr.errors import UsageError
from forescribe.speculative.device import Device, choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.engines import ModelEngine, draft_device
from forescribe.text import presets
from forescribe.text.language_model import LanguageModel, check_draft, load
from forescribe.text.presets import MTP, NGRAM, Pair, resolve

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
"""For chat models; the bundled pair was trained on such prompts."""


@dataclass(frozen=True)
class Options:
    """What is measured. `chat` None means if the model has a chat template; `threads` 0 is torch's
    default. `dtype` is that of all systems, `further` are dtypes in which this engine and transformers'
    greedy decoding are measured too.

    In half precision near-ties flip, so texts may differ between systems that are all correct.
    """

    model: str | None = None
    draft: str | None = None
    prompts: Path | None = None
    chat: bool | None = None
    max_tokens: int = 128
    batch: tuple[int, ...] = (1, 4, 8)
    gamma: tuple[int, ...] = (5,)
    repeats: int = 3
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 0
    engine: str = "auto"  # of `ModelEngine`, for this engine's rows
    further: tuple[str, ...] = ()
    draft_dtype: str = "auto"  # of this engine's draft

    @property
    def batches(self) -> list[int]:
        """The batch sizes in order, with 1, which the reference uses."""
        return sorted({1, *self.batch})


@dataclass
class Row:
    """The turns of a system."""

    system: System
    walls: list[float] = field(default_factory=list)
    texts: Texts = field(default_factory=list)
    steady: bool = True  # all turns gave the same texts
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
            stats = self.system.stats() - before
            if stats.drafted:
                self.acceptance_rate = stats.acceptance_rate
                self.mean_acceptance_length = stats.mean_acceptance_length


@dataclass(frozen=True)
class Result:
    """All rows, the reference first, and what they were measured on."""

    options: Options
    pair: Pair
    device: Device
    prompts: Sequence[tuple[int, ...]]
    rows: Sequence[Row]
    engine: str  # what computes the target in this engine's rows

    def reference(self, row: Row) -> Row:
        """What a row must equal: transformers' greedy decoding of one prompt at a time, in a further dtype
        this engine's plain one, as engines round in different places there."""
        if row.system.dtype == self.options.dtype:
            return self.rows[0]
        same = (r for r in self.rows if r.system.dtype == row.system.dtype and r.system.plain)
        return next(same)

    def equality(self, row: Row) -> Equality:
        """Compare with the row's reference."""
        return compare(self.reference(row).texts, row.texts)

    def equality_first(self, row: Row) -> Equality:
        """Compare with the first row, which has the first dtype."""
        return compare(self.rows[0].texts, row.texts)

    @property
    def differing(self) -> list[Row]:
        """The rows of this engine whose texts differ from the reference."""
        return [row for row in self.rows if row.system.ours and not self.equality(row).complete]

    def text(self) -> str:
        """Return the table, and below it the rows whose turns gave different texts."""
        unsteady = [
            f"{row.system.label}: its turns gave different texts"
            for row in self.rows
            if not row.steady
        ]
        options, kernels = self.options, provenance.instruction_set()
        machine = [
            f"{provenance.device()['cpu']}, {torch.get_num_threads()} threads, "
            + ("no native kernels" if kernels is None else f"native kernels for {kernels}"),
            "equal: to transformers' greedy texts of one prompt at a time"
            + (
                f", in {', '.join(options.further)} to this engine's plain texts"
                if options.further
                else ""
            )
            + "\n",
        ]
        head = self._with_dtype(HEAD, "dtype", f"tokens as {options.dtype}")
        body = (
            self._with_dtype(self._cells(row), row.system.dtype, _tokens(self.equality_first(row)))
            for row in self.rows
        )
        return "\n".join([*machine, *layout([head, *body]), *unsteady])

    def _with_dtype(self, cells: tuple[str, ...], dtype: str, tokens: str) -> tuple[str, ...]:
        """Add the two columns that only rows of several dtypes need."""
        if not self.options.further:
            return cells
        at = HEAD.index("accepted")
        return (*cells[:2], dtype, *cells[2:at], tokens, *cells[at:])

    def _cells(self, row: Row) -> tuple[str, ...]:
        same, rate, length = self.equality(row), row.acceptance_rate, row.mean_acceptance_length
        return (
            row.system.name,
            str(row.system.batch),
            f"{row.wall_s:.2f}",
            f"{sum(map(len, row.texts)) / row.wall_s:.1f}",
            f"{self.rows[0].wall_s / row.wall_s:.2f}",
            f"{same.windows} of {same.windows_of}",
            _tokens(same),
            "-" if rate is None else f"{rate:.1%}",
            "-" if length is None else f"{length:.2f}",
        )

    def record(self, program: str) -> dict[str, object]:
        """Return the JSON record, with counts of tokens; `program` as in `provenance.record`."""
        target, draft = self.pair.target, self.pair.draft
        return {
            "benchmark": "text",
            **provenance.record(program),
            "device": provenance.device() | {"kind": self.device.name},
            "model": _name(target),
            "draft": None if draft is None else _name(draft),
            "weights": {
                "target": _weights(target),
                "draft": None if draft in (None, NGRAM) else _weights(draft),
            },
            "dtype": self.options.dtype,
            "further_dtypes": self.options.further,
            "draft_dtype": self.options.draft_dtype,
            "native_kernels": provenance.instruction_set(),
            "engine": self.engine,
            "threads": torch.get_num_threads(),
            "prompts": len(self.prompts),
            "prompt_tokens": sum(map(len, self.prompts)),
            "max_tokens": self.options.max_tokens,
            "rows": [self.describe(row) for row in self.rows],
        }

    def describe(self, row: Row) -> dict[str, object]:
        return {
            "system": row.system.name,
            "batch": row.system.batch,
            "dtype": row.system.dtype,
            "wall_s": row.wall_s,
            "walls_s": row.walls,
            "tokens": sum(map(len, row.texts)),
            "equality": asdict(self.equality(row)),
            "equality_first": asdict(self.equality_first(row)),
            "steady": row.steady,
            "acceptance_rate": row.acceptance_rate,
            "mean_acceptance_length": row.mean_acceptance_length,
        }


def measured(options: Options, say: Callable[[str], None]) -> Result:
    """Load the pair and run all systems; `say` gets a line per turn. Nothing is downloaded.

    Raises UsageError for the options, SpeculativeError for names, weights, device and
    prompts that do not fit.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()  # it writes a warning per assisted round, which is no cost of decoding
    lines = None if options.prompts is None else read_prompts(options.prompts)
    pair, device = (
        resolve(options.model, options.draft),
        choose_format(options.device, options.dtype),
    )
    further = [(dtype, choose_format(options.device, dtype)) for dtype in options.further]
    engine = ModelEngine.of(options.engine)
    if options.threads:
        torch.set_num_threads(options.threads)
    target, draft, own = load_pair(pair, device, engine, options.draft_dtype)
    prompts = encoded(target, lines, options.chat)
    check_room(prompts, options.max_tokens, room(target, draft), target.name)
    batches, gammas, most = options.batches, options.gamma, options.max_tokens
    chosen = systems(
        target,
        draft,
        own,
        device,
        batches=batches,
        gammas=gammas,
        most=most,
        dtype=options.dtype,
    )
    for dtype, place in further:
        chosen += further_systems(
            *load_pair(pair, place, engine, options.draft_dtype),
            place,
            batches=batches,
            gammas=gammas,
            most=most,
            dtype=dtype,
        )
    rows = take_turns(chosen, prompts, options.repeats, say)
    return Result(options, pair, device, prompts, rows, target.engine)


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


def take_turns(
    chosen: Sequence[System],
    prompts: Sequence[tuple[int, ...]],
    repeats: int,
    say: Callable[[str], None],
) -> list[Row]:
    """Run all systems in turns, after a warm-up with one prompt."""
    rows = [Row(system) for system in chosen]
    for row in rows:
        row.system.write(prompts[:1])
    for turn in range(1, repeats + 1):
        for row in rows:
            row.turn(prompts)
            say(f"{turn}/{repeats} {row.system.label}: {row.walls[-1]:.2f} s")
    return rows


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


def _tokens(same: Equality) -> str:
    return f"{same.tokens} of {same.tokens_of}"


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
    from benchmarks.options import start, text

    start(text, "benchmarks.text")
