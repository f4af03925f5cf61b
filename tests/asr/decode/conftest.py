"""What tests of decoding share."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor

from forescribe.speculative.native.encoder import NativeEncoder


def _digest(values: Tensor) -> bytes:
    return sha256(values.detach().contiguous().view(torch.uint8).numpy()).digest()


@pytest.fixture(scope="module")
def encoded_once() -> Iterator[None]:
    """Each window of a module's tests goes through the native encoder once per model, which is half of their
    time otherwise. A window's states depend on nothing but the weights and its features, as
    `test_native_encoder` says."""
    make, encode = NativeEncoder.__init__, NativeEncoder.states
    weights: WeakKeyDictionary[NativeEncoder, tuple[bytes, ...]] = WeakKeyDictionary()
    known: dict[tuple[bytes, ...], Tensor] = {}

    def made(self: NativeEncoder, encoder: Any) -> None:
        weights[self] = tuple(map(_digest, encoder.state_dict().values()))
        make(self, encoder)

    def states(self: NativeEncoder, features: Tensor) -> Tensor:
        key = (*weights[self], _digest(features))
        if key not in known:
            known[key] = encode(self, features)
        return known[key].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeEncoder, "__init__", made)
        patch.setattr(NativeEncoder, "states", states)
        yield
