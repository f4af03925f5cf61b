"""The embedded engine: published networks that are part of this package, no download.

pyannote's segmentation-3.0 hears local speakers and overlap, their speech is cut into pieces of one voice
(`segmentation`), CAM++ computes a vector of each (`voice_encoder`), a PLDA and what the segmentation heard
say which are the same person (`clustering`). The encoder reads each second of speech once;
the segmentation reads each second of the recording twice, as its chunks overlap.
"""

from __future__ import annotations

import threading
from hashlib import sha256
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.formats.transcript_parts import Notice
from forescribe.speculative.device import SideStream, choose
from forescribe.speculative.models import hub

from ..diarizer import (
    MOST_SPEAKERS,
    Bounds,
    Diarization,
    Engine,
    Samples,
    SimilarityThresholds,
    StageHook,
    Voice,
    capacity_errors,
    ignore_progress,
)
from ..turns import Turns
from . import clustering, segmentation, voice_encoder
from .clustering import Pieces, Plda, cluster, unit
from .segmentation import FRAMES_PER_S, MEMORY, Activity, find_pieces, turns_of

FOLDER = hub.FOLDER / "speakers"
"""The bundled networks."""

NAME = "embedded"
VOICES = "CAM++ zh-en common advanced"

THRESHOLDS = SimilarityThresholds(same=0.55, possible=0.34)
"""For vectors in the PLDA's space, each from seconds of speech; figures in bundled/speakers/README.md."""

SEGMENTED, ENCODED = 0.35, 0.95
"""Share of the work that is done after each step."""

LINKED = 8.0
"""Nats for adjacent pieces of one run being one person; a pause between them of 0.3 s takes two thirds."""

LINKED_S = 0.3

OTHERS = 2.0
"""Nats against consecutive pieces of two local speakers being one person."""

AT_ONCE = 200
"""Frames that two runs share from which they are two people: less may be an error at a change, or the sound
of the room."""

DOUBTFUL = 0.035
"""Mean doubt of the pieces of a recording from which it has a warning."""

DOUBT = (
    "the voices are hard to tell apart in this recording: turns with a low confidence may have another "
    "speaker; a known number of speakers (--num-speakers) and a closer microphone help"
)

PIECES = 64
"""Pieces encoded between two reports of progress, at which a call can be cancelled."""


class EmbeddedDiarizer:
    """The engine on one device. Calls run one at a time. Raises ModelError if networks are missing in
    `folder`."""

    def __init__(self, folder: Path = FOLDER, device: str = "cpu") -> None:
        self.segmentation = segmentation.load(folder, device)
        self.encoder = voice_encoder.load(folder, device)
        self.plda = Plda(folder)
        details = {"segmentation": "segmentation-3.0", "voices": VOICES, "device": device}
        details["torch"] = version("torch")
        self.engine = Engine(NAME, encoder_identity(folder), THRESHOLDS, details)
        self._lock, self._side = threading.Lock(), SideStream(choose(device))

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook = ignore_progress
    ) -> Diarization:
        bounds = bounds or Bounds()
        regular, exclusive = Turns(), Turns()
        voices, notices = list[Voice](), tuple[Notice, ...]()
        with self._lock, capacity_errors(samples):
            activity, pieces = self.hear(samples, hook)
            if activity.pieces:
                found = cluster(pieces, self.plda, 1, MOST_SPEAKERS)
                count = len(found.means)  # of the people whom the voices sound like
                if not bounds.least <= count <= bounds.most:
                    found = cluster(pieces, self.plda, bounds.least, bounds.most)
                sure = found.chances[np.arange(len(found.labels)), found.labels]
                regular, exclusive = turns_of(activity, found.labels, sure)
                for number, mean in enumerate(found.means):
                    if np.linalg.norm(mean) > 0.5:
                        amount = exclusive.samples_of(str(number))
                        voices.append(Voice(str(number), unit(mean).astype(np.float32), amount))
                notices = _count_notices(count, len(regular.speakers), bounds)
                if 1 - float(np.average(sure, weights=pieces.seconds)) > DOUBTFUL:
                    notices += (Notice("doubtful_speakers", DOUBT),)
        hook("done", 1.0)
        return Diarization.of(regular, exclusive, tuple(voices), len(samples), self.engine, notices)

    def hear(self, samples: Samples, hook: StageHook = ignore_progress) -> tuple[Activity, Pieces]:
        """Who speaks when, before anybody is known, and what the clustering needs to know of the pieces. On a
        card the networks run beside what another thread decodes."""
        with self._side.current():
            probabilities = self.segmentation.probabilities(
                samples, lambda done: hook("segmentation", SEGMENTED * done)
            )
            activity = find_pieces(samples, probabilities)
            if not activity.pieces:
                return activity, described(activity, np.zeros((0, len(self.plda.psi))))
            return activity, described(activity, self.plda(self._vectors(samples, activity, hook)))

    def _vectors(
        self, samples: Samples, activity: Activity, hook: StageHook
    ) -> NDArray[np.float32]:
        """The vector of each piece, [N, 192]."""
        features = voice_encoder.features(samples, self.encoder.device)
        spans = np.array([(piece.start, piece.end) for piece in activity.pieces])
        found = np.zeros((len(spans), voice_encoder.DIMENSION), np.float32)
        # By length, so that batches are full.
        order = np.argsort(spans[:, 1] - spans[:, 0], kind="stable")
        for first in range(0, len(order), PIECES):
            some = order[first : first + PIECES]
            found[some] = self.encoder.vectors([features[a:b] for a, b in spans[some].tolist()])
            done = (first + len(some)) / len(order)
            hook("embeddings", SEGMENTED + (ENCODED - SEGMENTED) * done)
        return found


def described(activity: Activity, vectors: NDArray[np.float64]) -> Pieces:
    """What the clustering needs to know of the pieces, whose vectors are [N, D]."""
    pieces, runs = activity.pieces, activity.runs
    count = len(pieces)
    links, gaps = np.zeros((count, count)), np.full(max(0, count - 1), np.inf)
    for n, (piece, following) in enumerate(pairwise(pieces)):
        pause = max(0, following.start - piece.end)
        if piece.run == following.run:
            gaps[n] = pause / FRAMES_PER_S
            links[n, n + 1] = LINKED * np.exp(-gaps[n] / LINKED_S)
        elif runs[piece.run].slot != runs[following.run].slot and pause <= MEMORY:
            links[n, n + 1] = -OTHERS
    rows = [(p.run, runs[p.run].start, runs[p.run].end, p.seconds) for p in pieces]
    own, starts, ends, lengths = np.array(rows, np.float64).reshape(-1, 4).T
    shared = np.minimum(ends[:, None], ends) - np.maximum(starts[:, None], starts)
    return Pieces(
        vectors, lengths, links + links.T, (own[:, None] != own) & (shared >= AT_ONCE), gaps
    )


def _count_notices(heard: int, told: int, bounds: Bounds) -> tuple[Notice, ...]:
    """A warning where the voices sound like another number of people than the result has."""
    if bounds.least <= heard <= bounds.most:
        return bounds.notices(told)
    people = "person" if heard == 1 else "people"
    text = (
        f"the voices sound like {heard} {people}; {told} told apart, as the number of speakers was given: "
        "listen before you rely on it"
    )
    return (Notice("speaker_count", text),)


def encoder_identity(folder: Path) -> str:
    """The encoder name of stored voices, from the contents of encoder and PLDA: vectors of another encoder
    or in another space cannot be compared."""
    digest = sha256()
    for name in (voice_encoder.NAME, clustering.NAME):
        digest.update((folder / name).read_bytes())
    return f"campplus-{digest.hexdigest()[:8]}"
