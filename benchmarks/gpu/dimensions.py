"""Dimensions of the constructed models.

Numbers only. `LARGE_V3` is openai/whisper-large-v3's published config.json; the draft is
distil-whisper/distil-large-v3, which keeps large-v3's encoder and two of its decoder's layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FREQUENT = 8000
"""Tokens that constructed texts consist of, as a text of a domain uses a part of the vocabulary. A draft head
cut to them costs nothing in agreement here; with real models it costs what the tokens outside are worth."""


@dataclass(frozen=True)
class Dimensions:
    """Sizes of a target and its draft."""

    name: str
    width: int
    heads: int
    inner: int
    encoder_layers: int
    decoder_layers: int
    draft_layers: int
    vocab: int
    bands: int  # of the log-mel features
    frames: int  # encoder states of a window
    positions: int
    classes: int  # kinds of audio; each has texts of its own
    tokens: int  # that constructed texts consist of
    eos: int
    openers: tuple[int, int]  # no timestamps, and 0 s: behind them a text begins at the first step
    window_s: float = 30.0

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def prompt(self) -> tuple[int, ...]:
        """Start of transcript and three more special tokens, as in Whisper's prompts."""
        return tuple(range(self.eos + 1, self.eos + 5))

    @property
    def task(self) -> int:
        """The token of transcription."""
        return self.openers[0] - 4

    @property
    def steps(self) -> int:
        """Steps of the path on which constructed texts walk; each has two tokens for every class."""
        return self.tokens // (2 * self.classes)


LARGE_V3 = Dimensions(
    name="large-v3",
    width=1280,
    heads=20,
    inner=5120,
    encoder_layers=32,
    decoder_layers=32,
    draft_layers=2,
    vocab=51866,
    bands=128,
    frames=1500,
    positions=448,
    classes=16,
    tokens=FREQUENT,
    eos=50257,
    openers=(50364, 50365),
)

SMALL = replace(
    LARGE_V3,
    name="small",
    width=192,
    heads=3,
    inner=256,
    encoder_layers=2,
    decoder_layers=4,
    vocab=5609,
    classes=4,
    tokens=480,
    eos=4000,
    openers=(4107, 4108),
)
"""Narrow and shallow; windows, features and special tokens are large-v3's, the vocabulary is cut."""

KNOWN = {each.name: each for each in (LARGE_V3, SMALL)}
