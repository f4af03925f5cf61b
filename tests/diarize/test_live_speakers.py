"""Speakers of a live stream: told with the transcript, in order, and never in the way of words."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from forescribe.asr.errors import CapacityError
from forescribe.asr.formats.transcript_parts import Word
from forescribe.asr.live.commit import LiveWord
from forescribe.asr.live.events import Completed, Delta, Event, Failed, Speech
from forescribe.diarize.diarizer import Samples
from forescribe.diarize.live_speakers import LiveSpeakers
from forescribe.diarize.turns import UNKNOWN, Turns

from .conversations import transcript

RATE = 16_000


class ByLevel:
    """Who speaks is the level of the samples."""

    def turns(self, samples: Samples) -> tuple[Turns, Turns]:
        if samples.max() > 8:
            raise CapacityError("out of memory")
        if not samples.any():
            raise ArithmeticError
        edges = [0, *(np.flatnonzero(np.diff(samples)) + 1).tolist(), len(samples)]
        names = {1: "A", 2: "B", 3: UNKNOWN}
        found = Turns.of(
            (a, b, names[int(samples[a])]) for a, b in zip(edges, edges[1:], strict=False)
        )
        return found, found


@pytest.fixture
def worker() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as one:
        yield one


def speech(item: int, start_s: float, *levels: tuple[float, int]) -> Speech:
    parts = [np.full(round(s * RATE), level, np.float32) for s, level in levels]
    return Speech(item, round(start_s * RATE), np.concatenate(parts))


def completed(item: int, *words: tuple[str, float]) -> Completed:
    """Words of a second each."""
    own = [Word(f" {text}", round(at * RATE), round((at + 1) * RATE)) for text, at in words]
    return Completed(item, transcript([own]), (), 0.0, 0, 0)


def test_words_have_the_speakers_of_their_windows(worker: ThreadPoolExecutor) -> None:
    told: list[Event] = []
    speakers = LiveSpeakers(ByLevel, told.append, worker)
    delta = Delta(1, (LiveWord("one"),))
    first = completed(1, ("one", 0), ("two", 1), ("three", 6), ("four", 10))
    for event in (
        speech(1, 0, (1.0, 1), (1.0, 2)),
        delta,
        speech(1, 6, (1.0, 2)),
        speech(2, 0, (2.0, 3)),  # an item that is spoken while the first one is decoded
        speech(1, 10, (1.0, 1)),
        first,
        Failed(3, CapacityError("closed")),
        completed(2, ("what", 0)),
    ):
        speakers(event)
    assert speakers.wait(60) and speakers.behind_s == 0
    assert told[0] is delta and [type(e) for e in told[1:]] == [Completed, Failed, Completed]
    one, _, two = told[1:]
    assert isinstance(one, Completed) and isinstance(two, Completed)
    assert [(s.speaker, s.text) for s in one.transcript.segments] == [
        ("A", " one"),
        ("B", " two three"),
        ("A", " four"),
    ]
    assert one.plain == first.transcript and one.transcript.text == one.plain.text
    (segment,) = two.transcript.segments
    assert (segment.speaker, segment.words[0].speaker, two.transcript.turns) == (None, None, ())
    assert not speakers._turns and not speakers._errors


@pytest.mark.parametrize(("level", "said"), [(9, "out of memory"), (0, "ArithmeticError")])
def test_where_speakers_cannot_be_found_the_words_are_told(
    worker: ThreadPoolExecutor, level: int, said: str
) -> None:
    told: list[Completed] = []
    speakers = LiveSpeakers(ByLevel, told.append, worker)
    speakers(speech(1, 0, (1.0, level)))
    speakers(completed(1, ("one", 0)))
    assert speakers.wait(60)
    (notice,) = told[0].transcript.warnings
    assert notice.code == "speakers_failed" and said in notice.message
    assert told[0].transcript.text == "one" and not told[0].transcript.diarized


def test_nothing_waits_for_speakers_and_what_is_cancelled_is_not_told(
    worker: ThreadPoolExecutor,
) -> None:
    import threading

    go, told = threading.Event(), list[Event]()
    worker.submit(go.wait)
    speakers = LiveSpeakers(ByLevel, told.append, worker)
    speakers(speech(1, 0, (2.0, 1)))
    speakers(completed(1, ("one", 0)))
    speakers(Delta(2, ()))
    assert len(told) == 1 and speakers.behind_s == 2 and not speakers.wait(0)
    speakers.cancel()
    go.set()
    worker.submit(int).result()
    assert len(told) == 1
