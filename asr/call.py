"""Call: the state of one `transcribe` call, so that the transcriber itself keeps none.

Audio becomes windows, windows requests to the engine, results segments; a recording is done when its
last window is. Windows are pulled as slots become free, so hours of audio never sit in memory.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from asr import writing
from asr.audio import Input, Open, Recording, open_audio
from asr.errors import AudioError, ForescribeError, UsageError
from asr.guards import Judgement
from asr.loading import Memory
from asr.options import Options
from asr.outcome import Decoded, Hook, Outcome, Progress
from asr.pauses import Pause, pauses, within
from asr.segments import Stretch, compression_ratio, mean_logprob, stretches
from asr.timing import Utterance, token_times
from asr.tokens import AUTO, language_code
from asr.transcript import (
    Coverage,
    Json,
    Notice,
    Segment,
    Span,
    Transcript,
    Word,
    Writer,
    seconds,
)
from asr.vad import Detector, SileroDetector
from asr.windows import Window, cut
from asr.words import words
from speculative.types import Request, Result

if TYPE_CHECKING:
    from torch import Tensor

    from asr.transcriber import Transcriber

CONFIDENT = 0.9
"""A window leaves its recording's language only at this probability of another one."""


@dataclass(eq=False)
class Job:
    """One recording on its way."""

    source: Input
    recording: Recording
    started: float
    language: str | None = None
    language_probability: float | None = None
    windows: int = 0
    read: bool = False
    failed: bool = False
    done: list[Decoded] = field(default_factory=list)
    silent: list[Window] = field(default_factory=list)  # these hold no samples
    words: dict[int, list[tuple[Word, ...]]] = field(default_factory=dict)  # by window and segment

    @property
    def complete(self) -> bool:
        return self.read and len(self.done) + len(self.silent) == self.windows

    @property
    def done_s(self) -> float:
        return seconds(sum(d.length for d in self.done) + sum(w.length for w in self.silent))


@dataclass(frozen=True, eq=False)
class Ticket:
    """What a request brings back: whose window it was."""

    job: Job
    index: int
    start: int
    end: int
    language: str
    pauses: tuple[Pause, ...] = ()  # known where words are to be timed


class Call:
    """The state of one `transcribe` call, so that the transcriber itself keeps none."""

    def __init__(
        self,
        transcriber: Transcriber,
        options: Options,
        hook: Hook | None,
        open: Open = open_audio,
    ) -> None:
        self.t, self.options, self.hook, self.open = transcriber, options, hook, open
        self.special = transcriber.whisper.tokens
        self.language = self._language(options.language)
        self.previous = self._tokens(options.initial_prompt)
        if options.task == "translate" and not self.special.multilingual:
            raise UsageError("an English-only model cannot translate; take a multilingual one")
        most = transcriber.engine.max_gamma
        if options.gamma is not None and options.gamma > most:
            raise UsageError(f"gamma {options.gamma} is more than the {most} of the transcriber")
        self.before = transcriber.engine.stats
        self.failed: deque[Outcome] = deque()
        self.jobs: list[Job] = []
        self.tickets: set[Ticket] = set()  # of the windows that are in the engine
        self.untimed: list[tuple[Ticket, Decoded]] = []  # windows that wait for their words

    def _language(self, name: str | None) -> str | None:
        """The code of the language asked for; None where it is to be detected."""
        if name is None or language_code(name) == AUTO:
            return None
        return self.special.language(name)

    def _tokens(self, text: str | None) -> tuple[int, ...]:
        """Previous text as tokens: at most half the positions less one, the last ones (openai)."""
        if not text or not text.strip():
            return ()
        if self.special.previous is None:
            raise UsageError("this model has no token for previous text, so it takes no prompt")
        ids = self.t.whisper.tokenizer.encode(" " + text.strip(), add_special_tokens=False)
        if any(token >= self.special.end for token in ids):
            raise UsageError("the initial prompt holds a special token such as <|endoftext|>")
        room = self.t.whisper.target.config.max_target_positions // 2 - 1
        return tuple(ids[-room:])

    def run(self, sources: Iterable[Input]) -> Iterator[Outcome]:
        try:
            for result in self.t.engine.run(self._requests(sources)):
                decoded = self._take(result)
                if decoded is None:
                    continue
                job: Job = result.request.tag.job
                self._follow(job, decoded)
                self._report(job, decoded)
                yield from self._ended()
            yield from self._ended()
        finally:  # the caller may leave at any outcome
            self._drop(self.tickets)

    def _take(self, result: Result) -> Decoded | None:
        """What became of a window; None where it goes back into the engine at another temperature, was
        dropped, or was left by a call that was broken off."""
        ticket: Ticket = result.request.tag
        if ticket not in self.tickets:
            return None
        if result.error is not None:  # Finish.FAILED: it may have no tokens and no probe
            raise result.error.__cause__ or result.error
        judgement, reason = self._judge(result)
        if judgement is Judgement.RETRY and self._again(result):
            return None
        self.tickets.remove(ticket)
        decoded = self._decoded(ticket, result, judgement, reason)
        ticket.job.done.append(decoded)
        if self.options.words:
            self._time(ticket, decoded, result.request.memory)
        return decoded

    def _drop(self, tickets: Iterable[Ticket]) -> None:
        """Takes windows out of the engine; their rows are free at once."""
        for ticket in list(tickets):
            self.tickets.discard(ticket)
            self.t.engine.cancel(ticket)

    def _follow(self, job: Job, decoded: Decoded) -> None:
        """What a window's end sets off: nothing here, its successor where windows are sequential."""

    def _decoded(
        self, ticket: Ticket, result: Result, judgement: Judgement, reason: str | None
    ) -> Decoded:
        request, keep = result.request, self.options.keep_memory
        # What still fails at the last temperature is kept, as Whisper does, unless it is no number.
        broken = judgement is Judgement.RETRY and not math.isfinite(mean_logprob(result.logprobs))
        silent = judgement is Judgement.SILENCE
        return Decoded(
            index=ticket.index,
            start=ticket.start,
            end=ticket.end,
            language=ticket.language,
            result=replace(result, request=replace(request, memory=None, tag=None)),
            tokens=result.tokens,
            state="failed" if broken else "silent" if silent else "decoded",
            reason=reason,
            memory=request.memory if keep else None,
        )

    # -- guards and words -------------------------------------------------------------------------

    def _judge(self, result: Result) -> tuple[Judgement, str | None]:
        if self.options.guards is None:
            return Judgement.KEEP, None
        return self.options.guards.judge(
            compression_ratio=compression_ratio(self._text(result.tokens)),
            mean_logprob=mean_logprob(result.logprobs),
            no_speech_prob=result.probe[0],
        )

    def _again(self, result: Result) -> bool:
        """Queues a window at the next temperature, behind what waits; False after the last one."""
        assert self.options.guards is not None
        temperature = self.options.guards.next_temperature(result.request.temperature)
        if temperature is None:
            return False
        self.t.engine.submit(self._sampled(result.request, temperature))
        return True

    def _sampled(self, request: Request, temperature: float) -> Request:
        # The seed is the window's place and the attempt: the same on every machine and in any batch.
        seed = request.tag.start * 1000 + round(100 * temperature)
        return replace(request, temperature=temperature, seed=seed)

    def _time(self, ticket: Ticket, decoded: Decoded, memory: Memory) -> None:
        """Times a window's words, together with others of the batch."""
        self.untimed.append((ticket, replace(decoded, memory=memory)))
        if len(self.untimed) >= self.t.batch:
            self._time_all()

    def _time_all(self) -> None:
        waiting, self.untimed = self.untimed, []
        parts = [self._parts(decoded) for _, decoded in waiting]
        work = [
            (ticket, decoded, segments)
            for (ticket, decoded), segments in zip(waiting, parts, strict=True)
            if segments and not ticket.job.failed
        ]
        if not work:
            return
        utterances = [self._utterance(decoded, segments) for _, decoded, segments in work]
        times = token_times(self.t.whisper, utterances)
        tokenizer = self.t.whisper.tokenizer
        for (ticket, decoded, segments), timed in zip(work, times, strict=True):
            texts = [(part.tokens, text) for part, text in segments]
            quiet = within(ticket.pauses, decoded.length)  # it may have been heard further
            written = self._written(decoded, segments)
            ticket.job.words[decoded.index] = words(
                tokenizer, decoded.language, texts, timed, quiet, decoded.start, written
            )

    def _utterance(self, decoded: Decoded, segments: list[tuple[Stretch, str]]) -> Utterance:
        assert decoded.memory is not None
        prompt = self.special.prompt(decoded.language, self.options.task, timestamps=False)
        tokens = tuple(token for part, _ in segments for token in part.tokens)
        return Utterance(decoded.memory, prompt, tokens, decoded.length)

    def _written(self, decoded: Decoded, segments: list[tuple[Stretch, str]]) -> list[Writer]:
        """Who wrote the segments' tokens. Of a sequential window only the first tokens count."""
        pairs = zip(decoded.tokens, decoded.result.sources, strict=False)
        found = [writing.writer(source) for token, source in pairs if token < self.special.end]
        return [
            who for part, _ in segments for who in found[part.first : part.first + len(part.tokens)]
        ]

    def _ended(self) -> Iterator[Outcome]:
        while self.failed:
            yield self.failed.popleft()
        complete = [job for job in self.jobs if job.complete]
        if complete and self.untimed:
            self._time_all()
        for job in complete:
            self.jobs.remove(job)
            yield self._outcome(job)

    # -- windows in -------------------------------------------------------------------------------

    def _requests(self, sources: Iterable[Input]) -> Iterator[Request]:
        """Requests of all recordings in order; up to a batch of windows is encoded at a time."""
        ready: list[tuple[Job, Window]] = []
        for job, window in self._speech(sources):
            ready.append((job, window))
            if len(ready) == self.t.batch:
                yield from self._encode(ready)
                ready = []
        yield from self._encode(ready)

    def _speech(self, sources: Iterable[Input]) -> Iterator[tuple[Job, Window]]:
        for source in sources:
            job: Job | None = None
            try:
                with self.open(source) as recording:
                    job = Job(source, recording, time.perf_counter())
                    self.jobs.append(job)
                    for window in self._spoken(job):
                        yield job, window
            except ForescribeError as error:
                self._fail(source, job, error)
            except Exception as error:  # a fault of ours, or of a decoder: the others go on
                self._fail(source, job, internal(source, error))

    def _fail(self, source: Input, job: Job | None, error: ForescribeError) -> None:
        if job is not None:
            job.failed = True
            self.jobs.remove(job)
            self._drop([ticket for ticket in self.tickets if ticket.job is job])
        wall = 0.0 if job is None else time.perf_counter() - job.started
        self.failed.append(Outcome(source, error=error, wall_s=wall))

    def _spoken(self, job: Job) -> Iterator[Window]:
        """The windows with speech. The last one comes when the recording has been read to its end,
        so that its result completes the transcript, however long the next recording takes."""
        held: Window | None = None
        for window in self._windows(job.recording):
            job.windows += 1
            if not window.speech:
                job.silent.append(window)
                continue
            if held is not None:
                yield held
            held = window
        job.read = True
        if held is not None:
            yield held

    def _windows(self, recording: Recording) -> Iterator[Window]:
        detector = self._detector() if self.options.vad else None
        windows = cut(recording.blocks(), detector, self.options.windows)
        while True:
            self.t.watch.start()
            window = next(windows, None)
            self.t.watch.mark("audio")
            if window is None:
                return
            yield window

    def _detector(self) -> Detector:
        if self.t.detector is None:
            self.t.detector = SileroDetector()
        return self.t.detector

    def _encode(self, ready: list[tuple[Job, Window]]) -> Iterator[Request]:
        ready = [(job, window) for job, window in ready if not job.failed]
        if not ready:
            return
        self.t.watch.start()
        features = self.t.mel([window.samples for _, window in ready])
        memories = self.t.whisper.encode(features)
        self.t.watch.mark("encode")
        languages = self._languages([job for job, _ in ready], memories)
        for row, ((job, window), language) in enumerate(zip(ready, languages, strict=True)):
            quiet = self._pauses(features[row], window.length)
            ticket = Ticket(job, window.index, window.start, window.end, language, quiet)
            memory = memories[row]
            yield self._request(ticket, memory, self.previous)

    def _pauses(self, features: Tensor, length: int) -> tuple[Pause, ...]:
        return pauses(features, length) if self.options.words else ()

    def _request(self, ticket: Ticket, memory: Memory, previous: tuple[int, ...]) -> Request:
        """The request of a window; `previous` is the text before it."""
        prompt = self.special.prompt(
            ticket.language,
            self.options.task,
            timestamps=self.options.timestamps,
            previous=previous,
        )
        self.tickets.add(ticket)
        return Request(
            prompt=prompt,
            memory=memory,
            gamma=self._gamma(ticket.language),
            hint=previous,
            probe=self.t.no_speech.probe(prompt),
            tag=ticket,
        )

    def _gamma(self, language: str) -> int | None:
        """Drafts per round in this language: none where the draft was not made for it."""
        languages = self.t.whisper.pair.draft_languages
        if languages is not None and language not in languages:
            return 0
        return self.options.gamma

    def _languages(self, jobs: list[Job], memories: list[Memory]) -> list[str]:
        """Each window's language."""
        if self.language is not None:
            return [self.language] * len(jobs)
        heard = self.t.whisper.detect_language(memories)
        return [self._spoken_in(job, *one) for job, one in zip(jobs, heard, strict=True)]

    def _spoken_in(self, job: Job, language: str, chance: float) -> str:
        """A recording's language is that of its first window with speech, unless another is sure."""
        if job.language is None:
            job.language, job.language_probability = language, chance
        return job.language if chance < CONFIDENT else language

    # -- transcripts out --------------------------------------------------------------------------

    def _report(self, job: Job, decoded: Decoded) -> None:
        if self.hook is not None and not job.failed:
            stats = self.t.engine.stats - self.before
            segments = tuple(self._segments(job, decoded))
            self.hook(Progress(job.source, job.done_s, job.recording.declared_s, segments, stats))

    def _text(self, tokens: Iterable[int]) -> str:
        """The model's own words, spaces included, without special tokens."""
        text: str = self.t.whisper.tokenizer.decode(
            [token for token in tokens if token < self.special.end],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return text

    def _parts(self, decoded: Decoded) -> list[tuple[Stretch, str]]:
        """The stretches of a window that hold text, unless its text does not count."""
        if decoded.state != "decoded":
            return []
        found = stretches(decoded.tokens, self.special, decoded.length)
        texts = [(part, self._text(part.tokens)) for part in found]
        return [(part, text) for part, text in texts if text.strip()]

    def _segments(self, job: Job, decoded: Decoded) -> Iterator[Segment]:
        result, timed = decoded.result, job.words.get(decoded.index)
        for number, (part, text) in enumerate(self._parts(decoded)):
            yield Segment(
                id=0,
                window=decoded.index,
                window_sample=decoded.start,
                start_sample=decoded.start + part.start,
                end_sample=decoded.start + part.end,
                text=text,
                tokens=part.tokens,
                temperature=result.request.temperature,
                avg_logprob=mean_logprob(result.logprobs),
                compression_ratio=compression_ratio(self._text(result.tokens)),
                no_speech_prob=result.probe[0],
                words=timed[number] if timed is not None else None,
            )

    def _outcome(self, job: Job) -> Outcome:
        done = sorted(job.done, key=lambda d: d.index)
        segments = [segment for decoded in done for segment in self._segments(job, decoded)]
        wall = time.perf_counter() - job.started
        transcript = Transcript(
            segments=tuple(replace(s, id=i) for i, s in enumerate(segments)),
            sample_count=sum(w.length for w in job.silent) + sum(d.length for d in done),
            coverage=_coverage(done, job.silent),
            language=self.language or job.language,
            language_probability=job.language_probability,
            warnings=job.recording.warnings + self._warnings(job),
            settings=self.t.settings(self.options),
            stats=_stats(done, wall),
        )
        kept = tuple(done) if self.options.keep_memory else ()
        return Outcome(job.source, transcript, wall_s=wall, decoded=kept)

    def _warnings(self, job: Job) -> tuple[Notice, ...]:
        notices = []
        languages = {d.language for d in job.done} - {self.language or job.language}
        if languages:
            text = f"some windows are in another language: {', '.join(sorted(languages))}"
            notices.append(Notice("mixed_languages", text))
        for d in job.done:
            text = self._text(d.result.tokens).strip()
            if d.state != "decoded" and text:
                where = f"{seconds(d.start):.1f} to {seconds(d.end):.1f} s"
                notices.append(Notice("dropped_text", f"{text!r} at {where} left out: {d.reason}"))
        return tuple(notices)


def internal(source: Input, cause: Exception) -> ForescribeError:
    """A fault that nobody expected, as this recording's error."""
    text = f"{Outcome(source).name}: {type(cause).__name__}: {cause}"
    error = AudioError(text, code="internal_error")
    error.__cause__ = cause
    return error


def _coverage(done: list[Decoded], silent: list[Window]) -> Coverage:
    spans = [Span(d.start, d.end, d.state, d.reason) for d in done]
    spans += [Span(w.start, w.end, "silent", "no voice activity") for w in silent]
    return Coverage(tuple(sorted(spans, key=lambda span: span.start_sample)))


def _stats(done: list[Decoded], wall: float) -> dict[str, Json]:
    """A recording's own share: counted by row, so it does not depend on who shared the batch."""
    results = [d.result for d in done]
    rounds, drafted, accepted = (
        sum(getattr(r, name) for r in results) for name in ("rounds", "drafted", "accepted")
    )
    guarantees: list[Any] = sorted({r.guarantee.value for r in results})
    return {
        "windows": len(results),
        "tokens": sum(len(r.tokens) for r in results),
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        **writing.stats([r.sources for r in results]),
        "guarantees": guarantees,
        "wall_s": wall,
    }
