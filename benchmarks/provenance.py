"""The provenance record of these benchmarks; see `forescribe.bench.provenance`."""

from __future__ import annotations

from forescribe.bench import provenance
from forescribe.bench.provenance import ROOT

__all__ = ["ROOT", "record"]


def record(program: str) -> dict[str, object]:
    """Return date, command, versions, commit and machine; `program` is the name of a module."""
    return provenance.record(f"python -m {program}")
