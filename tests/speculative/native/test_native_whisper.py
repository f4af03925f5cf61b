"""The native Whisper decoder against transformers' modules, and against itself in other batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative.errors import LoadError
from forescribe.speculative.native import adapters as native_decoder
from forescribe.speculative.native.adapters import NativeWhisperDecoder, unsupported

from . import cases
from .cases import SLOTS, Shape, adapters, prefill, shapes, states, tokens

pytestmark = pytest.mark.native

CLOSE = {"rtol": 1e-4, "atol": 2e-4}


@settings(max_examples=40, deadline=None)
@given(shapes, st.data())
@torch.inference_mode()
def test_ragged_rows_score_as_in_the_modules(shape: Shape, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 9), "batch")
    nodes = data.draw(st.sampled_from([1, 2, 3, 6, 7, 12, 13]), "nodes")
    length = data.draw(st.sampled_from([1, 2, 5, 20]), "length")
    starts = data.draw(st.lists(st.integers(0, length), min_size=batch, max_size=batch), "starts")
    oracle, native = adapters(shape, batch)
    expected = prefill(oracle, shape, batch, length)
    torch.testing.assert_close(prefill(native, shape, batch, length), expected, **CLOSE)
    start = torch.tensor(starts)
    for round_ in range(2):  # what the first writes the second reads
        new, reach = tokens(batch, nodes, 3 + round_), int(start.max()) + nodes
        wanted = oracle.score(new, start, reach=reach)
        found = native.score(new, start, reach=reach)
        torch.testing.assert_close(found.logits, wanted.logits, **CLOSE)
        torch.testing.assert_close(found.taps, wanted.taps, **CLOSE)
        start = start + torch.arange(batch) % (nodes + 1)
    for mine, theirs in zip(native.cache.kv, oracle.cache.layers, strict=True):
        torch.testing.assert_close(tuple(mine), theirs, **CLOSE)


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(1, 20), st.sampled_from([3, 64]))
@torch.inference_mode()
def test_cross_attention_of_a_text_is_that_of_the_modules(shape: Shape, length: int, part: int):
    plain, native = cases.model(shape), NativeWhisperDecoder(cases.model(shape))
    native.allocate(2, SLOTS)
    text, (state,) = tokens(1, length), states(shape, 1)
    heads = [(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_decoder, "PART", part)
        scores, logprobs = native.cross_attention(text[0], state, heads)
    plain.config._attn_implementation = "eager"  # which returns its weights
    read = plain.model.decoder(text, encoder_hidden_states=state[None], output_attentions=True)
    plain.config._attn_implementation = "sdpa"
    expected = torch.cat([weights[0] for weights in read.cross_attentions])
    torch.testing.assert_close(scores.softmax(-1), expected, **CLOSE)
    wanted = plain.proj_out(read.last_hidden_state)[0, :-1].log_softmax(-1)
    torch.testing.assert_close(logprobs, wanted.gather(1, text[0, 1:, None])[:, 0], **CLOSE)


@torch.inference_mode()
def test_positions_are_clamped_and_slots_are_not() -> None:
    shape = Shape()
    oracle, native = adapters(shape, 2)
    for adapter in (oracle, native):
        prefill(adapter, shape, 2, 38)
    start, new = torch.tensor([37, 38]), tokens(2, 12)
    wanted = oracle.score(new, start, reach=SLOTS).logits
    torch.testing.assert_close(native.score(new, start, reach=SLOTS).logits, wanted, **CLOSE)


@torch.inference_mode()
def test_nan_in_encoder_states_stays_in_its_row() -> None:
    shape = Shape(sources=17)
    _, native = adapters(shape, 2)
    clean = prefill(native, shape, 2, 3)
    encoder = states(shape, 2)
    encoder[0][16, 3] = float("nan")
    found = native.prefill(torch.arange(2), tokens(2, 3, 2), encoder).logits
    assert found[0].isnan().all() and torch.equal(found[1], clean[1])
    assert torch.equal(prefill(native, shape, 2, 3), clean)  # and leaves with its request


@torch.inference_mode()
def test_prompts_go_to_their_rows_and_leave_the_others() -> None:
    shape = Shape()
    oracle, native = adapters(shape, 4)
    start, new = torch.tensor([6, 5, 6, 5]), tokens(4, 2)
    for adapter in (oracle, native):
        prefill(adapter, shape, 4, 6)
        adapter.prefill(torch.tensor([3, 1]), tokens(2, 5, 8), states(shape, 2, 9))
    wanted = oracle.score(new, start, reach=SLOTS).logits
    torch.testing.assert_close(native.score(new, start, reach=SLOTS).logits, wanted, **CLOSE)


@torch.inference_mode()
def test_a_row_that_is_named_scores_as_it_does_among_the_others() -> None:
    shape, new, start = Shape(), tokens(3, 4), torch.tensor([6, 4, 5])
    _, native = adapters(shape, 3)
    prefill(native, shape, 3, 6)
    together = native.score(new, start, reach=SLOTS).logits
    for row in (2, 0, 1):
        rows = torch.tensor([row])
        alone = native.score(new[rows], start[rows], reach=int(start[row]) + 4, rows=rows)
        assert torch.equal(alone.logits, together[rows])


def test_models_that_the_kernels_do_not_have_are_refused_with_a_reason() -> None:
    narrow = cases.model(Shape(heads=3, size=4))
    assert "multiple of 8" in str(unsupported(narrow))
    with pytest.raises(LoadError, match="multiple of 8"):
        NativeWhisperDecoder(narrow)
    assert "gelu_new" in str(unsupported(cases.model(Shape(activation="gelu_new"))))
