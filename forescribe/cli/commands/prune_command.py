"""`forescribe prune`: a draft of some of a model's own layers.

Knows the options and what is printed; distances and models are in `forescribe.distill.pruning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forescribe.asr.errors import UsageError

from ..options.declarations import AUTO, DeviceName, Language, LocalFilesOnly
from ..options.option_records import INPUT, MODEL, OUTPUT, PERFORMANCE, argument, option, takes
from .distill_command import CHOICES, CHOOSE

if TYPE_CHECKING:
    from forescribe.distill.labels.label_rows import LabelRow
    from forescribe.distill.pairs.draft_pair import DraftPair

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
"""Recordings of a checkout; an installed package has none."""


@dataclass(frozen=True)
class PruneOptions:
    """The parsed command line. Raises UsageError for values that are impossible."""

    target: Annotated[
        str, argument("TARGET", help="Whisper or language model, named as for --model.")
    ]
    output: Annotated[
        str, option(OUTPUT, "--output", "-o", metavar="FOLDER", help="Folder for the draft.")
    ]
    layers: Annotated[
        int, option(MODEL, "--layers", metavar="N", min=1, help="Layers that the draft keeps.")
    ]
    # Input
    data: Annotated[
        list[str] | None,
        option(
            INPUT,
            "--data",
            metavar="DATA",
            help="Recordings, or texts for a language model, on which the layers are compared; may be given "
            "several times.  [default: samples/ of a checkout, for speech]",
        ),
    ] = None
    language: Language = None
    # Output
    overwrite: Annotated[
        bool, option(OUTPUT, "--overwrite", help="Write into a folder that is not empty.")
    ] = False
    # Model
    choose: Annotated[
        str,
        option(
            MODEL,
            "--choose",
            metavar="HOW",
            help=CHOOSE,
        ),
    ] = "angular"
    local_files_only: LocalFilesOnly = False
    device: DeviceName = AUTO
    batch_size: Annotated[
        int,
        option(PERFORMANCE, "--batch-size", metavar="N", min=1, help="Windows or texts at a time."),
    ] = 8

    def __post_init__(self) -> None:
        if self.choose not in CHOICES:
            raise UsageError(f"--choose {self.choose}: {', '.join(CHOICES)}")


@takes(PruneOptions)
def prune(**values: Any) -> None:
    """Make a draft of some of a model's own layers.

    The layers that change the hidden states least are left out. Such a draft is a beginning for
    `forescribe distill --draft`, and seldom fast enough by itself."""
    options = PruneOptions(**values)
    from forescribe.distill.pruning.prune_report import keep_report, pruned_folder

    output = Path(options.output).expanduser()
    if output.exists() and not options.overwrite and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(
            f"-o {output}: there is something; --overwrite writes into it, or name another folder"
        )
    pair, rows = _speech(options) if _is_speech(options.target) else _texts(options)
    report = pruned_folder(pair, rows, output, layers=options.layers, choose=options.choose)  # type: ignore[arg-type]  # checked above
    keep_report(output, report)
    for line in report.lines():
        typer.echo(line)
    typer.echo(
        f"{output}: layers {', '.join(map(str, report.kept))} of {report.depth}; "
        f"`forescribe distill --draft {output}` trains it"
    )


def _is_speech(name: str) -> bool:
    """Whether a name is that of a Whisper model. Raises ModelError and LoadError."""
    from forescribe.asr.model import presets as speech
    from forescribe.asr.model.presets import locate
    from forescribe.text import presets

    if name in presets.PRESETS:
        return False
    if name in speech.PRESETS or name in speech.ALIASES:
        return True
    import json

    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = locate(name)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} has no readable config.json: {error}") from error
    return bool(config.get("model_type") == "whisper")


def _speech(options: PruneOptions) -> tuple[DraftPair, list[LabelRow]]:
    from forescribe.asr.batch.inputs import any_readable, check_readable, discover
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.distill.pairs.speech_labels import labelled_now
    from forescribe.distill.pairs.speech_pair import SpeechPair

    names = options.data or ([str(SAMPLES)] if SAMPLES.is_dir() else [])
    if not names and options.choose != "spacing":
        raise UsageError("layers are compared on data: name recordings with --data")
    sources = check_readable(discover(names, recursive=True)) if names else []
    if names and not any_readable(sources):
        raise UsageError(f"{names[0]}: no recording there can be read")
    transcriber = Transcriber.load(
        options.target,
        "none",
        language=options.language,
        device=options.device,
        batch=options.batch_size,
        network=not options.local_files_only,
    )
    rows = labelled_now(
        transcriber,
        [source.path for source in sources if source.error is None],
        Options(language=options.language),
    )
    return SpeechPair(transcriber.whisper), rows


def _texts(options: PruneOptions) -> tuple[DraftPair, list[LabelRow]]:
    from forescribe.distill.labels.label_rows import OWN
    from forescribe.distill.pairs.text_labels import GROUP, answered
    from forescribe.distill.pairs.text_pair import TextPair
    from forescribe.distill.pairs.text_prompts import prompts_of
    from forescribe.text.generator import TextGenerator
    from forescribe.text.presets import NGRAM, resolve

    if not options.data and options.choose != "spacing":
        raise UsageError("layers are compared on data: name texts with --data")
    names = resolve(options.target, NGRAM)
    generator = TextGenerator.load(
        names.target,
        names.draft,
        device=options.device,
        batch=options.batch_size,
        network=not options.local_files_only,
    )
    pair = TextPair(generator.target, generator.device)
    prompts, _ = prompts_of(generator, options.data or [], OWN, seed=0)
    return pair, answered(generator, pair, prompts[:GROUP], 0, 0, 0) if prompts else []
