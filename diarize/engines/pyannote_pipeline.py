"""pyannote's SpeakerDiarization as a Diarizer, whatever models it holds.

Samples go in as memory, progress comes out through our hook, and the answer becomes our record.
Knows nothing of where the models come from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forescribe.asr.errors import CapacityError, out_of_memory
from forescribe.asr.formats.transcript import SAMPLE_RATE, samples_at

from ..diarizer import Bounds, Diarization, Engine, Hook, Samples, Voice, ignore_progress
from ..turns import Turns
from .upstream import Annotation, SpeakerDiarization

SHORTEST = SAMPLE_RATE // 20
"""Samples. Less than 50 ms holds no voice, and some networks no frame; a turn of that length is an
error at another one's border."""

SHARES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"segmentation": (0.0, 0.5), "embeddings": (0.5, 0.99)}
)
"""Of the whole, by step, where a large network runs for both (whisperX's division)."""

Refine = Callable[[Turns, Samples], Turns]
"""What an engine makes of its turns in the end, given the sound."""

Compare = Callable[[NDArray[Any]], NDArray[Any]]
"""From a pipeline's vectors [K, D] to those that tell voices of two recordings apart [K, E]."""

FEWEST = 1e-6
"""Length of a vector below which it has no direction."""


class PyannoteDiarizer:
    """One pipeline on one device; calls wait for each other, since a pipeline keeps state."""

    def __init__(
        self,
        pipeline: SpeakerDiarization,
        engine: Engine,
        shares: Mapping[str, tuple[float, float]] = SHARES,
        refine: Refine = lambda turns, samples: turns,
        compare: Compare = lambda vectors: vectors,
    ) -> None:
        self.pipeline, self._engine, self.shares = pipeline, engine, shares
        self.refine, self.compare = refine, compare
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        return self._engine

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: Hook = ignore_progress
    ) -> Diarization:
        bounds = bounds or Bounds()
        if len(samples) < SHORTEST:
            return Diarization.of(Turns(), Turns(), (), len(samples), self.engine)
        with self._lock:
            output = self._run(samples, bounds, hook)
        exclusive = self.refine(_turns(output.exclusive_speaker_diarization), samples)
        regular = self.refine(_turns(output.speaker_diarization), samples)
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

    def _run(self, samples: Samples, bounds: Bounds, hook: Hook) -> Any:
        file = {
            "waveform": torch.from_numpy(np.ascontiguousarray(samples, np.float32))[None],
            "sample_rate": SAMPLE_RATE,
            "uri": "recording",
        }
        while True:
            try:
                return self.pipeline(
                    file,
                    num_speakers=bounds.exactly,
                    min_speakers=bounds.at_least,
                    max_speakers=bounds.most,
                    hook=_progress(hook, self.shares),
                )
            except Exception as error:
                if not out_of_memory(error):
                    raise
                largest = max(self.pipeline.segmentation_batch_size, self._embedded)
                if largest <= 1:
                    raise CapacityError(
                        f"out of memory while diarizing {len(samples) / SAMPLE_RATE:.0f} s; "
                        "take another --device"
                    ) from error
            # Outside of the handler, whose traceback holds the failed call's tensors.
            self.pipeline.segmentation_batch_size = max(
                1, self.pipeline.segmentation_batch_size // 2
            )
            self.pipeline.embedding_batch_size = max(1, self._embedded // 2)
            torch.cuda.empty_cache()

    @property
    def _embedded(self) -> int:
        return int(self.pipeline.embedding_batch_size)

    def _voices(self, annotation: Annotation, vectors: Any, exclusive: Turns) -> tuple[Voice, ...]:
        """The speakers' vectors: rows follow the labels, may be missing, zero or no numbers, and are
        not of unit length."""
        rows = np.zeros((0, 1)) if vectors is None else np.asarray(vectors)
        known = np.isfinite(rows).all(axis=1) & (np.linalg.norm(rows, axis=1) > FEWEST)
        compared = self.compare(rows[known])
        units = compared / np.linalg.norm(compared, axis=1, keepdims=True)
        found = dict(zip(np.flatnonzero(known).tolist(), units.astype(np.float32), strict=True))
        return tuple(
            Voice(str(label), found.get(number), exclusive.samples_of(str(label)))
            for number, label in enumerate(annotation.labels())
        )


def _progress(hook: Hook, shares: Mapping[str, tuple[float, float]]) -> Callable[..., None]:
    def report(
        step: str,
        artefact: object,
        file: object = None,
        total: float | None = None,
        completed: float | None = None,
    ) -> None:
        if step not in shares:
            return
        first, last = shares[step]
        # `completed` may exceed `total`, and at a step's end there is neither.
        share = 1.0 if not total or completed is None else min(1.0, float(completed) / float(total))
        hook(step, first + share * (last - first))

    return report


def _turns(annotation: Annotation) -> Turns:
    spans = (
        (max(0, samples_at(segment.start)), samples_at(segment.end), str(label))
        for segment, _, label in annotation.itertracks(yield_label=True)
    )
    return Turns.of(span for span in spans if span[1] - span[0] >= SHORTEST)
