"""`forescribe transcribe`: recordings to text, subtitles and JSON.

Knows the order of the work, the exit code and the list of `--dry-run`; finding inputs, decoding and writing
happen elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import visible

from .console import file_names
from .option_records import takes
from .transcribe_options import TranscribeOptions

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch, BatchTranscriber, MakeTranscriber
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.formats.report import Reports
    from forescribe.asr.records.sources import Source
    from forescribe.asr.storage.stores import Stores
    from forescribe.speculative.stats import Stats

    from .console import Console


@takes(TranscribeOptions)
def transcribe(**values: Any) -> None:
    """Transcribe recordings to text, subtitles and JSON.

    Recordings whose results are up to date are skipped; manifest.jsonl in the output folder has a
    record of every recording."""
    options = TranscribeOptions(**values)
    from forescribe.asr.batch.inputs import check_readable, discover
    from forescribe.asr.batch.outputs import Outputs
    from forescribe.asr.storage.stores import Stores, telling

    from .console import Console

    console = Console(
        quiet=options.quiet or options.json, verbose=options.verbose, json=options.json
    )
    stores = Stores(telling(console.notice))
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
    reports = _reports(options, outputs, console)
    interrupted = False
    with Stop() as stop:
        batch = _batch(options, sources, outputs, stores, stop, console)
        if options.dry_run:
            raise typer.Exit(list_batch(batch, as_json=options.json))
        console.skipped(list(batch.skipped()), len(sources), reports)
        if batch.todo:
            decoder = (_on_cluster if options.cluster else _load)(options, batch, stop, console)
            try:
                with console.progress(batch.todo, text=outputs.leaves_terminal_free) as hook:
                    for result in batch.run(
                        decoder.make,
                        decoder.options,
                        size=options.batch_size,
                        hook=hook,
                        elsewhere=decoder.elsewhere,
                    ):
                        console.result(result, reports)
            except KeyboardInterrupt:
                interrupted = True
            console.summary(decoder.stats())
        console.close(reports)
    raise typer.Exit(console.exit_code(interrupted=interrupted))


def list_batch(batch: Batch, *, as_json: bool) -> int:
    """Print what would be written or skipped; returns the exit code, 1 if a recording cannot be
    read."""
    for source in batch.done:
        typer.echo(_line(batch, source, "skipped", as_json=as_json))
    for source in batch.todo:
        status = "failed" if source.error else "pending"
        typer.echo(_line(batch, source, status, as_json=as_json))
    return int(any(source.error is not None for source in batch.todo))


def _line(batch: Batch, source: Source, status: str, *, as_json: bool) -> str:
    files, error = batch.files(source), source.error
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


@dataclass(frozen=True)
class _Decoder:
    """A loaded model, ready for `Batch.run`."""

    make: MakeTranscriber
    options: Options | None
    stats: Callable[[], Stats | None]
    elsewhere: bool = False


def _reports(options: TranscribeOptions, outputs: Outputs, console: Console) -> Reports | None:
    """The HTML reports, if requested. Raises UsageError."""
    from forescribe.asr.formats.report import Reports

    if options.report is not None:
        return Reports.plan(options.report, outputs.stems)
    if options.wants_words and options.line_rules.plain and "json" not in outputs.formats:
        console.notice("--word-timestamps: only json holds the times of words; add it to -f")
    return None


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
    from forescribe.asr.batch.spool import Fetching
    from forescribe.asr.model.presets import made_for, resolve
    from forescribe.asr.model.special_tokens import check_request

    pair = resolve(options.model, options.draft)
    check_request(options.language, options.task, made_for(pair.target))
    with stop.interruptible():
        network = not (options.local_files_only or options.dry_run)
        # Without a readable recording, neither weights nor a model are looked for.
        readable = any_readable(sources)
        settings = _fingerprint(options, pair.target, network=network) if readable else ""
        outputs.begin(sources, settings, overwrite=options.overwrite, dry_run=options.dry_run)
        return Batch(
            sources,
            outputs,
            settings=settings,
            overwrite=options.overwrite,
            fail_fast=options.fail_fast,
            fetching=Fetching(stores, options.spool, options.spool_limit),
            stop=stop,
            notice=console.notice,
        )


def _fingerprint(options: TranscribeOptions, target: str | Path, *, network: bool) -> str:
    """The hash of everything that decides a result, weights included. Downloads the weights if they are
    missing and `network` allows it; raises ModelError only then."""
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.model.presets import locate
    from forescribe.speculative.models.hub import find

    folder = locate(target) if network else find(target)
    speakers = options.speakers
    return fingerprint.settings(
        {
            **options.result_settings(),
            **(speakers.settings(network=network) if speakers.requested else {}),
            "model": str(target) if folder is None else fingerprint.weights(folder),
        }
    )


def _load(options: TranscribeOptions, batch: Batch, stop: Stop, console: Console) -> _Decoder:
    """The model, or a placeholder that is never called if no recording can be read."""
    from forescribe.asr.audio.reader_pool import readers_for
    from forescribe.asr.batch.batch import TranscriberFactory
    from forescribe.asr.batch.inputs import any_readable

    if not any_readable(batch.todo):
        return _Decoder(_no_model, None, lambda: None)
    batch.fetch_ahead()
    console.status("loading the model")
    with stop.interruptible():
        from forescribe.asr.decode.transcriber import Transcriber
        from forescribe.asr.model.presets import locate, resolve
        from forescribe.asr.model.special_tokens import only_language
        from forescribe.speculative.native.kernel_build import advice

        decoding = options.decoding()
        if not options.local_files_only:  # the terminal is still free for the bars of downloads
            wanted = "none" if options.drafts == 0 else options.draft
            for name in resolve(options.model, wanted, only_language(options.language)).drafts:
                locate(name, role="draft")

    def load(size: int) -> Transcriber:
        if options.threads:
            import torch

            torch.set_num_threads(options.threads)
        network = not options.local_files_only
        return Transcriber.load(**options.load_arguments(), batch=size, network=network)

    with stop.interruptible():
        with_speakers = options.speakers.load(
            device=options.device, network=not options.local_files_only
        )
    factory = TranscriberFactory(load)

    def make(size: int) -> BatchTranscriber:
        decoding_only = factory(size)
        console.advice(
            advice(
                decoding_only.context.forward,
                asked=options.engine,
                device=decoding_only.whisper.device.kind,
            )
        )
        readers = readers_for(
            options.readers,
            recordings=len(batch.todo),
            on_cpu=decoding_only.whisper.device.kind == "cpu",
        )
        return with_speakers(decoding_only.with_readers(readers))

    return _Decoder(make, decoding, factory.stats)


def _on_cluster(options: TranscribeOptions, batch: Batch, stop: Stop, console: Console) -> _Decoder:
    """The workers of a cluster in place of a model."""
    from ..cluster.cluster_transcriber import cluster_decoder

    return _Decoder(*cluster_decoder(options, batch, console), elsewhere=True)


def _no_model(size: int) -> Transcriber:
    raise AssertionError("a model was requested although no recording can be read")
