"""Packing of whole documents into rows of one length, without attention between documents.

The positions of each document start at 0, as in decoding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LENGTH = 320  # tokens of a row; what is longer is cut
OPEN = 8  # rows that are filled at the same time


@dataclass(frozen=True)
class Pack:
    """`tokens`, `positions`, `known` are [R, T]; `mask [R, 1, T, T]` is the attention mask.

    `known` marks the tokens whose next token is in the same document; `labels [K]` are those tokens.
    """

    tokens: Tensor
    positions: Tensor
    known: Tensor
    mask: Tensor
    labels: Tensor


def rows(documents: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Distribute documents to rows of at most `LENGTH` tokens, first fit."""
    done: list[list[Sequence[int]]] = []
    opened: list[list[Sequence[int]]] = []
    for document in documents:
        piece = document[:LENGTH]
        for row in opened:
            if sum(map(len, row)) + len(piece) <= LENGTH:
                row.append(piece)
                break
        else:
            if len(opened) == OPEN:
                fullest = max(opened, key=lambda r: sum(map(len, r)))
                opened.remove(fullest)
                done.append(fullest)
            opened.append([piece])
    return done + opened


def pack(batch: Sequence[Sequence[Sequence[int]]]) -> Pack:
    """Convert a batch of rows to tensors."""
    shape = len(batch), LENGTH
    tokens, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    owner = torch.full(shape, -1)
    for r, row in enumerate(batch):
        start = 0
        for number, document in enumerate(row):
            stop = start + len(document)
            tokens[r, start:stop] = torch.tensor(document)
            positions[r, start:stop] = torch.arange(len(document))
            owner[r, start:stop] = number
            start = stop
    following = torch.roll(owner, -1, dims=1)
    following[:, -1] = -1
    known = (owner == following) & (owner >= 0)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = (owner[:, None, :, None] == owner[:, None, None, :]) & causal
    return Pack(tokens, positions, known, mask, torch.roll(tokens, -1, dims=1)[known])


def batches(documents: Sequence[Sequence[int]], size: int, seed: int) -> Iterator[Pack]:
    """Yield packs of `size` rows without end; every pass distributes the documents anew."""
    rng = random.Random(seed)
    while True:
        order = list(documents)
        rng.shuffle(order)
        dealt = rows(order)
        rng.shuffle(dealt)
        for start in range(0, len(dealt) - size + 1, size):
            yield pack(dealt[start : start + size])
