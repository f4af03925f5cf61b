"""The texts that constructed models write, computed without them.

A path has steps in a circle, and each step has two tokens for every class of audio. After token i of a text
comes a token of the next step: of the class of the row's audio, and of the two that one which the *sign* of
token i - 1 chooses. So a text depends on the token before (residual stream), on the one before that
(self-attention at the right slot) and on the audio (cross-attention of the right row). Some steps end a text.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import provenance

from .dimensions import Dimensions

END_EVERY = 60
"""Steps between two ends of texts, on average."""

TOKENIZER = provenance.ROOT / "bundled" / "tiny.en" / "tokenizer.json"


def spoken(d: Dimensions) -> list[int]:
    """The tokens of the bundled tokenizer that are words or their beginnings, so that texts can be read."""
    known = json.loads(TOKENIZER.read_text(encoding="utf-8"))["model"]["vocab"]
    words = (number for word, number in known.items() if re.fullmatch("\u0120[a-z]{2,}", word))
    return sorted(number for number in words if number < d.eos)


@dataclass(frozen=True)
class TextPath:
    """Tokens of every step, class and sign, the sign of every token, and the steps after which texts end."""

    dimensions: Dimensions
    ids: list[list[tuple[int, int]]]  # [step][class] -> tokens for the signs -1, +1
    signs: list[int]  # [V], -1 or 1
    ends: frozenset[int]

    @classmethod
    def of(cls, dimensions: Dimensions, seed: int = 0) -> TextPath:
        """The path of a seed."""
        draw = random.Random(seed)
        pool = draw.sample(spoken(dimensions), dimensions.tokens)
        steps, classes = dimensions.steps, dimensions.classes
        pairs = iter([(pool[i], pool[i + 1]) for i in range(0, 2 * steps * classes, 2)])
        ids = [[next(pairs) for _ in range(classes)] for _ in range(steps)]
        signs = [draw.choice((-1, 1)) for _ in range(dimensions.vocab)]
        ends = draw.sample(range(steps), max(1, steps // END_EVERY))
        return cls(dimensions, ids, signs, frozenset(ends))

    @property
    def tokens(self) -> list[int]:
        """All tokens that texts consist of, end-of-text included."""
        return sorted(
            [t for step in self.ids for pair in step for t in pair] + [self.dimensions.eos]
        )

    def token(self, step: int, kind: int, sign: int) -> int:
        """The token of a step for audio of class `kind`, `sign` -1 or 1."""
        return self.ids[step][kind][(sign + 1) // 2]

    def prompt(self, start: int, kind: int) -> tuple[int, ...]:
        """A prompt after which the text begins at step `start` + 1."""
        return (*self.dimensions.prompt, self.token(start, kind, 1))

    def follow(self, start: int, prompt: tuple[int, ...], kind: int, limit: int) -> tuple[int, ...]:
        """The text after a prompt that ends at step `start`, `limit` tokens at most."""
        tokens, step = list(prompt), start
        while len(tokens) < len(prompt) + limit:
            if step in self.ends:
                tokens.append(self.dimensions.eos)
                break
            step = (step + 1) % len(self.ids)
            tokens.append(self.token(step, kind, self.signs[tokens[-2]]))
        return tuple(tokens[len(prompt) :])

    def misled(self, agreement: float, seed: int = 1) -> dict[int, int]:
        """For the steps at which a draft of this agreement goes wrong: the step that it takes for it."""
        draw = random.Random(seed)
        usable = [step for step in range(len(self.ids)) if step not in self.ends]
        wrong = draw.sample(usable, round((1 - agreement) * len(usable)))
        return dict(zip(wrong, wrong[1:] + wrong[:1], strict=True))


def codes(count: int, size: int, seed: int) -> Tensor:
    """`[count, size]` of -1 and 1, nearly orthogonal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (count, size), generator=generator).float() * 2 - 1
