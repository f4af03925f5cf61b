"""What every worker of a run is told: the options of the command, and what its machine must have.

    order = order_of(options, recordings)         # here
    check_machine(order)                          # there: the same version, files and weights

A worker that could give other results than one machine, because its versions or weights differ, refuses the
run. Knows nothing of Ray.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import ModelError, UsageError
from forescribe.asr.records.sources import Source

from .results import Writing

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options

    from ..cli.speaker_options import SpeakerOptions
    from ..cli.transcribe_options import TranscribeOptions

OPTIONS = frozenset(
    "model draft local_files_only language task initial_prompt reference_text timestamps word_timestamps vad "
    "long_form condition_on_previous_text guards compression_ratio_threshold logprob_threshold "
    "no_speech_threshold temperature_increment_on_fallback diarize diarizer num_speakers min_speakers "
    "max_speakers channels gamma batch_size device dtype quantize draft_dtype engine threads "
    "readers spool spool_bytes".split()
)
"""Options of `forescribe transcribe`, by field, that say how a recording is transcribed."""


@dataclass(frozen=True)
class WorkOrder:
    """What every worker of a run does: `models` are the arguments of `Transcriber.load`.

    `weights` is the fingerprint of the target's files as the driver sees them; a worker with other files
    refuses. `folder` is the driver's working folder, against which paths are read. `probe` is a file that
    every worker must see. `writing` is where workers write results; None: the driver writes them.
    """

    version: str
    models: Mapping[str, Any]
    options: Options
    batch: int = 8
    threads: int = 0
    readers: int | None = None
    speakers: SpeakerOptions | None = None
    device: str = "auto"
    network: bool = True
    weights: str | None = None
    spool: str | None = None
    spool_bytes: int | None = None
    folder: str | None = None
    probe: str | None = None
    progress: bool = False  # whether windows are reported
    writing: Writing | None = None


def order_of_options(options: dict[str, Any]) -> WorkOrder:
    """What an actor loads. Raises UsageError for an option that is unknown or impossible."""
    from ..cli.transcribe_options import TranscribeOptions

    unknown = options.keys() - OPTIONS
    if unknown:
        raise UsageError(
            f"{', '.join(sorted(unknown))}: no option of an operator; known: {', '.join(sorted(OPTIONS))}"
        )
    given = TranscribeOptions(audio=[], cluster="auto", **options)
    return order_of(given, [])


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
        # A folder is named from the root: workers have their own.
        models=options.load_arguments()
        | {"model": _absolute(options.model), "draft": _absolute(options.draft)},
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


def check_machine(order: WorkOrder) -> None:
    """Check that this machine gives the driver's results: same version, same files, same weights."""
    host, own = socket.gethostname(), version("forescribe")
    if own != order.version:
        raise UsageError(
            f"{host} has forescribe {own} and this command is {order.version}: install the same version "
            "on all machines of the cluster"
        )
    if order.folder is not None:
        if os.path.isdir(order.folder):
            os.chdir(order.folder)  # relative paths, in messages too, are those of the command
        elif order.probe is not None and not os.path.isabs(order.probe):
            raise _unseen(order, host)
    if order.probe is not None and not os.path.exists(order.probe):
        raise _unseen(order, host)
    _check_weights(order, host)


def _absolute(model: str | None) -> str | None:
    return os.path.abspath(model) if model is not None and os.path.isdir(model) else model


def _weights(options: TranscribeOptions) -> str | None:
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.model.presets import resolve
    from forescribe.speculative.models.hub import find

    folder = find(resolve(options.model, options.draft).target)
    return None if folder is None else fingerprint.weights(folder)


def _unseen(order: WorkOrder, host: str) -> UsageError:
    return UsageError(
        f"{host} does not see {order.probe}: recordings have to be on storage that all machines of the "
        "cluster mount at the same place, or in object storage (s3://...)"
    )


def _check_weights(order: WorkOrder, host: str) -> None:
    if order.weights is None:
        return
    from forescribe.asr.batch import fingerprint
    from forescribe.asr.model.presets import locate, resolve
    from forescribe.speculative.models.hub import find

    target = resolve(order.models["model"], order.models["draft"]).target
    folder = locate(target) if order.network else find(target)
    if folder is not None and fingerprint.weights(folder) != order.weights:
        raise ModelError(
            f"{host} has other weights of {target} than this machine: results would depend on the "
            "machine. Load the same revision on all of them",
            code="model_mismatch",
        )
