"""`forescribe transcribe`: recordings to text, subtitles and JSON.

Knows the order of the work, the exit code and the list of `--dry-run`; finding inputs, decoding and writing
happen elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError, visible

from .console import file_names
from .option_records import takes
from .options import codes_of
from .transcribe_options import HERE, TranscribeOptions

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch, BatchTranscriber
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.storage.locations import Source
    from forescribe.asr.storage.stores import Stores

    from ..cluster.order import WorkOrder
    from .console import Console


MOST_READERS = 8
"""Readers by default, at most: at 350 times for each, eight read mp3 faster than a model transcribes."""

OTHER_CORES = 2
"""Cores that readers leave to the model's own thread and to the rest of the process."""


@takes(TranscribeOptions)
def transcribe(**values: Any) -> None:
    """Transcribe recordings to text, subtitles and JSON.

    Recordings whose results are up to date are skipped; manifest.jsonl in the output folder has a
    record of every recording."""
    options = TranscribeOptions(**values)
    from forescribe.asr.batch.inputs import any_readable, check_readable, discover
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.formats.report import Reports
    from forescribe.asr.storage.stores import Stores

    from .console import Console

    console = Console(
        quiet=options.quiet or options.records,
        verbose=options.verbose,
        records=options.records,
        stats=options.stats,
    )
    options = replace(options, language=codes_of(options.language, console.notice))
    stores = Stores()
    recordings = discover(options.audio, recursive=options.recursive, stores=stores)
    sources = check_readable(recordings, decode=not options.dry_run)
    outputs = Outputs.plan(
        sources,
        options.output_dir,
        options.formats,
        stores=stores,
        rules=options.line_rules,
        dry_run=options.dry_run,
    )
    reports = None
    if options.report is not None:
        reports = Reports.plan(options.report, outputs.stems)
    elif options.wants_words and options.line_rules.plain and "json" not in outputs.formats:
        console.notice("--word-timestamps: only json holds the times of words; add it to -f")
    with Stop() as stop:
        batch = _batch(options, sources, outputs, stores, stop, console)
        if options.dry_run:
            raise typer.Exit(list_batch(batch, as_json=options.records))
        console.skipped(list(batch.skipped()), len(sources), reports)
        if batch.todo:
            transcriber: BatchTranscriber | None = None
            readable = any_readable(batch.todo)
            if readable and options.workers_at is not None:
                transcriber = _on_workers(options, batch, console)
            elif readable:
                batch.fetch_ahead()
                console.status("loading the model")
                with stop.interruptible():
                    transcriber = load_transcriber(options, len(batch.todo), console.notice)
            # Not if the terminal gets the text itself.
            shown = outputs.where is not None or not sys.stdout.isatty()
            with console.progress(batch.todo, text=shown) as hook:
                for result in batch.run(transcriber, options.timed, hook):
                    console.result(result, reports)
            console.summary(vad=options.decoding.vad)
        for page in reports.close() if reports else ():
            console.status(f"report: {page}")
    raise typer.Exit(console.exit_code)


def list_batch(batch: Batch, *, as_json: bool) -> int:
    """Print what would be written or skipped; returns the exit code, 1 if a recording cannot be
    read."""
    for source in batch.done:
        status = "pending" if batch.writer.lacks(source) else "skipped"
        typer.echo(_line(batch, source, status, as_json=as_json))
    for source in batch.todo:
        status = "failed" if source.error else "pending"
        typer.echo(_line(batch, source, status, as_json=as_json))
    return int(any(source.error is not None for source in batch.todo))


def _line(batch: Batch, source: Source, status: str, *, as_json: bool) -> str:
    files, error = batch.outputs.files(source), source.error
    if as_json:
        entry: dict[str, object] = {
            "path": source.path,
            "status": status,
            "outputs": [*map(str, files)],
        }
        if error:
            entry |= {"code": error.code, "message": error.message}
        return dumps(entry)
    if error:
        return f"failed: {error.message}"
    if status == "skipped":
        return visible(f"{source.path}: already done")
    return visible(f"{source.path} -> {file_names(files) if files else 'stdout'}")


def _batch(
    options: TranscribeOptions,
    sources: list[Source],
    outputs: Outputs,
    stores: Stores,
    stop: Stop,
    console: Console,
) -> Batch:
    """The recordings that are to be transcribed, and those that are up to date."""
    from forescribe.asr.batch.batch import Batch
    from forescribe.asr.batch.inputs import any_readable
    from forescribe.asr.batch.ledger import settings_hash, weights_hash
    from forescribe.asr.batch.spool import Spool
    from forescribe.asr.model.presets import beams_of, check_request, locate, resolve
    from forescribe.speculative.models.hub import find

    target = resolve(options.model, options.draft).target
    check_request(target, options.language, options.task)
    with stop.interruptible():
        settings = ""
        if any_readable(sources):  # else neither weights nor a model are looked for
            network = not (options.local_files_only or options.dry_run)
            folder = find(target)
            if network or folder is not None or isinstance(target, Path):  # may need conversion
                folder = locate(target, network=network)
            settings = settings_hash(
                {
                    **options.result_settings(beams_of(target, folder)),
                    **(options.speaker_settings(network=network) if options.names_speakers else {}),
                    "model": str(target) if folder is None else weights_hash(folder),
                }
            )
        return Batch(
            sources,
            outputs,
            settings=settings,
            overwrite=options.overwrite,
            fail_fast=options.fail_fast,
            spool=Spool(stores, place=options.spool),
            elsewhere=options.workers_at is not None,
            stop=stop,
            notice=console.notice,
        )


def load_transcriber(
    options: TranscribeOptions, recordings: int, tell: Callable[[str], None] = lambda advice: None
) -> BatchTranscriber:
    """What transcribes so many recordings, here or on a machine of a cluster. Raises ModelError, DeviceError
    and UsageError."""
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    network = not options.local_files_only
    with_speakers = options.add_speakers(options.device, network)
    transcriber = options.load(tell)
    on_cpu = transcriber.whisper.device.kind == "cpu"
    beside = 1 if options.cluster else options.workers or 1
    readers = readers_for(options.readers, recordings=recordings, on_cpu=on_cpu, beside=beside)
    return with_speakers(transcriber.with_readers(readers))


def readers_for(readers: int | None, *, recordings: int, on_cpu: bool, beside: int = 1) -> int:
    """How many readers there are for a call; None chooses: none on a CPU, whose cores the model uses.
    `beside`: processes that share the cores."""
    if readers is not None:
        return readers
    spare = len(os.sched_getaffinity(0)) // beside - OTHER_CORES
    return 0 if on_cpu else max(1, min(MOST_READERS, spare, recordings))


def _on_workers(options: TranscribeOptions, batch: Batch, console: Console) -> BatchTranscriber:
    """The workers of a cluster, or of this machine, in place of a model. Raises UsageError for recordings or
    a number of workers that cannot be used; Ray is started or connected with the first recording."""
    from ..cluster.workers import ClusterTranscriber, cards_for

    cards = None
    if options.cluster is None and options.workers is not None:  # on this machine
        cards = cards_for(options.device, options.workers)
    recordings = [source for source in batch.todo if source.error is None]
    return ClusterTranscriber(
        options.cluster or HERE,
        work_order(options, recordings),
        recordings,
        console.status,
        device=options.device,
        workers=options.workers,
        threads=options.threads,
        cards=cards,
    )


def work_order(options: TranscribeOptions, recordings: list[Source]) -> WorkOrder:
    """What every worker of a cluster is told. Raises UsageError for a recording that they cannot read."""
    from forescribe.asr.batch.ledger import weights_hash
    from forescribe.asr.model.presets import resolve
    from forescribe.speculative.models.hub import find

    from ..cluster.order import WorkOrder

    paths = [source.path for source in recordings if source.location is None]
    for path in paths:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"workers cannot read the pipe {path}; write it to a file first")
    there = replace(  # a folder is named from the root: workers have their own
        options, audio=[], model=_absolute(options.model), draft=_absolute(options.draft)
    )
    target = resolve(there.model, there.draft).target
    weights = find(target) if recordings else None
    return WorkOrder(
        partial(load_transcriber, there, 2),  # or more recordings, which is not known there
        options.timed,
        batch=options.batch_size,
        version=version("forescribe"),
        target=target,
        weights=None if weights is None else weights_hash(weights),
        network=not options.local_files_only,
        spool=options.spool,
        folder=os.getcwd(),
        probe=next((path for path in paths if os.path.exists(path)), None),
    )


def _absolute(model: str | None) -> str | None:
    return os.path.abspath(model) if model is not None and os.path.isdir(model) else model
