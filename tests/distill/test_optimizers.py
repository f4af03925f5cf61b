"""The optimizer of matrices: in float32 what torch's Muon is in bfloat16."""

from __future__ import annotations

import pytest
import torch

from forescribe.distill.training import Float32Muon


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_steps_are_those_of_torch_within_the_rounding_of_bfloat16(shape) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    made = []
    for kind in (torch.optim.Muon, Float32Muon):
        weight = torch.nn.Parameter(start.clone())
        optimizer = kind([weight], lr=0.1, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        made.append((weight.detach() - start, optimizer.state_dict()))
    (theirs, their_state), (ours, our_state) = made
    assert (ours - theirs).norm() < 0.02 * theirs.norm()
    assert our_state["param_groups"] == their_state["param_groups"]
    buffers = [s["state"][0]["momentum_buffer"] for s in (our_state, their_state)]
    assert torch.equal(*buffers)


def test_a_weight_without_a_gradient_stays() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4))
    Float32Muon([weight], lr=0.1).step()
    assert torch.equal(weight, torch.ones(3, 4))
