"""The arguments of native forwards, choices and drafts, from tensors.

Knows addresses; nothing of models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rounds.choice import Allowed, Choice
from . import structures as c
from .library import Library
from .structures import Step
from .workspace import Workspace


def step_of(
    tokens: Tensor,
    start: Tensor,
    reach: int,
    *,
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
    number of threads. `tree` is depths, int64, and ancestry, bool; `taps [B, N, H, D]` receive the states
    that enter `tap_layers [H]`. All tensors are contiguous, and the caller keeps them until the call ends."""
    given = {
        "tokens": tokens,
        "start": start,
        "logits": logits,
        "hidden": hidden,
        "rows": rows,
        "node": node,
        "tap_layers": tap_layers,
        "taps": taps,
        "depths": None if tree is None else tree[0],
        "ancestry": None if tree is None else tree[1],
    }
    return Step(
        batch=tokens.shape[0],
        nodes=tokens.shape[1],
        reach=reach,
        tap_count=0 if tap_layers is None else len(tap_layers),
        workspace=workspace.at_least(size),
        workspace_bytes=size,
        threads=torch.get_num_threads(),
        **{name: tensor.data_ptr() for name, tensor in given.items() if tensor is not None},
    )


class GreedyDraft:
    """Room for `gamma` drafts of each of the rows `active [B]`, and the record that a native call fills;
    `columns` are those of the logits, `listed [columns]` their tokens where the head is cut."""

    def __init__(
        self,
        active: Tensor,
        gamma: int,
        columns: int,
        confidence: float,
        listed: Tensor | None = None,
    ) -> None:
        batch = len(active)
        self._active, self._listed = active.contiguous(), listed
        self._tokens = torch.empty((gamma, batch), dtype=torch.int64)
        self._start = torch.empty(batch, dtype=torch.int64)
        self._numbers = torch.empty((2, batch))
        address = self._numbers.data_ptr()
        self.record = c.Draft(
            depths=gamma,
            columns=columns,
            active=self._active.data_ptr(),
            ids=None if listed is None else listed.data_ptr(),
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
    sides that are equal to rounding, the sums' order may decide otherwise than torch's."""
    logits = logits.contiguous()
    shape, vocab = logits.shape[:2], logits.shape[2]
    best = Choice(torch.empty(shape, dtype=torch.int64), torch.empty(shape))
    record = c.Choice(
        count=shape.numel(),
        vocab=vocab,
        logits=logits.data_ptr(),
        tokens=best.tokens.data_ptr(),
        logprobs=best.logprobs.data_ptr(),
        threads=torch.get_num_threads(),
    )
    if allowed is not None:
        # Kept until the call ends.
        given = [getattr(allowed, name).contiguous() for name in _READ]
        for name, tensor in zip(_READ, given, strict=True):
            setattr(record, name, tensor.data_ptr())
        record.split, record.kinds = allowed.split, len(allowed.bias)
    library.choose_tokens(record)
    return best


_READ = ("bias", "kind", "low", "high", "joint")
"""The tensors of `Allowed`, under the same names in the kernels' record."""
