"""`forescribe diarize`: who speaks when, without a transcript.

Knows the order of the work and the exit code; engines and turns are in `forescribe.diarize`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError

from .option_records import OUTPUT, PERFORMANCE, option, takes
from .options import (
    AUTO,
    DiarizerName,
    Inputs,
    JsonRecords,
    KnownSpeakers,
    LinkSpeakers,
    LocalFilesOnly,
    MaxSpeakers,
    MinSpeakers,
    NumSpeakers,
    OutputFolder,
    Overwrite,
    Quiet,
    Recursive,
    SpoolBytes,
    SpoolFolder,
    parse_bytes,
    refuse_links,
)

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch, MakeTranscriber
    from forescribe.asr.records.sources import Source
    from forescribe.asr.storage.stores import Stores
    from forescribe.diarize.transcribers import SpeakerOnlyTranscriber

    from .console import Console
    from .speaker_options import SpeakerOptions


FORMATS = "rttm,json"


@dataclass(frozen=True)
class DiarizeOptions:
    """The parsed command line. Raises UsageError for formats that need words, and for
    speaker options that contradict each other."""

    audio: Inputs
    recursive: Recursive = False
    spool: SpoolFolder = None
    spool_bytes: SpoolBytes = None
    output_dir: OutputFolder = "."
    output_format: Annotated[
        str,
        option(
            OUTPUT,
            "--output-format",
            "-f",
            metavar="FORMATS",
            help="Comma-separated list of rttm and json.",
        ),
    ] = FORMATS
    overwrite: Overwrite = False
    diarizer: DiarizerName = AUTO
    num_speakers: NumSpeakers = None
    min_speakers: MinSpeakers = None
    max_speakers: MaxSpeakers = None
    known: KnownSpeakers = False
    link_speakers: LinkSpeakers = False
    device: Annotated[
        str,
        option(PERFORMANCE, "--device", metavar="DEVICE", help="auto, cuda, cuda:N or cpu."),
    ] = AUTO
    local_files_only: LocalFilesOnly = False
    quiet: Quiet = False
    json: JsonRecords = False

    def __post_init__(self) -> None:
        names = self.output_format.replace(" ", "").split(",")
        unknown = [name for name in names if name not in FORMATS.split(",")]
        if unknown:
            raise UsageError(
                f"--output-format {unknown[0]}: there are no words to write; known: {FORMATS}"
            )
        parse_bytes("--spool-bytes", self.spool_bytes)
        refuse_links(self.link_speakers, self.output_dir)
        _ = self.speakers

    @cached_property
    def speakers(self) -> SpeakerOptions:
        """The options for speakers."""
        from forescribe.diarize.diarizer import Bounds

        from .speaker_options import SpeakerOptions

        bounds = Bounds(self.num_speakers, self.min_speakers, self.max_speakers)
        return SpeakerOptions(self.diarizer, bounds, self.known, link=self.link_speakers)


@takes(DiarizeOptions)
def diarize(**values: Any) -> None:
    """Find who speaks when, without transcribing."""
    options = DiarizeOptions(**values)
    from forescribe.asr.batch.inputs import check_readable, discover
    from forescribe.asr.storage.stores import Stores, telling

    from .console import Console

    console = Console(quiet=options.quiet or options.json, verbose=False, json=options.json)
    stores = Stores(telling(console.notice))
    sources = check_readable(discover(options.audio, recursive=options.recursive, stores=stores))
    interrupted = False
    with Stop() as stop:
        batch = _batch(options, sources, stores, stop, console)
        console.skipped(list(batch.skipped()), len(sources))
        if not batch.todo:
            return
        make = _load(options, batch, stop, console)
        try:
            with console.progress(batch.todo) as hook:
                for result in batch.run(make, size=1, hook=hook):
                    console.result(result)
        except KeyboardInterrupt:
            interrupted = True
        console.summary(None)
    raise typer.Exit(console.exit_code(interrupted=interrupted))


def _batch(
    options: DiarizeOptions, sources: list[Source], stores: Stores, stop: Stop, console: Console
) -> Batch:
    """The recordings that are to be diarized, and those that are up to date."""
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.batch.inputs import any_readable
    from forescribe.asr.batch.outputs import RecordedOutputs, plan_outputs
    from forescribe.asr.batch.spool import Fetching

    outputs = plan_outputs(sources, options.output_dir, options.output_format, stores=stores)
    settings = ""
    if any_readable(sources):  # without a readable recording, no engine is looked for
        network = not options.local_files_only
        settings = fingerprint.settings(
            options.speakers.settings(network=network) | {"words": False}
        )
    if isinstance(outputs, RecordedOutputs):
        outputs.begin(sources, settings, overwrite=options.overwrite)
    return Batch(
        sources,
        outputs,
        settings=settings,
        overwrite=options.overwrite,
        fetching=Fetching(stores, options.spool, parse_bytes("--spool-bytes", options.spool_bytes)),
        stop=stop,
        notice=console.notice,
    )


def _load(options: DiarizeOptions, batch: Batch, stop: Stop, console: Console) -> MakeTranscriber:
    """The diarizer as a transcriber, or a placeholder that is never called if no recording can be
    read."""
    from forescribe.asr.batch.inputs import any_readable

    if not any_readable(batch.todo):
        return _no_engine
    batch.fetch_ahead()
    console.status("loading the models")
    with stop.interruptible():
        from forescribe.diarize.transcribers import SpeakerOnlyTranscriber

        speakers = options.speakers
        engine = speakers.engine(options.device, network=not options.local_files_only)
        people = speakers.people(batch.outputs.folder)
        diarizer = SpeakerOnlyTranscriber(engine, speakers.bounds, speakers.known_people(), people)
    return lambda size: diarizer


def _no_engine(size: int) -> SpeakerOnlyTranscriber:
    raise AssertionError("an engine was requested although no recording can be read")
