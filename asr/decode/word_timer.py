"""WordTimer: the times of words of several windows in one forward pass, while their encoder states are
there."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from forescribe.speculative.errors import release

from ..formats.transcript_parts import Word
from ..model.speech_model import SpeechModel
from ..model.tokens import Task
from ..model.whisper import attending
from ..words.aligning import Spoken, align
from ..words.assembly import assemble_words
from ..words.timing import TokenTimes, Utterance, token_times
from .context import DecodingContext, apply_each
from .results import PhaseTimes
from .text import name_of, texts_of
from .window import PendingWindow, RecordingState


@dataclass(eq=False)
class WordTimer:
    """Times the words of decoded windows, which wait here with their encoder states: as soon as there are
    `batch`; None waits for `run`. Where timing fails, a window keeps its text and has no word times."""

    context: DecodingContext
    task: Task
    batch: int | None
    phases: PhaseTimes | None = None
    waiting: list[PendingWindow] = field(default_factory=list, init=False)

    def add(self, pending: PendingWindow) -> None:
        """Queue a window, and time all that wait if the batch is full."""
        self.waiting.append(pending)
        if self.batch is not None and len(self.waiting) >= self.batch:
            self.run()

    def run(self, indices: Collection[int] | None = None) -> None:
        """Time all windows that wait, or those of these indices, in their order; the others wait on."""
        began_ns, chosen = time.time_ns(), self.waiting
        self.waiting = []
        if indices is not None:
            self.waiting = [p for p in chosen if p.window.index not in indices]
            chosen = [p for p in chosen if p.window.index in indices]
            chosen.sort(key=attrgetter("window.start"))
        work = [pending for pending in chosen if pending.segments]
        for pending, times in zip(work, apply_each(self._times_of, work), strict=True):
            try:
                if isinstance(times, Exception):
                    raise times
                pending.words = _words_of(self.context.whisper, pending, times)
                if pending.window.part:
                    _set_apart(pending)
            except Exception as error:
                release(error)
                pending.timing_fault = error
        for pending in chosen:
            pending.free()
        if self.phases is not None and chosen:
            self.phases.setdefault("words", []).append((began_ns, time.time_ns()))

    def forget(self, recording: RecordingState) -> None:
        """Drop the windows of a recording."""
        dropped = [pending for pending in self.waiting if pending.recording is recording]
        self.waiting = [pending for pending in self.waiting if pending not in dropped]
        for pending in dropped:
            pending.free()

    def _times_of(self, work: Sequence[PendingWindow]) -> list[TokenTimes]:
        """The times of the tokens of windows, aligned with their encoder states."""
        whisper, utterances = self.context.whisper, list[Utterance]()
        if not whisper.attends:
            return [_aligned(whisper, pending) for pending in work]
        for pending in work:
            language, states = pending.ended.language, pending.states
            assert states is not None
            prompt, states = whisper.prompt(states, language, self.task, timestamps=False)
            tokens = _heard_tokens(whisper, pending)
            utterances.append(Utterance(states, prompt, tokens, pending.spoken))
        return token_times(attending(whisper, "words"), utterances, self.context.beside)


def _heard_tokens(whisper: SpeechModel, pending: PendingWindow) -> tuple[int, ...]:
    """The text tokens of a window that were heard: before others were written in their place."""
    if (spoken := pending.ended.spoken) is not None:
        return tuple(filter(whisper.tokens.is_text, spoken))
    return tuple(token for segment in pending.segments or () for token in segment.tokens)


def _aligned(whisper: SpeechModel, pending: PendingWindow) -> TokenTimes:
    """The times of the tokens that were heard, by another model."""
    decoded, tokens = pending.ended, _heard_tokens(whisper, pending)
    pairs = zip(decoded.tokens, decoded.result.logprobs, strict=False)
    logprobs = [logprob for token, logprob in pairs if whisper.tokens.is_text(token)]
    if decoded.spoken is not None:
        begin = decoded.origin[:-1]
        logprobs = [logprobs[bisect_right(begin, n) - 1] for n in range(len(tokens))]
    spoken = Spoken(pending.window.samples, decoded.language, tokens, tuple(logprobs))
    times, pending.pauses = align(whisper, spoken)
    return times


def _words_of(
    whisper: SpeechModel, pending: PendingWindow, times: TokenTimes
) -> list[tuple[Word, ...]]:
    """The words of each segment of a window."""
    decoded = pending.ended
    parts = texts_of(whisper, decoded)
    if decoded.spoken is not None:
        kept = [n for part in parts for n in range(part.first, part.first + len(part.tokens))]
        times = times.shared([decoded.origin[n] for n in kept], decoded.origin[kept[-1] + 1])
    # There are more sources than tokens where only the first tokens of an answer count.
    pairs = zip(decoded.tokens, decoded.result.sources, strict=False)
    sources = [name_of(source) for token, source in pairs if whisper.tokens.is_text(token)]
    return assemble_words(
        whisper.tokenizer,
        decoded.language,
        [(part.tokens, part.text) for part in parts],
        times,
        pending.pauses,  # the window may have been encoded beyond its end
        decoded.start,
        [
            source
            for part in parts
            for source in sources[part.first : part.first + len(part.tokens)]
        ],
        length=pending.spoken,
        voiced=pending.window.voiced or (),
    )


def _set_apart(pending: PendingWindow) -> None:
    """The last word before a part ends where its first word begins, if the part holds words after all."""
    start, part = pending.ended.start, pending.words or []
    before = next((p for p in pending.recording.windows if p.ended.end == start), None)
    earlier = [] if before is None else before.words or []
    if any(part) and any(earlier):
        border = next(own for own in part if own)[0].start_sample
        place = max(i for i, own in enumerate(earlier) if own)
        *others, last = earlier[place]
        if last.end_sample > border:
            earlier[place] = (*others, replace(last, end_sample=max(last.start_sample, border)))
