"""The demo model: its shape, initial weights, and forward passes over windows shorter than 30 s.

The modules are those of transformers. Only the loop of the encoder is reimplemented, as transformers
accepts 3,000 frames only and most of the training uses a tenth of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import (
    WhisperDecoder,
    WhisperDecoderLayer,
    WhisperEncoder,
)

from training.demo.windows import ALPHABET
from training.sentences import vocabulary

WIDTH = 256
LAYERS, DRAFT_LAYERS = 12, 2
GUIDED_LAYERS = (2, 3, 4, 5)


def configuration(decoder_layers: int = LAYERS) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=vocabulary.VOCABULARY,
        num_mel_bins=80,
        d_model=WIDTH,
        encoder_layers=4,
        encoder_attention_heads=4,
        encoder_ffn_dim=4 * WIDTH,
        decoder_layers=decoder_layers,
        decoder_attention_heads=4,
        decoder_ffn_dim=4 * WIDTH,
        max_source_positions=1500,
        max_target_positions=448,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        pad_token_id=vocabulary.EOT,
        bos_token_id=vocabulary.EOT,
        eos_token_id=vocabulary.EOT,
        decoder_start_token_id=vocabulary.SOT,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


class Speech(nn.Module):
    """Whisper with a CTC head on its encoder and the decoder of its draft, which uses the same encoder.
    Head and draft are exported separately."""

    def __init__(self) -> None:
        super().__init__()
        self.whisper = WhisperForConditionalGeneration(configuration())
        self.ctc = nn.Linear(WIDTH, len(ALPHABET) + 1)
        # On two cores the plain matrix product is a third faster than the fused kernel.
        self.whisper.set_attn_implementation("eager")
        initialise(self)
        self.draft = start_draft(self.whisper)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load a checkpoint; missing layers of the draft or of the target start as identity copies.
        Raises `ValueError` for a checkpoint of another model."""
        missing, unknown = self.load_state_dict(weights, strict=False)
        upper = "whisper.model.decoder.layers."
        if unknown or not all(name.startswith(("draft.", upper)) for name in missing):
            raise ValueError(f"the checkpoint is of another model: {[*missing, *unknown][:3]}")
        new = sorted({int(n.removeprefix(upper).split(".")[0]) for n in missing if upper in n})
        layers = self.whisper.model.decoder.layers
        for number in new:
            layers[number].load_state_dict(layers[number - len(new)].state_dict())
            silence(layers[number])
        if any(name.startswith("draft.") for name in missing):
            self.draft = start_draft(self.whisper)
            self.load_state_dict(weights, strict=False)

    def drop(self, share: float) -> None:
        """Set the dropout of the decoders; for the encoder, noise prevents overfitting."""
        for decoder in (self.whisper.model.decoder, self.draft):
            for module in decoder.modules():
                if hasattr(module, "dropout"):
                    module.dropout = share

    def encode(self, features: Tensor) -> Tensor:
        """features [B, 80, 2T] -> states [B, T, D]."""
        return encode(self.whisper.model.encoder, features)

    def decode(
        self, tokens: Tensor, states: Tensor, known: Tensor, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits and guide of the target, see `read`."""
        decoder = self.whisper.model.decoder
        return read(decoder, tokens, states, known, places, GUIDED_LAYERS)

    def guess(
        self, tokens: Tensor, states: Tensor, known: Tensor, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits and guide of the draft, see `read`."""
        return read(self.draft, tokens, states, known, places, tuple(range(DRAFT_LAYERS)))


def read(
    decoder: WhisperDecoder,
    tokens: Tensor,
    states: Tensor,
    known: Tensor,
    places: Tensor | None,
    guided: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Tokens [B, L] and states [B, T, D] -> logits [K, V] at the K positions marked in `known`.

    With `places` [B, L] also returns the guide loss of the `guided` layers (see `stray`), else zero.
    """
    result = decoder(
        input_ids=tokens,
        encoder_hidden_states=states,
        use_cache=False,
        output_attentions=places is not None,
    )
    guide = torch.zeros(())
    if places is not None:
        guide = stray(result.cross_attentions, places, guided)
    return linear(result.last_hidden_state[known], decoder.embed_tokens.weight), guide


def start_draft(target: WhisperForConditionalGeneration) -> WhisperDecoder:
    """Create a small decoder from copies of the target's layers: the first from the first, the others from
    the last guided one, initialised as identity."""
    draft = WhisperForConditionalGeneration(configuration(decoder_layers=DRAFT_LAYERS))
    draft.set_attn_implementation("eager")
    theirs, ours = target.model.decoder, draft.model.decoder
    for name in ("embed_tokens", "embed_positions", "layer_norm"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    ours.layers[0].load_state_dict(theirs.layers[0].state_dict())
    for layer in ours.layers[1:]:
        layer.load_state_dict(theirs.layers[GUIDED_LAYERS[-1]].state_dict())
        silence(layer)
    return ours


def silence(layer: WhisperDecoderLayer) -> None:
    """Make a layer the identity, so that adding it does not change the decoder."""
    for last in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)


def stray(attentions: tuple[Tensor, ...], places: Tensor, layers: tuple[int, ...]) -> Tensor:
    """Minus log of the attention mass within 0.5 s of a token's place, for guided heads.

    Guided attention (after Tachibana et al. 2017): speech is read from left to right, so the model need
    not discover it.
    """
    steps = torch.arange(attentions[0].shape[-1])
    band = (steps - places[..., None]).abs() <= 25  # [B, L, T]
    heard = places >= 0
    total = torch.zeros(())
    if not bool(heard.any()):
        return total
    for layer in layers:
        mass = (attentions[layer][:, :2].float() * band[:, None]).sum(-1)  # [B, 2, L]
        total = total - (mass + 1e-4).log()[heard[:, None].expand_as(mass)].mean()
    return total / len(layers)


def encode(encoder: WhisperEncoder, features: Tensor) -> Tensor:
    """The encoder's forward for any even number of frames."""
    x = gelu(encoder.conv2(gelu(encoder.conv1(features)))).transpose(1, 2)  # [B, T, D]
    x = x + encoder.embed_positions.weight[: x.shape[1]]
    for layer in encoder.layers:
        x = layer(x, None)
    return encoder.layer_norm(x)


def initialise(model: nn.Module) -> None:
    """Initialise with fan-in scaling; projections into the residual stream start small."""
    torch.manual_seed(0)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "proj_out" not in name:
            scale = 0.2 if name.endswith(("out_proj", "fc2")) else 0.8
            nn.init.normal_(module.weight, std=scale / math.sqrt(module.in_features))
        elif isinstance(module, nn.Conv1d):
            fan_in = module.in_channels * module.kernel_size[0]
            nn.init.normal_(module.weight, std=1 / math.sqrt(fan_in))
