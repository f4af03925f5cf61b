"""`forescribe speakers`: enrol people by their voices, list and remove them.

Knows the options and messages; voices are compared and stored by `forescribe.diarize.known_speakers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError

from .option_records import INPUT, SPEAKERS, SectionedCommand, arg, like, opt, takes
from .options import PerformanceOptions, SpeakerOptions

speakers = typer.Typer(
    name="speakers",
    help="Manage enrolled speakers. Voices are stored on this machine, and only if you add them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@dataclass(frozen=True, kw_only=True)
class EnrolOptions:
    """The parsed command line. Raises UsageError for half of a pair of options."""

    name: str = arg("NAME", "Name of the person.")
    audio: list[str] = arg("CLIP...", "10 to 30 s of clean speech of this person alone.")
    transcript: Path | None = opt(
        INPUT, "FILE", "Diarized JSON of a clip with several speakers; use with --speaker."
    )
    speaker: str | None = opt(
        INPUT, "LABEL", "Label of the person in --transcript, such as Speaker A."
    )
    note: str = opt(
        SPEAKERS, "TEXT", "Text stored with the voice, such as the person's consent.", ""
    )
    diarizer: str = like(SpeakerOptions, "diarizer")
    device: str = like(PerformanceOptions, "device")

    def __post_init__(self) -> None:
        if (self.transcript is None) != (self.speaker is None):
            raise UsageError("--transcript and --speaker go together")


@speakers.command("add", cls=SectionedCommand)
@takes(EnrolOptions)
def add(**values: Any) -> None:
    """Enrol a person, or add clips to an enrolled one."""
    options = EnrolOptions(**values)
    from forescribe.asr.audio.reading import read_audio
    from forescribe.diarize.engines.registry import load
    from forescribe.diarize.known_speakers import (
        LEAST_S,
        KnownSpeakers,
        extract_voice,
        read_speaker_audio,
    )

    engine, store = load(options.diarizer, device=options.device), KnownSpeakers()
    voices = []
    for source in options.audio:
        if options.transcript is None:
            samples = read_audio(source)
        else:
            samples = read_speaker_audio(source, options.transcript, options.speaker or "")
        voices.append(
            extract_voice(engine, samples, options.name, source=repr(source), least_s=LEAST_S)
        )
    for voice in voices:  # after all clips were read: either all are stored or none
        known = store.add(options.name, engine.engine.encoder or "", voice, options.note)
    typer.echo(
        f"{known.name}: {known.clips} clips, {known.seconds:.1f} s of speech ({known.encoder})"
    )


@speakers.command("list", cls=SectionedCommand)
def list_() -> None:
    """List the enrolled people and how much speech was enrolled."""
    from forescribe.diarize.known_speakers import KnownSpeakers

    store = KnownSpeakers()
    for known in store.list():
        note = f"  {known.note}" if known.note else ""
        typer.echo(
            f"{known.name}: {known.clips} clips, {known.seconds:.1f} s, {known.encoder}, "
            f"since {known.added}{note}"
        )
    typer.echo(f"stored in {store.folder}", err=True)


@speakers.command("remove", cls=SectionedCommand)
def remove(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name as `forescribe speakers list` shows it.")
    ],
) -> None:
    """Remove a person and all of their voices."""
    from forescribe.diarize.known_speakers import KnownSpeakers

    typer.echo(f"{name}: {KnownSpeakers().remove(name)} voices removed")
