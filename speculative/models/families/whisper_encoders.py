"""What runs Whisper's encoder: transformers' modules, or native kernels where they ran the decoder too.

Knows when the native form can be used, and compares its states with the modules' when a model is loaded;
nothing of how they compute.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from ...native.native_encoder import NativeEncoder, unsupported
from ..lean.coverage import encoder_gap
from ..whisper_decoder import encoder_of
from .model_engine import ModelEngine

log = logging.getLogger(__name__)

POSITIONS = 60
"""Positions of the window that is compared: more than the kernels take at a time, few beside 1,500."""
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Root mean square of the difference at any position, as a share of the states' spread. Rounding differs by
1e-6 to 1e-5 in float32, and by 0.02 to 0.03 in bfloat16."""


def native_encoder(model: Any, engine: ModelEngine, asked: ModelEngine) -> NativeEncoder | None:
    """The native encoder of a Whisper whose decoder runs on `engine`; None where its modules encode: on the
    other engines, and where `auto` was `asked` and the native states differ or there are no such kernels.
    Raises LoadError where `native` was asked for and cannot encode."""
    encoder = encoder_of(model)
    if engine is not ModelEngine.NATIVE or encoder is None:
        return None
    problem = encoder_gap(encoder) or unsupported(encoder)
    if problem is None:
        native = NativeEncoder(encoder)
        problem = difference(encoder, native)
        if problem is None:
            return native
    if asked is ModelEngine.NATIVE:
        raise LoadError(f"the native engine has no form of this encoder: {problem}")
    log.warning("encoder of engine modules instead of native: %s", problem)
    return None


@torch.inference_mode()
def difference(encoder: Any, native: NativeEncoder) -> str | None:
    """How native states of a short window differ from the modules'; None where only rounding differs."""
    short = shortened(encoder, min(POSITIONS, native.positions))
    generator = torch.Generator().manual_seed(2)
    frames = 2 * short.config.max_source_positions
    features = torch.randn((encoder.config.num_mel_bins, frames), generator=generator)
    theirs: Tensor = short(features[None].to(native.dtype)).last_hidden_state[0].float()
    if not bool(theirs.isfinite().all()):
        return "the states of its modules are no numbers"
    gap = (native.states(features).float() - theirs).double().square().mean(-1).sqrt()
    share = gap / theirs.double().std(-1).clamp_min(1e-6)
    if not bool((share <= BOUNDS[native.dtype]).all()):  # `not`, so that NaN counts as a difference
        return f"its states differ by {float(share.max()):.2g} of their spread"
    return None


def shortened(encoder: Any, positions: int) -> Any:
    """The same modules and weights for windows of the first `positions`: a whole window would cost as much
    as encoding one."""
    short = copy.copy(encoder)
    short._modules = dict(encoder._modules)
    short.config = copy.copy(encoder.config)
    short.config.max_source_positions = positions
    rows = encoder.embed_positions.weight.detach()[:positions]
    short.embed_positions = torch.nn.Embedding.from_pretrained(rows)
    return short
