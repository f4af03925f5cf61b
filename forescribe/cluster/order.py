"""What every worker of a run is told: how its model is loaded, and what its machine must have.

    order = WorkOrder(load, options, batch=8, version=version("forescribe"), target=target)
    order.check_machine()                         # there: the same version, files and weights

A worker that could give other results than this machine, because its version or its weights differ, refuses
the run. Knows nothing of Ray.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.batch.ledger import weights_hash
from forescribe.asr.errors import ModelError, UsageError
from forescribe.asr.model.presets import locate
from forescribe.speculative.models.hub import find

if TYPE_CHECKING:
    from forescribe.asr.batch.batch import BatchTranscriber
    from forescribe.asr.decode.options import Options


@dataclass(frozen=True)
class WorkOrder:
    """`load` makes the transcriber of a worker; it is pickled, as a function by its name.

    `target` names the weights, `weights` is their fingerprint as the command sees them. `folder` is the
    command's working folder, against which paths are read, and `probe` a file that every worker must see.
    `spool` is the folder for copies of recordings, `threads` the cores of a worker, 0 for PyTorch's choice.
    """

    load: Callable[[], BatchTranscriber]
    options: Options
    batch: int
    version: str
    target: str | Path
    weights: str | None = None
    network: bool = True
    spool: str | None = None
    folder: str | None = None
    probe: str | None = None
    threads: int = 0

    def check_machine(self) -> None:
        """Check that this machine gives the command's results. Raises UsageError, ModelError."""
        host, own = socket.gethostname(), installed("forescribe")
        if own != self.version:
            raise UsageError(
                f"{host} has forescribe {own} and this command is {self.version}: install the same "
                "version on all machines of the cluster"
            )
        if self.folder is not None and os.path.isdir(self.folder):
            os.chdir(self.folder)  # relative paths, in messages too, are those of the command
        if self.probe is not None and not os.path.exists(self.probe):
            raise UsageError(
                f"{host} does not see {self.probe}: recordings have to be on storage that all machines of "
                "the cluster mount at the same place, or in object storage (s3://...)"
            )
        if self.weights is None:
            return
        folder = locate(self.target) if self.network else find(self.target)
        if folder is not None and weights_hash(folder) != self.weights:
            raise ModelError(
                f"{host} has other weights of {self.target} than this machine: results would depend on "
                "the machine. Load the same revision on all of them",
                code="model_mismatch",
            )
