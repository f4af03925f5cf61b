"""`forescribe generate`: text that continues prompts.

Knows the options, what is printed and the exit code; generation is in `forescribe.text`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.errors import UsageError

from .console import acceptance
from .option_records import DECODING, DIAGNOSTICS, INPUT, MODEL, OUTPUT, arg, like, opt, takes
from .options import JsonOptions, LoadOptions, RunOptions

if TYPE_CHECKING:
    from forescribe.speculative.requests import Stats
    from forescribe.text.generator import TextGenerator
    from forescribe.text.presets import Pair
    from forescribe.text.streaming import Completion, Options


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(LoadOptions):
    """The parsed command line. Raises UsageError for values and combinations that are
    impossible."""

    prompts: list[str] = arg("PROMPT...", "Texts to continue; - reads stdin.")
    # Input
    chat: bool = opt(
        INPUT, "--chat", "Treat prompts as a user's messages: apply the chat template.", False
    )
    system: str | None = opt(INPUT, "TEXT", "System message; needs --chat.")
    # Output
    max_tokens: int = opt(OUTPUT, "N", "Maximum tokens per text.", 256, min=1)
    stop: list[str] | None = opt(
        OUTPUT, "TEXT", "End a text before this string; may be given several times."
    )
    json: bool = like(JsonOptions, "json")
    quiet: bool = like(RunOptions, "quiet", "Print texts and errors only: no notes.")
    # Model
    model: str | None = like(
        LoadOptions, "model", "Preset, Hugging Face id or local folder.", shown="demo-text"
    )
    draft: str | None = like(
        LoadOptions,
        "draft",
        "Draft model, named like --model, or an EAGLE-3 or DFlash head; `mtp` is a layer in the model's own "
        "checkpoint, `ngram` copies from the text and from earlier answers, `none` turns drafting off.",
        shown="the preset's, else ngram",
    )
    context: int | None = opt(
        MODEL,
        "N",
        "Maximum tokens of prompt and text together.",
        shown="the model's, as memory allows",
        min=2,
    )
    # Decoding
    temperature: float = opt(
        DECODING, "T", "Sampling temperature; 0 is greedy decoding.", 0.0, min=0
    )
    top_p: float = opt(
        DECODING, "PROB", "Sample from the likeliest tokens with this total probability.", 1.0
    )
    top_k: int = opt(DECODING, "N", "Sample from this many likeliest tokens; 0 is all.", 0, min=0)
    repetition_penalty: float = opt(
        DECODING, "FACTOR", "Penalty for tokens of prompt and text; 1 is none.", 1.0
    )
    seed: int = opt(DECODING, "SEED", "Seed of the random numbers.", 0)
    # Performance
    batch_size: int = like(LoadOptions, "batch_size")
    # Diagnostics
    stats: bool = opt(DIAGNOSTICS, "--stats", "Print speed and acceptance rate to stderr.", False)
    compare: bool = opt(
        DIAGNOSTICS, "--compare", "Generate again without drafts; report speed and equality.", False
    )

    def __post_init__(self) -> None:
        if self.system is not None and not self.chat:
            raise UsageError("--system is a part of a conversation: add --chat")
        _ = self.drafts

    def sampling(self) -> Options:
        """The options of a generation. Raises RequestError."""
        from forescribe.speculative.requests import Sampling
        from forescribe.text.streaming import Options

        sampling = Sampling(top_k=self.top_k, top_p=self.top_p, repetition=self.repetition_penalty)
        return Options(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            sampling=sampling,
            seed=self.seed,
            stop=tuple(self.stop or ()),
        )


@dataclass(frozen=True)
class Run:
    """The completions of all prompts, and what they cost."""

    completions: list[Completion]
    wall_s: float
    stats: Stats
    engine: str  # what computed the target

    @property
    def tokens(self) -> int:
        """Generated tokens, of all texts."""
        return sum(len(completion.ids) for completion in self.completions)

    def __str__(self) -> str:
        speed = self.tokens / self.wall_s
        line = f"{self.tokens} tokens in {self.wall_s:.2f} s, {speed:.1f} per second"
        stats = self.stats
        brought = acceptance(stats.drafted, stats.accepted, stats.row_rounds)
        return "; ".join(filter(None, (line, brought, f"engine {self.engine}")))


@takes(GenerateOptions)
def generate(**values: Any) -> None:
    """Generate text with a language model and speculative decoding.

    A draft proposes tokens, and the model keeps those that it would have written itself.

    The text of a single prompt is printed while it is generated; several texts are generated
    together and printed in order."""
    from forescribe.text.drafts import HeadDraft

    options = GenerateOptions(**values)
    texts = [_read(prompt) for prompt in options.prompts]
    sampling = options.sampling()
    generator = _load(options, batch=min(options.batch_size, len(texts)))
    if isinstance(generator.draft, HeadDraft) and not options.quiet:
        typer.echo(f"draft {generator.draft}", err=True)
    # All prompts are encoded before the first text is printed, as encoding may fail.
    begin = [] if options.system is None else [{"role": "system", "content": options.system}]
    prompts = [
        generator.encode([*begin, {"role": "user", "content": text}] if options.chat else text)
        for text in texts
    ]
    run = _run(generator, prompts, sampling, shown=not options.json)
    if options.json:
        _print_records(texts, run.completions)
    _check_failures(run.completions)
    if options.stats or options.compare:
        name = "with drafts" if generator.draft is not None else "without drafts"
        typer.echo(f"{name}: {run}", err=True)
    if options.compare:
        plain = _run(generator.plain(), prompts, sampling, shown=False)
        typer.echo(f"without drafts: {plain}", err=True)
        _print_comparison(run, plain, greedy=options.temperature == 0)


def _load(options: GenerateOptions, batch: int) -> TextGenerator:
    from forescribe.speculative.native.library import advice
    from forescribe.text.generator import TextGenerator
    from forescribe.text.presets import resolve

    pair: Pair = resolve(options.model, options.draft)
    generator = TextGenerator.load(
        pair.target,
        pair.draft,
        batch=batch,
        context=options.context,
        network=not options.local_files_only,
        **options.load_arguments(),
    )
    hint = advice(generator.target.engine, asked=options.engine, device=generator.device.kind)
    if hint is not None and not (options.quiet or options.json):
        typer.echo(f"note: {hint}", err=True)
    return generator


def _run(
    generator: TextGenerator, prompts: list[tuple[int, ...]], options: Options, *, shown: bool
) -> Run:
    """Generate all texts. With `shown` a single one is printed as it comes, several at the end."""
    before, started = generator.stats, time.perf_counter()
    if shown and len(prompts) == 1:
        completions: list[Completion] = []
        for event in generator.stream(prompts[0], options):
            sys.stdout.write(event.text)
            sys.stdout.flush()
            completions += [event.completion] if event.completion is not None else []
        sys.stdout.write("\n")
    else:
        completions = generator.generate(prompts, options)
        if shown:
            typer.echo("\n\n".join(completion.text for completion in completions))
    wall_s, stats = time.perf_counter() - started, generator.stats - before
    return Run(completions, wall_s, stats, generator.target.engine)


def _print_records(texts: list[str], completions: list[Completion]) -> None:
    for prompt, completion in zip(texts, completions, strict=True):
        failed = {} if completion.error is None else {"error": str(completion.error)}
        record: dict[str, Any] = {
            "prompt": prompt,
            "text": completion.text,
            "finish_reason": completion.finish,
            **failed,
            "stop": completion.stop,
            "usage": {
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": len(completion.ids),
            },
        }
        typer.echo(dumps(record, ensure_ascii=False))


def _check_failures(completions: list[Completion]) -> None:
    """Print warnings and errors. Raises Exit if a text failed."""
    for number, completion in enumerate(completions, start=1):
        if completion.draft_error is not None:
            typer.echo(
                f"warning: text {number}: without drafts: {completion.draft_error}", err=True
            )
        if completion.error is not None:
            typer.echo(f"error: text {number}: {completion.error}", err=True)
    if any(completion.error is not None for completion in completions):
        raise typer.Exit(1)


def _print_comparison(run: Run, plain: Run, *, greedy: bool) -> None:
    """Print the speed-up. Raises Exit if a greedy text differs."""
    pairs = list(zip(run.completions, plain.completions, strict=True))
    same = sum(one.ids == other.ids for one, other in pairs)
    speed = run.tokens / run.wall_s / (plain.tokens / plain.wall_s)
    typer.echo(f"speed {speed:.2f}x; {same} of {len(pairs)} texts equal", err=True)
    if greedy and same < len(pairs):
        raise typer.Exit(1)


def _read(prompt: str) -> str:
    """A prompt; `-` is stdin, without the line end that an editor or echo adds."""
    if prompt != "-":
        return prompt
    text = sys.stdin.buffer.read().decode(errors="replace")
    return text.removesuffix("\n").removesuffix("\r")
