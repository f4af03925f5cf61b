"""The options of `forescribe transcribe` for a cluster, and which others cannot be used with it.

Knows words and combinations; nothing of Ray.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from forescribe.asr.errors import UsageError

from .option_records import PERFORMANCE, option

ClusterAddress = Annotated[
    str | None,
    option(
        PERFORMANCE,
        "--cluster",
        metavar="ADDRESS",
        help="Transcribe on a Ray cluster: ray://HOST:10001, HOST:6379, or auto for one on this machine.",
    ),
]
WorkerCount = Annotated[
    int | None,
    option(
        PERFORMANCE,
        "--workers",
        metavar="N",
        min=1,
        help="Workers on the cluster.  [default: one per accelerator, or per 4 cores]",
    ),
]

DEVICES = ("auto", "cuda", "hpu", "cpu")


class Options(Protocol):
    """The options that matter here, of `TranscribeOptions`."""

    @property
    def audio(self) -> list[str]: ...
    @property
    def cluster(self) -> str | None: ...
    @property
    def workers(self) -> int | None: ...
    @property
    def link_speakers(self) -> bool: ...
    @property
    def known(self) -> bool: ...
    @property
    def device(self) -> str: ...


def check(options: Options) -> None:
    """Raises UsageError for options that a cluster cannot serve."""
    if options.cluster is None:
        if options.workers is not None:
            raise UsageError(
                "--workers needs --cluster; one machine uses all of its cores by itself"
            )
        return
    if not options.cluster:
        raise UsageError("--cluster needs an address: auto, ray://HOST:10001 or HOST:6379")
    if "-" in options.audio:
        raise UsageError("--cluster: other machines cannot read stdin; write it to a file first")
    if options.link_speakers:
        raise UsageError(
            "--link-speakers compares each recording with all before it, which --cluster transcribes at "
            "the same time; leave out one of them"
        )
    if options.known:
        raise UsageError(
            "--known uses the voices that are enrolled on this machine, which others do not have; leave out "
            "--known or --cluster"
        )
    if options.device not in DEVICES:
        raise UsageError(
            f"--device {options.device}: on a cluster Ray chooses the devices; use {', '.join(DEVICES)}"
        )
