"""The native Whisper encoder against transformers' own, and against itself in other batches."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from forescribe.speculative import model_engines
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.quantized import int8_encoder, is_int8
from forescribe.speculative.native.adapters import NativeEncoder, unsupported_encoder

pytestmark = pytest.mark.native


def encoder(
    heads: int = 2,
    size: int = 16,
    layers: int = 2,
    inner: int = 40,
    sources: int = 50,
    mels: int = 8,
    activation: str = "gelu",
) -> WhisperEncoder:
    torch.manual_seed(heads * size + sources)
    config = WhisperConfig(
        d_model=heads * size,
        encoder_attention_heads=heads,
        encoder_layers=layers,
        encoder_ffn_dim=inner,
        num_mel_bins=mels,
        max_source_positions=sources,
        activation_function=activation,
    )
    made = WhisperEncoder(config).eval()
    with torch.no_grad():  # biases and gains that a mistake in their order would show
        for weight in made.parameters():
            weight.normal_(1.0 if weight.ndim == 1 else 0.0, 0.2)
    return made


def features(batch: int, of: WhisperEncoder, seed: int = 0) -> torch.Tensor:
    shape = (batch, of.config.num_mel_bins, 2 * of.config.max_source_positions)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=25)
@given(
    heads=st.sampled_from([1, 2, 3]),
    size=st.sampled_from([8, 16, 24, 64, 80]),
    layers=st.integers(1, 2),
    inner=st.sampled_from([8, 40, 64]),
    # Around the numbers of positions and of keys that are taken at a time.
    sources=st.sampled_from([1, 2, 15, 17, 47, 48, 49, 97, 511, 513, 1025]),
    mels=st.sampled_from([2, 80, 128]),
    activation=st.sampled_from(["gelu", "relu", "silu"]),
)
@torch.inference_mode()
def test_states_are_those_of_the_modules(**shape):
    modules = encoder(**shape)
    windows = features(2, modules)
    wanted = modules(windows).last_hidden_state
    found = torch.stack(NativeEncoder(modules)(windows))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=5e-4)


@settings(max_examples=10)
@given(
    heads=st.sampled_from([1, 3]),
    size=st.sampled_from([8, 24, 64]),
    inner=st.sampled_from([8, 40, 64]),
    sources=st.sampled_from([1, 17, 48, 49, 97]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@torch.inference_mode()
def test_in_8_bit_integers_states_are_those_of_the_rounded_modules(dtype, **shape):
    """But for numbers at the border of two integers: a difference in the last bit becomes a step there."""
    modules = encoder(**shape).to(dtype)
    rounded = int8_encoder(modules)
    native = NativeEncoder(rounded)
    window = features(1, modules)
    theirs = rounded(window.to(dtype)).last_hidden_state[0].float()
    gap = (native.states(window[0]).float() - theirs).square().mean(-1).sqrt()
    assert (gap <= (0.1 + 0.01 * len(modules.layers)) * theirs.std(-1).clamp_min(1e-6)).all()
    assert is_int8(rounded) and not is_int8(modules)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("int8", [False, True], ids=["floats", "int8"])
@torch.inference_mode()
def test_a_windows_bits_depend_neither_on_the_batch_nor_on_threads(dtype, int8):
    modules = encoder(3, 24, sources=530).to(dtype)
    native = NativeEncoder(int8_encoder(modules) if int8 else modules)
    windows, threads = features(4, modules), torch.get_num_threads()
    seen = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            seen += [torch.stack(native(windows)), native(windows[2:3])[0]]
    finally:
        torch.set_num_threads(threads)
    for batch, alone in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(batch, seen[0])
        assert torch.equal(alone, seen[0][2])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@torch.inference_mode()
def test_a_window_of_no_numbers_spoils_itself_alone(poison):
    native = NativeEncoder(modules := encoder(sources=100))
    windows = features(3, modules)
    clean = native(windows)
    windows[1, 3, 77] = poison
    first, second, third = native(windows)
    assert not second.isfinite().all()
    assert torch.equal(first, clean[0]) and torch.equal(third, clean[2])
    assert torch.equal(native(features(3, modules))[1], clean[1])  # nor what is encoded after it


def test_what_it_cannot_run_is_named():
    assert "not a multiple of 8" in str(unsupported_encoder(encoder(size=12)))
    assert "torch.float16" in str(unsupported_encoder(encoder().half()))
    assert "activation" in str(unsupported_encoder(encoder(activation="gelu_new")))
    with pytest.raises(LoadError, match="not a multiple of 8"):
        NativeEncoder(encoder(size=12))


class Model(torch.nn.Module):
    """What is read of a Whisper: its encoder."""

    def __init__(self, modules: torch.nn.Module) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.encoder = modules


def chosen(modules: WhisperEncoder, asked: ModelEngine, engine: ModelEngine = ModelEngine.NATIVE):
    return model_engines.native_encoder(Model(modules), engine, asked)


def test_it_encodes_where_it_runs_the_decoder():
    assert chosen(encoder(), ModelEngine.AUTO) is not None
    for engine in (ModelEngine.LEAN, ModelEngine.MODULES):
        assert chosen(encoder(), ModelEngine.AUTO, engine) is None
    assert chosen(encoder().bfloat16(), ModelEngine.NATIVE) is not None
    assert chosen(encoder().half(), ModelEngine.AUTO) is None
    with pytest.raises(LoadError, match=r"torch\.float16"):
        chosen(encoder().half(), ModelEngine.NATIVE)


def test_another_encoder_is_refused_by_name_and_replaced_by_auto(caplog):
    class Louder(WhisperEncoder):
        def forward(self, *args, **kwargs):
            states = super().forward(*args, **kwargs)
            states.last_hidden_state = states.last_hidden_state * 1.1
            return states

    louder = Louder(encoder().config).eval()
    with caplog.at_level(logging.WARNING):
        assert chosen(louder, ModelEngine.AUTO) is None
    assert "encoder of engine modules instead of native: it is a Louder" in caplog.text
    with pytest.raises(LoadError, match="no form of this encoder: it is a Louder"):
        chosen(louder, ModelEngine.NATIVE)


def test_a_model_in_8_bit_integers_has_such_an_encoder():
    modules = encoder()
    floats, rounded = (
        model_engines.native_encoder(
            Model(modules), ModelEngine.NATIVE, ModelEngine.AUTO, int8=int8
        )
        for int8 in (False, True)
    )
    assert floats is not None and rounded is not None
    window = features(1, modules)
    assert not torch.equal(floats(window)[0], rounded(window)[0])
    assert torch.equal(rounded(window)[0], NativeEncoder(int8_encoder(modules))(window)[0])
