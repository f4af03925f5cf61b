"""A double of Gaudi on CPU tensors: what `torch.compile` would compile there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.speculative.graphs.recorder import Recorder, compare
from tests.speculative.graphs.workloads import Pretend

HPU = Pretend("hpu", torch.float32)


class Compiled:
    """A double of `torch.compile`: each function has one recipe, which every later call must repeat."""

    def __init__(self) -> None:
        self.recipes: list[Recorder] = []
        self.calls = 0

    def __call__(self, fn: Callable[[], None], **options: Any) -> Callable[[], None]:
        assert options == {"backend": "hpu_backend", "fullgraph": True, "dynamic": False}
        recipe: list[Recorder] = []

        def run() -> None:
            with Recorder(fn) as now:
                fn()
            self.calls += 1
            if not recipe:
                recipe.append(now)
                self.recipes.append(now)
            compare(recipe[0], now)

        return run

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> Compiled:
        made = cls()
        monkeypatch.setattr(torch, "compile", made)
        return made
