"""`forescribe distill`: a draft that learns from one's own recordings.

Knows the options, what is printed and the exit code; distillation is in `forescribe.distill`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.batch.interrupts import INTERRUPTED, Stop
from forescribe.asr.errors import UsageError

from .option_records import MODEL, OUTPUT, REQUIRED, TRAINING, arg, like, opt, takes
from .options import ModelOptions, PerformanceOptions, RunOptions, codes_of, flag

if TYPE_CHECKING:
    from ..distill.distillation import WorkFolder
    from ..distill.labels import LabelStore
    from ..distill.speech import Skipped


@dataclass(frozen=True, kw_only=True)
class DistillOptions(ModelOptions):
    """The parsed command line. Raises UsageError for values and combinations that are impossible."""

    data: list[str] = arg("DATA...", "Recordings or folders of them.")
    output: str = opt(OUTPUT, "-o FOLDER", "Folder for the draft.", REQUIRED)
    language: str | None = flag("language")
    overwrite: bool = opt(
        OUTPUT, "--overwrite", "Begin anew in a folder that is there, and replace its draft.", False
    )
    cut_head: bool = opt(
        OUTPUT,
        "--cut-head",
        "Cut the draft's output head to the tokens that make up 98 % of the labels.",
        False,
    )
    model: str | None = like(
        ModelOptions, "model", "Target: preset, Hugging Face id or local folder."
    )
    draft: str | None = like(ModelOptions, "draft", "Draft to begin with, named like --model.")
    layers: int | None = opt(
        MODEL,
        "N",
        "Begin with this many layers of the target instead of a draft, evenly from the first to the last.",
        min=1,
    )
    minutes: float = opt(
        TRAINING,
        "M",
        "Time for labels (40 % of it at most) and training; the report comes after it.",
        30.0,
        min=0.1,
    )
    steps: int | None = opt(
        TRAINING,
        "N",
        "Train this many steps on all the data, however long it takes: the same result each time. 0 only "
        "cuts the head, or takes the layers.",
        min=0,
    )
    seed: int = opt(TRAINING, "SEED", "Seed of the random numbers.", 0)
    batch_size: int = like(PerformanceOptions, "batch_size", "Windows labelled together.")
    device: str = like(PerformanceOptions, "device")
    quiet: bool = like(RunOptions, "quiet")

    def __post_init__(self) -> None:
        if self.layers is not None and self.draft is not None:
            raise UsageError("--draft and --layers both say what to begin with: give one of them")

    def work(self) -> WorkFolder:
        """The work folder, with what a repeated command must have too."""
        from ..distill.distillation import WorkFolder

        unrelated = ("overwrite", "quiet", "output", "local_files_only")
        record = {k: v for k, v in asdict(self).items() if k not in unrelated}
        record["model"] = self.model or "large"
        return WorkFolder(Path(self.output).expanduser(), record, self.overwrite)


@takes(DistillOptions)
def distill(**values: Any) -> None:
    """Make a draft for your own recordings.

    The target labels the recordings, and the draft learns to predict it; references are not needed. What is
    recognised stays the target's. Repeat the command to go on after Ctrl-C, a crash or a kill."""
    options = DistillOptions(**values)
    options = replace(options, language=codes_of(options.language, partial(typer.echo, err=True)))
    work = options.work()
    work.check()  # before a model is loaded
    from rich.console import Console

    from forescribe.asr.batch.inputs import any_readable, check_readable, discover
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.model.languages import read_languages
    from forescribe.asr.model.presets import locate, resolve

    from ..distill.distillation import Distillation
    from ..distill.speech import Pair, Skipped, label_recordings
    from .console import StageBar

    sources = check_readable(discover(options.data, recursive=True))
    if not any_readable(sources):
        shown = "; ".join(str(source.error) for source in sources[:3])
        raise UsageError(f"none of these recordings can be read: {shown}")
    draft = "none" if options.layers is not None else options.draft
    known = resolve(options.model, draft, read_languages(options.language).one, 1)
    if known.draft is None and options.layers is None:
        raise UsageError(
            "this model has no draft to begin with: name one with --draft, or take layers of the model "
            "itself with --layers"
        )
    skipped = [Skipped(s.path, str(s.error)) for s in sources if s.error is not None]
    names = [source.path for source in sources if source.error is None]
    # What the time does not suffice for is a random part.
    random.Random(options.seed).shuffle(names)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Stop() as stop, StageBar(console, quiet=options.quiet) as bar:
        with stop.interruptible():
            bar("loading", 0, None, "")
            transcriber = Transcriber.load(
                options.model,
                draft if known.draft is None else str(known.draft),
                language=options.language,
                device=options.device,
                batch=options.batch_size,
                network=not options.local_files_only,
                modules=True,
            )

        def label(store: LabelStore, until: Callable[[], bool]) -> list[Skipped]:
            decoding = Options(language=options.language).settled(1)
            return skipped + label_recordings(
                transcriber, store, names, decoding, until=until, stop=stop, hook=bar
            )

        begun = transcriber.whisper.pair.draft
        report = Distillation(
            Pair.of(transcriber.whisper),
            label,
            work,
            stop,
            bar,
            start=None if begun is None else locate(begun, role="draft", network=False),
            layers=options.layers,
            minutes=options.minutes,
            steps=options.steps,
            seed=options.seed,
            cut_head=options.cut_head,
        ).run()
    if report is None:
        typer.echo("forescribe: interrupted; the same command goes on with the labels", err=True)
        raise typer.Exit(INTERRUPTED)
    if not options.quiet:
        typer.echo((work.output / "report.md").read_text("utf-8"), nl=False)
    typer.echo(f"{work.output}: use it with --draft {work.output}")
    raise typer.Exit(0 if report["finished"] else INTERRUPTED)
