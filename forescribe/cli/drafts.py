"""`forescribe draft-head` and `forescribe prune`: an output head with the tokens of one's own texts, and a
draft of some of a model's own layers.

Knows the options and what is printed; counting is in `forescribe.distill.draft_lists`, distances and models
are in `forescribe.distill.pruning`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.errors import ModelError, OutputError, UsageError

from .distill import CHOICES, DistillOptions
from .option_records import INPUT, OUTPUT, REQUIRED, arg, like, opt, takes
from .options import DecodingOptions

if TYPE_CHECKING:
    from ..distill.labels import LabelRow
    from ..distill.pair import DraftPair

LITTLE = 100_000
"""Tokens below which a list is likely to lack words that later recordings have."""

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
"""Recordings of a checkout; an installed package has none."""


@dataclass(frozen=True, kw_only=True)
class DraftHeadOptions:
    """The parsed command line. Raises UsageError for two sizes of one list."""

    draft: str = arg("DRAFT", "Draft model, named as for --draft, that is on this machine.")
    texts: list[str] = arg(
        "TEXT...",
        "Transcripts (json, srt, vtt, tsv, txt) or texts, or folders of them; - reads stdin.",
    )
    output: str | None = opt(
        OUTPUT,
        "--output -o FILE",
        "File for the list.",
        shown="draft_tokens.json in the draft's folder, with --language draft_tokens.LANGUAGE.json",
    )
    language: str | None = like(
        DecodingOptions,
        "language",
        "Make the list for this language, a code or an English name; transcripts (json) that say that they "
        "are in another one are left out.",
        section=OUTPUT,
        shown=None,
    )
    overwrite: bool = opt(OUTPUT, "--overwrite", "Replace a list that is there.", False)
    keep: int | None = opt(
        OUTPUT,
        "--keep N",
        "Number of tokens, special ones included.",
        shown="all that occur",
        min=1,
    )
    coverage: float | None = opt(
        OUTPUT,
        "--coverage SHARE",
        "Take as many tokens as make up this share of the texts, such as 0.9999.",
    )

    def __post_init__(self) -> None:
        if self.keep is not None and self.coverage is not None:
            raise UsageError(
                "--keep and --coverage both set the size of the list: give one of them"
            )
        if self.coverage is not None and not 0 < self.coverage <= 1:
            raise UsageError(f"--coverage {self.coverage}: a share is above 0 and at most 1")


@takes(DraftHeadOptions)
def draft_head(**values: Any) -> None:
    """Cut a draft's output head to the tokens of your own texts.

    A head without rare tokens is faster and changes no word of a result. The list lies beside the draft's
    weights and is used from then on; deleting the file undoes it. Lists of several languages may lie there:
    that of `--language` is used, else all of them together."""
    options = DraftHeadOptions(**values)
    from forescribe.asr.formats.files import put
    from forescribe.speculative.drafters.draft_tokens import file_for
    from forescribe.speculative.models.checkpoint import quiet

    from ..distill.draft_lists import DraftVocabulary, files_of, list_of

    files = files_of(options.texts)
    folder = _folder(options.draft)
    language = None if options.language is None else _code(options.language)
    path = (
        folder / file_for(language) if options.output is None else Path(options.output).expanduser()
    )
    if path.exists() and not options.overwrite:
        raise UsageError(f"{path} exists: --overwrite replaces it, --output names another file")
    with quiet():
        vocabulary = DraftVocabulary(folder)
    coverage = 1.0 if options.coverage is None else options.coverage
    made = list_of(vocabulary, files, keep=options.keep, coverage=coverage, language=language)
    try:
        put(path, made.to_json())
    except OSError as error:
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; copy the draft to a folder of your "
            "own, or name a file with --output"
        ) from error
    special = len(vocabulary.always)
    typer.echo(
        f"{path}: {len(made.ids):,} of {made.vocab_size:,} tokens, {special:,} of them special; they are "
        f"{100 * made.coverage:.2f} % of {made.occurrences:,} tokens counted"
    )
    if made.occurrences < LITTLE:
        typer.echo(
            f"forescribe: {made.occurrences:,} tokens are little text: words that it lacks will not be "
            "drafted; a list from more text is accepted more often",
            err=True,
        )


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """The parsed command line. Raises UsageError for values that are impossible."""

    target: str = arg("TARGET", "Whisper or language model, named as for --model.")
    output: str = like(DistillOptions, "output")
    layers: int = like(DistillOptions, "layers", "Layers that the draft keeps.", default=REQUIRED)
    data: list[str] | None = opt(
        INPUT,
        "--data DATA",
        "Recordings, or texts for a language model, on which the layers are compared; may be given several "
        "times.",
        shown="samples/ of a checkout, for speech",
    )
    language: str | None = like(DecodingOptions, "language")
    overwrite: bool = opt(OUTPUT, "--overwrite", "Write into a folder that is not empty.", False)
    choose: str = like(DistillOptions, "choose")
    local_files_only: bool = like(DistillOptions, "local_files_only")
    device: str = like(DistillOptions, "device")
    batch_size: int = like(DistillOptions, "batch_size", "Windows or texts at a time.")

    def __post_init__(self) -> None:
        if self.choose not in CHOICES:
            raise UsageError(f"--choose {self.choose}: {', '.join(CHOICES)}")


@takes(PruneOptions)
def prune(**values: Any) -> None:
    """Make a draft of some of a model's own layers.

    The layers that change the hidden states least are left out. Such a draft is a beginning for
    `forescribe distill --draft`, and seldom fast enough by itself."""
    options = PruneOptions(**values)
    from ..distill.pruning import keep_report, pruned_folder

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


def _code(name: str) -> str:
    """The code of a language. Raises UsageError for a name that is none."""
    from forescribe.asr.model.special_tokens import language_code

    code = language_code(name)
    if not (code.isascii() and code.isalpha() and len(code) in (2, 3)):
        raise UsageError(
            f"--language {name!r}: give a code such as fr, or an English name such as French"
        )
    return code


def _folder(name: str) -> Path:
    """The folder of a draft on this machine. Raises ModelError, and UsageError for a draft without a
    model."""
    from forescribe.asr.model import presets as speech
    from forescribe.speculative.models.hub import find
    from forescribe.text import presets

    if name in (speech.NO_DRAFT, presets.NGRAM):
        raise UsageError(f"{name} drafts without a model, so it has no output head")
    resolve = presets.resolve if name in presets.PRESETS else speech.resolve
    place = resolve(None, name).draft
    assert place is not None
    folder = find(place, lambda at: None if (at / "config.json").is_file() else "config.json")
    if folder is None:
        raise ModelError(
            f"{place} is not on this machine, or has no config.json: run `hf download {place}`, or give "
            "the folder of a draft"
        )
    return folder


def _is_speech(name: str) -> bool:
    """Whether a name is that of a Whisper model. Raises ModelError and LoadError."""
    from forescribe.asr.model import presets as speech
    from forescribe.asr.model.conversion.ctranslate2 import is_ctranslate2
    from forescribe.text import presets

    if name in presets.PRESETS:
        return False
    if name in speech.PRESETS or name in speech.ALIASES:
        return True
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = speech.locate(name)
    if is_ctranslate2(folder):  # whose config.json names no kind of model
        return True
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} has no readable config.json: {error}") from error
    return bool(config.get("model_type") == "whisper")


def _speech(options: PruneOptions) -> tuple[DraftPair, list[LabelRow]]:
    from forescribe.asr.batch.inputs import any_readable, check_readable, discover
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber

    from ..distill.speech import SpeechPair, labelled_now

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
        modules=True,
    )
    rows = labelled_now(
        transcriber,
        [source.path for source in sources if source.error is None],
        Options(language=options.language),
    )
    return SpeechPair(transcriber.whisper), rows


def _texts(options: PruneOptions) -> tuple[DraftPair, list[LabelRow]]:
    from forescribe.text.generator import TextGenerator
    from forescribe.text.presets import NGRAM, resolve

    from ..distill.labels import OWN
    from ..distill.text import GROUP, TextPair, answered, prompts_of

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
