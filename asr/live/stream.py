"""LiveStream: one speaker's or room's audio as it arrives, and the words of it while they are spoken.

    stream = LiveStream(session, LiveOptions(turns=TurnDetection()), tell)
    stream.feed(samples)        # 16 kHz, any number
    stream.finish()             # ends the last item
    stream.wait(10.0)           # until everything has been told

The audio is cut into *items*: turns, or what lies between two calls of `commit`. While an item lasts, it is
decoded whenever enough speech has arrived, never twice at a time, and always up to the newest sample, so that
a slow machine decodes less often and does not fall behind. `tell` receives events (`asr.live.events`): words
as they are released, hypotheses, and in the end one `Completed` or `Failed` for each item. The transcript of
a completed item is that of an upload of exactly its samples.

One thread at a time works on the stream, for a step of 256 ms of audio or an answer. The engine's thread,
which all recordings share, does not wait for its turn: an answer that comes while another thread works is
read by that one. `tell` is called in order, by the thread that works: it must neither block nor call the
stream. `feed`, `commit`, `clear` and `finish` are for one thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ..decode.driver import Session
from ..decode.text import tokens_of
from ..errors import ForescribeError
from ..formats.transcript_parts import SAMPLE_RATE, seconds
from ..segment.vad import FRAME, Detector
from ..segment.windows import MAX_SAMPLES, Samples, Window
from .commit import LiveWord
from .events import (
    Committed,
    Completed,
    Delta,
    Failed,
    Hypothesis,
    LiveOptions,
    LiveStats,
    Speech,
    SpeechStarted,
    SpeechStopped,
    Tell,
)
from .item import Bindings, LiveItem, Pass

TOGETHER = 8
"""Frames that are judged at a time, 256 ms: the detector amplifies quiet stretches, and single frames of
noise would become loud."""

STEP = TOGETHER * FRAME

SHORTEST = SAMPLE_RATE // 10
"""Samples of an item that is committed, at least: less holds no word (OpenAI refuses it too)."""

PAUSE_S = 0.4
"""After this silence the words so far are decoded at once and released: nobody goes on speaking."""


class LiveStream:
    """One stream in a session. Raises UsageError for options that the model cannot serve."""

    def __init__(
        self,
        session: Session,
        options: LiveOptions,
        tell: Tell,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session, self.options, self.clock = session, options, clock
        self.stats = LiveStats()
        self._tell = tell
        self._bindings = Bindings.of(options.options, session.context)
        self._voice = Voice(session.context.voice_detector(), options.threshold)
        self._waiting = np.zeros(0, np.float32)  # samples that make no step yet
        self._changed = threading.Condition()  # of the next two; held for moments
        self._working = False
        self._answers: deque[Pass] = deque()  # that wait to be read
        self._item: LiveItem | None = None  # that is being spoken
        self._ending: list[LiveItem] = []
        self._number = 0
        self._before = np.zeros(0, np.float32)  # what the next turn may begin with
        self._closed = False

    def configure(self, options: LiveOptions) -> None:
        """Use other options: `turns` from now on, what concerns the text from the next item on. Raises
        UsageError for options that the model cannot serve; nothing is changed then."""
        bindings = Bindings.of(options.options, self.session.context)
        with self._turn():
            self.options, self._bindings = options, bindings
            self._voice.threshold = options.threshold

    @property
    def wanted(self) -> int:
        """How many more samples make a step; with less nothing happens."""
        return STEP - len(self._waiting)

    @property
    def behind_s(self) -> float:
        """Seconds of audio that have arrived since the passes under way began, and those of items that have
        ended and wait for their transcripts, of which no more than a window can be left to decode. A sender
        that is faster than the decoder has to wait while this is large."""
        item = self._item
        waiting = sum(min(each.length, MAX_SAMPLES) for each in list(self._ending))
        return seconds(waiting + (0 if item is None else item.behind))

    # -- on the feeding thread --------------------------------------------------------------------

    def feed(self, samples: Samples) -> None:
        """Take the next samples [T], mono at 16 kHz. Values that are not finite become 0."""
        clean = np.nan_to_num(np.asarray(samples, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
        joined = np.concatenate([self._waiting, clean])
        whole = len(joined) - len(joined) % STEP
        self._waiting = joined[whole:].copy()
        for at in range(0, whole, STEP):
            with self._turn():
                if self._closed:
                    return
                self._push(joined[at : at + STEP])

    def commit(self) -> int | None:
        """End the item with the samples so far; its number. None, and nothing happens, where there are less
        than 0.1 s of it."""
        with self._turn():
            length = 0 if self._item is None else self._item.length
            if len(self._waiting) + length < SHORTEST:
                return None
            self._push_waiting()
            return None if self._item is None else self._end_item(self._item)

    def clear(self) -> None:
        """Drop the item that is being spoken."""
        with self._turn():
            self._waiting = np.zeros(0, np.float32)
            self._before = np.zeros(0, np.float32)
            if self._item is not None:
                self._item.drop(self.session)
                self._item = None

    def finish(self) -> None:
        """The audio ends, and with it the item that is being spoken."""
        with self._turn():
            if self._closed:
                return
            self._push_waiting()
            if self._item is not None:
                self._end_item(self._item)
            self._closed = True

    def cancel(self) -> None:
        """Drop everything; nothing is told any more."""
        self._closed = True  # ends `feed`, which may have minutes of audio before it
        with self._turn():
            for item in self._items():
                item.drop(self.session)
            self._item, self._ending = None, []

    def wait(self, timeout_s: float | None = None, *, idle: bool = False) -> bool:
        """Wait until every item that has ended has been told or, if `idle`, until nothing is being decoded.
        False after `timeout_s`."""

        def over() -> bool:
            if self._working:
                return False
            return not any(i.current for i in self._items()) and (idle or not self._ending)

        with self._changed:
            return self._changed.wait_for(over, timeout_s)

    # -- turns ------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Be the thread that works on the stream; at the end read the answers that have come meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working)
            self._working = True
        try:
            yield
        finally:
            self._read_answers()

    def _read_answers(self) -> None:
        """Read what has come, and let the next thread work: no answer comes in between unread."""
        while True:
            with self._changed:
                if not self._answers:
                    return self._rest()
                answer = self._answers.popleft()
            try:
                self._read_answer(answer)
            except BaseException:
                with self._changed:
                    self._rest()
                raise

    def _rest(self) -> None:
        self._working = False
        self._changed.notify_all()

    # -- items ------------------------------------------------------------------------------------

    def _items(self) -> list[LiveItem]:
        return [*self._ending, *([] if self._item is None else [self._item])]

    def _push(self, samples: Samples) -> None:
        """Take a step, or what is left of one."""
        if not len(samples):
            return
        turns, begin, before = self.options.turns, self._voice.position, self._before
        spoken = self._voice.push(samples)
        if turns is not None:
            joined = np.concatenate([before, samples])
            self._before = joined[max(0, len(joined) - turns.prefix) :]
        if self._item is None and turns is None:
            self._add(self._begin_item(begin), samples, heard=spoken is not None)
        elif self._item is not None:
            item = self._item
            self._add(item, samples, heard=spoken is not None)
            if turns is not None:
                enough_s = turns.silence_s if item.sentence_ended else turns.longest_silence_s
                if self._voice.silence_s >= enough_s:
                    self._end_item(item, turn=True)
        elif turns is not None and spoken is not None:
            start = max(begin - len(before), spoken[0] - turns.prefix)
            item = self._begin_item(start)
            self._tell(SpeechStarted(item.number, seconds(start)))
            self._add(item, joined[start - begin + len(before) :], heard=True)

    def _push_waiting(self) -> None:
        waiting, self._waiting = self._waiting, np.zeros(0, np.float32)
        self._push(waiting)

    def _begin_item(self, start: int) -> LiveItem:
        self._number += 1
        self._item = LiveItem(self._number, start, self._bindings, self.options)
        return self._item

    def _add(self, item: LiveItem, samples: Samples, *, heard: bool) -> None:
        self._tell_speech(item, item.push(samples, self.clock(), heard=heard))
        self._next_pass(item)

    def _end_item(self, item: LiveItem, *, turn: bool = False) -> int:
        if item.over:  # it failed
            return item.number
        self._item = None
        self._before = np.zeros(0, np.float32)  # samples belong to one item only
        self._ending.append(item)
        if turn:
            self._tell(SpeechStopped(item.number, seconds(item.end)))
        self._tell(Committed(item.number, seconds(item.start), seconds(item.end)))
        self._tell_speech(item, item.finish())
        item.hurry(self.session)
        self._next_pass(item)
        return item.number

    def _tell_speech(self, item: LiveItem, windows: list[Window]) -> None:
        if self.options.speech and not item.over:
            for window in windows:
                self._tell(Speech(item.number, window.start, window.samples))

    # -- passes -----------------------------------------------------------------------------------

    def _next_pass(self, item: LiveItem) -> None:
        """Begin the next pass of an item, if there is a reason for one."""
        if item.current is not None or item.over:
            return
        step, pause = round(self.options.step_s * SAMPLE_RATE), self._voice.silence_s >= PAUSE_S
        started = item.next_pass(step, self._ended, pause=pause)
        if started is None:
            return
        try:
            item.current = started
            started.start(self.session)
        except ForescribeError as error:  # the session is closed
            item.current, self._closed = None, True
            self._fail(item, error)

    def _ended(self, ended: Pass) -> None:
        """A pass has ended; on the engine's thread, which waits for nobody."""
        with self._changed:
            self._answers.append(ended)
            if self._working:
                return
            self._working = True
        self._read_answers()

    def _read_answer(self, ended: Pass) -> None:
        item, outcome = ended.item, ended.outcome
        if item.current is not ended:  # it was given up
            return
        item.current = None
        if outcome is not None and not item.over:
            self._count(ended)
            if outcome.error is None:
                self._read(item, ended)
            elif ended.kind != "tentative":
                self._fail(item, outcome.error)
            self._next_pass(item)

    def _read(self, item: LiveItem, ended: Pass) -> None:
        if ended.kind == "tentative":
            self._release(item, item.read_tentative(ended))
            audio_s, lag_s = seconds(item.start + ended.length), self.clock() - ended.newest_s
            told = (item.text, item.tail, audio_s, ended.rounds, lag_s)
            self._tell(Hypothesis(item.number, *told))
            return
        self._release(item, item.read_final(ended))
        if ended.kind == "last":
            transcript, committer = item.completed(ended), item.committer
            whisper = self.session.context.whisper
            tokens = tuple(t for d in ended.answers for t in tokens_of(whisper, d))
            self._ending.remove(item)
            self.stats.words += committer.released
            self.stats.contradicted += committer.contradicted
            start_s, counts = seconds(item.start), (committer.released, committer.contradicted)
            self._tell(Completed(item.number, transcript, tokens, start_s, *counts))

    def _release(self, item: LiveItem, words: list[LiveWord]) -> None:
        if words:
            self._tell(Delta(item.number, tuple(words)))

    def _fail(self, item: LiveItem, error: ForescribeError) -> None:
        item.over = True
        if item in self._ending:
            self._ending.remove(item)
        if item is self._item:
            self._item = None
        self._tell(Failed(item.number, error))

    def _count(self, ended: Pass) -> None:
        stats = self.stats
        stats.passes += 1
        stats.encoded += len(ended.decoded)
        stats.rounds += ended.rounds
        if ended.kind == "tentative":
            stats.tentative_passes += 1
            stats.tentative_rounds += ended.rounds


class Voice:
    """Finds the voice in a stream, `STEP` samples at a time."""

    def __init__(self, detector: Detector, threshold: float) -> None:
        self._stream = detector.stream()
        self.threshold = threshold
        self.position = 0  # samples that were judged
        self.last_voice = 0  # where the last of them ends

    def push(self, samples: Samples) -> tuple[int, int] | None:
        """Judge the next samples, `STEP` of them or the last ones; the first and the last place with a voice
        in them, None without one. NaN counts as a voice, so that no words are lost."""
        whole = np.pad(samples, (0, -len(samples) % FRAME))
        voiced = ~(self._stream.probabilities(whole) < self.threshold)
        begin, frames = self.position, np.flatnonzero(voiced)
        self.position += len(samples)
        if not len(frames):
            return None
        self.last_voice = min(self.position, begin + (int(frames[-1]) + 1) * FRAME)
        return begin + int(frames[0]) * FRAME, self.last_voice

    @property
    def silence_s(self) -> float:
        return (self.position - self.last_voice) / SAMPLE_RATE
