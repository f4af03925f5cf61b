"""WordTimer: times the words of decoded windows, several windows in one forward pass.

Windows wait here with their encoder states. Where timing fails, the window keeps its text and has no
word times. Knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from forescribe.speculative.errors import release

from ..formats.transcript_parts import TokenSource, Word
from ..model.tokens import Task
from ..model.whisper import Whisper
from ..words import splitting
from ..words.borders import assemble_words, within
from ..words.splitting import Stretch
from ..words.timing import TokenTimes, Utterance, token_times
from .answers import texts_of
from .context import apply_each
from .options import Decoded, PhaseTimes
from .recording import PendingWindow, RecordingState


class WordTimer:
    """Collects windows and times them as soon as there are `batch`; None waits for `run`."""

    def __init__(self, whisper: Whisper, task: Task, batch: int | None) -> None:
        self.whisper, self.task, self.batch = whisper, task, batch
        self.waiting: list[PendingWindow] = []  # `decoded`; they hold their encoder states
        self.phases: PhaseTimes | None = None

    def add(self, pending: PendingWindow) -> None:
        """Queue a window, and time all that wait if the batch is full."""
        self.waiting.append(pending)
        if self.batch is not None and len(self.waiting) >= self.batch:
            self.run()

    def run(self) -> None:
        """Time all windows that wait."""
        waiting, self.waiting = self.waiting, []
        self._time(waiting)

    def run_for(self, indices: Collection[int]) -> None:
        """Time the windows of these indices, in their order; the others wait on."""
        chosen = [pending for pending in self.waiting if pending.window.index in indices]
        self.waiting = [p for p in self.waiting if p.window.index not in indices]
        self._time(sorted(chosen, key=lambda pending: pending.start))

    def forget(self, recording: RecordingState) -> None:
        """Drop the windows of a recording."""
        self.waiting = [p for p in self.waiting if p.recording is not recording]

    def _time(self, waiting: Sequence[PendingWindow]) -> None:
        def times_of(work: Sequence[PendingWindow]) -> list[TokenTimes]:
            return token_times(
                self.whisper, [utterance_of(self.whisper, self.task, pending) for pending in work]
            )

        began_ns = time.time_ns()
        work = [pending for pending in waiting if pending.recording.segments[pending.start]]
        for pending, times in zip(work, apply_each(times_of, work), strict=True):
            recording = pending.recording
            try:
                if isinstance(times, Exception):
                    raise times
                recording.words[pending.start] = words_of(self.whisper, pending, times)
            except Exception as error:
                release(error)
                recording.timing_faults[pending.start] = error
        if self.phases is not None and waiting:
            self.phases.add("words", began_ns, time.time_ns())


def utterance_of(whisper: Whisper, task: Task, pending: PendingWindow) -> Utterance:
    """The text of a window, to be aligned with its encoder states."""
    decoded, states = pending.decoded, pending.states
    assert decoded is not None and states is not None
    prompt = whisper.tokens.prompt(decoded.language, task, timestamps=False)
    tokens = tuple(token for part, _ in texts_of(whisper, decoded) for token in part.tokens)
    return Utterance(states, prompt, tokens, decoded.length)


def words_of(whisper: Whisper, pending: PendingWindow, times: TokenTimes) -> list[tuple[Word, ...]]:
    """The words of each segment of a window."""
    decoded = pending.decoded
    assert decoded is not None
    parts = texts_of(whisper, decoded)
    return assemble_words(
        whisper.tokenizer,
        decoded.language,
        [(part.tokens, text) for part, text in parts],
        times,
        within(pending.pauses, decoded.length),  # the window may have been encoded beyond its end
        decoded.start,
        sources_of(decoded, parts, whisper.tokens.end),
        length=decoded.length,
    )


def sources_of(
    decoded: Decoded, parts: Sequence[tuple[Stretch, str]], first_special: int
) -> list[TokenSource]:
    """The source of each text token of a window's segments. In sequential decoding only the first
    tokens of an answer count, so there may be more sources than tokens."""
    pairs = zip(decoded.tokens, decoded.result.sources, strict=False)
    sources = [splitting.name_of(source) for token, source in pairs if token < first_special]
    return [
        source
        for part, _ in parts
        for source in sources[part.first : part.first + len(part.tokens)]
    ]
