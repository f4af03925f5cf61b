"""The native Whisper decoder against transformers' modules, and against itself in other batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.speculative.errors import LoadError
from forescribe.speculative.native.decoder import NativeWhisperDecoder, unsupported
from forescribe.speculative.types import Topology

from . import cases
from .cases import SLOTS, Shape, adapters, prefill, states, tokens

pytestmark = pytest.mark.native

CLOSE = {"rtol": 1e-4, "atol": 2e-4}

shapes = st.builds(
    Shape,
    heads=st.sampled_from([1, 2, 3]),
    size=st.sampled_from([8, 16, 24, 32, 64, 80, 128]),
    layers=st.sampled_from([1, 2]),
    inner=st.sampled_from([8, 40, 64]),
    sources=st.sampled_from([1, 2, 15, 16, 17, 50]),
    activation=st.sampled_from(["gelu", "relu", "silu"]),
)


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
    for mine, theirs in zip(native.cache.layers, oracle.cache.layers, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@settings(max_examples=20, deadline=None)
@given(
    shapes, st.integers(1, 7), st.integers(1, 2), st.sampled_from([torch.float32, torch.bfloat16])
)
@torch.inference_mode()
def test_a_rows_bits_depend_neither_on_the_batch_nor_on_nodes_nor_on_threads(
    shape: Shape, batch: int, threads: int, stored: torch.dtype
) -> None:
    together, alone = (NativeWhisperDecoder(cases.model(shape), stored=stored) for _ in range(2))
    together.allocate(batch, SLOTS)
    alone.allocate(1, SLOTS)
    known, new, start = tokens(batch, 4), tokens(batch, 12, 3), torch.arange(batch) % 3 + 2
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first = prefill(together, shape, batch, 4)
        scored = together.score(new, start, reach=SLOTS).logits
    finally:
        torch.set_num_threads(before)
    for row in range(batch):
        encoder = states(shape, batch)[row : row + 1]
        prompt = alone.prefill(torch.tensor([0]), known[row : row + 1], encoder).logits
        assert torch.equal(prompt[0], first[row])
        for node in range(new.shape[1]):
            one = alone.score(new[row, node, None, None], start[row, None] + node, reach=SLOTS)
            assert torch.equal(one.logits[0, 0], scored[row, node])


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
def test_slots_that_are_masked_never_reach_a_result() -> None:
    shape = Shape(size=24)
    _, native = adapters(shape, 3)
    prefill(native, shape, 3, 6)
    start, new = torch.tensor([3, 6, 4]), tokens(3, 4)
    clean = native.score(new, start, reach=SLOTS).logits
    for keys, values in native.cache.layers:
        for row, first in enumerate(start.tolist()):
            keys[row, :, first:] = values[row, :, first:] = float("nan")
    assert torch.equal(native.score(new, start, reach=SLOTS).logits, clean)
    assert torch.isfinite(clean).all()


@torch.inference_mode()
def test_slots_from_reach_on_are_not_read_by_rows_that_ended() -> None:
    shape = Shape()
    oracle, native = adapters(shape, 2)
    for adapter in (oracle, native):
        prefill(adapter, shape, 2, 20)
    start, new = torch.tensor([18, 4]), tokens(2, 3)  # row 0 has ended: reach is that of row 1
    wanted = oracle.score(new, start, reach=8).logits
    torch.testing.assert_close(native.score(new, start, reach=8).logits, wanted, **CLOSE)


@torch.inference_mode()
def test_nan_stays_in_its_row() -> None:
    shape = Shape()
    _, native = adapters(shape, 3)
    prefill(native, shape, 3, 6)
    start, new = torch.tensor([5, 6, 4]), tokens(3, 4)
    clean = native.score(new, start, reach=SLOTS).logits
    native.cache.layers[0][0][1, :, 2] = float("nan")
    found = native.score(new, start, reach=SLOTS).logits
    assert found[1].isnan().all()
    assert torch.equal(found[0::2], clean[0::2])


@torch.inference_mode()
def test_nan_in_encoder_states_stays_in_its_row() -> None:
    shape = Shape(sources=17)
    _, native = adapters(shape, 2)
    clean = prefill(native, shape, 2, 3)
    encoder = states(shape, 2)
    encoder[0][16, 3] = float("nan")
    found = native.prefill(torch.arange(2), tokens(2, 3), encoder).logits
    assert found[0].isnan().all() and torch.equal(found[1], clean[1])
    assert torch.equal(prefill(native, shape, 2, 3), clean)  # and leaves with its request


@torch.inference_mode()
def test_one_node_has_the_bits_it_has_among_all() -> None:
    shape = Shape()
    _, native = adapters(shape, 3)
    prefill(native, shape, 3, 6)
    start, new, node = torch.tensor([5, 6, 4]), tokens(3, 4), torch.tensor([3, 0, 1])
    every = native.score(new, start, reach=SLOTS).logits
    one = native.score_at(new, start, node, reach=SLOTS)
    assert torch.equal(one[:, 0], every[torch.arange(3), node])
    with pytest.raises(IndexError):
        native.score_at(new, start, node + 1, reach=SLOTS)


TREE = Topology((0, 0, 1, 1, 2))


@torch.inference_mode()
def test_trees_score_and_commit_as_in_the_modules() -> None:
    shape = Shape()
    oracle, native = adapters(shape, 2)
    start, new, path = torch.tensor([4, 6]), tokens(2, 6), torch.tensor([[0, 1, 4], [0, 2, 5]])
    for adapter in (oracle, native):
        prefill(adapter, shape, 2, 6)
    wanted = oracle.score(new, start, reach=SLOTS, topology=TREE).logits
    found = native.score(new, start, reach=SLOTS, topology=TREE).logits
    torch.testing.assert_close(found, wanted, **CLOSE)
    for adapter in (oracle, native):
        adapter.commit(start, path)
    after, more = start + 3, tokens(2, 2, 5)
    wanted = oracle.score(more, after, reach=SLOTS).logits
    torch.testing.assert_close(native.score(more, after, reach=SLOTS).logits, wanted, **CLOSE)


@torch.inference_mode()
def test_a_path_of_a_tree_has_the_bits_of_the_same_chain() -> None:
    shape = Shape()
    _, native = adapters(shape, 1)
    prefill(native, shape, 1, 6)
    start, new = torch.tensor([5]), tokens(1, 6)
    tree = native.score(new, start, reach=SLOTS, topology=TREE).logits
    chain = native.score(new[:, [0, 2, 5]], start, reach=SLOTS).logits
    assert torch.equal(tree[:, [0, 2, 5]], chain)


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
def test_the_first_rows_alone_have_the_same_bits() -> None:
    shape = Shape()
    _, native = adapters(shape, 3)
    prefill(native, shape, 3, 6)
    start, new = torch.tensor([5, 6, 4]), tokens(3, 6)
    every = native.score(new, start, reach=SLOTS, topology=TREE).logits
    first = native.score(new[:2], start[:2], reach=SLOTS, topology=TREE).logits
    assert torch.equal(first, every[:2])
    before = native.cache.kv.clone()
    native.commit(start[:1], torch.tensor([[0, 2, 5]]))
    assert torch.equal(native.cache.kv[:, :, 1:], before[:, :, 1:])
    assert torch.equal(native.cache.kv[:, :, 0, :, 6], before[:, :, 0, :, 7])


def test_wrong_indices_are_refused_before_anything_is_written() -> None:
    shape = Shape()
    _, native = adapters(shape, 2)
    prefill(native, shape, 2, 3)
    before = native.cache.kv.clone()
    one = torch.tensor([[1], [1]])
    with pytest.raises(IndexError, match="token"):
        native.score(torch.tensor([[1], [cases.VOCAB]]), torch.tensor([3, 3]), reach=SLOTS)
    with pytest.raises(IndexError, match="slot"):
        native.score(one, torch.tensor([3, SLOTS]), reach=SLOTS)
    with pytest.raises(IndexError, match="slot"):
        native.score(one, torch.tensor([-1, 0]), reach=SLOTS)
    with pytest.raises(IndexError, match="slot"):
        native.prefill(torch.tensor([2]), tokens(1, 3), states(shape, 1))
    with pytest.raises(ValueError, match="shape"):
        native.score(one, torch.tensor([3, 3]), reach=SLOTS + 1)
    assert torch.equal(native.cache.kv, before)


def test_models_that_the_kernels_do_not_have_are_refused_with_a_reason() -> None:
    narrow = cases.model(Shape(heads=3, size=4))
    assert "multiple of 8" in str(unsupported(narrow))
    with pytest.raises(LoadError, match="multiple of 8"):
        NativeWhisperDecoder(narrow)
    assert "gelu_new" in str(unsupported(cases.model(Shape(activation="gelu_new"))))


def test_instruction_sets_agree() -> None:
    shape = Shape(size=64, inner=128, sources=50)
    _, native = adapters(shape, 2)
    results = {}
    try:
        for name in native.library.instruction_sets():
            native.library.choose(name)
            prefill(native, shape, 2, 7)
            results[name] = native.score(tokens(2, 6), torch.tensor([6, 7]), reach=SLOTS).logits
    finally:
        native.library.choose(None)
    assert "generic" in results
    for found in results.values():
        torch.testing.assert_close(found, results["generic"], **CLOSE)
    with pytest.raises(ValueError, match="generic"):
        native.library.choose("abacus")
