"""Blocks are trained as they are drafted: the same states give the same choices."""

from __future__ import annotations

import torch

from forescribe.speculative.models.heads.whisper_block import WhisperBlock
from tests.speculative.drafters.heads.tiny_blocks import SHAPE, block_head, naive_drafts
from tests.speculative.models.whispers import FRAMES, VOCAB, WIDTH
from training.block.train_block import Lesson, Spoken, blocks, loss


def lesson(lengths: tuple[int, ...]) -> Lesson:
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator)

    return Lesson.of(
        [
            Spoken(
                random(FRAMES, WIDTH),
                torch.randint(VOCAB, (n,), generator=generator),
                random(n - 1, len(SHAPE.taps), WIDTH),
            )
            for n in lengths
        ]
    )


def test_a_blocks_choices_are_those_of_the_drafter() -> None:
    head, made = block_head(), lesson((9, 12))
    table = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(3))
    places, sizes = torch.tensor([[3, 8], [7, 4]]), torch.tensor([[4, 2], [3, 4]])
    found = (blocks(head, made, table, places, sizes) @ table.T).argmax(-1)
    for row in range(2):
        for anchor in range(2):
            place, size = int(places[row, anchor]), int(sizes[row, anchor])
            expected = naive_drafts(
                head,
                table,
                made.taps[row, :place],
                made.encoder_states[row],
                made.tokens[row, : place + 1].tolist(),
                size,
            )
            assert found[row, anchor, :size].tolist() == expected


def test_a_step_makes_the_loss_smaller() -> None:
    tensors = {
        name: each.clone().requires_grad_() for name, each in block_head(block=11).tensors.items()
    }
    head = WhisperBlock(block_head(block=11).shape, tensors)
    made, table = lesson((14, 30)), torch.randn(VOCAB, WIDTH)

    def value() -> torch.Tensor:
        return loss(head, made, table, torch.Generator().manual_seed(5))[0]

    before = value()
    before.backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in tensors.values())
    with torch.no_grad():
        norm = sum(
            float(each.grad.square().sum()) for each in tensors.values() if each.grad is not None
        )
        for each in tensors.values():
            assert each.grad is not None
            each -= 0.05 / norm**0.5 * each.grad
    assert float(value().detach()) < float(before.detach())
