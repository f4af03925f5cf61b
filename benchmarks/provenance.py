"""Provenance of what the programs in this folder measure; see `bench.provenance`."""

from __future__ import annotations

from forescribe.bench import provenance
from forescribe.bench.provenance import ROOT

__all__ = ["ROOT", "record"]


def record(program: str) -> dict[str, object]:
    """Date, command, versions, commit and machine; `program` is a module's name."""
    return provenance.record(f"python -m {program}")
