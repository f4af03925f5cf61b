"""The `generate` command: text that continues prompts, on stdout as it is written."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forescribe.asr.errors import UsageError

if TYPE_CHECKING:
    from forescribe.speculative.engine.stats import Stats
    from forescribe.text.generator import Completion, Options, TextGenerator

AUTO = "auto"


@dataclass(frozen=True)
class Run:
    """All prompts once."""

    completions: list[Completion]
    wall_s: float
    stats: Stats

    @property
    def tokens_per_s(self) -> float:
        return sum(len(done.ids) for done in self.completions) / self.wall_s

    def describe(self) -> dict[str, Any]:
        """For machines; no drafts, no acceptance."""
        drafted = self.stats.drafted > 0
        return {
            "tokens": sum(len(done.ids) for done in self.completions),
            "wall_s": self.wall_s,
            "tokens_per_s": self.tokens_per_s,
            "target_forwards": self.stats.target_forwards,
            "draft_forwards": self.stats.draft_forwards,
            "acceptance_rate": self.stats.acceptance_rate if drafted else None,
            "mean_acceptance_length": self.stats.mean_acceptance_length if drafted else None,
        }


def generate(
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", help="Texts to continue; - reads stdin.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME", help="Preset, hub id or folder.  [default: demo-text]"
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            metavar="NAME",
            help="Likewise; `ngram` copies from the text, `none` decodes plainly.  "
            "[default: the preset's, else ngram]",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="Of one text, at most.")
    ] = 256,
    temperature: Annotated[
        float, typer.Option(metavar="T", min=0, help="0 is greedy: the likeliest token.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option("--top-p", metavar="P", help="Cut to so much of the law.")
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="N", min=0, help="Cut to so many tokens; 0 is all.")
    ] = 0,
    min_p: Annotated[
        float,
        typer.Option(
            "--min-p", metavar="P", min=0, max=1, help="Least chance, as a share of the likeliest."
        ),
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty", metavar="X", help="For tokens of prompt and text; 1 is none."
        ),
    ] = 1.0,
    presence_penalty: Annotated[
        float,
        typer.Option("--presence-penalty", metavar="X", help="For tokens that the text has."),
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", metavar="X", help="For each time it has them.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn.")] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End in front of this; may come again."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Prompts are a user's words: the chat template is used.")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="With --chat: what it is to be.")
    ] = None,
    gamma: Annotated[
        str,
        typer.Option("--gamma", metavar="N", help="Drafted tokens per round, 0 to 64, or auto."),
    ] = AUTO,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, max=1024, help="Texts at a time.")
    ] = 8,
    universal: Annotated[
        bool, typer.Option("--universal", help="A draft with other tokens drafts through text.")
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", metavar="N", min=2, help="Tokens of prompt and text.  [default: 4096]"
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="auto, cuda, cuda:N, hpu, mps or cpu.")
    ] = AUTO,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="TYPE", help="auto, float32, float16 or bfloat16.")
    ] = AUTO,
    local_files_only: Annotated[
        bool,
        typer.Option("--local-files-only/--no-local-files-only", help="Never download weights."),
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Speed and acceptance, on stderr.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Write all again without drafts; report speed and equality."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON line per prompt.")] = False,
) -> None:
    """Continue texts with a language model; drafts make it faster, and change nothing.

    One prompt is written as it comes; several are written together and printed in their order.
    """
    texts = [_read(prompt) for prompt in prompts]
    if system is not None and not chat:
        raise UsageError("--system is a part of a conversation: add --chat")
    drafts = _gamma(gamma)

    from forescribe.speculative.requests import Sampling
    from forescribe.text.generator import TextGenerator
    from forescribe.text.streaming import Options
    from forescribe.text.text_presets import resolve

    options = Options(
        max_tokens=max_tokens,
        temperature=temperature,
        sampling=Sampling(
            top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty
        ),
        seed=seed,
        stop=tuple(stop or ()),
    )
    pair = resolve(model, draft)
    generator = TextGenerator.load(
        pair.target,
        pair.draft,
        device=device,
        dtype=dtype,
        batch=min(batch_size, len(texts)),
        gamma=drafts,
        context=context,
        universal=universal,
        network=not local_files_only,
    )
    asked: list[Any] = [_conversation(text, system) for text in texts] if chat else list(texts)
    ids = [generator.encode(prompt) for prompt in asked]  # all that can fail has, before a word
    run = _run(generator, ids, options, quiet=json)
    if json:
        for prompt, done in zip(texts, run.completions, strict=True):
            record = {"prompt": prompt, "text": done.text, "finish_reason": done.finish}
            counts = {"prompt_tokens": done.prompt_tokens, "completion_tokens": len(done.ids)}
            if done.error is not None:
                record["error"] = str(done.error)
            typer.echo(dumps({**record, "stop": done.stop, "usage": counts}, ensure_ascii=False))
    _report_faults(run.completions)
    if stats or compare:
        _tell("with drafts" if generator.draft is not None else "without drafts", run, json=json)
    if compare:
        plain = _run(generator.plain(), ids, options, quiet=True, silent=True)
        _tell("without drafts", plain, json=json)
        same = sum(a.ids == b.ids for a, b in zip(run.completions, plain.completions, strict=True))
        speed = run.tokens_per_s / plain.tokens_per_s
        typer.echo(f"speed {speed:.2f}x; {same} of {len(texts)} texts equal", err=True)
        if temperature == 0 and same < len(texts):
            raise typer.Exit(1)


def _run(
    generator: TextGenerator,
    prompts: list[tuple[int, ...]],
    options: Options,
    *,
    quiet: bool,
    silent: bool = False,
) -> Run:
    """All prompts at once; a single one is shown as it comes unless `quiet`."""
    before, started = generator.stats, time.perf_counter()
    completions: list[Completion] = []
    if len(prompts) == 1 and not quiet:
        for event in generator.stream(prompts[0], options):
            sys.stdout.write(event.text)
            sys.stdout.flush()
            completions += [event.completion] if event.completion is not None else []
        sys.stdout.write("\n")
        sys.stdout.flush()
    else:
        completions = generator.generate(prompts, options)
        if not (quiet or silent):
            typer.echo("\n\n".join(done.text for done in completions))
    return Run(completions, time.perf_counter() - started, generator.stats - before)


def _report_faults(completions: list[Completion]) -> None:
    """Says what failed. Raises Exit where a text did."""
    for number, done in enumerate(completions, start=1):
        if done.draft_error is not None:
            typer.echo(f"warning: text {number}: without drafts: {done.draft_error}", err=True)
        if done.error is not None:
            typer.echo(f"error: text {number}: {done.error}", err=True)
    if any(done.error is not None for done in completions):
        raise typer.Exit(1)


def _tell(name: str, run: Run, *, json: bool) -> None:
    said = run.describe()
    if json:
        typer.echo(dumps({"run": name, **said}), err=True)
        return
    line = (
        f"{name}: {said['tokens']} tokens in {run.wall_s:.2f} s, {run.tokens_per_s:.1f} per second"
    )
    if said["acceptance_rate"] is not None:
        line += (
            f"; {said['acceptance_rate']:.1%} of drafts accepted, "
            f"{said['mean_acceptance_length']:.2f} tokens per round"
        )
    typer.echo(line, err=True)


def _conversation(text: str, system: str | None) -> list[dict[str, str]]:
    begin = [] if system is None else [{"role": "system", "content": system}]
    return [*begin, {"role": "user", "content": text}]


def _read(prompt: str) -> str:
    """A prompt; `-` is stdin, without the line's end that an editor or echo has put there."""
    if prompt != "-":
        return prompt
    text = sys.stdin.buffer.read().decode(errors="replace")
    return text.removesuffix("\n").removesuffix("\r")


def _gamma(text: str) -> int | None:
    """A number of drafts; None for auto. Raises UsageError."""
    if text.lower() == AUTO:
        return None
    if not text.isdecimal() or int(text) > 64:
        raise UsageError(f"--gamma {text} is neither auto nor a number from 0 to 64")
    return int(text)
