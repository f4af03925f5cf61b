"""What a driver and its workers tell each other: records that are pickled, small and without samples.

    order     -> once, when a worker starts: models, options, threads
    Source    -> a recording, by its path or location
    Report    <- recordings that have ended or are given back, progress, statistics

Knows neither Ray nor models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import ForescribeError
from forescribe.speculative.stats import Stats

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options, Progress
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.storage.locations import Entry
    from forescribe.cli.options.speaker_options import SpeakerOptions


@dataclass(frozen=True)
class WorkOrder:
    """What every worker of a run does: `models` are the arguments of `Transcriber.load`.

    `weights` is the fingerprint of the target's files as the driver sees them; a worker with other files
    refuses. `folder` is the driver's working folder, against which paths are read. `probe` is a file that
    every worker must see.
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


@dataclass(frozen=True)
class Finished:
    """A recording that has ended on a worker. `content` is the SHA-256 of the bytes it was made from, and
    `entry` what its store says about them."""

    path: str
    transcript: Transcript | None
    error: ForescribeError | None
    wall_s: float
    content: str | None
    entry: Entry | None = None


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that has loaded its models."""

    host: str
    process: int
    device: str


@dataclass(frozen=True)
class Report:
    """What has happened on a worker since its last report.

    `returned` are recordings that it will not finish, because its machine is taken away. `error` is a reason
    for which the run cannot go on, such as a language that the model does not have; `broken` says that the
    worker is of no more use, for instance because its GPU does not answer. `stats` are those since it
    started.
    """

    finished: tuple[Finished, ...] = ()
    returned: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    notices: tuple[str, ...] = ()
    stats: Stats = field(default_factory=Stats)
    leaving: bool = False
    broken: str | None = None
    error: Exception | None = None
