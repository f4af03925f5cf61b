"""Sequential long-form: Whisper's own way through a long recording, one window after the other.

A window starts where the last closed segment of the window before ended, and reads its text. Slower
than windows cut in pauses, for a recording's windows cannot share a batch (recordings can); it is what
openai/whisper and transformers' long-form `generate` do, token for token.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace

from forescribe.speculative.requests import Request, Result

from ..audio.reading import Input
from ..audio.seekable import SeekableAudio
from ..errors import ForescribeError
from .call import Call, Job, Ticket, internal
from .encoding import heard
from .guards import Judgement
from .isolation import Fault
from .outcome import Decoded, Outcome
from .seeking import advance, spoken_before

# Text that was sampled as hot as this is no context to trust (openai/whisper).
FORGET_FROM = 0.5


@dataclass
class Chain:
    """One recording on its way: where the next window starts, and what was written before it."""

    reel: SeekableAudio
    previous: tuple[int, ...]
    frame: int = 0


class SequentialCall(Call):
    """A call whose windows follow each other; every recording has one in the engine."""

    def run(self, sources: Iterable[Input]) -> Iterator[Outcome]:
        self.chains: dict[Job, Chain] = {}
        try:
            yield from super().run(sources)
        finally:
            for chain in self.chains.values():
                chain.reel.close()

    def _requests(self, sources: Iterable[Input]) -> Generator[Request, None, None]:
        for source in sources:
            request = self._begun(source)
            if request is not None:
                yield request

    def _begun(self, source: Input) -> Request | None:
        """The first request of a recording, which is read to its end; None where there is none."""
        job: Job | None = None
        try:
            with self.open(source) as recording:
                job = Job(source, recording, time.perf_counter())
                self.jobs.append(job)
                self.t.watch.start()
                self.chains[job] = Chain(
                    SeekableAudio(recording.blocks(), self.t.mel), self.previous
                )
                self.t.watch.mark("audio")
            return self._next(job)
        except Exception as error:  # a fault of ours, or of a decoder: the others go on
            self._fail(source, job, internal(source, error))
        return None

    def _next(self, job: Job) -> Request | None:
        """The request of the next window that can be heard; None where there is no further one."""
        while not job.failed and not self._done(job):
            chain, hop = self.chains[job], self.t.mel.hop
            start = chain.frame * hop
            end = min(start + self.t.mel.samples, chain.reel.sample_count)
            window = Ticket(job, job.windows, start, end, self.language or job.language or "")
            job.windows += 1
            try:
                return self._heard(window, chain)
            except Exception as error:
                self.tickets.add(window)
                self._take(Fault(Request((self.special.start,), tag=window), error))
        if not job.failed:
            self._finish(job)
        return None

    def _heard(self, window: Ticket, chain: Chain) -> Request:
        self.t.watch.start()
        features = chain.reel.features(chain.frame)
        job = window.job
        (one,) = heard(self.t, features[None], [self.language is None and job.language is None])
        self.t.watch.mark("encode")
        if isinstance(one, Exception):
            raise one
        language = self.language or job.language or self._spoken_in(job, one)
        quiet = self._pauses(features, window.end - window.start)
        ticket = replace(window, language=language, pauses=quiet)
        return self._request(ticket, one.encoder_states, chain.previous)

    def _done(self, job: Job) -> bool:
        chain = self.chains[job]
        return not chain.reel.sample_count or chain.frame >= chain.reel.frames

    def _fail(self, source: Input, job: Job | None, error: ForescribeError) -> None:
        super()._fail(source, job, error)
        if job in self.chains:
            self.chains.pop(job).reel.close()

    def _decoded(
        self, ticket: Ticket, result: Result, judgement: Judgement, reason: str | None
    ) -> Decoded:
        """Ends where the next window starts, and holds what counts of the answer."""
        decoded = super()._decoded(ticket, result, judgement, reason)
        heard = self._left(ticket)
        step = advance(decoded.tokens, self.special, heard)
        if decoded.state != "decoded":
            step = replace(step, frames=heard)
        return replace(decoded, end=self._end_of(ticket, step.frames), tokens=step.tokens)

    def _lost_end(self, ticket: Ticket) -> int:
        return self._end_of(ticket, self._left(ticket))

    def _left(self, ticket: Ticket) -> int:
        """Frames from a window's start on, a window's at most."""
        frames = self.chains[ticket.job].reel.frames
        return min(self.t.mel.frames, frames - ticket.start // self.t.mel.hop)

    def _end_of(self, ticket: Ticket, frames: int) -> int:
        """The sample behind so many frames of a window; samples behind the last frame belong to it."""
        reel, hop = self.chains[ticket.job].reel, self.t.mel.hop
        last = ticket.start // hop + frames >= reel.frames
        return reel.sample_count if last else ticket.start + frames * hop

    def _keep_window(self, ticket: Ticket, decoded: Decoded) -> None:
        """Only what is kept moves the chain on: a fault before leaves it as it was."""
        super()._keep_window(ticket, decoded)
        chain = self.chains[ticket.job]
        last = decoded.end == chain.reel.sample_count
        chain.frame = chain.reel.frames if last else decoded.end // self.t.mel.hop
        if decoded.state == "decoded" and self.options.condition_on_previous_text:
            room = self.t.whisper.target.config.max_target_positions // 2 - 1
            hot = decoded.result.request.temperature >= FORGET_FROM
            before = () if hot else chain.previous
            chain.previous = (*before, *spoken_before(decoded.tokens, self.special))[-room:]

    def _follow(self, job: Job, decoded: Decoded) -> None:
        request = self._next(job)
        if request is not None:
            self.t.slots.submit(request)

    def _finish(self, job: Job) -> None:
        job.read = True
        self.chains.pop(job).reel.close()
