"""A pruned draft's folder, with the distances that decided it.

Knows pairs and rows; nothing of the command.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forescribe.asr.errors import UsageError

from ..labels.label_rows import LabelRow
from ..pairs.draft_pair import DraftPair
from ..whole_files import put_bytes, writing
from .angular_distance import AngularDistances, Choice, spaced
from .layer_choice import measured_distances


@dataclass(frozen=True)
class PruneReport:
    """The layers that were kept of `depth`, and the distances of all blocks, where they were measured."""

    kept: tuple[int, ...]
    depth: int
    distances: AngularDistances | None

    def lines(self) -> list[str]:
        """The least distance of each block length, for people."""
        if self.distances is None:
            return []
        found = [
            f"angular distances over {self.distances.tokens:,} tokens (0: no change, 1: reversed)"
        ]
        for length in range(1, self.depth):
            row = self.distances.of[length]
            first = min(range(len(row)), key=lambda start: row[start])
            found.append(
                f"  without {length} of {self.depth}: layers {first} to {first + length - 1}, "
                f"{row[first]:.3f}"
            )
        return found

    def to_json(self) -> str:
        data = {
            "kept": self.kept,
            "depth": self.depth,
            "tokens": None if self.distances is None else self.distances.tokens,
            "distances": None
            if self.distances is None
            else {str(n): [round(d, 5) for d in row] for n, row in self.distances.of.items()},
        }
        return json.dumps(data, indent=1) + "\n"


def pruned_folder(
    pair: DraftPair, rows: Sequence[LabelRow], output: Path, *, layers: int, choose: Choice
) -> PruneReport:
    """Write a draft with this many of the target's layers, chosen as `choose` says. Raises UsageError
    for a number that the model does not have, or without rows to measure; OutputError."""
    depth = len(pair.layers(pair.target))
    distances = measured_distances(pair, rows) if rows else None
    kept = spaced(layers, depth)
    if choose != "spacing":
        if distances is None:
            raise UsageError(
                "layers are compared on data, and this data has neither speech nor text"
            )
        kept = distances.chosen(layers, choose)
    draft = pair.pruned(kept)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        pair.save(draft, output)
    return PruneReport(kept, depth, distances)


def keep_report(output: Path, report: PruneReport) -> None:
    """Write `prune.json` beside the draft. Raises OutputError."""
    put_bytes(output / "prune.json", report.to_json().encode())
