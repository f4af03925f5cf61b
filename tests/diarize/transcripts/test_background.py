"""Diarization in the background: recordings in turn, errors, and cancellation."""

from __future__ import annotations

import numpy as np
import pytest

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Span
from forescribe.diarize.speaker_finder import SpeakerFinder
from tests.diarize.engines.fake_engines import RATE, LevelDiarizer, sound

TALK = sound((1, 0.5), (0.5, 0), (1.5, 0.1), (2, 0.5), (1, 0), (2, 0.1), (0.7, 0.5))


def wordless(samples: np.ndarray) -> Transcript:
    return Transcript((), len(samples), Coverage((Span(0, len(samples), "decoded"),)))


@pytest.mark.parametrize("block", [RATE, 30 * RATE])
def test_interleaved_recordings_have_the_same_turns_as_alone(block: int) -> None:
    other = sound((3, 0.1), (1, 0.5))
    with SpeakerFinder(LevelDiarizer(), block=block, slack=0).begin() as start:
        one, two = start(), start()
        for at in range(0, len(TALK), 7000):
            one.feed(TALK[at : at + 7000])
            two.feed(other[at : at + 7000])
        found = [one.finish(wordless(TALK)).result(), two.finish(wordless(other)).result()]
    assert [f.turns for f in found] == [
        tuple(LevelDiarizer().diarize(TALK).regular),
        tuple(LevelDiarizer().diarize(other).regular),
    ]


def test_a_cancelled_recording_is_not_diarized() -> None:
    engine = LevelDiarizer()
    with SpeakerFinder(engine, block=RATE, slack=0).begin() as start:
        task = start()
        task.cancel()
        task.feed(TALK)
    assert len(engine.calls) <= 1


def test_progress_is_reported_and_an_exception_of_the_hook_cancels() -> None:
    seen: list[float] = []

    def hook(step: str, done: float) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise InterruptedError

    with SpeakerFinder(LevelDiarizer(), block=RATE, slack=0).begin() as start:
        task = start(hook)
        task.feed(TALK)
        with pytest.raises(InterruptedError):
            task.finish(wordless(TALK)).result()
    assert seen[0] == 0.0
