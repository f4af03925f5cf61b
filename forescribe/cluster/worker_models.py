"""What a worker loads before its first recording, and what it checks first.

The same models, options and speakers as in `forescribe transcribe` on one machine, so that the results are
the same. A worker that could give other results, because its versions or weights differ, refuses the run.
"""

from __future__ import annotations

import os
import socket
from importlib.metadata import version
from typing import TYPE_CHECKING

from forescribe.asr.errors import ModelError, UsageError

from .cluster_worker import ClusterWorker
from .work_records import WorkOrder

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import BatchTranscriber
    from forescribe.asr.decode.transcriber import Transcriber


def prepared_worker(order: WorkOrder) -> ClusterWorker:
    """Load the models of an order. Raises UsageError for another version or storage that this machine does
    not see, ModelError for weights that are missing or differ."""
    from forescribe.asr.batch.batch import TranscriberFactory
    from forescribe.asr.sessions.readers import reading_ahead

    check_machine(order)

    def load(size: int) -> Transcriber:
        from forescribe.asr.decode.transcriber import Transcriber

        _set_threads(order)
        return Transcriber.load(**order.models, batch=size, network=order.network)

    speakers = order.speakers
    with_speakers = (
        speakers.load(device=order.device, network=order.network) if speakers is not None else None
    )
    factory = TranscriberFactory(load)
    factory(order.batch)  # now, so that errors of the model are those of the start

    def make(size: int) -> BatchTranscriber:
        _set_threads(order)
        current = factory.current
        if current is None or current.batch != size:
            current = factory(size)
        return reading_ahead(
            current if with_speakers is None else with_speakers(current),
            order.readers,
            recordings=2,  # or more, which is not known here
            on_cpu=current.whisper.device.kind == "cpu",
        )

    return ClusterWorker(order, make, stats=factory.stats)


def _set_threads(order: WorkOrder) -> None:
    """A number of threads holds for the thread that sets it."""
    if order.threads:
        import torch

        torch.set_num_threads(order.threads)


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
            order = _unseen(order, host)
    if order.probe is not None and not os.path.exists(order.probe):
        _unseen(order, host)
    _check_weights(order, host)


def _unseen(order: WorkOrder, host: str) -> WorkOrder:
    raise UsageError(
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
