"""Call: the state of one `transcribe` call, so that the transcriber itself keeps none.

Audio becomes windows, windows requests to the engine, results segments; a recording is done when its
last window is. Windows are pulled as slots become free, so hours of audio never sit in memory.

A fault stays where it happened: one in a window costs that window, which the coverage then calls
failed; one in reading or in the whole costs that recording; words that cannot be timed have no times.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forescribe.speculative.engine.faults import release
from forescribe.speculative.requests import Finish, Request, Result

from ..audio.reading import Input, Open, Recording, open_audio
from ..errors import ForescribeError, UsageError, out_of_memory
from ..formats.transcript import Notice, Segment, Transcript, Word, Writer, seconds
from ..model.loading import EncoderStates
from ..model.special_tokens import AUTO, language_code
from ..segment.pauses import Pause, pauses, within
from ..segment.vad import Detector, SileroDetector
from ..segment.windows import Window, cut
from ..words import token_sources
from ..words.assembly import words
from ..words.segments import Stretch, compression_ratio, mean_logprob, stretches
from ..words.timing import TokenTimes, Utterance, token_times
from . import accounting
from .accounting import fault, internal
from .encoding import Heard, hear
from .guards import Judgement
from .isolation import Ended, Fault, each
from .options import Options
from .outcome import Decoded, Follows, Hook, Outcome, Partial, Progress

if TYPE_CHECKING:
    from torch import Tensor

    from .transcriber import Transcriber

__all__ = ["CONFIDENT", "Call", "Job", "Ticket", "internal"]

NOT_FINITE = "the model's numbers are not finite"

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
    segments: dict[int, tuple[Segment, ...]] = field(
        default_factory=dict
    )  # by window, without words
    lost: dict[int, Exception] = field(default_factory=dict)  # windows that a fault has taken
    untimed: dict[int, Exception] = field(default_factory=dict)  # windows that have no word times
    said: int = 0  # windows, from the first on, that a hook was told of in order

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


Waiting = tuple[Ticket, Decoded]
"""A window whose words are to be timed; it holds its encoder states."""


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
        self.untimed: list[Waiting] = []  # windows that wait for their words

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
        requests, more = self._requests(sources), True
        try:
            while more or self.tickets:
                while more and self.t.slots.free:
                    request = next(requests, None)
                    if request is None:
                        more = False
                    else:
                        self.t.slots.submit(request)
                for ended in self.t.slots.step():
                    self._end(ended)
                    yield from self._ended()
                self._show()
                yield from self._ended()
        finally:  # the caller may leave at any outcome
            requests.close()
            if self.tickets:
                self._drop(self.tickets)
                self.t.slots.settle()

    def _end(self, ended: Ended) -> None:
        decoded = self._take(ended)
        if decoded is not None:
            job: Job = ended.request.tag.job
            self._follow(job, decoded)
            self._report(job, decoded)

    def _take(self, ended: Ended) -> Decoded | None:
        """What became of a window; None where it goes back into the engine at another temperature, was
        dropped, or was left by a call that was broken off."""
        ticket: Ticket = ended.request.tag
        if ticket not in self.tickets:
            return None
        if isinstance(ended, Fault):
            return self._lose(ticket, ended.error)
        try:
            decoded = self._judged(ticket, ended)
        except Exception as error:
            return self._lose(ticket, error)
        if decoded is not None:
            self._keep_window(ticket, decoded)
            if self.options.words:
                self._time(ticket, decoded, ended.request.encoder_states)
        return decoded

    def _judged(self, ticket: Ticket, result: Result) -> Decoded | None:
        """A window's answer, with its segments; None where it is to be tried again."""
        judgement, reason = self._judge(result)
        if judgement is Judgement.RETRY and self._again(result):
            return None
        decoded = self._decoded(ticket, result, judgement, reason)
        ticket.job.segments[decoded.index] = self._made(decoded)
        return decoded

    def _keep_window(self, ticket: Ticket, decoded: Decoded) -> None:
        self.tickets.discard(ticket)
        ticket.job.done.append(decoded)

    def _lose(self, ticket: Ticket, error: Exception) -> Decoded | None:
        """A fault has taken a window; None where it takes the recording, as want of memory does: that
        may pass with a smaller batch, so it must not look like a transcript."""
        job = ticket.job
        release(error)
        self._drop([ticket])
        if out_of_memory(error):
            self._give_up(job, fault(self._name(job), error))
            return None
        job.lost[ticket.index] = error
        decoded = Decoded(
            index=ticket.index,
            start=ticket.start,
            end=self._lost_end(ticket),
            language=ticket.language,
            result=self._nothing(),
            tokens=(),
            state="failed",
            reason=accounting.reason(error),
        )
        job.segments[ticket.index] = ()
        self._keep_window(ticket, decoded)
        return decoded

    def _lost_end(self, ticket: Ticket) -> int:
        """Where a window ends that has no answer."""
        return ticket.end

    def _nothing(self) -> Result:
        """The result of a window that has none."""
        return Result(Request((self.special.start,)), (), (), (), Finish.CANCELLED, 0, 0, 0)

    def _give_up(self, job: Job, error: ForescribeError) -> None:
        """The recording ends with an error."""
        self._fail(job.source, job, error)

    def _name(self, job: Job) -> str:
        """What messages call a recording."""
        return Outcome(job.source).name

    def _drop(self, tickets: Iterable[Ticket]) -> None:
        """Takes windows out of the engine; their rows are free at once."""
        for ticket in list(tickets):
            self.tickets.discard(ticket)
            self.t.slots.cancel(ticket)

    def _follow(self, job: Job, decoded: Decoded) -> None:
        """What a window's end sets off: nothing here, its successor where windows are sequential."""

    def _decoded(
        self, ticket: Ticket, result: Result, judgement: Judgement, reason: str | None
    ) -> Decoded:
        request, keep = result.request, self.options.keep_encoder_states
        # What still fails at the last temperature is kept, as Whisper does, unless it is no number.
        refused = judgement is Judgement.RETRY
        broken = refused and not math.isfinite(mean_logprob(result.logprobs))
        silent = judgement is Judgement.SILENCE
        doubt = reason if refused and not broken else None
        if judgement is Judgement.KEEP and self.t.is_demo:
            doubt = accounting.outside_demo(result)
        return Decoded(
            index=ticket.index,
            start=ticket.start,
            end=ticket.end,
            language=ticket.language,
            result=replace(result, request=replace(request, encoder_states=None, tag=None)),
            tokens=result.tokens,
            state="failed" if broken else "silent" if silent else "decoded",
            reason=None if refused and not broken else reason,
            doubt=doubt,
            encoder_states=request.encoder_states if keep else None,
        )

    # -- guards and words -------------------------------------------------------------------------

    def _judge(self, result: Result) -> tuple[Judgement, str | None]:
        mean = mean_logprob(result.logprobs)
        if self.options.guards is None:
            if math.isfinite(mean):
                return Judgement.KEEP, None
            return Judgement.RETRY, NOT_FINITE
        return self.options.guards.judge(
            compression_ratio=compression_ratio(self._text(result.tokens)),
            mean_logprob=mean,
            no_speech_prob=result.probe[0],
        )

    def _again(self, result: Result) -> bool:
        """Queues a window at the next temperature, behind what waits; False after the last one."""
        guards = self.options.guards
        if guards is None:
            return False
        temperature = guards.next_temperature(result.request.temperature)
        if temperature is None:
            return False
        self.t.slots.submit(self._sampled(result.request, temperature))
        return True

    def _sampled(self, request: Request, temperature: float) -> Request:
        return replace(
            request, temperature=temperature, seed=seed_of(request.tag.start, temperature)
        )

    def _time(self, ticket: Ticket, decoded: Decoded, encoder_states: EncoderStates) -> None:
        """Times a window's words, together with others of the batch."""
        self.untimed.append((ticket, replace(decoded, encoder_states=encoder_states)))
        if len(self.untimed) >= self.t.batch:
            self._time_all()

    def _time_all(self) -> None:
        waiting, self.untimed = self.untimed, []
        work = [
            (ticket, decoded)
            for ticket, decoded in waiting
            if ticket.job.segments[decoded.index] and not ticket.job.failed
        ]
        for (ticket, decoded), times in zip(work, each(self._timed, work), strict=True):
            try:
                if isinstance(times, Exception):
                    raise times
                ticket.job.words[decoded.index] = self._words(ticket, decoded, times)
            except Exception as error:
                release(error)
                ticket.job.untimed[decoded.index] = error

    def _timed(self, work: Sequence[Waiting]) -> list[TokenTimes]:
        """The times of several windows' tokens, in one forward."""
        utterances = [self._utterance(decoded, self._parts(decoded)) for _, decoded in work]
        return token_times(self.t.whisper, utterances)

    def _words(self, ticket: Ticket, decoded: Decoded, times: TokenTimes) -> list[tuple[Word, ...]]:
        segments = self._parts(decoded)
        texts = [(part.tokens, text) for part, text in segments]
        quiet = within(ticket.pauses, decoded.length)  # it may have been heard further
        written = self._written(decoded, segments)
        tokenizer = self.t.whisper.tokenizer
        return words(tokenizer, decoded.language, texts, times, quiet, decoded.start, written)

    def _utterance(self, decoded: Decoded, segments: list[tuple[Stretch, str]]) -> Utterance:
        assert decoded.encoder_states is not None
        prompt = self.special.prompt(decoded.language, self.options.task, timestamps=False)
        tokens = tuple(token for part, _ in segments for token in part.tokens)
        return Utterance(decoded.encoder_states, prompt, tokens, decoded.length)

    def _written(self, decoded: Decoded, segments: list[tuple[Stretch, str]]) -> list[Writer]:
        """Who wrote the segments' tokens. Of a sequential window only the first tokens count."""
        pairs = zip(decoded.tokens, decoded.result.sources, strict=False)
        found = [
            token_sources.writer(source) for token, source in pairs if token < self.special.end
        ]
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

    def _requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
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
            except Exception as error:  # a fault of ours, or of a decoder: the others go on
                if job is None or not job.read:  # else it is complete, whatever closing it says
                    self._fail(source, job, internal(source, error))

    def _fail(self, source: Input, job: Job | None, error: ForescribeError) -> None:
        if job is not None:
            if job not in self.jobs:  # it has its outcome already
                return
            job.failed = True
            self.jobs.remove(job)
            self._drop([ticket for ticket in self.tickets if ticket.job is job])
            self.untimed = [one for one in self.untimed if one[0].job is not job]
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
        wanting = [self.language is None] * len(ready)
        heard = hear(self.t, [window.samples for _, window in ready], wanting)
        self.t.watch.mark("encode")
        for (job, window), one in zip(ready, heard, strict=True):
            request = None if job.failed else self._entered(job, window, one)
            if request is not None:
                yield request

    def _entered(self, job: Job, window: Window, heard: Heard | Exception) -> Request | None:
        """The request of a window, or None where a fault has taken it."""
        try:
            if isinstance(heard, Exception):
                raise heard
            return self._request_of(job, window, heard)
        except Exception as error:
            self._take(self._fault(job, window, error))
            return None

    def _request_of(self, job: Job, window: Window, heard: Heard) -> Request:
        language = self.language or self._spoken_in(job, heard)
        quiet = self._pauses(heard.features, window.length)
        ticket = Ticket(job, window.index, window.start, window.end, language, quiet)
        return self._request(ticket, heard.encoder_states, self.previous)

    def _fault(self, job: Job, window: Window, error: Exception) -> Fault:
        """As if the engine had failed at the window: there is one way for faults."""
        language = self.language or job.language or ""
        ticket = Ticket(job, window.index, window.start, window.end, language)
        self.tickets.add(ticket)
        return Fault(Request((self.special.start,), tag=ticket), error)

    def _pauses(self, features: Tensor, length: int) -> tuple[Pause, ...]:
        return pauses(features, length) if self.options.words else ()

    def _request(
        self, ticket: Ticket, encoder_states: EncoderStates, previous: tuple[int, ...]
    ) -> Request:
        """The request of a window; `previous` is the text before it."""
        prompt = self.special.prompt(
            ticket.language,
            self.options.task,
            timestamps=self.options.timestamps,
            previous=previous,
        )
        request = Request(
            prompt=prompt,
            encoder_states=encoder_states,
            gamma=self._gamma(ticket.language),
            hint=previous,
            probe=self.t.no_speech.probe(prompt),
            tag=ticket,
        )
        guards = self.options.guards
        first = guards.temperatures[0] if guards is not None else 0.0
        self.tickets.add(ticket)
        return self._sampled(request, first) if first else request

    def _gamma(self, language: str) -> int | None:
        """Drafts per round in this language: none where the draft was not made for it."""
        languages = self.t.whisper.pair.draft_languages
        if languages is not None and language not in languages:
            return 0
        return self.options.gamma

    def _spoken_in(self, job: Job, heard: Heard) -> str:
        """A recording's language is that of its first window with speech, unless another is sure."""
        assert heard.language is not None
        language, chance = heard.language
        if job.language is None:
            job.language, job.language_probability = language, chance
        return job.language if chance < CONFIDENT else language

    # -- transcripts out --------------------------------------------------------------------------

    def _report(self, job: Job, decoded: Decoded) -> None:
        if self.hook is not None and not job.failed:
            stats = self.t.engine.stats - self.before
            segments, spoken = self._segments(job, decoded), self._spoken_on(job)
            declared_s = job.recording.declared_s
            self.hook(
                Progress(job.source, job.done_s, declared_s, tuple(segments), stats, tuple(spoken))
            )

    def _spoken_on(self, job: Job) -> Iterator[Segment]:
        """The segments that a reader can go on with, without words: up to the first window that is under
        way."""
        ended = {d.index for d in job.done} | {w.index for w in job.silent}
        while job.said in ended:
            yield from job.segments.get(job.said, ())
            job.said += 1

    def _show(self) -> None:
        """Shows a hook that follows what is being written."""
        if not isinstance(self.hook, Follows) or not self.jobs or not self.hook.wants:
            return
        first = self.jobs[0]
        try:
            partials = [
                p for p in self.t.engine.peek() if getattr(p.request.tag, "job", 0) is first
            ]
            if not partials:
                return
            earliest = min(partials, key=lambda p: p.request.tag.index)
            text = self._text(earliest.tokens).rstrip("\ufffd")  # half a character
        except Exception:  # it is only for show
            return
        self.hook.follow(Partial(first.source, text))

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

    def _made(self, decoded: Decoded) -> tuple[Segment, ...]:
        """A window's segments, without words."""
        result, parts = decoded.result, self._parts(decoded)
        ratio = compression_ratio(self._text(result.tokens)) if parts else 0.0
        return tuple(
            Segment(
                id=0,
                window=decoded.index,
                window_sample=decoded.start,
                start_sample=decoded.start + part.start,
                end_sample=decoded.start + part.end,
                text=text,
                tokens=part.tokens,
                temperature=result.request.temperature,
                avg_logprob=mean_logprob(result.logprobs),
                compression_ratio=ratio,
                no_speech_prob=result.probe[0],
                doubt=decoded.doubt,
            )
            for part, text in parts
        )

    def _segments(self, job: Job, decoded: Decoded) -> list[Segment]:
        """A window's segments, with their words where these are timed."""
        if decoded.index not in job.segments:
            job.segments[decoded.index] = self._made(decoded)
        segments, timed = job.segments[decoded.index], job.words.get(decoded.index)
        if timed is None:
            return list(segments)
        return [_tightened(segment, own) for segment, own in zip(segments, timed, strict=True)]

    def _outcome(self, job: Job) -> Outcome:
        wall = time.perf_counter() - job.started
        try:
            return self._finished(job, wall)
        except Exception as error:
            return Outcome(job.source, error=fault(self._name(job), error), wall_s=wall)

    def _finished(self, job: Job, wall: float) -> Outcome:
        done = sorted(job.done, key=lambda d: d.index)
        if done and len(job.lost) == len(done):  # nothing was decoded: that is no transcript
            error = fault(self._name(job), job.lost[done[0].index])
            return Outcome(job.source, error=error, wall_s=wall)
        segments = [segment for decoded in done for segment in self._segments(job, decoded)]
        transcript = Transcript(
            segments=tuple(replace(s, id=i) for i, s in enumerate(segments)),
            sample_count=sum(w.length for w in job.silent) + sum(d.length for d in done),
            coverage=accounting.coverage(done, job.silent),
            language=self.language or job.language,
            language_probability=job.language_probability,
            warnings=(*job.recording.warnings, *self._warnings(job, done)),
            settings=self.t.settings(self.options),
            stats=accounting.stats(done, wall),
        )
        kept = tuple(done) if self.options.keep_encoder_states else ()
        return Outcome(job.source, transcript, wall_s=wall, decoded=kept)

    def _warnings(self, job: Job, done: Sequence[Decoded]) -> list[Notice]:
        return [
            *accounting.failed(done),
            *accounting.doubtful(done, demo=self.t.is_demo),
            *accounting.mixed(done, self.language or job.language),
            *accounting.dropped(done, lambda d: self._text(d.result.tokens)),
            *accounting.untimed(done, job.untimed),
            *accounting.undrafted(done),
        ]


def _tightened(segment: Segment, words: tuple[Word, ...]) -> Segment:
    """From its first to its last word (openai/whisper): a window's timestamps are rougher."""
    if not words:
        return replace(segment, words=words)
    start, end = words[0].start_sample, max(word.end_sample for word in words)
    return replace(segment, start_sample=start, end_sample=end, words=words)


def seed_of(start: int, temperature: float) -> int:
    """The seed of a window from sample `start` at this temperature: the same on every machine and in any
    batch, and another for every temperature that the engine can tell apart. An attempt that drew by the
    numbers of one that was refused would not follow the model's distribution."""
    (bits,) = struct.unpack("<I", struct.pack("<f", temperature))
    return int(bits) << 32 | start & 0xFFFFFFFF
