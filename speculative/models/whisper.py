"""The base of the adapters of Whisper's decoder, and the comparisons with the model's own modules.

`causal` is the same for text models. Knows a Whisper's configuration and its plain forward; nothing of how an
adapter or a kernel computes.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..native.encoder import NativeEncoder
from .agreement import LENGTH, ROWS, Closeness, Reading, dependence, difference
from .plain import awake
from .quantized import is_int8
from .slot_model import SlotModel

SHORT = 8
"""Encoder states of a comparison: those of a whole window would cost as much as an encoder's pass."""
POSITIONS = 60
"""Positions of the window that is compared: more than the kernels take at a time, few beside 1,500."""
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Root mean square of the difference at any position, as a share of the states' spread. Rounding differs by
1e-6 to 1e-5 in float32, and by 0.02 to 0.03 in bfloat16."""
INT8_BOUND = 0.1, 0.01
"""The same in 8-bit integers, and more for each layer: a difference in the last bit becomes a step. It is
0.025 in tiny.en's four layers and 0.04 in whisper-base's six (0.06 beside bfloat16); with the scales of one
matrix in each other's places it was 0.17 to 0.64."""


class WhisperModel(SlotModel):
    """The decoder of a Whisper model: a `PlainWhisper`, or of transformers.

    `pick` selects this model's encoder states `[S, D]` from those of a request; `sources` is S where it is
    not the model's own. Native kernels store weights and caches in `stored`, None: in the model's dtype; the
    other engines have no storage of their own. Of a draft, `listed` are the only tokens that it proposes
    (None: all): its head has their rows alone. Raises LoadError for a model that the engine cannot run.
    """

    output: Callable[[Tensor], Tensor]
    """The output layer, with the rows of `listed` alone; set by `prepare`."""

    def __init__(
        self,
        model: Any,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int | None = None,
        stored: torch.dtype | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        config = model.config
        self.config, self.pick = config, pick
        self.sources = config.max_source_positions if sources is None else sources
        self.model, weight = model, model.model.decoder.embed_tokens.weight
        super().__init__(
            device=weight.device,
            dtype=weight.dtype,
            vocab_size=config.vocab_size,
            positions=config.max_target_positions,
            layers=config.decoder_layers,
            listed=listed,
        )
        self.prepare(model, stored or self.dtype)

    @abstractmethod
    def prepare(self, model: Any, stored: torch.dtype) -> None:
        """Reads from the model what the adapter needs. Raises LoadError where it lacks that."""

    def embed(self, tokens: Tensor) -> Tensor:
        decoder = awake(self.model).model.decoder
        return embedding(tokens, decoder.embed_tokens.weight.detach())

    def head(self, states: Tensor) -> Tensor:
        return self.whole(self.output(states).float())

    def stacked(self, encoder_states: Sequence[Any]) -> Tensor:
        """The encoder states `[K, S, D]` of requests."""
        return torch.stack([self.pick(s) for s in encoder_states]).to(self.device, self.dtype)


@torch.inference_mode()
def decoder_difference(model: Any, adapter: Callable[..., SlotModel]) -> str | None:
    """A description of where an adapter of the model, made by `adapter(model, sources=...)`, differs from the
    model's own decoder, None where it does not. Call it before attention is replaced. See
    `speculative.models.agreement`."""
    decoder, modules, head = adapter(model, sources=SHORT), model.model.decoder, model.proj_out
    if decoder.max_positions < LENGTH:
        return f"it has {decoder.max_positions} positions, fewer than {LENGTH}"
    reading = Reading.of(decoder.vocab_size, LENGTH, decoder.device)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn((ROWS, SHORT, model.config.d_model), generator=generator)
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


@torch.inference_mode()
def encoder_difference(encoder: Any, native: NativeEncoder) -> str | None:
    """How native states of a short window differ from the modules'; None where only rounding differs."""
    short = _shortened(encoder, min(POSITIONS, native.positions))
    generator = torch.Generator().manual_seed(2)
    frames = 2 * short.config.max_source_positions
    features = torch.randn((encoder.config.num_mel_bins, frames), generator=generator)
    theirs: Tensor = short(features[None].to(native.dtype)).last_hidden_state[0].float()
    if not bool(theirs.isfinite().all()):
        return "the states of its modules are no numbers"
    gap = (native.states(features).float() - theirs).double().square().mean(-1).sqrt()
    share = gap / theirs.double().std(-1).clamp_min(1e-6)
    bound = BOUNDS[native.dtype]
    if is_int8(encoder):
        bound = INT8_BOUND[0] + INT8_BOUND[1] * len(encoder.layers)
    if not bool((share <= bound).all()):  # `not`, so that NaN counts as a difference
        return f"its states differ by {float(share.max()):.2g} of their spread"
    return None


def _shortened(encoder: Any, positions: int) -> Any:
    """The same modules and weights for windows of the first `positions`: a whole window would cost as much
    as encoding one."""
    short = copy.copy(encoder)
    short._modules = dict(encoder._modules)
    short.config = copy.copy(encoder.config)
    short.config.max_source_positions = positions
    rows = encoder.embed_positions.weight.detach()[:positions]
    short.embed_positions = torch.nn.Embedding.from_pretrained(rows)
    return short
