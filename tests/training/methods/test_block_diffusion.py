"""Drafts of block diffusion: what one pass computes of several states is what each of them gives alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.methods.block_diffusion import (
    BLOCK,
    MASK,
    Diffusion,
    Task,
    context,
    read,
    replay_pass,
    states_pass,
)

VOCAB, END = 24, 23
DONE = [3, 1, 4, 1, 5, 9, 2, 6]


def diffusion(layers: int) -> Diffusion:
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
    )
    for weight in model.parameters():
        weight.data *= 4
    return Diffusion(model).double().eval().requires_grad_(False)


def alone(model: Diffusion, done: list[int], state: list[int]) -> torch.Tensor:
    sees = context(len(done), BLOCK)
    sees[len(done) :, len(done) :] = True
    return read(model, done + state, [*range(len(done) + BLOCK)], sees)[len(done) :]


def test_each_state_of_a_pass_is_read_as_if_alone() -> None:
    model, full = diffusion(2), [7, 8, 10, 11]
    states = [[MASK] * BLOCK, [7, MASK, 10, MASK], full, [MASK] * BLOCK]
    found = states_pass(model, DONE, states, follows=True)
    for number, state in enumerate(states[:3]):
        torch.testing.assert_close(found[number], alone(model, DONE, state))
    torch.testing.assert_close(found[3], alone(model, DONE + full, states[3]))


@pytest.mark.parametrize("surest", [False, True])
def test_spiffy_writes_the_text_of_plain_decoding(surest: bool) -> None:
    model = diffusion(2)

    def guess(tokens: list[int], count: int) -> list[int]:
        following = text[len(tokens) : len(tokens) + count]
        return [(x + (len(tokens) % 3 == 0)) % VOCAB for x in following]

    task = Task(model, END, 20, surest)
    text, passes = task.plain([*DONE, 7])
    for each in (task, *([] if surest else [replace(task, guess=guess)])):
        found, fewer = each.spiffy([*DONE, 7])
        assert found == text and fewer < passes


def test_a_replayed_mask_knows_its_own_draft_in_two_layers_and_not_in_one() -> None:
    state, drafts, others = [7, MASK, MASK, MASK], [7, 8, 10, 11], [7, 12, 13, 14]
    for layers in (1, 2):
        model = diffusion(layers)
        found, other = (replay_pass(model, DONE, state, d) for d in (drafts, others))
        # The first hidden place sees no draft; but what it sees has read them by the second layer.
        assert torch.allclose(found[1], other[1]) == (layers == 1)
        for place in (1, 2, 3):
            visible = alone(model, DONE, [*drafts[:place], *[MASK] * (BLOCK - place)])[place]
            assert torch.allclose(found[place], visible) == (layers == 1)
