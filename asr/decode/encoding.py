"""Encoding: batches of windows to encoder states and, on request, languages.

A batch that fails is repeated window by window, so that a faulty window fails alone. Knows nothing of
recordings or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forescribe.speculative.graphs.snapshots import SideStream

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
        samples = [samples for samples, _ in batch]
        detect = [wanted for _, wanted in batch]
        side = context.side
        # Rounds of the windows that are being decoded go on meanwhile, where the device has streams.
        passed = side.run(lambda: _forward(context.whisper, context.features(samples)), advance)
        passed.hand_over(side)
        return side.run(lambda: passed.windows(context.whisper, detect))

    advance = context.slots.advance
    return apply_each(encode, list(zip(windows, detect, strict=True)))


def encode_features(
    whisper: Whisper, features: Sequence[Tensor], detect: Sequence[bool]
) -> list[EncodedWindow | Exception]:
    """Encode features `[B, M, F]`, by model; as `encode_windows`, but raises what the model raises."""
    return _forward(whisper, features).windows(whisper, detect)


@dataclass(frozen=True, eq=False)
class _Forward:
    """What the encoder made of a batch of features, which nothing has read yet."""

    features: Tensor  # [B, M, F], the target's
    states: list[EncoderStates]
    finite: Tensor  # [B] bool

    def hand_over(self, side: SideStream) -> None:
        """For the stream of the rounds, which reads the states."""
        side.hand_over(self.features)
        for part in (part for s in self.states for part in (s.target, *s.drafts)):
            side.hand_over(part)

    def windows(self, whisper: Whisper, detect: Sequence[bool]) -> list[EncodedWindow | Exception]:
        """The windows with their languages. Reads the device: once, and once more for languages."""
        finite: list[bool] = self.finite.tolist()
        rows = [row for row, wanted in enumerate(detect) if wanted and finite[row]]
        detected = whisper.detect_language([self.states[row] for row in rows]) if rows else []
        languages = dict(zip(rows, detected, strict=True))
        return [
            EncodedWindow(self.features[row], window_states, languages.get(row))
            if finite[row]
            else NotFinite("the encoder's numbers are not finite")
            for row, window_states in enumerate(self.states)
        ]


def _forward(whisper: Whisper, features: Sequence[Tensor]) -> _Forward:
    states = whisper.encode(*features)
    return _Forward(features[0], states, _finite(states))


def _finite(states: Sequence[EncoderStates]) -> Tensor:
    """Whether each window's states are finite `[B]`. NaN would also spoil the detected language."""
    return torch.stack(
        [
            torch.stack([part.isfinite().all() for part in (s.target, *s.drafts)]).all()
            for s in states
        ]
    )
