"""Where results go, by what was named: a folder of this machine, stdout, or a location.

    outputs = plan_outputs(sources, "s3://out/2026", "json,srt", stores=Stores())

Knows the two kinds of outputs; writes nothing but a probe.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...formats.subtitles import PLAIN, LineRules
from ...records.recording_sources import Source
from ...storage.locations import Location, is_url
from ...storage.opening_stores import Stores
from ..outputs import Outputs
from .recorded_outputs import RecordedOutputs


def plan_outputs(
    sources: Sequence[Source],
    where: str,
    names: str,
    *,
    stores: Stores,
    rules: LineRules = PLAIN,
    dry_run: bool = False,
) -> Outputs | RecordedOutputs:
    """See `Outputs.plan` and `RecordedOutputs.plan`; with `dry_run` nothing is created."""
    location = Location.parse(where) if is_url(where) else None
    if location is not None and location.scheme == "file":
        where, location = location.key, None
    if location is None:
        return Outputs.plan(sources, where, names, rules=rules, make_folder=not dry_run)
    return RecordedOutputs.plan(
        sources, location, names, rules=rules, stores=stores, check=not dry_run
    )


__all__ = ["plan_outputs"]
