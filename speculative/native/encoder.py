"""Whisper's encoder as one native call for each window.

Reads the weights of an unmodified transformers encoder, in float32 or bfloat16. A window's states depend
neither on the windows beside it nor on the number of threads, to the last bit, and NaN in one window stays
there.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..errors import LoadError
from ..models.weights import EncoderWeights
from .library import ACTIVATIONS, STORED, Library, Workspace, load, missing
from .packing import Packer, encoder_record


class NativeEncoder:
    """The states of windows. Calls of several threads wait for each other: they share one workspace. Raises
    LoadError where `unsupported_encoder` has a reason."""

    def __init__(self, encoder: Any) -> None:
        reason = unsupported_encoder(encoder)
        if reason is not None:
            raise LoadError(reason)
        self.library: Library = load()
        self.dtype: torch.dtype = encoder.conv1.weight.dtype
        # Whole: a window's positions read every number dozens of times, and widening each would cost more
        # than the memory's time.
        self._packer = Packer(self.library, STORED[self.dtype], exact=())
        self._record, self._layers = encoder_record(self._packer, EncoderWeights.of(encoder))
        self._packer.close()
        self.positions = int(self._record.sources)
        self._workspace, self._lock = Workspace(), Lock()

    def __call__(self, features: Tensor) -> list[Tensor]:
        """States `[S, D]` of each window of `features [B, M, 2 S]`, in the modules' dtype. Raises ValueError
        for features of another length."""
        if features.shape[-1] != 2 * self.positions:
            raise ValueError(f"a window has {2 * self.positions} frames, not {features.shape[-1]}")
        return [self.states(window) for window in features]

    def states(self, features: Tensor) -> Tensor:
        """States `[S, D]` of one window `[M, 2 S]`, which may be shorter than the encoder's."""
        record, threads = self._record, torch.get_num_threads()
        mels, frames = features.shape
        if mels != record.mels or frames % 2 or not 0 < frames <= 2 * self.positions:
            raise ValueError(f"features of shape {tuple(features.shape)}")
        features = features.detach().to("cpu", torch.float32).contiguous()
        states = torch.empty((frames // 2, int(record.width)))
        with self._lock:
            record.sources = frames // 2
            size = self.library.encoder_workspace(record, threads)
            self.library.encode(
                record,
                features.data_ptr(),
                states.data_ptr(),
                self._workspace.at_least(size),
                size,
                threads,
            )
        return states.to(self.dtype)


def unsupported_encoder(encoder: Any) -> str | None:
    """Why a `WhisperEncoder` cannot run natively here; None where it can."""
    config, weight = encoder.config, encoder.conv1.weight
    heads = config.encoder_attention_heads
    if weight.device.type != "cpu" or weight.dtype not in STORED:
        return (
            "the native encoder is for float32 and bfloat16 on CPUs, and this one is "
            f"{weight.dtype} on {weight.device}"
        )
    if config.d_model % heads or config.d_model // heads % 8 or config.encoder_ffn_dim % 8:
        return f"heads of {config.d_model}/{heads} columns are not a multiple of 8"
    if config.num_mel_bins % 2:
        return f"{config.num_mel_bins} mel bins are not even"
    if config.activation_function not in ACTIVATIONS:
        return f"native kernels do not have the activation {config.activation_function}"
    return missing()
