"""`forescribe draft-head`: a draft's output head with the tokens of one's own texts.

Knows the options and what is printed; counting is in `forescribe.draft_lists`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import ModelError, OutputError, UsageError

from ..options.option_records import OUTPUT, argument, option, takes

LITTLE = 100_000
"""Tokens below which a list is likely to lack words that later recordings have."""


@dataclass(frozen=True)
class DraftHeadOptions:
    """The parsed command line. Raises UsageError for two sizes of one list."""

    draft: Annotated[
        str, argument("DRAFT", help="Draft model, named as for --draft, that is on this machine.")
    ]
    texts: Annotated[
        list[str],
        argument(
            "TEXT...",
            help="Transcripts (json, srt, vtt, tsv, txt) or texts, or folders of them; - reads stdin.",
        ),
    ]
    # Output
    output: Annotated[
        str | None,
        option(
            OUTPUT,
            "--output",
            "-o",
            metavar="FILE",
            help="File for the list.  [default: draft_tokens.json in the draft's folder, with --language "
            "draft_tokens.LANGUAGE.json]",
        ),
    ] = None
    language: Annotated[
        str | None,
        option(
            OUTPUT,
            "--language",
            "-l",
            metavar="LANGUAGE",
            help="Make the list for this language, a code or an English name; transcripts (json) that say "
            "that they are in another one are left out.",
        ),
    ] = None
    overwrite: Annotated[
        bool, option(OUTPUT, "--overwrite", help="Replace a list that is there.")
    ] = False
    keep: Annotated[
        int | None,
        option(
            OUTPUT,
            "--keep",
            metavar="N",
            min=1,
            help="Number of tokens, special ones included.  [default: all that occur]",
        ),
    ] = None
    coverage: Annotated[
        float | None,
        option(
            OUTPUT,
            "--coverage",
            metavar="SHARE",
            help="Take as many tokens as make up this share of the texts, such as 0.9999.",
        ),
    ] = None

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

    A draft only guesses, so a head without rare tokens makes it faster and changes no word of a result.
    The list lies beside the draft's weights and is used from then on; deleting the file undoes it. Lists of
    several languages may lie there: that of `--language` is used, else all of them together."""
    options = DraftHeadOptions(**values)
    from forescribe.asr.formats.files import put
    from forescribe.draft_lists import DraftVocabulary, files_of, list_of
    from forescribe.speculative.drafters.draft_tokens import file_for
    from forescribe.speculative.models.checkpoint import quiet

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
