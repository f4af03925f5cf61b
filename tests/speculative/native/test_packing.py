"""Packed weights are made once for a model, follow its parameters, and copy only what must be copied."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

from forescribe.speculative.models import engines
from forescribe.speculative.models.engines import causal_decoder, checked_whisper_engine
from forescribe.speculative.models.weights import fingerprint
from forescribe.speculative.native import decoder as native_whisper
from forescribe.speculative.native import packing
from forescribe.speculative.native.decoder import NativeCausalDecoder, NativeWhisperDecoder
from forescribe.speculative.native.library import Stored, load
from forescribe.speculative.native.packing import Packer
from tests.speculative.models.causal_lms import causal_lm
from tests.speculative.native.cases import SLOTS, Shape, model, prefill

pytestmark = pytest.mark.native

SHAPE = Shape()


def read(decoder: NativeWhisperDecoder) -> torch.Tensor:
    decoder.allocate(2, SLOTS)
    logits = prefill(decoder, SHAPE, 2, 5)
    decoder.release()
    return logits


def test_adapters_of_a_model_share_its_packed_weights_and_no_cache():
    whisper = copy.deepcopy(model(SHAPE))
    one, two = NativeWhisperDecoder(whisper), NativeWhisperDecoder(whisper)
    assert one._packed is two._packed
    expected = read(one)
    one.allocate(2, SLOTS)
    prefill(one, SHAPE, 2, 5)
    assert read(two).equal(expected)
    assert one._record.batch == 2 and two._record.batch == 0
    other = NativeWhisperDecoder(whisper, stored=torch.bfloat16)
    assert other._packed is not one._packed
    cut = NativeWhisperDecoder(whisper, listed=range(4, 20))
    assert cut._packed is not one._packed and cut._record.outputs == 16
    assert read(NativeWhisperDecoder(whisper)).equal(expected)


def test_generators_of_a_text_model_share_its_packed_weights():
    llama = copy.deepcopy(causal_lm("llama"))
    first, second = causal_decoder(llama), causal_decoder(llama, 20)
    assert isinstance(first, NativeCausalDecoder) and isinstance(second, NativeCausalDecoder)
    assert first._packed is second._packed
    wider = causal_decoder(llama, vocab=llama.config.vocab_size + 3)
    assert isinstance(wider, NativeCausalDecoder) and wider._packed is not first._packed


@pytest.mark.parametrize("in_place", [True, False])
def test_changed_parameters_are_packed_again(in_place):
    whisper = copy.deepcopy(model(SHAPE))
    before = read(NativeWhisperDecoder(whisper))
    bias = whisper.model.decoder.layers[1].fc1.bias
    if in_place:
        bias.data[3] += 1  # torch counts no version of this
    else:
        bias.data = bias.data + 1
    after = read(NativeWhisperDecoder(whisper))
    assert not after.equal(before)
    assert after.equal(read(NativeWhisperDecoder(copy.deepcopy(whisper))))


def test_packed_weights_are_freed_with_the_model():
    whisper = copy.deepcopy(model(SHAPE))
    packed = weakref.ref(NativeWhisperDecoder(whisper)._packed)
    gc.collect()
    assert packed() is not None
    del whisper
    gc.collect()
    assert packed() is None


def test_what_was_packed_for_a_refused_engine_is_freed(monkeypatch):
    whisper, llama = copy.deepcopy(model(SHAPE)), copy.deepcopy(causal_lm("llama"))
    monkeypatch.setattr(engines, "decoder_difference", _build)
    with pytest.raises(Exception, match="logits"):
        checked_whisper_engine(whisper, engines.ModelEngine.NATIVE)
    assert whisper not in packing._packed
    monkeypatch.setattr(NativeCausalDecoder, "_difference", lambda self: "other logits")
    with pytest.raises(Exception, match="other logits"):
        causal_decoder(llama, engine=engines.ModelEngine.NATIVE)
    assert llama not in packing._packed


def _build(model, adapter) -> str:
    assert isinstance(adapter(model), native_whisper.NativeWhisperDecoder)
    return "other logits"


def test_rounded_weights_need_no_rounded_copy():
    packer = Packer(load(), Stored.BFLOAT16)
    exact = torch.randn(7, 16)
    rounded = exact.to(torch.bfloat16).float()
    assert packer.plain(rounded) == rounded.data_ptr()
    assert packer.plain(exact) != exact.data_ptr()
    assert packer._kept[-1].equal(rounded)
    assert Packer(load(), Stored.FLOAT32).plain(exact) == exact.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5), (4, 6), (7,), ()])
def test_every_number_counts_in_the_sum_of_a_parameter(shape, dtype):
    block = torch.randn(64).to(dtype)
    for first in (0, 1):  # parameters may be parts of a larger matrix
        size = max(1, torch.Size(shape).numel())
        whole = block[first : first + size].view(shape)
        for at in range(size):
            before = fingerprint([whole])
            block[first + at] += 1
            assert fingerprint([whole]) != before
    assert fingerprint([torch.zeros(2, 3)]) != fingerprint([torch.zeros(3, 2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 8), (6, 7), (4, 3, 5), (9,)])
def test_rows_and_columns_that_change_places_are_seen(dtype, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    for axis in range(weight.ndim):
        order = torch.arange(shape[axis]).roll(1)
        moved = weight.index_select(axis, order)
        assert fingerprint([moved]) != fingerprint([weight])
        assert fingerprint([weight.clone()]) == fingerprint([weight])
