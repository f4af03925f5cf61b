"""Sequential long-form: Whisper's own way through a long recording, one window after the other.

A window starts where the last closed segment of the window before ended, and reads its text. Slower
than windows cut in pauses, for a recording's windows cannot share a batch (recordings can); it is what
openai/whisper and transformers' long-form `generate` do, token for token.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from asr.audio import Input
from asr.call import Call, Job, Ticket, internal
from asr.errors import ForescribeError
from asr.guards import Judgement
from asr.outcome import Decoded, Outcome
from asr.reel import Reel
from asr.seeking import advance, spoken_before
from speculative.types import Request, Result

# Text that was sampled as hot as this is no context to trust (openai/whisper).
FORGET_FROM = 0.5


@dataclass
class Chain:
    """One recording on its way: where the next window starts, and what was written before it."""

    reel: Reel
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

    def _requests(self, sources: Iterable[Input]) -> Iterator[Request]:
        for source in sources:
            job: Job | None = None
            try:
                with self.open(source) as recording:
                    job = Job(source, recording, time.perf_counter())
                    self.jobs.append(job)
                    self.t.watch.start()
                    reel = Reel(recording.blocks(), self.t.mel)
                    self.t.watch.mark("audio")
                self.chains[job] = Chain(reel, self.previous)
                if reel.sample_count:
                    yield self._next(job)
                else:
                    self._end(job)
            except ForescribeError as error:
                self._fail(source, job, error)
            except Exception as error:  # a fault of ours, or of a decoder: the others go on
                self._fail(source, job, internal(source, error))

    def _next(self, job: Job) -> Request:
        """The request of the window at the chain's frame."""
        chain = self.chains[job]
        self.t.watch.start()
        features = chain.reel.features(chain.frame)
        memory = self.t.whisper.encode(features[None])[0]
        self.t.watch.mark("encode")
        if self.language is None and job.language is None:
            self._languages([job], [memory])
        language = self.language or job.language
        assert language is not None
        hop = self.t.mel.hop
        start = chain.frame * hop
        end = min(start + self.t.mel.samples, chain.reel.sample_count)
        quiet = self._pauses(features, end - start)
        ticket = Ticket(job, job.windows, start, end, language, quiet)
        job.windows += 1
        return self._request(ticket, memory, chain.previous)

    def _decoded(
        self, ticket: Ticket, result: Result, judgement: Judgement, reason: str | None
    ) -> Decoded:
        """Ends where the next window starts, and holds what counts of the answer."""
        decoded = super()._decoded(ticket, result, judgement, reason)
        chain, hop = self.chains[ticket.job], self.t.mel.hop
        heard = min(self.t.mel.frames, chain.reel.frames - chain.frame)
        step = advance(decoded.tokens, self.special, heard)
        if decoded.state != "decoded":
            step = replace(step, frames=heard)
        elif self.options.condition_on_previous_text:
            room = self.t.whisper.target.config.max_target_positions // 2 - 1
            hot = result.request.temperature >= FORGET_FROM
            before = () if hot else chain.previous
            chain.previous = (*before, *spoken_before(step.tokens, self.special))[-room:]
        chain.frame += step.frames
        end = ticket.start + step.frames * hop
        if chain.frame >= chain.reel.frames:
            end = chain.reel.sample_count
        return replace(decoded, end=end, tokens=step.tokens)

    def _follow(self, job: Job, decoded: Decoded) -> None:
        chain = self.chains[job]
        if chain.frame >= chain.reel.frames:
            self._end(job)
            return
        try:
            self.t.engine.submit(self._next(job))
        except Exception as error:
            self._fail(job.source, job, internal(job.source, error))

    def _end(self, job: Job) -> None:
        job.read = True
        self.chains.pop(job).reel.close()
