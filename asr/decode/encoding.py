"""Hearing: windows of samples to what their decoding needs, a batch at a time.

Features, encoder states and, where it is wanted, the language. A batch that fails is taken apart, so
that a window with a fault takes no other with it. Knows nothing of recordings or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..model.loading import EncoderStates
from ..segment.windows import Samples
from .isolation import each

if TYPE_CHECKING:
    from .transcriber import Transcriber


@dataclass(frozen=True, eq=False)
class Heard:
    """A window: features `[M, F]`, encoder states and, if it was wanted, language and probability."""

    features: Tensor
    encoder_states: EncoderStates
    language: tuple[str, float] | None


class NotFinite(ArithmeticError):
    """The encoder gave numbers that are none: nothing that is made of them can be believed."""


def hear(
    transcriber: Transcriber, windows: Sequence[Samples], wanting: Sequence[bool]
) -> list[Heard | Exception]:
    """Each window's, or why there is none; `wanting` says whose language is to be detected."""

    def work(some: Sequence[tuple[Samples, bool]]) -> list[Heard | Exception]:
        features = transcriber.mel([samples for samples, _ in some])
        return heard(transcriber, features, [wants for _, wants in some])

    return each(work, list(zip(windows, wanting, strict=True)))


def heard(
    transcriber: Transcriber, features: Tensor, wanting: Sequence[bool]
) -> list[Heard | Exception]:
    """Likewise of features `[B, M, F]`; raises what a model raises."""
    whisper = transcriber.whisper
    encoded = whisper.encode(features)
    sound = _finite(encoded)
    asking = [i for i, wants in enumerate(wanting) if wants and sound[i]]
    told = whisper.detect_language([encoded[i] for i in asking]) if asking else []
    languages = dict(zip(asking, told, strict=True))
    return [
        Heard(features[i], encoder_states, languages.get(i))
        if sound[i]
        else NotFinite("the encoder's numbers are not finite")
        for i, encoder_states in enumerate(encoded)
    ]


def _finite(encoded: Sequence[EncoderStates]) -> list[bool]:
    """By window; one read of the device for all. NaN would spoil the detected language too."""
    found: list[bool] = torch.stack(
        [
            torch.stack(
                [part.isfinite().all() for part in (m.target, m.draft) if part is not None]
            ).all()
            for m in encoded
        ]
    ).tolist()
    return found
