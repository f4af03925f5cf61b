"""DecodingContext: what all recordings share, which is one loaded model with its engine.

Knows how its parts fit together; nothing of recordings or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from forescribe.speculative.device import Stopwatch
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.graphs.snapshots import SideStream

from ..audio.features import LogMel
from ..model.loading import Whisper
from ..segment.vad import Detector, SileroDetector
from ..segment.windows import Samples
from .isolation import IsolatedEngine
from .rules import NoSpeech


@dataclass(eq=False)
class DecodingContext:
    """A Whisper model, its engine and what prepares audio for them, on one device.

    `mels` make the features that the models' encoders read, the target's first.
    `slots` is the engine with faults as values; `watch` counts the seconds before the engine, on cuda with
    the rounds that run beside an encoder. `side` is where the encoder runs.
    `gamma` is what the transcriber was created with, None for an adaptive draft length. `detector` is
    loaded on first use where it is None.
    """

    whisper: Whisper
    engine: Engine
    slots: IsolatedEngine
    mels: tuple[LogMel, ...]
    no_speech: NoSpeech
    watch: Stopwatch
    gamma: int | None = None
    detector: Detector | None = None
    side: SideStream = field(init=False)

    def __post_init__(self) -> None:
        self.side = SideStream(self.whisper.device)

    @property
    def mel(self) -> LogMel:
        """What makes the features of the target."""
        return self.mels[0]

    def features(self, windows: Sequence[Samples]) -> tuple[Tensor, ...]:
        """The features of windows, by model, for `Whisper.encode`."""
        return tuple(mel(windows) for mel in self.mels)

    @property
    def batch(self) -> int:
        """Windows that are decoded at a time."""
        return self.engine.batch

    @property
    def encoded_together(self) -> int:
        """Windows that are encoded at a time. Where the encoder takes them one by one anyway, features and
        encoder states of the next windows would only wait in memory."""
        return self.batch if self.whisper.device.rows_together else 1

    @property
    def forward(self) -> str:
        """What runs the forwards of the target's decoder: a name of `ModelEngine`."""
        return str(getattr(self.engine.target, "engine", self.whisper.engine))

    def voice_detector(self) -> Detector:
        """The voice activity detector, loaded on first use. Raises ModelError."""
        if self.detector is None:
            self.detector = SileroDetector()
        return self.detector
