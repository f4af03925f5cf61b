"""Compare settings of the embedded diarizer on readers that its PLDA was not trained on.

    python -m training.speakers.vectors DATA/speakers
    python -m training.speakers.tune_diarizer DATA --groups tuning fold0 --evidence 0.3 0.35

The tuning group is heard with the bundled PLDA, a fold of the training readers with one that the others
trained. The test group is not used. Networks run once per recording (training/made/speakers/tuning-*.pkl);
each combination repeats the clustering alone. Prints a row for each. The chosen values are the defaults of
diarize/engines/clustering.py.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.clustering import ClusterSettings, Plda, cluster
from forescribe.diarize.engines.embedded import described
from forescribe.diarize.engines.pieces import Activity, find_pieces, turns_of
from forescribe.diarize.turns import Turns
from training.speakers.conditions import GROUPS, conditions, readers
from training.speakers.folds import fold_of, split
from training.speakers.plda import Data, learn, store
from training.speakers.turn_errors import Errors, turn_errors
from training.speakers.vectors import WORK

SEEDS = {"tuning": 11, "fold0": 100, "fold1": 101, "fold2": 102}

Heard = list[tuple[str, Turns, int, Activity, Any]]
"""Condition, reference, samples, activity and vectors [N, 192] of each recording."""


def heard(data: Path, group: str) -> Heard:
    """What the networks hear in the recordings of a group."""
    path = WORK / f"tuning-{group}.pkl"
    if path.exists():
        found: Heard = pickle.loads(path.read_bytes())  # written here
        return found
    engine = embedded.build(embedded.folder())
    found = []
    for condition, mixtures in conditions(readers(data, group), SEEDS[group]):
        for mixture in mixtures:
            activity = find_pieces(
                mixture.samples, engine.segmentation.probabilities(mixture.samples)
            )
            vectors = engine.vectors(mixture.samples, activity)
            found.append((condition, mixture.turns, len(mixture.samples), activity, vectors))
        print(f"{group}: {condition}", flush=True)
    path.write_bytes(pickle.dumps(found))
    return found


def plda_for(group: str) -> Plda:
    """A PLDA that was not trained on the readers of a group."""
    if not group.startswith("fold"):
        return Plda(embedded.folder())
    data, fold = Data.load(), int(group.removeprefix("fold"))
    training = split(sorted(set(data.speakers.tolist()))).training
    folder = WORK / group
    folder.mkdir(exist_ok=True)
    store(learn(data.of([s for s in training if fold_of(s) != fold])), folder)
    return Plda(folder)


def evaluate(parts: Sequence[tuple[Heard, Plda]], settings: ClusterSettings) -> dict[str, Errors]:
    """Errors by condition."""
    found: dict[str, Errors] = {}
    for recordings, plda in parts:
        for condition, reference, length, activity, vectors in recordings:
            turns = Turns()
            if activity.pieces:
                clusters = cluster(described(activity, plda(vectors)), plda, 1, 100, settings)
                turns, _ = turns_of(activity, clusters.labels, clusters.chances.max(1))
            errors = turn_errors(reference, turns, length)
            found[condition] = found.get(condition, Errors()) + errors
    return found


def row(errors: dict[str, Errors]) -> str:
    pooled = sum(errors.values(), Errors())
    parts = []
    for name, e in errors.items():
        right = sum(count == 0 for count in e.counted)
        parts.append(f"{name} {100 * e.der:.1f} ({100 * e.confusion:.1f}) {right}/{len(e.counted)}")
    parts.append(
        f"all {100 * pooled.der:.2f} ({100 * pooled.confusion:.2f}) {100 * pooled.right:.0f} %"
    )
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--groups", nargs="+", default=["tuning"], choices=[g for g in GROUPS if g != "test"]
    )
    for item in fields(ClusterSettings):
        kind = int if isinstance(item.default, int) else float
        name = f"--{item.name.replace('_', '-')}"
        parser.add_argument(name, type=kind, nargs="+", default=[item.default])
    given = parser.parse_args()
    parts = [(heard(given.data, group), plda_for(group)) for group in given.groups]
    names = [item.name for item in fields(ClusterSettings)]
    for values in product(*(getattr(given, name) for name in names)):
        changed = {
            n: v for n, v in zip(names, values, strict=True) if v != getattr(ClusterSettings(), n)
        }
        print(
            f"{changed}: {row(evaluate(parts, ClusterSettings(**dict(zip(names, values, strict=True)))))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
