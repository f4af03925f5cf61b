"""The engine that needs no download: small packaged models in pyannote's own pipeline.

silero-vad hears whether somebody speaks, a GE2E encoder whose voice it is, clustering how many there
are, and the level of the sound where exactly a turn begins and ends. Both networks hear the recording
once, where the stock pipeline would show them every window anew.
It knows of one speaker at a time: overlapped speech goes to whoever is heard best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from forescribe.asr.formats.transcript import SAMPLE_RATE
from forescribe.asr.segment.vad import FRAME, Detector, SileroDetector
from forescribe.speculative.models import bundled

from ..boundaries import refine_boundaries
from ..diarizer import Engine, SimilarityThresholds
from .clustering import SplittingVBx, unit
from .noise_removal import NOISY_DB
from .pyannote_pipeline import PyannoteDiarizer
from .upstream import (
    PLDA,
    Model,
    Problem,
    Resolution,
    SlidingWindow,
    SlidingWindowFeature,
    SpeakerDiarization,
    Specifications,
)
from .voice_encoder import DIMENSION, PART, WINDOW_SAMPLES, SpeakerEncoder, identity, load

NAME = "embedded"

WINDOW_FRAMES = WINDOW_SAMPLES // FRAME
"""50 frames of 32 ms: the encoder's 1.6 s."""

STEP_FRAMES = 16
"""512 ms from window to window, 7,000 vectors an hour. Half of that costs twice the time, nearly all of it
the encoder's, and makes 0.3 points of error fewer in conversations (docs/development/log.md, 2026-11-22)."""

LAG_S = 1.5 * FRAME / SAMPLE_RATE
"""Seconds by which borders come late: half a frame since pyannote puts them at a frame's middle, one
since silero-vad says so a frame late. Measured on synthesised speech: 49 ms at starts, 39 at ends."""

THRESHOLDS = SimilarityThresholds(same=0.5, possible=0.38)
"""Of vectors in the PLDA's space, each from seconds of speech; bundled/speakers/README.md has the
figures. Of two people's voices through one kind of channel, one pair in a hundred is as like as
`same`; `maybe` is where as many are missed as are wrongly taken."""

SHARES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"segmentation": (0.0, 0.1), "embeddings": (0.1, 0.95)}
)


@dataclass(frozen=True)
class Tuning:
    """The pipeline's parameters, chosen on mixtures of held-out voices; bundled/speakers/README.md
    says which and how."""

    speech: float = 0.5  # probability from which on a frame counts
    gap_s: float = 0.0  # within a speaker's turn, bridged; forescribe.diarize.boundaries does that
    lda: int = 64  # dimensions of the PLDA that are used
    threshold: float = 1.2  # distance of unit vectors where linkage stops: a cosine of 0.28
    Fa: float = 0.2  # what a window is worth as evidence: twice that of windows half as far apart
    Fb: float = 1.6

    def parameters(self) -> dict[str, dict[str, float]]:
        """As pyannote's `instantiate` takes them."""
        return {
            "segmentation": {"threshold": self.speech, "min_duration_off": self.gap_s},
            "clustering": {"threshold": self.threshold, "Fa": self.Fa, "Fb": self.Fb},
        }


class VoiceActivity(Model):  # type: ignore[misc]  # pyannote is untyped to us
    """Whether somebody speaks, in frames of 32 ms, as a segmentation with one local speaker."""

    def __init__(self, detector: Detector | None = None) -> None:
        super().__init__()
        self.detector = detector or SileroDetector()
        self.specifications = Specifications(
            problem=Problem.MULTI_LABEL_CLASSIFICATION,
            resolution=Resolution.FRAME,
            duration=WINDOW_SAMPLES / SAMPLE_RATE,
            classes=["speech"],
            permutation_invariant=True,
        )

    def forward(self, waveforms: Tensor) -> Tensor:
        """[B, 1, T] -> [B, ceil(T / 512), 1] probabilities; each row is a recording of its own."""
        rest = -waveforms.shape[-1] % FRAME
        padded = np.pad(waveforms[:, 0].cpu().numpy(), ((0, 0), (0, rest)))
        return torch.from_numpy(np.stack([self._row(row) for row in padded]))[..., None]

    def _row(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        stream = self.detector.stream()
        parts = np.split(samples, range(PART, len(samples), PART))
        return np.concatenate([stream.probabilities(part) for part in parts])

    def num_frames(self, num_samples: int) -> int:
        return -(-num_samples // FRAME)

    def receptive_field_size(self, num_frames: int = 1) -> int:
        return num_frames * FRAME

    def receptive_field_center(self, frame: int = 0) -> int:
        return frame * FRAME + (FRAME - 1) // 2


class VoiceVector(Model):  # type: ignore[misc]  # pyannote is untyped to us
    """A vector for a whole waveform: the mean over its windows of 1.6 s."""

    dimension = DIMENSION

    def __init__(self, encoder: SpeakerEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.specifications = Specifications(
            problem=Problem.REPRESENTATION,
            resolution=Resolution.CHUNK,
            duration=WINDOW_SAMPLES / SAMPLE_RATE,
        )

    def forward(self, waveforms: Tensor, weights: Tensor | None = None) -> Tensor:
        """[B, 1, T], [B, F] which frames count -> [B, D] unit vectors."""
        rows = waveforms[:, 0].cpu().numpy()
        if weights is not None:
            kept = torch.nn.functional.interpolate(weights[:, None], rows.shape[1])[:, 0]
            rows = rows * (kept.cpu().numpy() > 0.5)
        return torch.stack([torch.from_numpy(self.of(row)) for row in rows]).to(waveforms.device)

    def of(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """[T] -> [D] of one voice's samples; a waveform shorter than a window is padded."""
        last = max(0, len(samples) - WINDOW_SAMPLES)
        starts = np.unique(np.linspace(0, last, 1 + last // (WINDOW_SAMPLES // 4)).astype(np.int64))
        vectors = np.concatenate(list(self.encoder.windows(samples, starts)))
        mean: NDArray[np.float32] = normalize(torch.from_numpy(vectors).mean(0), dim=0).numpy()
        return mean


class PldaProjection:
    """From the means of windows [K, D] to vectors [K, 128] in the PLDA's whole space: there the
    microphone and the line weigh less, so that one bound fits them all.

    With the arrays as they are stored: pyannote's class solves for their axes anew, whose signs are
    any machine's own, and a voice that one machine stored would be another's stranger.
    """

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "xvec_transform.npz") as first, np.load(folder / "plda.npz") as then:
            self.mean1, self.lda, self.mean2 = first["mean1"], first["lda"], first["mean2"]
            self.mu, self.axes = then["mu"], then["tr"].T

    def __call__(self, means: NDArray[Any]) -> NDArray[Any]:
        wide, narrow = np.sqrt(self.lda.shape)
        whitened = unit(unit(means) - self.mean1) * wide @ self.lda
        return np.asarray((unit(whitened - self.mean2) * narrow - self.mu) @ self.axes)


def encoder_identity(folder: Path) -> str:
    """What stored voices carry, by the contents of encoder and PLDA: under another mean or in
    another space they could not be compared."""
    digest = sha256()
    for name in ("xvec_transform.npz", "plda.npz"):
        with np.load(folder / name) as arrays:
            for key in sorted(arrays):
                digest.update(arrays[key].astype(np.float32).tobytes())
    return f"{identity(folder)}-{digest.hexdigest()[:8]}"


class EmbeddedDiarization(SpeakerDiarization):  # type: ignore[misc]  # pyannote is untyped to us
    """pyannote's pipeline, its two networks run once over the recording."""

    @torch.inference_mode()
    def get_segmentations(
        self, file: Any, hook: Callable[..., None] | None = None
    ) -> SlidingWindowFeature:
        """[C, 50, 1] speech probabilities of windows. The last windows reach into silence behind the
        recording, so that none of its frames is in fewer than the first ones are."""
        heard = self._segmentation.model(file["waveform"][None])[0, :, 0].numpy()  # [F]
        count = 1 + max(0, -(-(len(heard) - WINDOW_FRAMES) // STEP_FRAMES))
        padded = np.zeros((count - 1) * STEP_FRAMES + WINDOW_FRAMES, np.float32)
        padded[: len(heard)] = heard
        windows = sliding_window_view(padded, WINDOW_FRAMES)[::STEP_FRAMES]
        seconds = FRAME / SAMPLE_RATE
        place = SlidingWindow(
            start=-LAG_S, duration=WINDOW_FRAMES * seconds, step=STEP_FRAMES * seconds
        )
        return SlidingWindowFeature(windows[..., None].copy(), place)

    @torch.inference_mode()
    def get_embeddings(
        self,
        file: Any,
        binary_segmentations: SlidingWindowFeature,
        exclude_overlap: bool = False,
        hook: Callable[..., None] | None = None,
    ) -> NDArray[np.float32]:
        """[C, 50, 1] -> [C, 1, D]; windows in which nobody speaks are not heard, and get the mean."""
        speech = binary_segmentations.data[:, :, 0] > 0
        spoken = np.flatnonzero(speech.any(1))
        heard = self.heard(file, spoken, self.noisy(file, speech), hook)
        every = np.tile(heard.mean(0), (len(binary_segmentations.data), 1))  # [C, D]
        every[spoken] = heard
        return every[:, None]

    def noisy(self, file: Any, speech: NDArray[np.bool_]) -> bool:
        """[C, 50] where there is speech -> whether noise is close under it."""
        frames = np.append(speech[:-1, :STEP_FRAMES], speech[-1])  # windows overlap
        encoder: SpeakerEncoder = self._embedding.model_.encoder
        return encoder.speech_over_noise_db(file["waveform"][0].numpy(), frames) < NOISY_DB

    def heard(
        self,
        file: Any,
        spoken: NDArray[np.int64],
        noisy: bool,
        hook: Callable[..., None] | None,
    ) -> NDArray[np.float32]:
        """[N] windows -> [N, D]."""
        encoder: SpeakerEncoder = self._embedding.model_.encoder
        found = list[NDArray[np.float32]]()
        starts = spoken * STEP_FRAMES * FRAME
        samples = file["waveform"][0].numpy()
        for vectors in encoder.windows(samples, starts, noisy=noisy):
            found.append(vectors)
            if hook is not None:
                done = sum(len(v) for v in found)
                hook("embeddings", None, total=len(spoken), completed=done)
        return np.concatenate(found)


def build(
    folder: Path,
    *,
    device: str = "cpu",
    tuning: Tuning | None = None,
    detector: Detector | None = None,
) -> PyannoteDiarizer:
    """The engine from a folder with encoder and PLDA. Raises ModelError where they are missing."""
    tuning = tuning or Tuning()
    torch_device = torch.device(device)
    encoder = load(folder, torch_device)
    plda = PLDA(folder / "xvec_transform.npz", folder / "plda.npz", lda_dimension=tuning.lda)
    pipeline = EmbeddedDiarization(
        segmentation=VoiceActivity(detector),
        segmentation_step=STEP_FRAMES / WINDOW_FRAMES,
        embedding=VoiceVector(encoder),
        plda=plda,
    )
    pipeline.clustering = SplittingVBx(plda)
    pipeline.instantiate(tuning.parameters())
    pipeline.to(torch_device)
    engine = Engine(
        NAME,
        encoder_identity(folder),
        THRESHOLDS,
        {
            "segmentation": f"silero-vad {version('silero-vad')}",
            "pyannote.audio": version("pyannote.audio"),
            "torch": version("torch"),
            "device": device,
        },
    )
    return PyannoteDiarizer(pipeline, engine, SHARES, refine_boundaries, PldaProjection(folder))


@cache
def folder() -> Path:
    """Where the packaged encoder and PLDA lie."""
    return bundled.FOLDER / "speakers"
