"""Speakers of arriving audio: labels in order of appearance, which stay whatever follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.diarization import read_rttm
from forescribe.asr.audio.reading import read_audio
from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.clustering import Pieces, Plda, unit
from forescribe.diarize.engines.online import OnlineClusters, OnlineSettings, OnlineSpeakers
from forescribe.diarize.known_speakers import KnownSpeaker
from forescribe.diarize.turns import UNKNOWN

RATE = 16_000
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def plda() -> Plda:
    return Plda(embedded.FOLDER)


class Room:
    """People whose voices the PLDA expects, and their pieces."""

    def __init__(self, plda: Plda, seed: int = 0) -> None:
        self.plda, self.rng = plda, np.random.default_rng(seed)
        self.people: dict[str, np.ndarray] = {}

    def said(self, *parts: tuple[str, float], apart: bool = False) -> Pieces:
        """A stretch in which people speak so many seconds each."""
        seconds = np.array([length for _, length in parts])
        for who, _ in parts:
            if who not in self.people:
                self.people[who] = self.rng.standard_normal(128) * np.sqrt(self.plda.psi)
        noise = self.rng.standard_normal((len(parts), 128))
        noise /= np.sqrt(self.plda.precision(seconds))[:, None]
        count = len(parts)
        return Pieces(
            np.stack([self.people[who] for who, _ in parts]) + noise,
            seconds,
            np.zeros((count, count)),
            apart & ~np.eye(count, dtype=bool),
            np.full(count - 1, np.inf),
        )


def online(plda: Plda, **options: int) -> OnlineClusters:
    names = iter("ABCDEFGH")
    return OnlineClusters(plda, lambda mean, seconds: next(names), **options)


def test_labels_are_given_in_order_of_appearance_and_stay(plda: Plda) -> None:
    """Three hundred stretches: the speakers are three to the end, and so is what is kept."""
    room, clusters, rng = Room(plda), online(plda), np.random.default_rng(1)
    assert clusters.assign(room.said(("Zoë", 2.0), ("Zoë", 1.5)))[0] == ["A", "A"]
    assert clusters.assign(room.said(("Zoë", 2.0), ("Bob", 2.0), ("Bob", 2.0)))[0] == [
        "A",
        "B",
        "B",
    ]
    wrong, doubted = 0, 0
    for number in range(300):
        who = ["Zoë", "Bob", "Eve"][rng.integers(2 + (number > 90))]
        (label,), (sure,) = clusters.assign(room.said((who, float(rng.uniform(0.3, 2.0)))))
        assert 0 <= sure <= 1
        doubted += label == UNKNOWN
        wrong += label not in (UNKNOWN, {"Zoë": "A", "Bob": "B", "Eve": "C"}[who])
    assert wrong <= 2 and doubted < 50
    voices = clusters._voices
    assert [v.label for v in voices if v.label] == ["A", "B", "C"]
    assert len(voices) <= 3 + OnlineSettings().waiting
    assert all(voice.amount <= clusters._bound + 1e-9 for voice in voices)


def test_a_short_piece_is_unknown_and_no_new_speaker(plda: Plda) -> None:
    room, clusters = Room(plda, 1), online(plda)
    clusters.assign(room.said(("Zoë", 2.0), ("Zoë", 2.0)))
    assert clusters.assign(room.said(("Bob", 0.6)))[0] == [UNKNOWN]
    assert clusters.assign(room.said(("Bob", 0.7)))[0] == [UNKNOWN]
    # With what was heard before there is enough.
    assert clusters.assign(room.said(("Bob", 1.5), ("Zoë", 1.5)))[0] == ["B", "A"]


def test_who_speak_at_once_are_two(plda: Plda) -> None:
    room, clusters = Room(plda, 2), online(plda)
    labels, _ = clusters.assign(room.said(("Zoë", 2.0), ("Bob", 2.0), apart=True))
    assert labels == ["A", "B"]


@pytest.mark.slow
def test_a_conversation_has_its_two_speakers_and_a_known_one_her_name() -> None:
    engine = embedded.EmbeddedDiarizer()
    samples = read_audio(ROOT / "samples" / "conversation.flac")[: 45 * RATE]
    reference = read_rttm((ROOT / "samples" / "conversation.rttm").read_text())["conversation"]
    _, pieces = engine.hear(samples[round(5.3 * RATE) : 10 * RATE])
    mean = unit(pieces.vectors.mean(0)).astype(np.float32)
    known = KnownSpeaker("Slt", engine.engine.encoder or "", mean, 5 * RATE, 1, "")
    speakers, names = OnlineSpeakers(engine, str, [known]), {"A": "0", "B": "Slt"}
    right = heard = 0
    for start in range(0, len(samples), 15 * RATE):
        _, exclusive = speakers.turns(samples[start : start + 15 * RATE])
        for turn in exclusive.shifted(start):
            for said in reference:
                shared = min(turn.end_sample, said.end_sample) - max(
                    turn.start_sample, said.start_sample
                )
                right += max(0, shared) * (names[said.speaker] == turn.speaker)
            heard += turn.samples
    assert heard > 30 * RATE and right > 0.95 * heard
    assert not len(speakers.turns(np.zeros(RATE, np.float32))[0])
