"""The demo model's shape, its initial weights, and forward passes over windows shorter than 30 s.

The modules are transformers' own; only the encoder's loop is repeated here, because transformers
refuses anything but 3,000 frames and most of training runs on a tenth of that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from training import pieces
from training.windows import ALPHABET

WIDTH = 256
GUIDED_LAYERS = (2, 3, 4, 5)


def configuration(decoder_layers: int = 8) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=pieces.VOCABULARY,
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
        pad_token_id=pieces.EOT,
        bos_token_id=pieces.EOT,
        eos_token_id=pieces.EOT,
        decoder_start_token_id=pieces.SOT,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


class Speech(nn.Module):
    """Whisper with a CTC head on its encoder; the head is dropped when the model is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.whisper = WhisperForConditionalGeneration(configuration())
        self.ctc = nn.Linear(WIDTH, len(ALPHABET) + 1)
        # On two cores the plain product of matrices is a third faster than the fused kernel.
        self.whisper.set_attn_implementation("eager")
        initialise(self)

    def encode(self, features: Tensor) -> Tensor:
        """features [B, 80, 2T] -> states [B, T, D]."""
        return encode(self.whisper.model.encoder, features)

    def decode(
        self, tokens: Tensor, states: Tensor, known: Tensor, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """tokens [B, L], states [B, T, D] -> logits [K, V] at the K positions marked in known.

        With `places` [B, L] also the guide: how much attention looks elsewhere (see `stray`).
        """
        result = self.whisper.model.decoder(
            input_ids=tokens,
            encoder_hidden_states=states,
            use_cache=False,
            output_attentions=places is not None,
        )
        guide = torch.zeros(())
        if places is not None:
            guide = stray(result.cross_attentions, places, GUIDED_LAYERS)
        return self.whisper.proj_out(result.last_hidden_state[known]), guide


def stray(attentions: tuple[Tensor, ...], places: Tensor, layers: tuple[int, ...]) -> Tensor:
    """Minus log of the attention mass within 0.5 s of where a token is heard, for guided heads.

    Guided attention (after Tachibana et al. 2017): that speech is read from left to right is known
    beforehand and need not be discovered.
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
    """Fan-in scaled weights; projections back into the residual stream start small."""
    torch.manual_seed(0)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "proj_out" not in name:
            scale = 0.2 if name.endswith(("out_proj", "fc2")) else 0.8
            nn.init.normal_(module.weight, std=scale / math.sqrt(module.in_features))
        elif isinstance(module, nn.Conv1d):
            fan_in = module.in_channels * module.kernel_size[0]
            nn.init.normal_(module.weight, std=1 / math.sqrt(fan_in))
