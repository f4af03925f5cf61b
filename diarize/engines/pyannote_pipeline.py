"""pyannote's SpeakerDiarization as a Diarizer, with any models.

It passes samples in memory, reports progress to the hook, and converts the result to a Diarization.

pyannote runs the speaker network again for every speaker of a window, though only the masks differ. In
`SharedFrameDiarization` the frames are computed once and pooled with all masks: equal vectors (to 1e-5) in a
third of the time with three speakers per window.

Knows nothing of where the models come from.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE, samples_at

from ..diarizer import (
    Bounds,
    Diarization,
    Engine,
    Samples,
    StageHook,
    Voice,
    capacity_errors,
    ignore_progress,
)
from ..turns import Turns
from .upstream import Annotation, SlidingWindowFeature, SpeakerDiarization

SHORTEST = SAMPLE_RATE // 20
"""Samples. In less than 50 ms there is no voice, and for some networks no frame; such short turns are
errors at the boundaries of others."""

SHARES = {"segmentation": (0.0, 0.5), "embeddings": (0.5, 0.99)}
"""Share of the work by step, for large networks in both steps (values of whisperX)."""

LEAST_NORM = 1e-6
"""A shorter vector has no direction."""


class PyannoteDiarizer:
    """One pipeline on one device. Calls run one at a time, as a pipeline keeps state."""

    def __init__(self, pipeline: SpeakerDiarization, engine: Engine) -> None:
        self.pipeline, self.engine = pipeline, engine
        self._lock = threading.Lock()

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook = ignore_progress
    ) -> Diarization:
        bounds = bounds or Bounds()
        if len(samples) < SHORTEST:
            return Diarization.of(Turns(), Turns(), (), len(samples), self.engine)
        with self._lock, capacity_errors(samples):
            output = self.pipeline(
                {
                    "waveform": torch.from_numpy(np.ascontiguousarray(samples, np.float32))[None],
                    "sample_rate": SAMPLE_RATE,
                    "uri": "recording",
                },
                num_speakers=bounds.exactly,
                min_speakers=bounds.at_least,
                max_speakers=bounds.most,
                hook=_progress(hook),
            )
        exclusive = _turns(output.exclusive_speaker_diarization)
        regular = _turns(output.speaker_diarization)
        found = Diarization.of(
            regular,
            exclusive,
            self._voices(output.speaker_diarization, output.speaker_embeddings, exclusive),
            len(samples),
            self.engine,
            bounds.notices(len(regular.speakers)),
        )
        hook("done", 1.0)
        return found

    def _voices(self, annotation: Annotation, vectors: Any, exclusive: Turns) -> tuple[Voice, ...]:
        """Voices from pyannote's vectors: rows in the order of labels, which may be missing, zero or NaN
        and are not of unit length."""
        rows = np.zeros((0, 1)) if vectors is None else np.asarray(vectors)
        known = np.isfinite(rows).all(axis=1) & (np.linalg.norm(rows, axis=1) > LEAST_NORM)
        units = rows[known] / np.linalg.norm(rows[known], axis=1, keepdims=True)
        found = dict(zip(np.flatnonzero(known).tolist(), units.astype(np.float32), strict=True))
        return tuple(
            Voice(str(label), found.get(number), exclusive.samples_of(str(label)))
            for number, label in enumerate(annotation.labels())
        )


class SharedFrameDiarization(SpeakerDiarization):  # type: ignore[misc]  # pyannote is untyped to us
    """`embedding_batch_size` counts windows here. Networks without `forward_frames` and
    `forward_embedding` are run by pyannote's own method."""

    @torch.inference_mode()
    def get_embeddings(
        self,
        file: Any,
        binary_segmentations: SlidingWindowFeature,
        exclude_overlap: bool = False,
        hook: Callable[..., None] | None = None,
    ) -> NDArray[np.float32]:
        """[C, F, S] activity of windows, frames and speakers -> [C, S, D]."""
        network = self._embedding.model_
        if self.training or not hasattr(network, "forward_frames"):
            stock = super().get_embeddings(file, binary_segmentations, exclude_overlap, hook)
            return np.asarray(stock)
        masks = torch.from_numpy(self._masks(binary_segmentations, exclude_overlap))  # [C, S, F]
        windows = [window for window, _ in binary_segmentations]
        size, device = self.embedding_batch_size, self._embedding.device
        found: list[NDArray[np.float32]] = []
        for first in range(0, len(windows), size):
            batch = windows[first : first + size]
            crops = torch.stack([self._audio.crop(file, w, mode="pad")[0] for w in batch])
            frames = network.forward_frames(crops.to(device))
            weights = masks[first : first + size].to(device)
            vectors = network.forward_embedding(frames, weights=weights)  # [c, S, D]
            found.append(vectors.cpu().numpy())
            if hook is not None:
                done = first + len(batch)
                hook("embeddings", None, total=len(windows), completed=done)
        return np.concatenate(found)

    def _masks(self, activity: SlidingWindowFeature, exclude_overlap: bool) -> NDArray[np.float32]:
        """[C, S, F] masks: a speaker's frames, without overlapped ones unless too few would be left."""
        active = np.nan_to_num(activity.data).astype(np.float32)  # [C, F, S]
        masks = active
        if exclude_overlap:
            samples = activity.sliding_window.duration * self._embedding.sample_rate
            least = math.ceil(active.shape[1] * self._embedding.min_num_samples / samples)
            alone = active * (active.sum(2, keepdims=True) < 2)
            masks = np.where(alone.sum(1, keepdims=True) > least, alone, active)
        return np.ascontiguousarray(masks.transpose(0, 2, 1))


def _progress(hook: StageHook) -> Callable[..., None]:
    def report(
        step: str,
        artefact: object,
        file: object = None,
        total: float | None = None,
        completed: float | None = None,
    ) -> None:
        if step not in SHARES:
            return
        first, last = SHARES[step]
        # `completed` may exceed `total`; both are missing at the end of a step.
        share = 1.0 if not total or completed is None else min(1.0, float(completed) / float(total))
        hook(step, first + share * (last - first))

    return report


def _turns(annotation: Annotation) -> Turns:
    spans = (
        (max(0, samples_at(segment.start)), samples_at(segment.end), str(label))
        for segment, _, label in annotation.itertracks(yield_label=True)
    )
    return Turns.of(span for span in spans if span[1] - span[0] >= SHORTEST)
