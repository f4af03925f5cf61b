"""`forescribe audit`: compare speculative with plain decoding, token by token.

Knows the options and the exit code; the comparison is in `asr.audit`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import typer

from forescribe.asr.errors import UsageError

from .option_records import arg, like, takes
from .options import (
    DecodingOptions,
    JsonOptions,
    ModelOptions,
    PerformanceOptions,
    codes_of,
    decodes,
)


@dataclass(frozen=True, kw_only=True)
@decodes("vad")
class AuditOptions(ModelOptions, DecodingOptions, PerformanceOptions, JsonOptions):
    """The parsed command line. Raises UsageError for a gamma without drafts."""

    audio: list[str] = arg("AUDIO...", "Recordings or videos; - reads stdin.")
    gamma: str = like(PerformanceOptions, "gamma", default="5")

    def __post_init__(self) -> None:
        if not self.drafts:
            raise UsageError(
                f"--gamma {self.gamma}: an audit compares a fixed number of drafted tokens, 1 or more, "
                "with plain decoding"
            )


@takes(AuditOptions)
def audit(**values: Any) -> None:
    """Report every token that speculative decoding has changed.

    Each recording is decoded with and without drafts. A token that differs is reported with its margin:
    how much more the target prefers one of the two tokens, in logits. With --quantize int8 the tokens that
    differ from the same model's in float32 are counted too; they do not change the exit code."""
    options = AuditOptions(**values)
    options = replace(options, language=codes_of(options.language, partial(typer.echo, err=True)))
    from forescribe.asr.audit import Report
    from forescribe.asr.audit import audit as compare
    from forescribe.asr.batch.inputs import any_readable, check_readable
    from forescribe.asr.model.languages import read_languages
    from forescribe.asr.model.loading import load
    from forescribe.asr.model.presets import resolve
    from forescribe.asr.storage.locations import Source
    from forescribe.speculative.device import choose
    from forescribe.speculative.model_engines import ModelEngine, draft_device

    pair = resolve(options.model, options.draft, read_languages(options.language).one, 1)
    sources = check_readable(map(Source, options.audio))
    if any_readable(sources):
        device = choose(options.device, options.dtype, options.quantize)
        whisper = load(
            pair,
            device,
            network=not options.local_files_only,
            draft_device=draft_device(device, options.draft_dtype, ModelEngine.AUTO),
            modules=True,  # what transformers computes is the reference
        )
        exact = None
        if device.int8:  # a model of its own beside the float32 one
            alone = replace(pair, draft=None)
            place = choose(options.device, "float32")
            exact = load(alone, place, network=not options.local_files_only, modules=True)
        reports = compare(
            whisper,
            options.audio,
            options.decoding,
            gamma=int(options.gamma),
            batch=options.batch_size,
            float32=exact,
        )
    else:
        reports = (Report(source.path, error=str(source.error)) for source in sources)
    sound = True
    for report in reports:
        typer.echo(report.to_json() if options.json else report.to_text())
        sound = sound and not report.differences and report.error is None
    if not sound:
        raise typer.Exit(1)
