"""Diarization with Nemotron 3: blocks of some minutes, whose speakers are linked.

Speakers of consecutive blocks who are active at the same time in their overlap are one person. The others are
linked by the vectors of the bundled encoder, which are also those of known and linked speakers. Two speakers
of one block are never linked.

Shapes: T samples, F frames of 10 ms, S speakers of the network, C speakers after linking by activity.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from ..blocks import link_known, mean_voice
from ..diarizer import Bounds, Diarization, Engine, Samples, StageHook, Voice, ignore_progress
from ..turns import Turns
from . import voice_encoder
from .clustering import Plda, unit
from .embedded import capacity_errors, vectors_of
from .pieces import FRAMES_PER_S, parts, stretches
from .voice_encoder import HOP

BLOCK = 10 * 60 * FRAMES_PER_S
"""Frames of a block at most."""

OVERLAP = 60 * FRAMES_PER_S
"""Frames that consecutive blocks share."""

ACTIVE = 0.5
"""Probability from which a speaker speaks, that of transformers' processor."""

SHORTEST = 5
"""Frames. A shorter turn is an error at the boundary of another."""

SHARED = 50
"""Frames of an overlap in which both are active, at least, if two speakers are one person."""

ALIKE = 0.5
"""The least share of their activity in the overlap that is common."""

LEAST, MOST = 50, 200
"""Frames of one speaker alone that a vector is computed from."""

VECTORS = 60
"""Vectors of a speaker at most: two minutes of speech."""

HEARD, ENCODED = 0.8, 0.18
"""Share of the work of each step."""

Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]
Report = Callable[[float], None]


class Network(Protocol):
    """Hears the speakers of a block."""

    def probabilities(self, samples: Samples, report: Report) -> Floats:
        """`[T]` samples, at least one frame -> `[T // 160, S]`. `report` gets the share that is done."""


class NemotronNetwork:
    """The network with its processor on one device, in float32."""

    def __init__(self, model: Any, processor: Any, device: str) -> None:
        """Raises ValueError for a processor with other frames."""
        features, audio = processor.feature_extractor, model.config.audio_config
        given = (features.sampling_rate, features.hop_length, features.feature_size)
        wanted = (SAMPLE_RATE, HOP, audio.num_mel_bins)
        if given != wanted:
            raise ValueError(f"rate, hop and bands of its processor are {given}, not {wanted}")
        self.model = model.to(torch.device(device)).eval().requires_grad_(False)
        self.processor = processor
        self._chunk = model.config.chunk_length * audio.subsampling_factor  # frames

    @torch.inference_mode()
    def probabilities(self, samples: Samples, report: Report) -> Floats:
        count, done = len(samples) // HOP, 0

        def chunk_done(*_: object) -> None:
            nonlocal done
            done = min(count, done + self._chunk)
            report(done / count)

        inputs = self.processor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt")
        handle = self.model.classifier.register_forward_hook(chunk_done)
        try:
            logits = self.model(**inputs.to(self.model.device)).logits
        finally:
            handle.remove()
        return np.asarray(logits[0, :count].sigmoid().cpu().numpy(), np.float32)


class NemotronDiarizer:
    """The engine on one device. Calls run one at a time. `voices` is the folder of encoder and PLDA."""

    def __init__(self, network: Network, voices: Path, engine: Engine, device: str = "cpu") -> None:
        self.network = network
        self.encoder, self.plda = voice_encoder.load(voices, device), Plda(voices)
        self._engine = engine
        self._lock = threading.Lock()

    @property
    def engine(self) -> Engine:
        return self._engine

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook = ignore_progress
    ) -> Diarization:
        with self._lock, capacity_errors(samples):
            found = self._diarize(samples, bounds or Bounds(), hook)
        hook("done", 1.0)
        return found

    def _diarize(self, samples: Samples, bounds: Bounds, hook: StageHook) -> Diarization:
        single = bounds.most == 1
        heard, places = self._heard(
            samples, single, lambda done: hook("segmentation", HEARD * done)
        )
        voices = self._voices(
            samples, heard > ACTIVE, lambda done: hook("embeddings", HEARD + ENCODED * done)
        )
        numbers = link_known(
            list(zip(places, voices, strict=True)),
            self.engine.thresholds.possible,
            least=bounds.least,
            most=bounds.most,
        )
        groups = [np.flatnonzero(np.array(numbers) == n) for n in sorted(set(numbers))]
        people = [heard[:, own].max(1) for own in groups]
        regular, exclusive = _turns(np.stack(people, 1) if people else heard)
        return Diarization.of(
            regular,
            exclusive,
            tuple(mean_voice(str(n), [voices[m] for m in own]) for n, own in enumerate(groups)),
            len(samples),
            self.engine,
            bounds.notices(len(regular.speakers)),
        )

    def _heard(
        self, samples: Samples, single: bool, report: Report
    ) -> tuple[Floats, list[set[int]]]:
        """Run the network over all blocks and link their speakers by activity -> [F, C] probabilities and [C]
        blocks. With `single`, whoever is heard is one person."""
        count = len(samples) // HOP
        columns, places = list[Floats](), list[set[int]]()
        before: dict[int, Flags] = {}  # the overlap of the block before, by speaker
        blocks = list(_blocks(count))
        for n, (start, end) in enumerate(blocks):
            part = _part(report, n / len(blocks), 1 / len(blocks))
            found = self.network.probabilities(samples[start * HOP : end * HOP], part)
            if single:
                found = found.max(1, keepdims=True)
            active = found > ACTIVE
            known = {0: 0} if single else _same(before, active)
            kept = OVERLAP // 2 if n else 0  # the ends of blocks lack context on one side
            for column in columns:
                column[start + kept :] = 0
            before = {}
            for speaker in np.flatnonzero(active.any(0)).tolist():
                number = known.get(speaker, len(columns))
                if number == len(columns):
                    columns.append(np.zeros(count, np.float32))
                    places.append(set())
                columns[number][start + kept : end] = found[kept:, speaker]
                places[number].add(n)
                before[number] = active[-OVERLAP:, speaker]
        left = [c for c, column in enumerate(columns) if (column > ACTIVE).any()]
        table = (
            np.stack([columns[c] for c in left], 1) if left else np.zeros((count, 0), np.float32)
        )
        return table, [places[c] for c in left]

    def _voices(self, samples: Samples, active: Flags, report: Report) -> list[Voice]:
        """The voice of each speaker of [F, C], from speech of that speaker alone."""
        alone = active & (active.sum(1, keepdims=True) == 1)
        owners, spans = list[int](), list[tuple[int, int]]()
        for speaker, flags in enumerate(alone.T):
            long = (span for span in stretches(flags) if span[1] - span[0] >= LEAST)
            own = [part for span in long for part in parts(*span, MOST)]
            own = own[:: max(1, -(-len(own) // VECTORS))]
            owners, spans = owners + [speaker] * len(own), spans + own
        weighted = np.zeros((0, 1))
        if spans:
            seconds = np.array([(end - start) / FRAMES_PER_S for start, end in spans])
            vectors = self.plda(vectors_of(self.encoder, samples, spans, report))
            weighted = vectors * self.plda.precision(seconds)[:, None]
        sums = [weighted[np.array(owners) == n].sum(0) for n in range(alone.shape[1])]
        return [
            Voice(str(n), unit(total).astype(np.float32) if n in owners else None, amount * HOP)
            for n, (total, amount) in enumerate(zip(sums, alone.sum(0).tolist(), strict=True))
        ]


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    """The first frame and the end of each block of `count` frames; all are about equally long."""
    blocks = max(1, -(-(count - OVERLAP) // (BLOCK - OVERLAP))) if count else 0
    step = max(0, -(-(count - OVERLAP) // max(1, blocks)))
    for n in range(blocks):
        yield n * step, min(count, (n + 1) * step + OVERLAP)


def _part(report: Report, start: float, length: float) -> Report:
    """Report a block's progress as part of the recording's, of which both are shares."""
    return lambda done: report(start + done * length)


def _same(before: dict[int, Flags], active: Flags) -> dict[int, int]:
    """Speakers of a block `[F, S]` who are active in the overlap as those `before` -> the numbers there, by
    their own. Pairs with most activity in common come first."""
    pairs = []
    for number, theirs in before.items():
        for speaker in range(active.shape[1]):
            own = active[: len(theirs), speaker]
            shared = int((own & theirs).sum())
            if shared >= max(SHARED, ALIKE * int((own | theirs).sum())):
                pairs.append((shared, number, speaker))
    found: dict[int, int] = {}
    for _, number, speaker in sorted(pairs, reverse=True):
        if speaker not in found and number not in found.values():
            found[speaker] = number
    return found


def _turns(people: NDArray[np.float32]) -> tuple[Turns, Turns]:
    """[F, K] probabilities -> (turns that may overlap, turns of the most probable speaker)."""
    active = people > ACTIVE
    if not active.any():
        return Turns(), Turns()
    exclusive = active & (people.argmax(1)[:, None] == np.arange(people.shape[1]))

    def listed(flags: Flags) -> Turns:
        return Turns.of(
            (start * HOP, end * HOP, str(speaker))
            for speaker in range(flags.shape[1])
            for start, end in stretches(flags[:, speaker])
            if end - start >= SHORTEST
        )

    return listed(active), listed(exclusive)
