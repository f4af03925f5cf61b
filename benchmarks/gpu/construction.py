"""Constructed weights: transformers' Whisper classes that write the texts of a `TextPath`.

The width is divided into blocks: positions, the sign of a token, the sign of the token before it, the class
of the audio, and a code of the step on the path. Layer 0 of a decoder moves two of them: one head of its
self-attention reads the sign at the slot before, one head of its cross-attention the class from the
encoder's states. The output head scores step, sign and class. All other weights are noise of the usual
size, scaled so that all layers together move a number of the residual stream by about a fifth: they cost
what real ones cost and do not decide. Margins are far above the rounding of bfloat16, so tokens must be
equal in every way of computing them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForCausalLM, WhisperForConditionalGeneration

from .dimensions import Dimensions
from .text_path import TextPath, codes

NOISE = 0.02
"""What a sublayer adds to a number of the residual stream, as a standard deviation."""
SIGN, CLASS = 8, 4  # numbers that carry a sign, and one class
SHARPNESS = 100.0
"""Scale of the positional scores: the slot before wins by a factor of more than e^12."""
LOUD = 10.0  # a class in the encoder's residual stream
TILE = 1 << 22


@dataclass(frozen=True)
class Blocks:
    """Where in the residual stream what is kept."""

    places: slice
    sign: slice
    before: slice
    kind: slice
    step: slice

    @classmethod
    def of(cls, d: Dimensions) -> Blocks:
        sizes = [d.head_size, SIGN, SIGN, CLASS * d.classes]
        ends = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
        places, sign, before, kind = map(slice, ends, ends[1:])
        return cls(places, sign, before, kind, step=slice(ends[-1], d.width))


class Noise:
    """Fills weights with the same numbers on every device: parts of one block of random numbers."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(7)
        block = (torch.rand(TILE, generator=generator) * 2 - 1) * math.sqrt(3)
        self._block, self._shift = block.to(device, dtype), 0

    def fill(self, weight: Tensor, std: float) -> None:
        """Overwrites `weight` with numbers of this standard deviation."""
        flat, at = weight.view(-1), 0
        self._shift = (self._shift + 65537) % (TILE // 2)
        while at < len(flat):
            part = self._block[self._shift : self._shift + len(flat) - at]
            torch.mul(part, std, out=flat[at : at + len(part)])
            at += len(part)


def config(d: Dimensions, layers: int) -> WhisperConfig:
    """transformers' configuration of a target or a draft."""
    return WhisperConfig(
        vocab_size=d.vocab,
        num_mel_bins=d.bands,
        d_model=d.width,
        encoder_layers=d.encoder_layers,
        decoder_layers=layers,
        encoder_attention_heads=d.heads,
        decoder_attention_heads=d.heads,
        encoder_ffn_dim=d.inner,
        decoder_ffn_dim=d.inner,
        max_source_positions=d.frames,
        max_target_positions=d.positions,
        pad_token_id=d.eos,
        bos_token_id=d.eos,
        eos_token_id=d.eos,
        decoder_start_token_id=d.prompt[0],
        begin_suppress_tokens=None,
        suppress_tokens=None,
        tie_word_embeddings=False,
    )


@torch.no_grad()
def target(path: TextPath, device: torch.device, dtype: torch.dtype, encoder: bool = True) -> Any:
    """A constructed `WhisperForConditionalGeneration`, or its decoder alone as `WhisperForCausalLM`."""
    d = path.dimensions
    made = _empty(
        WhisperForConditionalGeneration if encoder else WhisperForCausalLM,
        config(d, d.decoder_layers),
        device,
        dtype,
    )
    noise = Noise(device, dtype)
    if encoder:
        _encoder(made.model.encoder, d, noise)
    _decoder(made, path, noise, misled={})
    return made


@torch.no_grad()
def draft(path: TextPath, agreement: float, device: torch.device, dtype: torch.dtype) -> Any:
    """A constructed draft that proposes the target's token with this probability."""
    made = _empty(
        WhisperForCausalLM, config(path.dimensions, path.dimensions.draft_layers), device, dtype
    )
    _decoder(made, path, Noise(device, dtype), path.misled(agreement))
    return made


def _empty(kind: Any, settings: WhisperConfig, device: torch.device, dtype: torch.dtype) -> Any:
    with torch.device("meta"):
        made = kind._from_config(settings, attn_implementation="sdpa")
    return made.to(dtype).to_empty(device=device).eval()


def _layers(layers: Any, noise: Noise, names: tuple[str, ...]) -> None:
    """Noise everywhere: projections that keep the scale, and outputs that are small."""
    for layer in layers:
        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1)
                module.bias.zero_()
            elif isinstance(module, torch.nn.Linear):
                small = name.endswith(("out_proj", "fc2"))
                noise.fill(module.weight, (NOISE if small else 1.0) / math.sqrt(module.in_features))
                if module.bias is not None:
                    module.bias.zero_()
    assert all(hasattr(layers[0], name) for name in names)


def _encoder(encoder: Any, d: Dimensions, noise: Noise) -> None:
    """Features in which a group of bands is loud become states in which the numbers of a class are large."""
    kind, group = Blocks.of(d).kind, d.bands // d.classes
    _layers(encoder.layers, noise, ("self_attn", "fc1"))
    for conv in (encoder.conv1, encoder.conv2):
        noise.fill(conv.weight, 0.05 / math.sqrt(conv.weight[0].numel()))
        conv.bias.zero_()
    for n in range(CLASS * d.classes):
        row, bands = kind.start + n, slice((n // CLASS) * group, (n // CLASS + 1) * group)
        encoder.conv1.weight[row].zero_()
        encoder.conv1.weight[row, bands, 1] = LOUD / group
        encoder.conv2.weight[row].zero_()
        encoder.conv2.weight[row, row, 1] = 1.0
    angles = torch.arange(d.frames)[:, None] / 10000 ** torch.linspace(0, 1, d.width // 2)
    encoder.embed_positions.weight.copy_(torch.cat([angles.sin(), angles.cos()], dim=1))
    encoder.layer_norm.weight.fill_(1)
    encoder.layer_norm.bias.zero_()


def loudness(d: Dimensions) -> float:
    """About the value of a class in the encoder's normalised states."""
    return LOUD / math.sqrt(0.6 + CLASS * LOUD**2 / d.width)


def states(d: Dimensions, kinds: list[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Encoder states `[B, S, D]` like those of the constructed encoder, for audio of these classes."""
    generator, kind = torch.Generator().manual_seed(3), Blocks.of(d).kind
    made = torch.randn((len(kinds), d.frames, d.width), generator=generator) * 0.8
    for row, which in enumerate(kinds):
        first = kind.start + CLASS * which
        made[row, :, first : first + CLASS] += loudness(d)
    return made.to(device, dtype)


def features(d: Dimensions, kinds: list[int], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Log-mel features `[B, M, F]` of these classes, with noise."""
    generator, group = torch.Generator().manual_seed(5), d.bands // d.classes
    made = torch.randn((len(kinds), d.bands, 2 * d.frames), generator=generator) * 0.1
    for row, which in enumerate(kinds):
        made[row, which * group : (which + 1) * group] += 1
    return made.to(device, dtype)


def _decoder(model: Any, path: TextPath, noise: Noise, misled: dict[int, int]) -> None:
    d, decoder = path.dimensions, model.model.decoder
    blocks = Blocks.of(d)
    _layers(decoder.layers, noise, ("self_attn", "encoder_attn", "fc1"))
    decoder.layer_norm.weight.fill_(1)
    decoder.layer_norm.bias.zero_()
    step_codes = codes(len(path.ids), blocks.step.stop - blocks.step.start, seed=11)
    embedding = _embedding(path, blocks, step_codes)
    decoder.embed_tokens.weight.copy_(embedding)
    turns = _turns(d)
    angles = torch.arange(d.positions)[:, None] * turns  # [P, d / 2]
    decoder.embed_positions.weight.zero_()
    decoder.embed_positions.weight[:, blocks.places] = (
        torch.cat([angles.cos(), angles.sin()], 1)
        .to(embedding.dtype)
        .to(decoder.embed_positions.weight)
    )
    _read_the_slot_before(decoder.layers[0].self_attn, d, blocks, turns)
    _read_the_audio(decoder.layers[0].encoder_attn, d, blocks)
    model.proj_out.weight.copy_(_head(path, blocks, step_codes, misled))


def _turns(d: Dimensions) -> Tensor:
    """Frequencies of the positional code `[d / 2]` whose similarity falls from one slot to every other."""
    turns = torch.rand(d.head_size // 2, generator=torch.Generator().manual_seed(2)) * 2 * math.pi
    distance = torch.arange(1, d.positions)[:, None]
    nearest = float((distance * turns).cos().mean(1).max())
    assert nearest < 0.75, nearest
    return turns


def _embedding(path: TextPath, blocks: Blocks, step_codes: Tensor) -> Tensor:
    d = path.dimensions
    made = torch.zeros((d.vocab, d.width))
    made[:, blocks.step] = codes(d.vocab, step_codes.shape[1], seed=13)  # tokens off the path
    for step, kinds in enumerate(path.ids):
        made[[t for pair in kinds for t in pair], blocks.step] = step_codes[step]
    made[list(d.openers), blocks.step] = step_codes[0]
    made[:, blocks.sign] = torch.tensor(path.signs)[:, None].float()
    return made


def _read_the_slot_before(attention: Any, d: Dimensions, blocks: Blocks, turns: Tensor) -> None:
    """Head 0: the query is the key's code turned back by one position, the value is the sign."""
    half, size = d.head_size // 2, d.head_size
    cos, sin = torch.diag(turns.cos()), torch.diag(turns.sin())
    back = torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)])  # R(-1) of [cos; sin]
    query, key = attention.q_proj.weight, attention.k_proj.weight
    assert back.shape == (2 * half, size)
    for weight in (query, key, attention.v_proj.weight):
        weight[:size].zero_()
    query[:size, blocks.places] = (SHARPNESS / math.sqrt(size) * back).to(query)
    key[:size, blocks.places] = torch.eye(size).to(key)
    values, out = attention.v_proj.weight, attention.out_proj.weight
    values[:SIGN, blocks.sign] = torch.eye(SIGN).to(values)
    out[:, :size] = 0
    out[blocks.before, :SIGN] = torch.eye(SIGN).to(out)


def _read_the_audio(attention: Any, d: Dimensions, blocks: Blocks) -> None:
    """Head 0 reads the mean of all states: their class."""
    size, count = d.head_size, CLASS * d.classes
    assert count <= size
    for weight in (attention.q_proj.weight, attention.v_proj.weight):
        weight[:size].zero_()
    attention.v_proj.weight[:count, blocks.kind] = torch.eye(count).to(attention.v_proj.weight)
    out = attention.out_proj.weight
    out[:, :size] = 0
    out[blocks.kind, :count] = (2.0 / loudness(d) * torch.eye(count)).to(out)


def _head(path: TextPath, blocks: Blocks, step_codes: Tensor, misled: dict[int, int]) -> Tensor:
    """Rows `[V, D]`: a token scores the step before its own, its class and its sign."""
    d, size = path.dimensions, step_codes.shape[1]
    made, quarter = torch.zeros((d.vocab, d.width)), size / 4
    for step, kinds in enumerate(path.ids):
        following = (misled.get(step, step) + 1) % len(path.ids)
        own = step_codes[step] if step not in path.ends else torch.zeros(size)
        for which, pair in enumerate(path.ids[following]):
            for sign, token in zip((-1, 1), pair, strict=True):
                first = blocks.kind.start + CLASS * which
                made[token, blocks.step] = own
                made[token, blocks.before] = sign * quarter / SIGN
                made[token, first : first + CLASS] = quarter / (2 * CLASS)
        assert len(kinds) == d.classes
    for step in path.ends:
        made[d.eos, blocks.step] += step_codes[step]
    # Behind the task comes the timestamp of 0 s.
    made[d.openers[1], blocks.step] = codes(d.vocab, size, seed=13)[d.task]
    return made * (20 / size)
