"""Whisper under the core's `Model` protocol, over unmodified transformers classes.

`WhisperForConditionalGeneration` (OpenAI's and distil-whisper's checkpoints) and the decoder-only
`WhisperForCausalLM` both hold the same decoder. A request's encoder states are the encoder's output for
its window; the cross-attention keys and values are computed once, when the request is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ..drafts import Scores
from .agreement import LENGTH, ROWS, Closeness, Reading, dependence, difference
from .cache import LayerShape, SlotCache
from .cut_head import cut
from .families.module_taps import reading
from .quantized.int8_linear import is_int8
from .slot_model import ModuleModel, SlotModel


class WhisperDecoder(ModuleModel):
    """The decoder of a Whisper model; `pick` selects this model's encoder output from a request's encoder
    states, `sources` are the positions of those outputs if they are not the model's own. Of a draft, `listed`
    are the only tokens that it proposes (None: all): its head has their rows alone."""

    engine = "modules"

    def __init__(
        self,
        model: Any,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        config = model.config
        self.sources = config.max_source_positions if sources is None else sources
        inner = model.model  # WhisperModel, or the wrapper of the decoder-only class
        self.decoder, self.pick = inner.decoder, pick
        self.config = config
        super().__init__(
            device=self.decoder.embed_tokens.weight.device,
            dtype=self.decoder.embed_tokens.weight.dtype,
            vocab_size=config.vocab_size,
            positions=config.max_target_positions,
            layers=config.decoder_layers,
            listed=listed,
        )
        self.output = cut(model.proj_out, self.listed)
        # Cross-attention is entered only if encoder states are given; with the cache filled, their
        # content is never read.
        self._seen = torch.empty((1, 0, config.d_model), device=self.device, dtype=self.dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.decoder.embed_tokens(tokens)
        return embedded

    def head(self, states: Tensor) -> Tensor:
        return self.whole(self.output(states).float())

    def new_cache(self, batch: int, slots: int) -> SlotCache:
        heads = self.config.decoder_attention_heads
        size = self.config.d_model // heads
        return SlotCache(
            batch=batch,
            slots=slots,
            layers=[LayerShape(heads, size, size)] * self.config.decoder_layers,
            dtype=self.dtype,
            device=self.device,
            cross_slots=self.sources,
        )

    def stack_encoder_states(self, encoder_states: Sequence[Any]) -> Tensor:
        return torch.stack([self.pick(m) for m in encoder_states]).to(self.device, self.dtype)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Cache,
        encoder_states: Tensor | None,
    ) -> Scores:
        with reading(self.decoder.layers, self.taps) as states:
            states[-1] = self.decoder(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                encoder_hidden_states=self._seen if encoder_states is None else encoder_states,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
        return Scores(self.head(states[-1]), self.tapped(states))


@torch.inference_mode()
def adapter_difference(model: Any, adapter: Callable[..., SlotModel]) -> str | None:
    """A description of where an adapter of the model, made by `adapter(sources=...)`, differs from the
    model's own decoder, None where it does not. Call it before attention is replaced. See
    `speculative.models.agreement`."""
    sources = 8  # the positions of a window would cost as much as an encoder's pass
    decoder, modules, head = adapter(sources=sources), model.model.decoder, model.proj_out
    if decoder.max_positions < LENGTH:
        return f"it has {decoder.max_positions} positions, fewer than {LENGTH}"
    reading = Reading.of(decoder.vocab_size, LENGTH, decoder.device)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn((ROWS, sources, model.config.d_model), generator=generator)
    states = states.to(decoder.device, decoder.dtype)

    def plain() -> Tensor:
        hidden = modules(
            input_ids=reading.tokens, encoder_hidden_states=states, use_cache=False
        ).last_hidden_state
        logits: Tensor = head(hidden)
        return logits.float()

    logits = plain()
    if not bool(logits.isfinite().any(-1).all()):
        return f"its logits are no numbers in {str(decoder.dtype).removeprefix('torch.')}"
    close = Closeness.of(
        decoder.dtype, modules.get_input_embeddings(), plain, int8=is_int8(modules)
    )
    where = difference(decoder, logits, reading, close, list(states))
    if where is not None:
        return f"logits behind {where} are not those of its plain forward"
    if decoder.invariant and is_int8(modules):
        where = dependence(decoder, reading, list(states))
    return where and f"in 8-bit integers its logits of {where}"


def decoder_only(config: Any) -> bool:
    """Whether a folder with this configuration holds a `WhisperForCausalLM`: a draft, never a target."""
    return "WhisperForCausalLM" in (config.architectures or [])


def encoder_of(model: Any) -> Any:
    """The encoder of a `WhisperForConditionalGeneration`; None for the decoder-only class."""
    return getattr(model.model, "encoder", None)


def same_encoder(model: Any, other: Any, *stored: torch.dtype) -> bool:
    """True where both encoders hold equal weights, so that one's output serves both; else False. Weights that
    were rounded to different dtypes, `stored`, are compared after rounding both to each of them.

    Compared tensor by tensor, never assumed from names: a fine-tuned encoder of the same shape would
    silently cost acceptance.
    """
    encoder, second = encoder_of(model), encoder_of(other)
    if encoder is None or second is None:
        return second is None
    weights, others = encoder.state_dict(), second.state_dict()
    return weights.keys() == others.keys() and all(
        weights[name].shape == others[name].shape
        and torch.equal(_rounded(weights[name], stored), _rounded(others[name], stored))
        for name in weights
    )


def _rounded(weight: Tensor, stored: Sequence[torch.dtype]) -> Tensor:
    """A weight rounded to every dtype in turn; itself where they are one."""
    if len(set(stored)) < 2:
        return weight
    for dtype in stored:
        weight = weight.to(dtype)
    return weight
