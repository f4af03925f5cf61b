"""LiveSpeakers: who speaks in a live stream, known at the end of each item.

It stands between a stream and those who are told: each window of speech is heard once its end is certain,
beside the decoding, and a transcript is told once it has its speakers. All of it is done on `worker`, a
thread that may be shared by many streams, in the order in which it was said; nothing waits for it but
transcripts. Where speakers cannot be found a transcript has the warning `speakers_failed` instead of them.
Knows nothing of networks.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

from forescribe.asr.errors import ForescribeError, one_line
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Notice, Segment, Word, seconds
from forescribe.asr.live.events import Completed, Event, Failed, Speech, Tell

from .attribution import attribute_speakers
from .turns import UNKNOWN, Turns

if TYPE_CHECKING:
    from .engines.online import OnlineSpeakers


class LiveSpeakers:
    """The speakers of one stream; called with its events, on its threads. `load` is called on the worker,
    with the first window."""

    def __init__(self, load: Callable[[], OnlineSpeakers], tell: Tell, worker: Executor) -> None:
        self._load, self.tell, self.worker = load, tell, worker
        self._speakers: OnlineSpeakers | None = None
        self._turns: dict[int, list[tuple[Turns, ...]]] = defaultdict(list)  # of open items
        self._errors: dict[int, Exception] = {}
        self._waiting = 0  # samples that were not heard yet
        self._open = 0  # items that have ended and were not told
        self._cancelled = False
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Speech):
            with self._changed:
                self._waiting += len(event.samples)
            self._submit(lambda: self._hear(event))
        elif isinstance(event, Completed | Failed):
            with self._changed:
                self._open += 1
            self._submit(lambda: self._end(event))
        else:
            self.tell(event)

    @property
    def behind_s(self) -> float:
        """Seconds of speech that wait to be heard."""
        return seconds(self._waiting)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all items that have ended are told; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def cancel(self) -> None:
        """Drop what was not told."""
        self._cancelled = True

    # -- on the worker ----------------------------------------------------------------------------

    def _submit(self, work: Callable[[], None]) -> None:
        self.worker.submit(lambda: None if self._cancelled else work())

    def _hear(self, speech: Speech) -> None:
        try:
            self._speakers = self._speakers or self._load()
            found = self._speakers.turns(speech.samples)
            self._turns[speech.item].append(tuple(t.shifted(speech.start) for t in found))
        except Exception as error:  # the words are there all the same
            self._errors[speech.item] = error
        with self._changed:
            self._waiting -= len(speech.samples)

    def _end(self, event: Completed | Failed) -> None:
        turns, error = self._turns.pop(event.item, []), self._errors.pop(event.item, None)
        if isinstance(event, Completed):
            found = event.transcript
            try:
                if error is not None:
                    raise error
                found = with_speakers(found, turns)
            except Exception as failure:
                found = replace(found, warnings=(*found.warnings, _failed(failure)))
            event = replace(event, transcript=found, plain=event.transcript)
        self.tell(event)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()


def with_speakers(transcript: Transcript, turns: Sequence[tuple[Turns, ...]]) -> Transcript:
    """The transcript with speakers from the (regular, exclusive) turns of its windows, None where they are
    UNKNOWN."""
    regular, exclusive = (
        Turns(tuple(turn for part in turns for turn in part[which])) for which in (0, 1)
    )
    found = attribute_speakers(transcript, regular, exclusive)
    return replace(
        found,
        segments=tuple(map(_known_segment, found.segments)),
        turns=tuple(turn for turn in found.turns if turn.speaker != UNKNOWN),
    )


def _known_segment(segment: Segment) -> Segment:
    words = segment.words and tuple(map(_known_word, segment.words))
    if segment.speaker == UNKNOWN:
        return replace(segment, words=words, speaker=None, speaker_confidence=None)
    return replace(segment, words=words)


def _known_word(word: Word) -> Word:
    others = tuple(other for other in word.others if other != UNKNOWN)
    if word.speaker == UNKNOWN:
        return replace(word, speaker=None, speaker_confidence=None, others=others)
    return replace(word, others=others)


def _failed(error: Exception) -> Notice:
    said = error.message if isinstance(error, ForescribeError) else type(error).__name__
    return Notice("speakers_failed", one_line(f"speakers could not be found: {said}"))
