"""The arguments of native forwards, choices and drafts, from tensors.

Checks what an address cannot say, once for a call. Knows addresses; nothing of models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.slot_model import path_slots
from ..rounds.choice import Allowed, Choice
from . import structures as c
from .library import Library
from .structures import Step
from .tensor_checks import checked
from .workspace import Workspace


def step_of(
    tokens: Tensor,
    start: Tensor,
    reach: int,
    *,
    width: int,
    columns: int,
    workspace: Workspace,
    size: int,
    logits: Tensor | None = None,
    hidden: Tensor | None = None,
    rows: Tensor | None = None,
    node: Tensor | None = None,
    tree: tuple[Tensor, Tensor] | None = None,
    tap_layers: Tensor | None = None,
    taps: Tensor | None = None,
) -> Step:
    """The step over `tokens [B, N]` from slot `start [B]` on, with `size` bytes of the workspace and torch's
    number of threads, for a model of `width` with logits of `columns` tokens. `rows [B]` are those of the
    caches and `node [B]` the only nodes with logits. `tree` is depths, int64, and ancestry, bool;
    `taps [B, N, H, D]` receive the states that enter `tap_layers [H]`. Integers are int64, numbers float32.

    The record keeps the tensors that it leads to. Raises ValueError for a tensor of another dtype, device or
    shape."""
    batch, nodes = tokens.shape
    step = Step(
        batch=batch,
        nodes=nodes,
        reach=reach,
        workspace=workspace.at_least(size),
        workspace_bytes=size,
        threads=torch.get_num_threads(),
    )
    step.kept = kept = []

    def address(name: str, tensor: Tensor, dtype: torch.dtype, *shape: int) -> int:
        kept.append(checked(name, tensor, dtype, *shape))
        return kept[-1].data_ptr()

    step.tokens = address("tokens", tokens, torch.int64, batch, nodes)
    step.start = address("start", start, torch.int64, batch)
    if rows is not None:
        step.rows = address("rows", rows, torch.int64, batch)
    if node is not None:
        step.node = address("node", node, torch.int64, batch)
    if tree is not None:
        step.depths = address("depths", tree[0], torch.int64, nodes)
        step.ancestry = address("ancestry", tree[1], torch.bool, nodes, nodes)
    if logits is not None:
        read = nodes if node is None else 1
        step.logits = address("logits", logits, torch.float32, batch, read, columns)
    if hidden is not None:
        step.hidden = address("hidden", hidden, torch.float32, batch, nodes, width)
    if tap_layers is not None and taps is not None:
        step.tap_count = count = len(tap_layers)
        step.tap_layers = address("tap_layers", tap_layers, torch.int64, count)
        step.taps = address("taps", taps, torch.float32, batch, nodes, count, width)
    return step


class GreedyDraft:
    """Room for `gamma` drafts of each of the rows `active [B]`, and the record that a native call fills;
    `columns` are those of the logits, `listed [columns]` their tokens where the head is cut. Raises
    ValueError for a tensor of another dtype, device or shape."""

    def __init__(
        self,
        batch: int,
        active: Tensor,
        gamma: int,
        columns: int,
        confidence: float,
        listed: Tensor | None = None,
    ) -> None:
        self._active = checked("active", active, torch.bool, batch)
        self._listed = None if listed is None else checked("listed", listed, torch.int64, columns)
        self._tokens = torch.empty((gamma, batch), dtype=torch.int64)
        self._start = torch.empty(batch, dtype=torch.int64)
        self._numbers = torch.empty((2, batch))
        address = self._numbers.data_ptr()
        self.record = c.Draft(
            depths=gamma,
            columns=columns,
            active=self._active.data_ptr(),
            ids=None if self._listed is None else self._listed.data_ptr(),
            tokens=self._tokens.data_ptr(),
            start=self._start.data_ptr(),
            logprobs=address,
            belief=address + 4 * batch,
            confidence=confidence,
        )

    def tokens(self) -> Tensor:
        """The drafts `[B, W]`; W is below gamma where they have ended early."""
        return self._tokens[: self.record.drafted].t()


def choose_natively(library: Library, logits: Tensor, allowed: Allowed | None) -> Choice:
    """As `rounds.choice.choose`, as one call: no masked logits are made. Where `joint` decides between two
    sides that are equal to rounding, the sums' order may decide otherwise than torch's. Raises ValueError for
    a tensor of another dtype, device or shape."""
    rows, nodes, vocab = logits.shape
    logits = checked("logits", logits, torch.float32, rows, nodes, vocab)
    best = Choice(torch.empty((rows, nodes), dtype=torch.int64), torch.empty((rows, nodes)))
    record = c.Choice(
        count=rows * nodes,
        vocab=vocab,
        logits=logits.data_ptr(),
        tokens=best.tokens.data_ptr(),
        logprobs=best.logprobs.data_ptr(),
        threads=torch.get_num_threads(),
    )
    if allowed is not None:
        kinds = len(allowed.bias)
        given = {  # kept until the call ends
            "bias": checked("bias", allowed.bias, torch.float32, kinds, vocab),
            "kind": checked("kind", allowed.kind, torch.int64, rows, nodes),
            "low": checked("low", allowed.low, torch.int64, rows, nodes),
            "high": checked("high", allowed.high, torch.int64, rows, nodes),
            "joint": checked("joint", allowed.joint, torch.bool, rows, nodes),
        }
        for name, tensor in given.items():
            setattr(record, name, tensor.data_ptr())
        record.split, record.kinds = allowed.split, kinds
    library.choose_tokens(record)
    return best


def moved(start: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """As `models.slot_model.path_slots`, of `start [B]` and `path [B, N]`, int64 on the CPU. Raises
    ValueError for others."""
    batch, nodes = path.shape
    start = checked("start", start, torch.int64, batch)
    return path_slots(start, checked("path", path, torch.int64, batch, nodes))
