"""The hidden states inside a transformers model, read while it runs.

transformers' own `output_hidden_states` leaves hooks in a model for good, which other adapters of the same
model refuse; those here last as long as one forward. Knows modules; nothing of any family.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import LoadError

States = dict[int, Tensor]
"""By layer, the states `[B, N, D]` that enter it."""


def layers_of(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The list of a decoder's layers, whatever its name. Raises LoadError where there is no such list, or
    more than one."""
    found = [m for m in decoder.children() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(found) != 1:
        name = type(decoder).__name__
        raise LoadError(f"{name} has no single list of its {count} layers, so none can be tapped")
    return found[0]


@contextmanager
def reading(
    layers: nn.ModuleList, taps: tuple[int, ...], head: nn.Module | None = None
) -> Iterator[States]:
    """Notes the states that enter the tapped layers in the forward that is run meanwhile. Layer -1 is what
    the `head` reads; without one it is left to the caller."""
    states: States = {}

    def note(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = args[0] if args else kwargs["hidden_states"]
            states[index] = torch.as_tensor(state)

        return hook

    with ExitStack() as stack:
        for index in taps:
            module = layers[index] if index >= 0 else head
            if module is not None:
                handle = module.register_forward_pre_hook(note(index), with_kwargs=True)
                stack.callback(handle.remove)
        yield states
