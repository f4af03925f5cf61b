"""`forescribe diarize` and `forescribe speakers`: options and messages, as in forescribe/cli/transcribe.py.

Functions for a command line that registers them; heavy imports stay inside, so that `--help` answers
at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forescribe.asr.errors import UsageError

if TYPE_CHECKING:
    from forescribe.diarize.transcripts.speaker_only_transcriber import SpeakerOnlyTranscriber

FORMATS = "rttm,json"

DiarizerName = Annotated[
    str,
    typer.Option(
        "--diarizer",
        metavar="NAME",
        help="auto (community-1 if it is on this machine, else embedded), community-1, embedded, "
        "another package's, or a folder.",
    ),
]
NumSpeakers = Annotated[
    int | None, typer.Option("--num-speakers", metavar="N", min=1, help="How many speak, if known.")
]
MinSpeakers = Annotated[
    int | None, typer.Option("--min-speakers", metavar="N", min=1, help="At least so many.")
]
MaxSpeakers = Annotated[
    int | None, typer.Option("--max-speakers", metavar="N", min=1, help="At most so many.")
]
KnownFlag = Annotated[
    bool,
    typer.Option(
        "--known/--no-known", help="Call those by name whom `forescribe speakers add` enrolled."
    ),
]

LinkSpeakers = Annotated[
    bool,
    typer.Option(
        "--link-speakers/--no-link-speakers",
        help="The same label for the same person in all recordings; keeps their voices in "
        "speakers.jsonl in the output folder.",
    ),
]


def diarize(
    audio: Annotated[
        list[str],
        typer.Argument(metavar="AUDIO...", help="Recordings, folders, patterns; - reads stdin."),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive/--no-recursive", "-r", help="Folders with all below them.")
    ] = False,
    output_dir: Annotated[
        str, typer.Option("--output-dir", "-o", metavar="DIR", help="Where to; - is stdout.")
    ] = ".",
    output_format: Annotated[
        str, typer.Option("--output-format", "-f", metavar="LIST", help="rttm, json.")
    ] = FORMATS,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite/--resume",
            help="Do again what an earlier run has done, or skip what has not changed since.",
        ),
    ] = False,
    diarizer: DiarizerName = "auto",
    num_speakers: NumSpeakers = None,
    min_speakers: MinSpeakers = None,
    max_speakers: MaxSpeakers = None,
    known: KnownFlag = False,
    link_speakers: LinkSpeakers = False,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="auto, cuda, cuda:N or cpu.")
    ] = "auto",
    local_files_only: Annotated[
        bool,
        typer.Option("--local-files-only/--no-local-files-only", help="Never download weights."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet/--no-quiet", "-q", help="No progress and no summary.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json/--no-json", help="One JSON line per recording on stdout; implies -q."),
    ] = False,
) -> None:
    """Who speaks when, without words."""
    unknown = [n for n in output_format.replace(" ", "").split(",") if n not in FORMATS.split(",")]
    if unknown:
        raise UsageError(f"--output-format {unknown[0]}: there are no words to write; {FORMATS}")
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.batch.inputs import discover
    from forescribe.asr.batch.interrupts import INTERRUPTED, Stop
    from forescribe.asr.batch.outputs import Destination
    from forescribe.asr.batch.readable import tried, usable
    from forescribe.diarize.diarizer import Bounds

    from .console import Console
    from .speaker_options import Asked

    asked = Asked(
        diarizer, Bounds(num_speakers, min_speakers, max_speakers), known, link=link_speakers
    )
    sources = tried(discover(audio, recursive=recursive))
    work = usable(sources)  # else no engine is looked for
    destination = Destination.of(sources, output_dir, output_format)
    console = Console(quiet=quiet or json, verbose=False, json=json)
    settings = asked.settings(network=not local_files_only) if work else {}
    settings["words"] = False
    with Stop() as stop:
        batch = Batch(
            sources,
            destination,
            settings=fingerprint.settings(settings),
            overwrite=overwrite,
            stop=stop,
            notice=console.notice,
        )
        console.skipped(list(batch.skipped()), len(sources))
        if not batch.todo:
            return
        made: list[SpeakerOnlyTranscriber] = []
        if work:
            console.status("loading the models")
            with stop.interruptible():
                from forescribe.diarize.transcripts.speaker_only_transcriber import (
                    SpeakerOnlyTranscriber,
                )

                engine = asked.engine(device, network=not local_files_only)
                known_people, people = asked.known_people(), asked.people(destination.folder)
                made.append(SpeakerOnlyTranscriber(engine, asked.bounds, known_people, people))
        interrupted = False
        try:
            with console.progress(batch.todo) as hook:
                for ended in batch.run(lambda size: made[0], size=1, hook=hook):
                    console.ended(ended)
        except KeyboardInterrupt:
            interrupted = True
        console.summary(None)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if console.failed:
        raise typer.Exit(1)


speakers = typer.Typer(
    name="speakers",
    help="People whose voices are known: stored on this machine only, and only if you add them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@speakers.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call this person.")],
    audio: Annotated[
        list[str],
        typer.Argument(metavar="CLIP...", help="This person alone, 10 to 30 s of clean speech."),
    ],
    transcript: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The clip is a recording of several; its diarized JSON says who is when.",
        ),
    ] = None,
    speaker: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Who it is there, such as SPEAKER_00.")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Such as the person's consent.")] = "",
    diarizer: DiarizerName = "auto",
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="auto, cuda or cpu.")
    ] = "auto",
) -> None:
    """Enrol a person, or add clips of one who is known."""
    if (transcript is None) != (speaker is None):
        raise UsageError("--transcript and --speaker go together")
    from forescribe.diarize.engines.registry import load
    from forescribe.diarize.speakers.enrolment import extract_voice, read_clip, read_speaker_audio
    from forescribe.diarize.speakers.known_speakers import LEAST_S, KnownSpeakers

    engine, store = load(diarizer, device=device), KnownSpeakers()
    voices = []
    for source in audio:
        samples = (
            read_clip(source)
            if transcript is None
            else read_speaker_audio(source, transcript, speaker or "")
        )
        voices.append(extract_voice(engine, samples, name, source=repr(source), least_s=LEAST_S))
    for voice in voices:  # all clips are heard first: either all are stored, or none
        known = store.add(name, engine.engine.encoder or "", voice, note)
    typer.echo(
        f"{known.name}: {known.clips} clips, {known.seconds:.1f} s of speech ({known.encoder})"
    )


@speakers.command("list")
def list_() -> None:
    """Who is known, from how much speech."""
    from forescribe.diarize.speakers.known_speakers import KnownSpeakers

    store = KnownSpeakers()
    for known in store.list():
        note = f"  {known.note}" if known.note else ""
        typer.echo(
            f"{known.name}: {known.clips} clips, {known.seconds:.1f} s, {known.encoder}, "
            f"since {known.added}{note}"
        )
    typer.echo(f"stored in {store.folder}", err=True)


@speakers.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `list` shows it.")],
) -> None:
    """Forget a person."""
    from forescribe.diarize.speakers.known_speakers import KnownSpeakers

    typer.echo(f"{name}: {KnownSpeakers().remove(name)} voices removed")
