"""LiveItem: what is being spoken, from its first sample to its transcript.

It cuts its samples as an upload would be cut, says which windows the next pass decodes (`asr.live.passes`),
and keeps what the passes have written. Knows nothing of threads, turns or events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..decode.driver import Session
from ..decode.requests import settled_language
from ..decode.results import Decoded
from ..decode.sources import Kept
from ..decode.text import texts_of, tokens_of
from ..formats.transcript import Transcript
from ..formats.transcript_parts import SAMPLE_RATE
from ..model.speech_model import SpeechModel
from ..segment.cutter import Cutter
from ..segment.windows import Samples, Window
from ..words.assembly import split_words
from .commit import Committer, LiveWord
from .passes import Bindings, Kind, Pass, guess_from

LEAST_SPEECH = 2 * SAMPLE_RATE
"""Samples of speech from which on a detected language is kept for the item's tentative windows."""

SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")


class LiveItem:
    """One item. It is `over` once it has been completed, has failed or was dropped."""

    def __init__(
        self,
        number: int,
        start: int,
        bindings: Bindings,
        cutter: Cutter,
        committer: Committer,
        *,
        guesses: bool = True,
    ) -> None:
        self.number, self.start, self.bindings, self.committer = number, start, bindings, committer
        self.guesses = guesses
        self.length = 0  # samples
        self.heard = 0  # of these, in steps with a voice
        self.text = ""  # released words
        self.tail = ""  # the hypothesis behind them
        self.over = self.finished = False
        self.current: Pass | None = None
        self.newest_s = 0.0  # when the newest sample arrived
        self.kept = Kept()  # its final windows so far
        self.hypothesis: tuple[int, ...] = ()  # of the window that ends last
        self._cutter = cutter
        self._unheard = 0  # samples of steps with a voice, since the last pass began
        self._settled = False  # whether the last pass ended in silence
        self._language: str | None = None  # of tentative windows
        self._certain: list[Window] = []  # their ends do not change; not decoded yet
        self._silent: list[Window] = []
        self._tentative: dict[tuple[int, int], Decoded] = {}  # by their first and last sample
        self._spans: set[tuple[int, int]] = set()  # of the pass that began last

    @property
    def end(self) -> int:
        """The sample of the stream behind its last one."""
        return self.start + self.length

    @property
    def behind(self) -> int:
        """Samples that have arrived since the pass under way began; 0 where there is none."""
        return 0 if self.current is None else self.length - self.current.length

    @property
    def sentence_ended(self) -> bool:
        """Whether the words of all speech so far end a sentence."""
        text = (self.text + self.tail).rstrip()
        return self._settled and not self._unheard and text.endswith(SENTENCE_ENDS)

    def push(self, samples: Samples, now_s: float, *, heard: bool) -> list[Window]:
        """Take the next samples; the windows of speech whose ends are certain now."""
        self.length += len(samples)
        self.newest_s = now_s
        if heard:
            self.heard += len(samples)
            self._unheard += len(samples)
        return self._keep(self._cutter.push(samples))

    def finish(self) -> list[Window]:
        """No samples follow; the last windows of speech."""
        self.finished = True
        return self._keep(self._cutter.finish())

    def drop(self, session: Session) -> None:
        self.over = True
        if self.current is not None and self.current.submission is not None:
            session.cancel(self.current.submission)

    def hurry(self, session: Session) -> None:
        """Give up a pass of tentative windows: the last pass of all windows shall not wait for it."""
        current = self.current
        if current is not None and current.kind == "tentative" and current.submission is not None:
            session.cancel(current.submission)
            self.current = None

    # -- passes -----------------------------------------------------------------------------------

    def next_windows(
        self, step: int, *, pause: bool, whisper: SpeechModel
    ) -> tuple[Kind, list[Window]] | None:
        """The windows of the next pass; None where there is no reason for one. A pass of tentative windows
        takes place after `step` samples of speech, or in a `pause` behind any."""
        if self.finished:
            windows = sorted([*self._silent, *self._certain], key=lambda window: window.index)
            return "last", [self._guessed(window, whisper) for window in windows]
        if self._certain:
            windows, self._certain = self._certain, []
            return "closing", [self._guessed(window, whisper) for window in windows]
        if not (self._unheard >= step or (pause and self._unheard)):
            return None
        self._unheard, self._settled = 0, pause
        spoken = [w for w in self._cutter.so_far() if w.speech]
        self._spans = {(w.start, w.end) for w in spoken}
        fresh = [w for w in spoken if (w.start, w.end) not in self._tentative]
        guessed = [
            replace(
                self._guessed(w, whisper, tentative=True), tentative=True, language=self._language
            )
            for w in fresh
        ]
        return ("tentative", guessed) if guessed else None

    def read_tentative(self, ended: Pass, whisper: SpeechModel) -> list[LiveWord]:
        """Take the answers of a tentative pass; the words that they release."""
        assert ended.outcome is not None and ended.submission is not None
        for decoded in ended.outcome.decoded:
            self._tentative[decoded.start, decoded.end] = decoded
        # Answers of windows that have moved were needed for the guesses of this pass only.
        self._tentative = {s: d for s, d in self._tentative.items() if s in self._spans}
        if self._language is None and self.heard >= LEAST_SPEECH:
            self._language = settled_language(ended.submission)
        answers = [self._tentative[span] for span in sorted(self._tentative)]
        if answers and self.guesses:
            last = answers[-1].tokens
            self.hypothesis = tuple(filter(whisper.tokens.is_text, last))
        # A doubtful answer is an invention more often than not: it waits for more audio.
        words = [w for d in answers if d.doubt is None for w in words_of(whisper, d)]
        released = self.committer.update(words, settled=self._settled)
        if (place := self.committer.place) is not None:
            self.tail = "".join(word.text for word in words[place:])
        return self._released(released)

    def read_final(self, ended: Pass, whisper: SpeechModel) -> list[LiveWord]:
        """Take the answers for windows whose ends do not change; the words that they release."""
        assert ended.outcome is not None and ended.submission is not None
        kept = ended.submission.kept({window.index for window in ended.windows})
        own, self.kept = kept.decoded, self.kept.joined(kept)
        end = max((decoded.end for decoded in own), default=0)
        self._tentative = {span: d for span, d in self._tentative.items() if span[0] >= end}
        words = [word for decoded in own for word in words_of(whisper, decoded)]
        released = self.committer.close(words)
        if self.finished:
            self.tail = ""
        return self._released(released)

    def completed(self, ended: Pass) -> Transcript:
        """The transcript, after the last pass."""
        assert ended.outcome is not None and ended.outcome.transcript is not None
        self.committer.end()
        self.over = True
        return ended.outcome.transcript

    def _keep(self, windows: list[Window]) -> list[Window]:
        """Windows whose ends are certain; those of speech."""
        spoken = [window for window in windows if window.speech]
        self._certain += spoken
        self._silent += [window for window in windows if not window.speech]
        return spoken

    def _guessed(self, window: Window, whisper: SpeechModel, *, tentative: bool = False) -> Window:
        """The window with what was written of it before as a guess."""
        earlier = [d for (start, _), d in self._tentative.items() if start == window.start]
        if not (self.guesses and window.speech and earlier) or earlier[-1].doubt is not None:
            return window
        guess = guess_from(whisper, earlier[-1])
        begin = whisper.tokens.timestamp_begin
        if not tentative and begin is not None and self.bindings.final.options.timestamps:
            guess = (begin, *guess)
        return replace(window, guess=guess)

    def _released(self, words: list[LiveWord]) -> list[LiveWord]:
        if words and not self.text:
            words[0] = replace(words[0], text=words[0].text.lstrip())
        self.text += "".join(word.text for word in words)
        return words


def words_of(whisper: SpeechModel, decoded: Decoded) -> Iterator[LiveWord]:
    """The words of a window; none where its text does not count."""
    told = tokens_of(whisper, decoded)
    ids = [token for part in texts_of(whisper, decoded) for token in part.tokens]
    for word in split_words(whisper.tokenizer, decoded.language, ids):
        tokens = tuple(token for _, token in zip(range(word.count), told, strict=False))
        yield LiveWord(word.text, tokens)
