"""A draft's output head cut to a list of tokens.

A draft is only a guess, so a head without the rare tokens changes no text: tokens without a row are never
proposed. (Frequency-ranked drafts: Zhao et al. 2025, 2502.14856.) Knows heads; nothing of where a list
comes from.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ..errors import LoadError
from .lean.projections import Linear
from .quantized.int8_linear import Int8Linear


def rows_of(linear: Linear, tokens: Tensor | None) -> Linear:
    """The rows of these tokens `[C]`; None: all."""
    if tokens is None:
        return linear
    return linear.rows(tokens)


def cut(head: torch.nn.Linear | Int8Linear, tokens: Tensor | None) -> torch.nn.Module:
    """A head with the rows of these tokens `[C]`; None: the head itself."""
    if tokens is None:
        return head
    if isinstance(head, Int8Linear):
        return head.rows(tokens)
    with torch.device("meta"):
        made = torch.nn.Linear(head.in_features, len(tokens), bias=head.bias is not None)
    made.weight = torch.nn.Parameter(head.weight.detach()[tokens], requires_grad=False)
    if head.bias is not None:
        made.bias = torch.nn.Parameter(head.bias.detach()[tokens], requires_grad=False)
    return made


def with_cut_head(model: Any, tokens: Tensor | None) -> Any:
    """A copy of a transformers model that shares all weights but its head, which has the rows of these
    tokens `[C]`; None: the model itself. Raises LoadError for a head that is no plain matrix."""
    if tokens is None:
        return model
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_children() if module is head]
    if type(head) not in (torch.nn.Linear, Int8Linear) or len(names) != 1:
        raise LoadError(
            f"{model.config.model_type}: its head is a {type(head).__name__}, which cannot be cut to a "
            "list of tokens; draft without the list"
        )
    made = copy.copy(model)
    made._modules = dict(model._modules)
    setattr(made, names[0], cut(head, tokens))
    return made
