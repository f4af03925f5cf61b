"""Packed weights are made once for a model, follow its parameters, and copy only what must be copied."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

from forescribe.speculative.model_engines import causal_decoder
from forescribe.speculative.native.adapters import NativeCausalDecoder, NativeWhisperDecoder
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
        with torch.no_grad():
            bias[3] += 1
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


def test_rounded_weights_need_no_rounded_copy():
    packer = Packer(load(), Stored.BFLOAT16)
    exact = torch.randn(7, 16)
    rounded = exact.to(torch.bfloat16).float()
    assert packer.plain(rounded) == rounded.data_ptr()
    assert packer.plain(exact) != exact.data_ptr()
    assert packer._kept[-1].equal(rounded)
    assert Packer(load(), Stored.FLOAT32).plain(exact) == exact.data_ptr()
