"""CTC reading: a rough transcript of a window from its encoder states alone, in the target's tokens.

A head beside the target's weights (`ctc_head.safetensors`) says for each encoder state which character it
is in, or none. All states are read at once, without the decoder, so the text costs next to nothing; it is
a draft for the target to check, and no transcript. (Graves et al. 2006; greedy: the best symbol of each
state, repetitions joined, blanks left out.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError

FILE = "ctc_head.safetensors"
BLANK = 0


class CtcReader:
    """A linear head `[C, D]` over encoder states, and the characters that its classes stand for.

    `weight [C, D]` and `bias [C]`; class 0 is the blank. Raises ValueError where their sizes differ from
    the alphabet's.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor, alphabet: Sequence[str], tokenizer: Any
    ) -> None:
        if weight.shape[0] != len(alphabet) or bias.shape != (len(alphabet),):
            raise ValueError(
                f"weights {tuple(weight.shape)} and {tuple(bias.shape)} for {len(alphabet)} symbols"
            )
        self.weight, self.bias = weight, bias
        self.alphabet, self.tokenizer = tuple(alphabet), tokenizer

    @classmethod
    def beside(
        cls, folder: Path, tokenizer: Any, width: int, device: torch.device
    ) -> CtcReader | None:
        """The head in a target's folder, whose encoder states have `width` numbers; None where there is
        none. Raises ModelError for one that is damaged or of another model."""
        path = folder / FILE
        if not path.is_file():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                alphabet = json.loads((file.metadata() or {}).get("alphabet", "null"))
                weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
            if not isinstance(alphabet, list):
                raise ValueError("it names no alphabet")
            if weight.shape[-1] != width:
                raise ValueError(f"it reads states of {weight.shape[-1]} numbers, not {width}")
            return cls(weight.float().to(device), bias.float().to(device), alphabet, tokenizer)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"{path} is no CTC head of this model: {error}; delete it, it only makes drafts"
            ) from error

    @torch.inference_mode()
    def read(self, states: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """The text tokens of windows from their encoder states `[S, D]`. Reads the device."""
        best = torch.stack(
            [(self.weight @ part.float().T + self.bias[:, None]).argmax(0) for part in states]
        )
        return [self._tokens(row) for row in best.tolist()]

    def _tokens(self, classes: Sequence[int]) -> tuple[int, ...]:
        before = (BLANK, *classes[:-1])
        text = "".join(
            self.alphabet[now]
            for now, last in zip(classes, before, strict=True)
            if now not in (BLANK, last)
        ).strip()
        if not text:
            return ()
        return tuple(self.tokenizer.encode(" " + text, add_special_tokens=False))
