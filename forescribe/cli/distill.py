"""`forescribe distill`: a draft that learns from one's own recordings or texts.

Knows the options, what is printed and the exit code; distillation is in `forescribe.distill`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.batch.interrupts import INTERRUPTED, Stop
from forescribe.asr.errors import UsageError

from .option_records import (
    INPUT,
    MODEL,
    OUTPUT,
    PERFORMANCE,
    REQUIRED,
    TRAINING,
    arg,
    like,
    opt,
    takes,
)
from .options import DecodingOptions, ModelOptions, PerformanceOptions, RunOptions

if TYPE_CHECKING:
    from ..distill.distillation import DistillSettings, Label
    from ..distill.pair import DraftPair, Hook


CHOICES = ("angular", "single", "spacing")


@dataclass(frozen=True, kw_only=True)
class DistillOptions(ModelOptions):
    """The parsed command line. Raises UsageError for values and combinations that are impossible."""

    data: list[str] = arg(
        "DATA...", "Recordings or folders of them; with --text, texts and prompts."
    )
    output: str = opt(OUTPUT, "--output -o FOLDER", "Folder for the draft.", REQUIRED)
    # Input
    text: bool = opt(
        INPUT,
        "--text",
        "The data are texts (txt, json, srt, vtt, tsv) or prompts (jsonl with `prompt`, `messages` or `text` "
        "in each line), and the model is a language model.",
        False,
    )
    mix: list[str] | None = opt(
        INPUT,
        "--mix DATA",
        "General data for 15 % of the training, so that the draft keeps what it could do; may be given "
        "several times.",
    )
    language: str | None = like(DecodingOptions, "language")
    # Output
    overwrite: bool = opt(
        OUTPUT,
        "--overwrite",
        "Begin anew in a folder that is there, and replace its draft.",
        False,
    )
    keep_labels: bool = opt(
        OUTPUT,
        "--keep-labels",
        "Keep labels and checkpoint; with --overwrite, another run uses the labels again.",
        False,
    )
    cut_head: bool = opt(
        OUTPUT,
        "--cut-head",
        "Cut the draft's output head to the tokens that make up 98 % of the labels.",
        False,
    )
    # Model
    model: str | None = like(
        ModelOptions,
        "model",
        "Target: preset, Hugging Face id or local folder.",
        shown="large; with --text demo-text",
    )
    draft: str | None = like(ModelOptions, "draft", "Draft to begin with, named like --model.")
    layers: int | None = opt(
        MODEL,
        "--layers N",
        "Begin with this many layers of the target instead of a draft.",
        min=1,
    )
    choose: str = opt(
        MODEL,
        "--choose HOW",
        "Which layers: all but the block that turns the hidden states least (angular), those that turn them "
        "most by themselves (single), or as far apart as possible (spacing).",
        "angular",
    )
    # Training
    minutes: float = opt(
        TRAINING,
        "--minutes M",
        "Time for labels (40 % of it at most) and training; the report comes after it.",
        30.0,
    )
    steps: int | None = opt(
        TRAINING,
        "--steps N",
        "Train this many steps on all the data, however long it takes: the same result each time.",
        min=1,
    )
    on_policy: bool = opt(
        TRAINING,
        "--on-policy",
        "Let the draft continue the text itself in every other step, with the target's labels.",
        False,
    )
    embeddings: bool = opt(
        TRAINING,
        "--train-embeddings",
        "Train the embedding of tokens too (text); for drafts of few layers.",
        False,
    )
    max_tokens: int = opt(TRAINING, "--max-tokens N", "Longest answer to a prompt.", 160, min=8)
    seed: int = opt(TRAINING, "--seed SEED", "Seed of the random numbers.", 0)
    # Performance
    batch_size: int = like(PerformanceOptions, "batch_size", "Windows or texts labelled together.")
    served_batch: int = opt(
        PERFORMANCE,
        "--served-batch N",
        "Batch that the draft is chosen and reported for.",
        1,
        min=1,
        max=1024,
    )
    device: str = like(PerformanceOptions, "device")
    quiet: bool = like(RunOptions, "quiet")

    def __post_init__(self) -> None:
        if not math.isfinite(self.minutes) or self.minutes <= 0:
            raise UsageError(f"--minutes {self.minutes}: a number above 0")
        if self.choose not in CHOICES:
            raise UsageError(f"--choose {self.choose}: {', '.join(CHOICES)}")
        if self.layers is not None and self.draft is not None:
            raise UsageError("--draft and --layers both say what to begin with: give one of them")
        if self.text and self.language is not None:
            raise UsageError(
                "--language is the language of recordings; it has no meaning with --text"
            )
        if self.embeddings and not self.text:
            raise UsageError("--train-embeddings is for language models: add --text")
        if "-" in self.data:
            raise UsageError(
                "labels are made from files, to which a repeated command can return; - is none"
            )

    def record(self) -> dict[str, Any]:
        """What a repeated command must have too."""
        unrelated = ("overwrite", "keep_labels", "quiet", "output", "local_files_only")
        return {k: v for k, v in asdict(self).items() if k not in unrelated} | {
            "model": self.model or ("demo-text" if self.text else "large")
        }

    def label_record(self) -> dict[str, Any]:
        """What decides the labels. A draft does, as its own encoder's states are kept with them."""
        names = ("data", "mix", "text", "language", "model", "draft", "max_tokens", "seed")
        return {name: self.record()[name] for name in names} | {"pruned": self.layers is not None}

    def check_output(self) -> None:
        """Raises UsageError for a folder that holds something else."""
        from ..distill.files import WorkFolder

        folder = Path(self.output).expanduser()
        WorkFolder(
            folder, self.record(), labels=self.label_record(), overwrite=self.overwrite
        ).check()

    def check_start(self, draft: object) -> None:
        """Raises UsageError where there is neither a draft nor a number of layers to begin with."""
        if draft is None and self.layers is None:
            raise UsageError(
                "this model has no draft to begin with: name one with --draft, or take layers of the model "
                "itself with --layers"
            )

    def settings(self, start: Path | None) -> DistillSettings:
        """For the library. Raises UsageError where there is nothing to begin with."""
        from ..distill.distillation import DistillSettings

        self.check_start(start)
        return DistillSettings(
            Path(self.output).expanduser(),
            start,
            self.layers,
            self.choose,  # type: ignore[arg-type]  # checked above
            self.minutes,
            self.steps,
            self.seed,
            self.on_policy,
            self.cut_head,
            self.served_batch,
            self.overwrite,
            self.keep_labels,
            self.record(),
            self.label_record(),
        )


@takes(DistillOptions)
def distill(**values: Any) -> None:
    """Make a draft for your own recordings or texts.

    The target labels the data, and the draft learns to predict it; references are not needed. What is
    recognised or written stays the target's. Repeat the command to go on after Ctrl-C, a crash or a kill."""
    options = DistillOptions(**values)
    options.check_output()  # before a model is loaded
    from rich.console import Console

    from ..distill.distillation import Distillation
    from .console import StageBar

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Stop() as stop, StageBar(console, quiet=options.quiet) as bar:
        with stop.interruptible():
            bar("loading", 0, None, "")
            make = _texts if options.text else _recordings
            pair, start, label = make(options, stop, bar)
            settings = options.settings(start)

        def say(line: str) -> None:
            if not options.quiet:
                console.print(line, markup=False)

        report = Distillation(pair, label, settings, stop=stop, hook=bar, say=say).run()
    if report is None:
        typer.echo("forescribe: interrupted; the same command goes on with the labels", err=True)
        raise typer.Exit(INTERRUPTED)
    if not options.quiet:
        typer.echo((settings.output / "report.md").read_text("utf-8"), nl=False)
    typer.echo(f"{settings.output}: use it with --draft {settings.output}")
    raise typer.Exit(0 if report["finished"] else INTERRUPTED)


Made = tuple["DraftPair", Path | None, "Label"]


def _recordings(options: DistillOptions, stop: Stop, hook: Hook) -> Made:
    """The pair, the draft to begin with, and what labels recordings."""
    from forescribe.asr.batch.inputs import any_readable, check_readable, discover
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.model.presets import locate, resolve
    from forescribe.asr.model.special_tokens import only_language

    from ..distill.labels import GENERAL, OWN, LabelStore
    from ..distill.speech import Skipped, SpeechPair, label_recordings

    sources = {OWN: check_readable(discover(options.data, recursive=True))}
    if options.mix:
        sources[GENERAL] = check_readable(discover(options.mix, recursive=True))
    if not any_readable(sources[OWN]):
        raise UsageError("none of these recordings can be read: " + _reasons(sources[OWN]))
    draft_name = "none" if options.layers is not None else options.draft
    options.check_start(resolve(options.model, draft_name, only_language(options.language)).draft)
    transcriber = Transcriber.load(
        options.model,
        draft_name,
        language=options.language,
        device=options.device,
        batch=options.batch_size,
        network=not options.local_files_only,
        modules=True,
    )
    decoding = Options(language=options.language)
    pair = SpeechPair(transcriber.whisper)
    draft = transcriber.whisper.pair.draft
    start = None if draft is None else locate(draft, role="draft", network=False)

    def label(store: LabelStore, until: Callable[[], bool]) -> list[Skipped]:
        skipped: list[Skipped] = []
        for kind, found in sources.items():
            skipped += [Skipped(s.path, str(s.error)) for s in found if s.error is not None]
            names = _shuffled([s.path for s in found if s.error is None], options.seed)
            skipped += label_recordings(
                transcriber, store, names, kind, decoding, until=until, stop=stop, hook=hook
            )
        return skipped

    return pair, start, label


def _reasons(sources: list[Any]) -> str:
    shown = "; ".join(str(s.error) for s in sources[:3])
    return shown + (f"; and {len(sources) - 3} more" if len(sources) > 3 else "")


def _shuffled(names: list[str], seed: int) -> list[str]:
    """In an order of the seed: what the time does not suffice for is a random part."""
    import random

    random.Random(seed).shuffle(names)
    return names


def _texts(options: DistillOptions, stop: Stop, hook: Hook) -> Made:
    """The pair, the draft to begin with, and what labels texts."""
    from forescribe.speculative.models.hub import locate
    from forescribe.text.generator import TextGenerator
    from forescribe.text.language_model import LANGUAGE_MODEL
    from forescribe.text.presets import NGRAM, resolve

    from ..distill.labels import GENERAL, OWN, LabelStore
    from ..distill.speech import Skipped
    from ..distill.text import TextPair, label_prompts, prompts_of

    names = resolve(options.model, "ngram" if options.layers is not None else options.draft)
    options.check_start(None if names.draft == NGRAM else names.draft)
    generator = TextGenerator.load(
        names.target,
        names.draft,
        device=options.device,
        batch=options.batch_size,
        network=not options.local_files_only,
    )
    prompts, skipped = prompts_of(generator, options.data, OWN, seed=options.seed)
    if options.mix:
        general, more = prompts_of(generator, options.mix, GENERAL, seed=options.seed)
        prompts, skipped = [*prompts, *general], [*skipped, *more]
    pair = TextPair(generator.target, generator.device, options.embeddings, options.max_tokens)
    start = None
    if names.draft not in (None, NGRAM):
        assert names.draft is not None
        start = locate(names.draft, LANGUAGE_MODEL, role="draft", network=False)

    def label(store: LabelStore, until: Callable[[], bool]) -> list[Skipped]:
        label_prompts(
            generator, pair, store, prompts, seed=options.seed, until=until, stop=stop, hook=hook
        )
        return skipped

    return pair, start, label
