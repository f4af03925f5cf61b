"""VIA-SD's tiers: exact where the target judges every draft, and measured where the slim model does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from training.exits.via_sd import Reader, Tiers, copied, greedy, lost, slim, write

PROMPT, LIMIT, END = [1, 2, 3, 4, 1, 2], 30, 0


def models() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    ).eval()
    for weight in model.requires_grad_(False).parameters():
        weight *= 3
    return model, slim(model, [2, 3])


def test_no_draft_changes_a_text_that_the_target_judges() -> None:
    model, made = models()
    text = write(
        Reader(model), None, lambda tokens: [], PROMPT, Tiers(), limit=LIMIT, eos=END
    ).tokens
    target = Reader(model)
    ways = (None, greedy(Reader(made))), (Reader(made), copied), (None, greedy(Reader(model)))
    for judge, drafts in ways:
        target.seen, target.calls = [], 0
        found = write(target, judge, drafts, PROMPT, Tiers(), limit=LIMIT, eos=END)
        assert found.tokens[: len(text)] == text and target.calls < len(text) - len(PROMPT)
        calls = target.calls
        variation, changed = lost(target, found, 0.0)
        assert not found.other and not any(variation) and not any(changed)
    assert calls == -(
        -(len(found.tokens) - len(PROMPT)) // 5
    )  # its own four drafts are always kept


def test_a_slim_judge_saves_all_calls_and_what_it_costs_is_counted() -> None:
    model, made = models()
    target = Reader(model)
    drafts = greedy(Reader(made))
    found = write(target, Reader(made), drafts, PROMPT, Tiers(0.0, 0.0), limit=LIMIT, eos=END)
    assert target.calls == 0
    variation, changed = lost(target, found, 0.0)
    assert [v > 0 for v in variation] == changed  # at temperature 0 a distribution is one token
    assert 0 < sum(changed) < len(changed)


class Table:
    """Logits that depend on the last token alone."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def logits(self, tokens: Sequence[int], last: int) -> Tensor:
        return self.rows[torch.tensor(tokens[-last:])]


def test_sampled_texts_of_two_rounds_follow_the_target() -> None:
    torch.manual_seed(1)
    rows, wrong = torch.randn(4, 4), torch.randn(4, 4)
    p = rows.softmax(-1)
    expected = p[0][:, None] * p  # of the first two tokens
    count, generator = torch.zeros(4, 4), torch.Generator().manual_seed(2)
    for _ in range(3000):
        found = write(
            Table(rows),  # type: ignore[arg-type]
            Table(wrong),  # type: ignore[arg-type]
            lambda tokens: [1, 2] if len(tokens) % 2 else [3],
            [0],
            Tiers(),
            limit=2,
            eos=9,
            temperature=1.0,
            generator=generator,
        )
        count[found.tokens[1], found.tokens[2]] += 1
    chi = ((count - 3000 * expected) ** 2 / (3000 * expected)).sum()
    assert chi < 37.7  # 15 degrees of freedom: one in a thousand
