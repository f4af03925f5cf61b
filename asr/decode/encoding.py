"""Encoding: batches of windows to encoder states and, on request, languages.

A batch that fails is repeated window by window, so that a faulty window fails alone. Knows nothing of
recordings or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.loading import EncoderStates, Whisper
from ..segment.windows import Samples
from .decoding_context import DecodingContext
from .isolation import apply_each


@dataclass(frozen=True, eq=False)
class EncodedWindow:
    """Features `[M, F]` and encoder states of a window; its language and the probability of that
    language, where detection was requested."""

    features: Tensor
    encoder_states: EncoderStates
    language: tuple[str, float] | None


class NotFinite(ArithmeticError):
    """The encoder returned NaN or infinity, so nothing computed from its states can be trusted."""


def encode_windows(
    context: DecodingContext, windows: Sequence[Samples], detect: Sequence[bool]
) -> list[EncodedWindow | Exception]:
    """Encode windows of samples; `detect` says for each whether to detect its language.

    Returns an exception in place of each window that failed.
    """

    def encode(batch: Sequence[tuple[Samples, bool]]) -> list[EncodedWindow | Exception]:
        features = context.mel([samples for samples, _ in batch])
        return encode_features(context.whisper, features, [wanted for _, wanted in batch])

    return apply_each(encode, list(zip(windows, detect, strict=True)))


def encode_features(
    whisper: Whisper, features: Tensor, detect: Sequence[bool]
) -> list[EncodedWindow | Exception]:
    """Encode features `[B, M, F]`; as `encode_windows`, but raises what the model raises."""
    states = whisper.encode(features)
    finite = _finite(states)
    rows = [row for row, wanted in enumerate(detect) if wanted and finite[row]]
    detected = whisper.detect_language([states[row] for row in rows]) if rows else []
    languages = dict(zip(rows, detected, strict=True))
    return [
        EncodedWindow(features[row], window_states, languages.get(row))
        if finite[row]
        else NotFinite("the encoder's numbers are not finite")
        for row, window_states in enumerate(states)
    ]


def _finite(states: Sequence[EncoderStates]) -> list[bool]:
    """Whether each window's states are finite, in one read of the device. NaN would also spoil the
    detected language."""
    finite: list[bool] = torch.stack(
        [
            torch.stack(
                [part.isfinite().all() for part in (s.target, s.draft) if part is not None]
            ).all()
            for s in states
        ]
    ).tolist()
    return finite
