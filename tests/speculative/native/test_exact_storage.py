"""Matrices of float32 that are kept in fewer bytes: the form that fits is taken, and no bit of a result
changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.model_engines import causal_decoder
from forescribe.speculative.models.hub import path
from forescribe.speculative.models.quantized import quantized
from forescribe.speculative.native import adapters as native_decoder
from forescribe.speculative.native.adapters import NativeCausalDecoder, NativeWhisperDecoder
from forescribe.speculative.native.library import Stored, load
from forescribe.speculative.native.packing import Packer
from forescribe.text.language_model import load as load_text
from tests.speculative.models.causal_lms import causal_lm

from . import cases
from .cases import SLOTS, Shape, prefill, tokens

pytestmark = pytest.mark.native


def integers(weight: Tensor) -> Tensor:
    whole, scale = quantized(weight)
    return whole.float() * scale[:, None]


FORMS: dict[Stored, Callable[[Tensor], Tensor]] = {
    Stored.EXACT_INT8: integers,
    Stored.EXACT_FLOAT16: lambda weight: weight.half().float(),
    Stored.EXACT_BFLOAT16: lambda weight: weight.bfloat16().float(),
}


def rounded(model: torch.nn.Module, form: Stored) -> torch.nn.Module:
    """A copy with matrices whose numbers a form has."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        if parameter.ndim == 2:
            parameter.data = FORMS[form](parameter.data)
    return copied


@pytest.fixture
def whole(monkeypatch):
    """Makes adapters whose matrices are whole float32."""

    def make(adapter, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(native_decoder, "Packer", partial(Packer, exact=()))
            return adapter(*arguments, **options)

    return make


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_whisper_logits_of_several_rounds_are_those_of_whole_matrices(instruction_set, form, whole):
    shape = Shape(heads=3, size=64, inner=72, sources=50)
    target = rounded(cases.model(shape), form)
    narrow = NativeWhisperDecoder(target)
    plain = whole(NativeWhisperDecoder, copy.deepcopy(target))
    assert {layer.up.storage for layer in narrow._layers} == {form}
    assert narrow._record.head.storage == form and plain._record.head.storage == Stored.FLOAT32
    # Rows of one tile, of two, and of more, which are multiplied with widened panels.
    for batch, nodes in ((1, 1), (1, 5), (2, 4), (3, 3), (3, 12)):
        narrow.allocate(batch, SLOTS), plain.allocate(batch, SLOTS)
        assert prefill(narrow, shape, batch, 6).equal(prefill(plain, shape, batch, 6))
        start = torch.arange(batch) % 3 + 4
        for seed in range(3):
            new = tokens(batch, nodes, seed)
            found, expected = (a.score(new, start, reach=SLOTS) for a in (narrow, plain))
            assert found.logits.equal(expected.logits)
            start = start + 1


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_texts_score_as_with_whole_matrices(instruction_set, form, whole):
    llama = rounded(causal_lm("llama"), form)
    narrow, plain = causal_decoder(llama), whole(causal_decoder, copy.deepcopy(llama))
    assert isinstance(narrow, NativeCausalDecoder) and isinstance(plain, NativeCausalDecoder)
    assert narrow._layers[0].down.storage == form
    vocab = llama.config.vocab_size
    for batch, nodes in ((1, 2), (2, 9)):
        rows, prompt = torch.arange(batch), torch.arange(batch * 5).view(batch, 5) % vocab
        found = []
        for adapter in (narrow, plain):
            adapter.allocate(batch, SLOTS)
            adapter.prefill(rows, prompt, [None] * batch)
            new = torch.arange(batch * nodes).view(batch, nodes) * 7 % vocab
            found.append(adapter.score(new, torch.full((batch,), 5), reach=SLOTS).logits)
        assert found[0].equal(found[1])


def test_the_first_form_with_all_numbers_is_taken():
    weight = torch.randn(20, 16)
    for form, fit in FORMS.items():
        packer = Packer(load(), Stored.FLOAT32)
        assert packer.matrix(fit(weight)).storage == form
        spoilt = fit(weight)
        spoilt[17, 3] = 1 / 3
        assert packer.matrix(spoilt).storage == Stored.FLOAT32
    assert Packer(load(), Stored.BFLOAT16).matrix(integers(weight)).storage == Stored.BFLOAT16


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, 1e-45, 65520.0])
def test_numbers_that_a_form_lacks_keep_a_matrix_whole_or_take_another(number):
    weight = integers(torch.randn(3, 16))
    weight[1, 5] = number
    exact = Packer(load(), Stored.FLOAT32, exact=(Stored.EXACT_INT8, Stored.EXACT_FLOAT16))
    assert exact.matrix(weight).storage == Stored.FLOAT32


def test_small_numbers_of_float16_survive_a_factor_of_the_weights():
    """The scale of queries is folded into their projection: an eighth of a subnormal number is none of
    float16."""
    weight = torch.linspace(-0.3, 0.3, 64 * 32).view(64, 32).half().float()
    weight[:, 0] = 6e-8  # rounds to the smallest number
    weight = weight.half().float()
    assert Packer(load(), Stored.FLOAT32).matrix(weight * 0.125).storage == Stored.EXACT_FLOAT16


def test_a_head_that_is_the_embedding_is_packed_once():
    whisper = cases.model(Shape())
    tied = NativeWhisperDecoder(whisper)
    assert tied._record.head.weight == tied._record.embedding.weight
    cut = NativeWhisperDecoder(whisper, listed=range(4, 20))
    assert cut._record.head.weight != cut._record.embedding.weight


def test_bundled_models_are_kept_as_their_files_hold_them():
    model = load_text(path("text"), Device("cpu", torch.float32))
    decoder = causal_decoder(model.model)
    assert isinstance(decoder, NativeCausalDecoder)
    forms = {decoder._record.projection.storage, *(layer.down.storage for layer in decoder._layers)}
    assert forms == {Stored.EXACT_INT8}
