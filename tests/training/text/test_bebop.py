"""What an MTP layer is trained for is what sampling accepts."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative.models.heads.mtp import mtp_head
from forescribe.speculative.models.heads.records import TargetShape
from training.text import packing
from training.text.heads import published
from training.text.heads.bebop import DEPTHS, by_entropy, kept, loss
from training.text.heads.losses import Lesson
from training.text.model import target


def test_what_is_kept_is_the_overlap_of_the_distributions() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    assert float(kept(p.log(), q.log())) == pytest.approx(0.2 + 0.2 + 0.2)


def test_the_loss_of_whole_drafts_is_that_of_their_expected_length() -> None:
    torch.manual_seed(0)
    model = target(1).requires_grad_(False)
    config, tensors = published.mtp(model.config, inner=16)
    config |= {**model.config.to_dict(), "intermediate_size": 16}
    tensors = {name: each.requires_grad_() for name, each in tensors.items()}
    head = mtp_head(config, tensors, TargetShape("target", 128, 1, 2048), "head")
    lesson = Lesson.of(model, packing.pack([[list(range(4, 40)), list(range(50, 70))]]))
    lost = loss("e2e", head, lesson)
    value = lost.item()
    _, depths = by_entropy(head, lesson)
    assert depths[-1] == pytest.approx(1 + DEPTHS * (1 - value), rel=1e-5)
    lost.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for each in tensors.values():
            if each.grad is not None:
                each -= 0.02 * each.grad / each.grad.norm().clamp(min=1e-9)
        assert loss("e2e", head, lesson).item() < value
