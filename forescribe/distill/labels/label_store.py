"""Labels on disk: a file of rows for each recording, or for each group of prompts.

A file appears whole or not at all, so a run that was killed goes on with those that are there. Encoder
states are stored in float16 and are read row by row. Knows rows and files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from forescribe.asr.errors import UsageError

from ..whole_files import put_bytes
from .label_rows import LabelRow
from .sparse_distribution import SparseDistribution


class LabelStore:
    """The labels of a folder, which is created. Raises OutputError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def key(*names: str | int) -> str:
        """A file name for what is labelled together."""
        return hashlib.sha256("\0".join(map(str, names)).encode(errors="replace")).hexdigest()[:20]

    def has(self, key: str) -> bool:
        """Whether this was labelled, by this run or one before."""
        return self._path(key).exists()

    def add(self, key: str, rows: Sequence[LabelRow]) -> None:
        """Keep the rows of one recording; none where it has no speech. Raises OutputError."""
        tensors: dict[str, Tensor] = {}
        if rows:
            tensors["tokens"] = torch.tensor([t for row in rows for t in row.tokens]).int()
            tensors["ids"] = torch.cat([row.wanted.ids for row in rows]).int()
            tensors["logs"] = torch.cat([row.wanted.logs for row in rows]).half()
        loaded = [row.states() for row in rows if row.states is not None]
        if loaded:
            tensors["target_states"] = torch.stack([target for target, _ in loaded]).half()
            if any(target is not draft for target, draft in loaded):
                tensors["draft_states"] = torch.stack([draft for _, draft in loaded]).half()
        about = [[r.source, r.kind, len(r.tokens), r.begin, r.greedy] for r in rows]
        data = save(tensors, metadata={"rows": json.dumps(about)})
        self.folder.mkdir(parents=True, exist_ok=True)
        put_bytes(self._path(key), data)

    def rows(self) -> list[LabelRow]:
        """All rows, in an order that does not depend on when they were made. Raises UsageError for a
        damaged file."""
        found: list[LabelRow] = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                found += _read(path)
            except Exception as error:  # safetensors has an exception of its own for every fault
                raise UsageError(f"{path} is damaged ({error}): delete it") from error
        return found

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def _read(path: Path) -> Iterator[LabelRow]:
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {})["rows"])
        if not about:
            return
        tokens = file.get_tensor("tokens").tolist()
        ids, logs = file.get_tensor("ids").long(), file.get_tensor("logs").float()
        spoken = "target_states" in file.keys()
    start = place = 0
    for number, (source, kind, length, begin, greedy) in enumerate(about):
        stop, until = start + length, place + length - begin
        yield LabelRow(
            source,
            kind,
            tuple(tokens[start:stop]),
            begin,
            greedy,
            SparseDistribution(ids[place:until], logs[place:until]),
            partial(_states, path, number) if spoken else None,
        )
        start, place = stop, until


def _states(path: Path, number: int) -> tuple[Tensor, Tensor]:
    """The encoder states `[S, D]` of a row: for the target and for the draft."""
    with safe_open(path, "pt") as file:
        target = file.get_slice("target_states")[number].float()
        if "draft_states" not in file.keys():
            return target, target
        return target, file.get_slice("draft_states")[number].float()
