"""The state of one recording: what is counted, when it is complete, and what is timed and told when."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from forescribe.asr.audio.reading import from_array
from forescribe.asr.decode import word_timer
from forescribe.asr.decode.options import Decoded
from forescribe.asr.decode.parts import PartQueue
from forescribe.asr.decode.recording import PendingWindow, RecordingState, in_order
from forescribe.asr.decode.word_timer import WordTimer
from forescribe.asr.segment.windows import Window
from forescribe.speculative.requests import Finish, Request, Result

SECOND = 16_000


def state() -> RecordingState:
    return RecordingState("a.wav", from_array(np.zeros(SECOND, np.float32)), "a.wav", 0.0)


def window(index: int, *, speech: bool = True) -> Window:
    samples = np.zeros(SECOND if speech else 0, np.float32)
    return Window(index, index * SECOND, (index + 1) * SECOND, speech, samples)


def decoded(index: int, state: str = "failed") -> Decoded:
    result = Result(Request((1,)), (), (), (), Finish.CANCELLED, 0, 0, 0)
    return Decoded(index, index * SECOND, (index + 1) * SECOND, "en", result, (), state)


def test_the_last_window_with_speech_comes_when_all_has_been_read() -> None:
    recording = state()
    windows = recording.spoken_windows([window(0), window(1, speech=False), window(2)])
    assert next(windows).index == 0
    assert recording.window_count == 3 and not recording.fully_read
    assert [w.index for w in windows] == [2]
    assert recording.fully_read and [w.index for w in recording.silent] == [1]


def test_a_recording_is_complete_when_every_window_has_ended() -> None:
    recording = state()
    list(recording.spoken_windows([window(0), window(1, speech=False), window(2)]))
    recording.add(decoded(2))
    assert not recording.complete and recording.done_s == 2.0
    recording.add(decoded(0))
    assert recording.complete and recording.done_s == 3.0
    assert [d.index for d in in_order(recording.decoded)] == [0, 2]


def test_a_window_cannot_end_twice() -> None:
    recording = state()
    list(recording.spoken_windows([window(0)]))
    recording.add(decoded(0))
    with pytest.raises(AssertionError):
        recording.add(decoded(0))


def test_parts_are_in_order_without_gaps() -> None:
    recording, parts = state(), PartQueue(SimpleNamespace(tokens=None))
    recording.segments = {0: (), 2 * SECOND: ()}
    list(recording.spoken_windows([window(0), window(1, speech=False), window(2)]))
    parts.add(decoded(2))
    assert parts.next_part(recording) is None  # window 0 has not ended
    parts.add(decoded(0))
    part = parts.next_part(recording)
    assert part is not None and part.segments == () and part.tokens == ()
    assert parts.next_part(recording) is None


@pytest.fixture
def timed(monkeypatch) -> list[list[int]]:
    """The indices of the windows of each forward pass, in order."""
    batches: list[list[int]] = []

    def utterance_of(whisper, task, pending):
        return pending.window.index

    def token_times(whisper, indices):
        batches.append(list(indices))
        if 13 in indices:
            raise RuntimeError("planted")
        return indices

    monkeypatch.setattr(word_timer, "utterance_of", utterance_of)
    monkeypatch.setattr(word_timer, "token_times", token_times)
    monkeypatch.setattr(word_timer, "words_of", lambda whisper, pending, times: [()])
    return batches


def pending(recording: RecordingState, index: int) -> PendingWindow:
    recording.segments[index * SECOND] = ("a segment",)  # type: ignore[assignment]
    made = PendingWindow(SimpleNamespace(recording=recording), window(index))
    made.decoded = decoded(index)
    return made


def test_words_are_timed_when_a_batch_is_full(timed) -> None:
    recording, timer = state(), WordTimer(None, "transcribe", 2)
    for index in (0, 1, 2):
        timer.add(pending(recording, index))
    assert timed == [[0, 1]] and sorted(recording.words) == [0, SECOND]
    timer.run()
    assert timed == [[0, 1], [2]] and timer.waiting == []


def test_chosen_windows_are_timed_in_their_order_and_the_others_wait(timed) -> None:
    recording, timer = state(), WordTimer(None, "transcribe", None)
    for index in (3, 0, 2, 1):
        timer.add(pending(recording, index))
    timer.run_for({1, 3})
    assert timed == [[1, 3]] and [p.window.index for p in timer.waiting] == [0, 2]


def test_a_window_that_cannot_be_timed_keeps_its_text(timed) -> None:
    recording, timer = state(), WordTimer(None, "transcribe", None)
    for index in (12, 13):
        timer.add(pending(recording, index))
    timer.run()
    assert sorted(recording.words) == [12 * SECOND]
    assert str(recording.timing_faults[13 * SECOND]) == "planted"


def test_windows_without_text_and_of_forgotten_recordings_are_not_timed(timed) -> None:
    recording, timer = state(), WordTimer(None, "transcribe", None)
    silent = pending(recording, 0)
    recording.segments[0] = ()
    timer.add(silent)
    timer.run()
    assert timed == [[]] or timed == []
    timer.add(pending(recording, 2))
    timer.forget(recording)
    assert timer.waiting == []
