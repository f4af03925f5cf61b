"""Folders that the programs of `training` read and write."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""

DATA = ROOT / "training" / "data"
"""Committed sentences, word lists and card templates."""

MADE = ROOT / "training" / "made"
"""Working data, which git ignores: clips, checkpoints, vectors."""

BUNDLED = ROOT / "bundled"
"""The models that ship with the package."""

SAMPLES = ROOT / "samples"
