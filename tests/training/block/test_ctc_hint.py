"""The CTC head's letters: what is learnt of a window, and what its best path says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import one_hot

from training.block.ctc_hint import AFTER, BLANK, LETTERS, Letters, ids, spoken, text_of

ZERO = 90  # the first timestamp


def test_the_best_path_says_what_was_learnt() -> None:
    states = torch.zeros(1500, 8)
    row: Any = SimpleNamespace(
        tokens=(99, 5, 6, ZERO + 100), begin=1, states=lambda: (states, states)
    )
    tokenizer = SimpleNamespace(
        convert_tokens_to_ids=lambda name: ZERO,
        decode=lambda tokens, skip_special_tokens: {(5, 6): " All,  said Mr. Lee \u2026"}[
            tuple(tokens)
        ],
    )
    found = spoken(row, tokenizer)
    assert found.states.shape == (100 + AFTER, 8)
    path = [i for letter in found.letters for i in (letter, letter, BLANK)]
    assert text_of(one_hot(torch.tensor(path))) == "All, said Mr. Lee"
    assert text_of(one_hot(torch.tensor(ids("ll")))) == "l"  # no blank between them
    log_probs = Letters(8)(states[None])
    assert log_probs.shape == (1, 1500, 1 + len(LETTERS))
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(1, 1500))
