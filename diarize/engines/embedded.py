"""The embedded engine: small models of this package in pyannote's pipeline, without a download.

silero-vad detects speech, a GE2E encoder computes voice vectors, clustering finds the speakers, and
the level of the signal refines the boundaries of turns to 10 ms. Both networks process the recording once,
where pyannote's pipeline processes overlapping windows. The engine finds one speaker at a time:
overlapped speech is assigned to the dominant speaker.

Voice activity has steps of 32 ms and bridges short pauses inconsistently. Where speech is clearly louder than
the background, the level shows more exactly where it starts, ends and pauses; in noise turns are left
unchanged (`refine_boundaries`).
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

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.asr.segment.vad import FRAME, Detector, SileroDetector
from forescribe.speculative.models import hub

from ..diarizer import Engine, Samples, SimilarityThresholds
from ..turns import Turns
from .clustering import SplittingVBx, unit
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
from .voice_encoder import DIMENSION, NOISY_DB, PART, WINDOW_SAMPLES, SpeakerEncoder, identity, load

NAME = "embedded"

WINDOW_FRAMES = WINDOW_SAMPLES // FRAME
"""50 frames of 32 ms, the encoder's 1.6 s."""

STEP_FRAMES = 16
"""512 ms between windows, 7,000 vectors per hour. Half the step takes twice the time, nearly all of it in
the encoder, and lowers the error in conversations by 0.3 points (docs/development/log.md, 2026-11-22)."""

LAG_S = 1.5 * FRAME / SAMPLE_RATE
"""Delay of boundaries in seconds: half a frame, as pyannote places them in the middle of a frame, and one
frame of silero-vad. Measured on synthesised speech: 49 ms at starts, 39 ms at ends."""

THRESHOLDS = SimilarityThresholds(same=0.5, possible=0.38)
"""For vectors in the PLDA's space, each from seconds of speech; figures in bundled/speakers/README.md.
One pair of different speakers in a hundred, over one kind of channel, reaches `same`; `possible` is the
point of equal error."""

SHARES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"segmentation": (0.0, 0.1), "embeddings": (0.1, 0.95)}
)
"""Share of the work by step."""

BOUNDARY_FRAME = SAMPLE_RATE // 100
"""Samples, 10 ms: the step of boundaries."""

DIGITAL_DB = -100.0
"""Digital zeros, which say nothing about the noise of a room."""


@dataclass(frozen=True)
class Tuning:
    """Parameters of the pipeline, tuned on mixtures of held-out voices (bundled/speakers/README.md)."""

    speech: float = 0.5  # probability from which a frame is speech
    gap_s: float = 0.0  # bridged within a turn; refine_boundaries does that
    lda: int = 64  # dimensions of the PLDA in use
    threshold: float = 1.2  # distance of unit vectors at which linkage stops: a cosine of 0.28
    Fa: float = 0.2  # weight of a window as evidence; twice that for half the step
    Fb: float = 1.6

    def parameters(self) -> dict[str, dict[str, float]]:
        """The argument of pyannote's `instantiate`."""
        return {
            "segmentation": {"threshold": self.speech, "min_duration_off": self.gap_s},
            "clustering": {"threshold": self.threshold, "Fa": self.Fa, "Fb": self.Fb},
        }


def build(
    folder: Path,
    *,
    device: str = "cpu",
    tuning: Tuning | None = None,
    detector: Detector | None = None,
) -> PyannoteDiarizer:
    """Build the engine from a folder with encoder and PLDA. Raises ModelError if they are missing."""
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
    """The folder of the bundled encoder and PLDA."""
    return hub.FOLDER / "speakers"


class EmbeddedDiarization(SpeakerDiarization):  # type: ignore[misc]  # pyannote is untyped to us
    """pyannote's pipeline with its two networks run once over the recording."""

    @torch.inference_mode()
    def get_segmentations(
        self, file: Any, hook: Callable[..., None] | None = None
    ) -> SlidingWindowFeature:
        """[C, 50, 1] speech probabilities of windows. The last windows extend past the recording, so that
        every frame is in as many windows as possible."""
        speech = self._segmentation.model(file["waveform"][None])[0, :, 0].numpy()  # [F]
        count = 1 + max(0, -(-(len(speech) - WINDOW_FRAMES) // STEP_FRAMES))
        padded = np.zeros((count - 1) * STEP_FRAMES + WINDOW_FRAMES, np.float32)
        padded[: len(speech)] = speech
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
        """[C, 50, 1] -> [C, 1, D]. Windows without speech are not encoded; they get the mean."""
        speech = binary_segmentations.data[:, :, 0] > 0
        spoken = np.flatnonzero(speech.any(1))
        vectors = self.window_vectors(file, spoken, self.noisy(file, speech), hook)
        every = np.tile(vectors.mean(0), (len(binary_segmentations.data), 1))  # [C, D]
        every[spoken] = vectors
        return every[:, None]

    def noisy(self, file: Any, speech: NDArray[np.bool_]) -> bool:
        """[C, 50] speech -> whether the recording is noisy."""
        frames = np.append(speech[:-1, :STEP_FRAMES], speech[-1])  # windows overlap
        encoder: SpeakerEncoder = self._embedding.model_.encoder
        return encoder.speech_over_noise_db(file["waveform"][0].numpy(), frames) < NOISY_DB

    def window_vectors(
        self,
        file: Any,
        spoken: NDArray[np.int64],
        noisy: bool,
        hook: Callable[..., None] | None,
    ) -> NDArray[np.float32]:
        """[N] indices of windows -> [N, D] vectors."""
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


class VoiceActivity(Model):  # type: ignore[misc]  # pyannote is untyped to us
    """Voice activity in frames of 32 ms, as a segmentation model with one local speaker."""

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
        """[B, 1, T] -> [B, ceil(T / 512), 1] probabilities; rows are separate recordings."""
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
    """The vector of a whole waveform: the mean over its windows of 1.6 s."""

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
        """[B, 1, T], [B, F] weights of frames -> [B, D] unit vectors."""
        rows = waveforms[:, 0].cpu().numpy()
        if weights is not None:
            kept = torch.nn.functional.interpolate(weights[:, None], rows.shape[1])[:, 0]
            rows = rows * (kept.cpu().numpy() > 0.5)
        return torch.stack([torch.from_numpy(self.of(row)) for row in rows]).to(waveforms.device)

    def of(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """[T] samples of one voice -> [D]; a waveform shorter than a window is padded."""
        last = max(0, len(samples) - WINDOW_SAMPLES)
        starts = np.unique(np.linspace(0, last, 1 + last // (WINDOW_SAMPLES // 4)).astype(np.int64))
        vectors = np.concatenate(list(self.encoder.windows(samples, starts)))
        mean: NDArray[np.float32] = normalize(torch.from_numpy(vectors).mean(0), dim=0).numpy()
        return mean


class PldaProjection:
    """Maps means of windows [K, D] to vectors [K, 128] in the PLDA's whole space, in which microphone
    and channel weigh less, so that one threshold fits all of them.

    It uses the arrays as stored. pyannote's class solves for the axes again, whose signs depend on the
    machine, so that voices stored on one machine would not match on another.
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
    """The encoder name of stored voices, from the contents of encoder and PLDA: vectors with another
    mean or in another space cannot be compared."""
    digest = sha256()
    for name in ("xvec_transform.npz", "plda.npz"):
        with np.load(folder / name) as arrays:
            for key in sorted(arrays):
                digest.update(arrays[key].astype(np.float32).tobytes())
    return f"{identity(folder)}-{digest.hexdigest()[:8]}"


@dataclass(frozen=True)
class LevelSettings:
    """Thresholds for speech by its level; lengths are in frames of 10 ms. Tuned on mixtures of training
    voices, with docs/speakers.md's figures."""

    part: float = 0.3  # of the range from quiet to loud in dB; speech is above it
    contrast_db: float = 25.0  # between quiet and loud; with less, turns are left unchanged
    quiet: float = 10.0  # percentile of the level around a stretch
    loud: float = 95.0  # percentile of the level in the stretch
    around: int = 400
    margin: int = 20  # a boundary may move outwards by this much
    gap: int = 25  # stretches closer than this are treated as one
    pause: int = 30  # of one speaker, bridged up to this length
    shortest: int = 5


def refine_boundaries(turns: Turns, samples: Samples, levels: LevelSettings | None = None) -> Turns:
    """Move the boundaries of exclusive turns to where the level of `samples` [T] rises and falls.

    Speech between the turns of two speakers is assigned to the nearer turn. No speech is found far
    from any turn.
    """
    levels = levels or LevelSettings()
    frames = len(samples) // BOUNDARY_FRAME
    spans = np.array(
        [(t.start_sample // BOUNDARY_FRAME, -(-t.end_sample // BOUNDARY_FRAME)) for t in turns],
        np.int64,
    ).reshape(-1, 2)
    spans = np.minimum(spans, frames)
    if not len(spans) or not frames:
        return turns
    spoken = _spoken(_decibels(samples), spans, levels)  # [F]
    # The boundary between two turns is in the middle of the gap.
    halves = (spans[:-1, 1] + spans[1:, 0]) / 2
    nearest = np.searchsorted(halves, np.arange(frames), side="right")  # [F] turns
    names = {speaker: number for number, speaker in enumerate(turns.speakers)}
    speaker_of = np.array([names[turn.speaker] for turn in turns])[nearest]
    return Turns.of(
        (start * BOUNDARY_FRAME, end * BOUNDARY_FRAME, speaker)
        for start, end, number in _bridged(np.where(spoken, speaker_of, -1), levels)
        for speaker in (turns.speakers[number],)
    )


def _decibels(samples: Samples) -> NDArray[np.float64]:
    """[T] -> [F]"""
    rows = samples[: len(samples) // BOUNDARY_FRAME * BOUNDARY_FRAME].reshape(-1, BOUNDARY_FRAME)
    power = np.einsum("ft,ft->f", rows, rows, dtype=np.float64) / BOUNDARY_FRAME
    return np.asarray(10 * np.log10(power + 1e-12))


def _spoken(
    level: NDArray[np.float64], spans: NDArray[np.int64], levels: LevelSettings
) -> NDArray[np.bool_]:
    """Mark speech [F] within and close to the stretches [N, 2]."""
    found = np.zeros(len(level), bool)
    gaps = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > levels.gap) + 1
    for near in np.split(spans, gaps):
        start, end = int(near[0, 0]), int(near[-1, 1])
        if end - start < levels.shortest:
            continue
        surroundings = level[max(0, start - levels.around) : end + levels.around]
        surroundings = surroundings[surroundings > DIGITAL_DB]
        if not len(surroundings):
            continue
        quiet = float(np.percentile(surroundings, levels.quiet))
        loud = float(np.percentile(level[start:end], levels.loud))
        if loud - quiet < levels.contrast_db:
            for first, last in near:
                found[first:last] = True
            continue
        wide = slice(max(0, start - levels.margin), end + levels.margin)
        found[wide] |= level[wide] > quiet + levels.part * (loud - quiet)
    return found


def _bridged(speaker_of: NDArray[np.int64], levels: LevelSettings) -> list[tuple[int, int, int]]:
    """[F] speakers, -1 for none -> (start, end, speaker) with short pauses bridged."""
    edges = np.flatnonzero(np.diff(speaker_of)) + 1
    starts, ends = np.append(0, edges).tolist(), np.append(edges, len(speaker_of)).tolist()
    runs = [
        (s, e, int(speaker_of[s])) for s, e in zip(starts, ends, strict=True) if speaker_of[s] >= 0
    ]
    found: list[tuple[int, int, int]] = []
    for start, end, speaker in runs:
        if found and found[-1][2] == speaker and start - found[-1][1] <= levels.pause:
            found[-1] = found[-1][0], end, speaker
        else:
            found.append((start, end, speaker))
    return [run for run in found if run[1] - run[0] >= levels.shortest]
