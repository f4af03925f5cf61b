"""The kernels read addresses: a tensor of another type, length or device must not reach them. Each of these
read past its end before (`-fsanitize=address`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from forescribe.speculative.native.adapters import (
    NativeCausalDecoder,
    NativeEncoder,
    NativeWhisperDecoder,
)
from forescribe.speculative.native.library import Stored, load, missing
from forescribe.speculative.native.packing import Packer
from forescribe.speculative.rounds.choice import Allowed

from ..models.causal_lms import causal_lm
from .cases import SLOTS, VOCAB, Shape, model, states
from .test_native_encoder import encoder

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

BATCH, NODES, PROMPT = 8, 2, 4
Wrong = Callable[[Tensor], Tensor]

WRONG: dict[str, Wrong] = {
    "narrow": lambda t: t.to(torch.int32 if t.dtype is torch.int64 else torch.bfloat16),
    "short": lambda t: t[:1],
    "long": lambda t: torch.cat([t, t]),
    "flat": lambda t: t.flatten()[:, None, None, None],
    "elsewhere": lambda t: t.to("meta"),
}


def whisper() -> NativeWhisperDecoder:
    made = NativeWhisperDecoder(model(Shape()))
    made.allocate(BATCH, SLOTS)
    made.prefill(torch.arange(BATCH), integers(BATCH, PROMPT), states(Shape(), BATCH))
    return made


def causal() -> NativeCausalDecoder:
    made = NativeCausalDecoder(causal_lm("llama"))
    made.allocate(BATCH, SLOTS)
    made.prefill(torch.arange(BATCH), integers(BATCH, PROMPT), [None] * BATCH)
    return made


def integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def calls(decoder: Any) -> dict[str, tuple[Callable[..., Any], dict[str, Tensor]]]:
    """The entry points of a decoder, and the tensors that each one takes."""
    tokens, start = integers(BATCH, NODES), torch.full((BATCH,), PROMPT)
    forward = {"tokens": tokens, "start": start}
    reach = PROMPT + NODES
    node, active = integers(BATCH), torch.ones(BATCH, dtype=torch.bool)
    memory = states(Shape(), BATCH) if isinstance(decoder, NativeWhisperDecoder) else [None] * BATCH
    return {
        "prefill": (
            lambda rows, tokens: decoder.prefill(rows, tokens, memory),
            {"rows": torch.arange(BATCH), "tokens": integers(BATCH, PROMPT)},
        ),
        "score": (lambda **given: decoder.score(**given, reach=reach), forward),
        "score_at": (
            lambda **given: decoder.score_at(**given, reach=reach),
            forward | {"node": node},
        ),
        "draft_greedy": (
            lambda **given: decoder.draft_greedy(**given, reach=reach, gamma=4, confidence=0.1),
            forward | {"node": node, "active": active},
        ),
    }


POINTS = [
    (point, name)
    for point, names in {
        "prefill": ("rows", "tokens"),
        "score": ("tokens", "start"),
        "score_at": ("tokens", "start", "node"),
        "draft_greedy": ("tokens", "start", "node", "active"),
    }.items()
    for name in names
]


@pytest.mark.parametrize("make", [whisper, causal])
@pytest.mark.parametrize(("point", "name"), POINTS)
def test_a_decoder_refuses_wrong_tensors_and_reads_all_strides(
    make: Callable[[], Any], point: str, name: str
) -> None:
    decoder = make()
    call, given = calls(decoder)[point]
    expected = logits_of(call(**given))
    for wrong in WRONG.values():
        with pytest.raises(ValueError):
            call(**given | {name: wrong(given[name])})
    apart = torch.stack([given[name], given[name] + (given[name].dtype is torch.int64)], -1)[..., 0]
    assert not apart.is_contiguous()
    assert torch.equal(logits_of(call(**given | {name: apart})), expected)


def logits_of(result: Any) -> Tensor:
    """Of `Prefilled` or `Scores`; drafts and logits themselves as they are."""
    return result if isinstance(result, Tensor) else result.logits


def test_a_choice_refuses_wrong_tensors() -> None:
    logits = torch.randn(BATCH, NODES, VOCAB)
    allowed = Allowed(
        VOCAB // 2,
        torch.zeros(3, VOCAB),
        integers(BATCH, NODES),
        integers(BATCH, NODES),
        integers(BATCH, NODES) + VOCAB,
        torch.zeros(BATCH, NODES, dtype=torch.bool),
    )
    load().choose_tokens(logits, allowed)
    for kind in ("narrow", "flat", "elsewhere"):
        with pytest.raises(ValueError):
            load().choose_tokens(WRONG[kind](logits), None)
    for field in ("bias", "kind", "low", "high", "joint"):
        for kind, wrong in WRONG.items():
            if field == "bias" and kind in ("short", "long"):  # another number of kinds
                continue
            given = dataclasses.replace(allowed, **{field: wrong(getattr(allowed, field))})
            with pytest.raises(ValueError):
                load().choose_tokens(logits, given)
    narrow = dataclasses.replace(allowed, bias=torch.zeros(3, VOCAB - 1))
    with pytest.raises(ValueError, match="bias"):
        load().choose_tokens(logits, narrow)


def test_the_encoder_refuses_wrong_features() -> None:
    made = encoder()
    native = NativeEncoder(made)
    window = torch.randn(8, 100)
    expected = native.states(window)
    for wrong in (window[:1], window[:, :99], torch.cat([window, window], 1), window[0]):
        with pytest.raises(ValueError):
            native.states(wrong)
    torch.testing.assert_close(native.states(window.t().contiguous().t()), expected, rtol=0, atol=0)
    torch.testing.assert_close(native.states(window.double()), expected, rtol=0, atol=0)


def test_integer_matrices_are_checked_before_they_are_packed() -> None:
    packer = Packer(load(), Stored.FLOAT32)
    weight, scale = torch.ones(16, 8, dtype=torch.int8), torch.ones(16)
    packer.integers(weight, scale)
    for wrong in ((weight.float(), scale), (weight, scale[:1])):
        with pytest.raises(ValueError):
            packer.integers(*wrong)


def test_a_cut_head_is_checked() -> None:
    decoder = NativeWhisperDecoder(model(Shape()), listed=[1, 2, 3])
    decoder.allocate(BATCH, SLOTS)
    decoder.prefill(torch.arange(BATCH), integers(BATCH, PROMPT), states(Shape(), BATCH))
    call, given = calls(decoder)["draft_greedy"]
    call(**given)
    assert decoder.listed is not None
    decoder.listed = decoder.listed[:1]
    with pytest.raises(ValueError, match="listed"):
        call(**given)
