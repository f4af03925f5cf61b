"""`forescribe diarize`: who speaks when, without a transcript or on the words of one.

Knows the order of the work and the exit code; engines and turns are in `forescribe.diarize`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError

from .option_records import INPUT, arg, like, opt, takes
from .options import RECORDINGS, ModelOptions, PerformanceOptions, RunOptions, SpeakerOptions

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.storage.locations import Source
    from forescribe.asr.storage.stores import Stores
    from forescribe.diarize.speaker_finder import SpeakerOnlyTranscriber

    from .console import Console


FORMATS = "rttm,json"


@dataclass(frozen=True, kw_only=True)
class DiarizeOptions(RunOptions, SpeakerOptions):
    """The parsed command line. Raises UsageError for formats that need words, and for
    speaker options that contradict each other."""

    audio: list[str] = arg("AUDIO...", RECORDINGS)
    output_format: str = like(
        RunOptions,
        "output_format",
        "rttm and json; with --transcript all formats of `transcribe`.",
        default=FORMATS,
        shown=FORMATS,
    )
    transcript: str | None = opt(
        INPUT,
        "FILE",
        "JSON transcript of the recording, with word times: its words get new speakers, and are not "
        "transcribed again.",
    )
    device: str = like(PerformanceOptions, "device")
    local_files_only: bool = like(ModelOptions, "local_files_only")

    def __post_init__(self) -> None:
        names = self.output_format.replace(" ", "").split(",")
        unknown = [name for name in names if name not in FORMATS.split(",")]
        if unknown and self.transcript is None:
            raise UsageError(
                f"--output-format {unknown[0]}: there are no words to write; known: {FORMATS}, and with "
                "--transcript those of `forescribe transcribe`"
            )
        _ = self.words
        self.check_speakers()

    @property
    def formats(self) -> str:
        """The output formats; `all` includes rttm."""
        return f"{self.output_format},rttm" if "all" in self.output_format else self.output_format

    @cached_property
    def words(self) -> Transcript | None:
        """The transcript of --transcript. Raises UsageError if it is none, or has no word times."""
        if self.transcript is None:
            return None
        from forescribe.asr.formats.transcript import Transcript

        found = Transcript.load(self.transcript)
        if found.text and not any(segment.words for segment in found.segments):
            raise UsageError(
                f"--transcript {self.transcript}: its words have no times; transcribe again with "
                "--word-timestamps -f json"
            )
        return found


@takes(DiarizeOptions)
def diarize(**values: Any) -> None:
    """Find who speaks when, without transcribing; with --transcript, on its words."""
    options = DiarizeOptions(**values)
    from forescribe.asr.batch.inputs import any_readable, check_readable, discover
    from forescribe.asr.storage.stores import Stores

    from .console import Console

    quiet = options.quiet or options.records
    console = Console(quiet=quiet, records=options.records)
    stores = Stores()
    sources = check_readable(discover(options.audio, recursive=options.recursive, stores=stores))
    if options.words is not None and len(sources) != 1:
        raise UsageError(f"--transcript is that of one recording, and there are {len(sources)}")
    with Stop() as stop:
        batch = _batch(options, sources, stores, stop, console)
        console.skipped(list(batch.skipped()), len(sources))
        if not batch.todo:
            return
        engine = _load(options, batch, stop, console) if any_readable(batch.todo) else None
        with console.progress(batch.todo) as hook:
            for result in batch.run(engine, None, hook):
                console.result(result)
        console.summary()
    raise typer.Exit(console.exit_code)


def _batch(
    options: DiarizeOptions, sources: list[Source], stores: Stores, stop: Stop, console: Console
) -> Batch:
    """The recordings that are to be diarized, and those that are up to date."""
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.batch.inputs import any_readable
    from forescribe.asr.batch.ledger import content_hash, settings_hash
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.batch.spool import Spool

    outputs = Outputs.plan(sources, options.output_dir, options.formats, stores=stores)
    files = [file for source in sources for file in outputs.files(source)]
    written = [file.resolve() for file in files if isinstance(file, Path)]
    if (
        options.transcript
        and not options.overwrite
        and Path(options.transcript).resolve() in written
    ):
        raise UsageError(
            f"--transcript {options.transcript} would be replaced: choose another -o, or --overwrite"
        )
    settings = ""
    if any_readable(sources):  # without a readable recording, no engine is looked for
        network = not options.local_files_only
        words = options.transcript is not None and content_hash(options.transcript)
        settings = settings_hash(options.speaker_settings(network=network) | {"words": words})
    return Batch(
        sources,
        outputs,
        settings=settings,
        overwrite=options.overwrite,
        spool=Spool(stores, place=options.spool),
        stop=stop,
        notice=console.notice,
    )


def _load(
    options: DiarizeOptions, batch: Batch, stop: Stop, console: Console
) -> SpeakerOnlyTranscriber:
    """The diarizer as a transcriber."""
    batch.fetch_ahead()
    console.status("loading the models")
    with stop.interruptible():
        from forescribe.diarize.speaker_finder import SpeakerOnlyTranscriber

        engine = options.load_diarizer(options.device, network=not options.local_files_only)
        return SpeakerOnlyTranscriber(engine, options.bounds, options.known_people, options.words)
