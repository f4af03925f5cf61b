"""`forescribe transcribe --cluster`: the workers of a Ray cluster in place of the local model.

From the command's options to what every worker is told. Finding recordings, writing results and records, and
the console are those of the local command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import UsageError
from forescribe.asr.records.sources import Source

from .work_records import WorkOrder

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import Batch, MakeTranscriber
    from forescribe.asr.decode.options import Options
    from forescribe.cli.options.transcribe_options import TranscribeOptions
    from forescribe.cli.terminal.console import Console
    from forescribe.speculative.stats import Stats

    from .cluster_transcriber import ClusterTranscriber

Decoder = tuple["MakeTranscriber", "Options", Callable[[], "Stats | None"]]


def cluster_decoder(options: TranscribeOptions, batch: Batch, console: Console) -> Decoder:
    """What `Batch.run` needs, on a cluster. Raises UsageError for an address or recordings that cannot be
    used; Ray is started or connected with the first recording."""
    from .cluster_transcriber import ClusterTranscriber
    from .ray_connection import check_address, require_ray
    from .ray_fleet import RayFleet

    assert options.cluster is not None
    check_address(options.cluster)
    require_ray()
    order = order_of(options, [source for source in batch.todo if source.error is None])
    made: list[ClusterTranscriber] = []

    def make(size: int) -> ClusterTranscriber:
        fleet = RayFleet(
            str(options.cluster),
            device=options.device,
            workers=options.workers,
            threads=options.threads,
            status=console.status,
        )
        made[:] = [
            ClusterTranscriber(
                fleet,
                order,
                [source for source in batch.todo if source.error is None],
                notice=console.notice,
                status=console.status,
            )
        ]
        return made[0]

    return make, order.options, lambda: made[0].stats() if made else None


def order_of(options: TranscribeOptions, recordings: Sequence[Source]) -> WorkOrder:
    """What every worker is told. Raises UsageError for a recording that other machines cannot read."""
    paths = [source.path for source in recordings if source.location is None]
    for path in paths:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(
                f"--cluster: other machines cannot read the pipe {path}; write it to a file first"
            )
    speakers = options.speakers
    return WorkOrder(
        version=version("forescribe"),
        models=_models(options),
        options=options.decoding(),
        batch=options.batch_size,
        readers=options.readers,
        speakers=speakers if speakers.requested else None,
        device=options.device,
        network=not options.local_files_only,
        weights=_weights(options) if recordings else None,
        spool=options.spool,
        spool_bytes=options.spool_limit,
        folder=os.getcwd(),
        probe=next((path for path in paths if os.path.exists(path)), None),
    )


def _models(options: TranscribeOptions) -> dict[str, Any]:
    """The arguments of `Transcriber.load`. A folder is named from the root: workers have their own."""
    return {
        "model": _absolute(options.model),
        "draft": _absolute(options.draft),
        "language": options.language,
        "device": options.device,
        "dtype": options.dtype,
        "draft_dtype": options.draft_dtype,
        "quantize": options.quantize,
        "engine": options.engine,
        "gamma": options.drafts,
        "drafter": options.draft_source,
    }


def _absolute(model: str | None) -> str | None:
    return os.path.abspath(model) if model is not None and os.path.isdir(model) else model


def _weights(options: TranscribeOptions) -> str | None:
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.model.presets import resolve
    from forescribe.speculative.models.hub import find

    folder = find(resolve(options.model, options.draft).target)
    return None if folder is None else fingerprint.weights(folder)
