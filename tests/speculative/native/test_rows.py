"""What a row of a native decoder depends on: its own tokens, caches and states, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative.native import adapters as native
from tests.speculative.models.causal_lms import WINDOW

from .cases import SLOTS, Kind, Shape, decoder, oracle, shapes, states_of, tokens

pytestmark = pytest.mark.native

FAMILIES = ("llama", "qwen2", "qwen2 with a window", "qwen3", "granite", "mistral with a window")

both = pytest.mark.parametrize("kind", [Shape(size=24), "mistral with a window"], ids=str)


def reading(kind: Kind, batch: int, prompt: int = 6) -> native.NativeDecoder:
    """A decoder whose rows have read a prompt."""
    made = decoder(kind)
    made.allocate(batch, SLOTS)
    made.prefill(torch.arange(batch), tokens(batch, prompt, 2), states_of(kind, batch))
    return made


@pytest.mark.parametrize("kinds", [shapes, st.sampled_from(FAMILIES)], ids=["whisper", "text"])
@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "integers"])
@settings(max_examples=12, deadline=None)
@given(
    data=st.data(),
    batch=st.integers(1, 7),
    threads=st.integers(1, 2),
    part=st.integers(1, 9),
    stored=st.sampled_from([torch.float32, torch.bfloat16]),
)
@torch.inference_mode()
def test_a_rows_bits_depend_neither_on_the_batch_nor_on_nodes_nor_on_threads(
    kinds, quantized, data, batch, threads, part, stored
):
    kind = data.draw(kinds)
    together, alone = (decoder(kind, quantized=quantized, stored=stored) for _ in range(2))
    together.allocate(batch, SLOTS)
    alone.allocate(1, SLOTS)
    known, new, start = tokens(batch, 6, 2), tokens(batch, 12), torch.arange(batch) % 3 + 2
    before, size = torch.get_num_threads(), native.PROMPT
    try:
        torch.set_num_threads(threads)
        native.PROMPT = part  # the tokens of a prompt that one call takes
        first = together.prefill(torch.arange(batch), known, states_of(kind, batch)).logits
        scored = together.score(new, start, reach=SLOTS).logits
    finally:
        torch.set_num_threads(before)
        native.PROMPT = size
    for row in range(batch):
        states = states_of(kind, batch)[row : row + 1]
        prompt = alone.prefill(torch.tensor([0]), known[row : row + 1], states).logits
        assert torch.equal(prompt[0], first[row])
        for node in range(new.shape[1]):
            one = alone.score(new[row, node, None, None], start[row, None] + node, reach=SLOTS)
            assert torch.equal(one.logits[0, 0], scored[row, node])


@pytest.mark.parametrize("kind", [Shape(size=24), "llama", "mistral with a window"], ids=str)
@torch.inference_mode()
def test_slots_that_are_masked_never_reach_a_result(kind: Kind):
    made, start, new = reading(kind, 3, 12), torch.tensor([3, 12, 9]), tokens(3, 4)
    clean = made.score(new, start, reach=SLOTS).logits
    for keys, values in made.cache.kv:
        for row, first in enumerate(start.tolist()):
            keys[row, :, first:] = values[row, :, first:] = float("nan")
            if "window" in str(kind):
                late = max(0, first + 1 - WINDOW)
                keys[row, :, :late] = values[row, :, :late] = float("nan")
    assert torch.equal(made.score(new, start, reach=SLOTS).logits, clean)
    assert torch.isfinite(clean).all()


@pytest.mark.parametrize("kind", [Shape(), "llama"], ids=str)
@torch.inference_mode()
def test_slots_from_reach_on_are_not_read_by_rows_that_ended(kind: Kind):
    start, new = torch.tensor([18, 4]), tokens(2, 3)  # row 0 has ended: reach is that of row 1
    ours, theirs = reading(kind, 2, 20), oracle(kind)
    theirs.allocate(2, SLOTS)
    theirs.prefill(torch.arange(2), tokens(2, 20, 2), states_of(kind, 2))
    found, wanted = (made.score(new, start, reach=8).logits for made in (ours, theirs))
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@both
@torch.inference_mode()
def test_nan_stays_in_its_row(kind: Kind):
    made, start, new = reading(kind, 3), torch.tensor([5, 6, 4]), tokens(3, 4)
    clean = made.score(new, start, reach=SLOTS).logits
    made.cache.kv[0, 0, 1, :, 4] = float("nan")
    found = made.score(new, start, reach=SLOTS).logits
    assert found[1].isnan().all()
    assert torch.equal(found[0::2], clean[0::2])
    prompt = tokens(3, 6, 2)[1:2]  # and leaves with its request
    made.prefill(torch.tensor([1]), prompt, states_of(kind, 3)[1:2])
    assert torch.equal(made.score(new, start, reach=SLOTS).logits, clean)


@both
@torch.inference_mode()
def test_one_node_and_the_first_rows_alone_have_the_same_bits(kind: Kind):
    made, start, new = reading(kind, 3), torch.tensor([5, 6, 4]), tokens(3, 4)
    node = torch.tensor([3, 0, 1])
    every = made.score(new, start, reach=SLOTS).logits
    one = made.score_at(new, start, node, reach=SLOTS)
    assert one.shape == (3, 1, made.vocab_size)
    assert torch.equal(one[:, 0], every[torch.arange(3), node])
    assert torch.equal(made.score(new[:2], start[:2], reach=SLOTS).logits, every[:2])
    with pytest.raises(IndexError):
        made.score_at(new, start, node + 1, reach=SLOTS)


@both
def test_wrong_indices_are_refused_before_anything_is_written(kind: Kind):
    made, one, places = reading(kind, 2, 3), torch.tensor([[1], [1]]), torch.tensor([3, 3])
    before = made.cache.kv.clone()
    with pytest.raises(IndexError, match="token"):
        made.score(torch.tensor([[1], [made.vocab_size]]), places, reach=SLOTS)
    for wrong in ([3, SLOTS], [-1, 0]):
        with pytest.raises(IndexError, match="slot"):
            made.score(one, torch.tensor(wrong), reach=SLOTS)
    with pytest.raises(IndexError, match="slot"):
        made.prefill(torch.tensor([2]), tokens(1, 3), states_of(kind, 1))
    with pytest.raises(ValueError, match="shape"):
        made.score(one, places, reach=SLOTS + 1)
    if not isinstance(kind, Shape):
        with pytest.raises(ValueError, match="prompts"):
            made.prefill(torch.tensor([0, 1]), tokens(1, 3), [None])
    assert torch.equal(made.cache.kv, before)
