"""Taps: the hidden states that adapters return are those of the model's own forward, in every engine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forescribe.speculative.models.lean import LeanCausalDecoder, LeanWhisperDecoder
from forescribe.speculative.models.modules import CausalDecoder, WhisperDecoder
from forescribe.speculative.models.slot_model import SlotModel, WhisperModel
from forescribe.speculative.native.adapters import NativeCausalDecoder, NativeWhisperDecoder
from tests.speculative.models.causal_lms import VOCAB, causal_lm
from tests.speculative.models.whispers import encoder_states, whisper

NATIVE = pytest.mark.native
TEXT = [CausalDecoder, LeanCausalDecoder, pytest.param(NativeCausalDecoder, marks=NATIVE)]
SPEECH = [WhisperDecoder, LeanWhisperDecoder, pytest.param(NativeWhisperDecoder, marks=NATIVE)]
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
LENGTH, SLOTS = 14, 40


def llama_states(tokens: Tensor) -> tuple[Tensor, ...]:
    model = copy.deepcopy(causal_lm("llama"))  # transformers leaves hooks in it
    states: tuple[Tensor, ...] = model(input_ids=tokens, output_hidden_states=True).hidden_states
    return states


def whisper_states(tokens: Tensor) -> tuple[Tensor, ...]:
    states: tuple[Tensor, ...] = (
        copy.deepcopy(whisper())
        .model.decoder(
            input_ids=tokens,
            encoder_hidden_states=torch.stack([encoder_states(n) for n in range(len(tokens))]),
            output_hidden_states=True,
        )
        .hidden_states
    )
    return states


def states_for(decoder: SlotModel, seed: int) -> Tensor | None:
    return encoder_states(seed) if isinstance(decoder, WhisperModel) else None


def check(
    decoder: SlotModel, states: Callable[[Tensor], tuple[Tensor, ...]], taps: tuple[int, ...]
) -> None:
    """Taps of a prompt, of a chain of several tokens and of one token, of ragged rows."""
    tokens = torch.randint(1, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([states(tokens)[layer] for layer in taps], dim=2)
    decoder.tap(taps)
    decoder.allocate(3, SLOTS)
    encoder = [states_for(decoder, n) for n in range(3)]
    rows = torch.tensor([2, 0, 1])
    prompt = decoder.prefill(rows, tokens[rows, :6], [encoder[int(r)] for r in rows]).taps
    assert prompt is not None
    torch.testing.assert_close(prompt, expected[rows, :6], **CLOSE)
    start = torch.tensor([5, 3, 4])
    for nodes in (4, 1):
        slots = start[:, None] + torch.arange(nodes)
        found = decoder.score(tokens.gather(1, slots), start, reach=SLOTS).taps
        assert found is not None
        wanted = torch.stack([expected[b, slots[b]] for b in range(3)])
        torch.testing.assert_close(found, wanted, **CLOSE)
        start = start + nodes


def made(adapter: Any) -> SlotModel:
    return adapter(whisper() if issubclass(adapter, WhisperModel) else causal_lm("llama"))


@pytest.mark.parametrize("adapter", [*TEXT, *SPEECH])
@settings(max_examples=6, deadline=None)
@given(taps=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=3, unique=True).map(tuple))
@torch.no_grad()
def test_taps_are_those_of_the_models_forward(adapter: Any, taps: Any) -> None:
    check(
        made(adapter), whisper_states if issubclass(adapter, WhisperModel) else llama_states, taps
    )


@pytest.mark.parametrize("adapter", [*TEXT, *SPEECH])
@torch.no_grad()
def test_chosen_nodes_of_a_prompt_have_the_logits_of_a_round(adapter: Any) -> None:
    decoder = made(adapter)
    decoder.allocate(2, SLOTS)
    tokens = torch.randint(1, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
    encoder, rows = [states_for(decoder, n) for n in range(2)], torch.arange(2)
    nodes = torch.tensor([[3, 5, 8], [0, 4, 4]])
    found = decoder.prefill(rows, tokens, encoder, nodes).logits
    for column in range(3):
        at = nodes[:, column]
        fed = tokens.gather(1, at[:, None])
        wanted = decoder.score(fed, at, reach=SLOTS).logits[:, 0]
        torch.testing.assert_close(found[:, column], wanted, **CLOSE)


@pytest.mark.parametrize("adapter", [*TEXT, *SPEECH])
def test_a_layer_that_there_is_not_is_refused(adapter: Any) -> None:
    decoder = made(adapter)
    for layer in (-2, decoder.depth, 70):
        with pytest.raises(ValueError, match=f"layer {layer} cannot be tapped: the model has "):
            decoder.tap((0, layer))


@pytest.mark.parametrize("adapter", [*TEXT, *SPEECH])
@torch.no_grad()
def test_embeddings_and_head_are_lent(adapter: Any) -> None:
    decoder = made(adapter)
    decoder.tap((-1,))
    decoder.allocate(1, SLOTS)
    tokens = torch.tensor([[4, 9, 2]])
    read = decoder.prefill(
        torch.tensor([0]), tokens, [states_for(decoder, 0)], torch.tensor([[0, 1, 2]])
    )
    torch.testing.assert_close(decoder.head(read.taps[:, :, 0]), read.logits, **CLOSE)
    own = decoder.model.get_input_embeddings().weight.detach()[tokens]
    torch.testing.assert_close(decoder.embed(tokens), own, **CLOSE)
