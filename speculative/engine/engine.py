"""Engine: continuous batching of speculative decoding on the host side.

Knows requests, slots and when a step admits, runs and polls; nothing of tokenizers, audio or text:

    engine = Engine(target, ModelDrafter(draft), batch=8, schedule=Fixed(5), eos=(2,))
    for result in engine.run(requests):
        ...

An exception in a model, a drafter, a processor or a rule fails only the request in which it occurred:
its result is `Finish.FAILED` with the error. After an exception in a drafter the row is decoded plainly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from ..device import Device, choose
from ..errors import BrokenError, DecodingError
from ..graphs.runner import GraphRunner, capture_for
from ..graphs.shapes import Shape, ShapeSet
from ..protocols import Drafter, Model, Processor, Rule, Schedule
from ..requests import Mode, Partial, Request, Result
from ..rounds.accept import RuleChoice
from ..stats import Stats
from .admission import DraftReader
from .context import EngineContext, FaultBoundary, Sizes
from .schedule import Fixed
from .scheduler import Scheduler
from .slots import Inbox, Run
from .warm_up import Preparation

_NOTHING: Mapping[Any, int] = MappingProxyType({})


class Engine:
    """Decodes requests in `batch` rows; a row that ends makes room for the next request at once.

    `schedule` gives gamma; 0, or no drafter, is plain decoding. `rule=None` takes greedy match while all rows
    are at temperature 0 and `sampled` otherwise, by default token rejection; together they are exact.
    `ranks` is how many of the most likely tokens a request may ask for at each position. `modes` are those
    that rounds are captured for, where the device captures: the first that covers the rows is run, and one
    that covers them all is added where there is none. `captured=False` runs rounds operator by operator
    there too. Raises `ValueError` for parts that do not fit: another vocabulary, drafts that the rule
    cannot verify, a draft length without a drafter. Not thread-safe.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        *,
        batch: int,
        eos: Iterable[int],
        schedule: Schedule | None = None,
        rule: Rule | None = None,
        sampled: Rule | None = None,
        processors: Iterable[Processor] = (),
        device: Device | None = None,
        max_tokens: int | None = None,
        ranks: int = 0,
        modes: Sequence[Mode] = (Mode(), Mode(sampling=True)),
        captured: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target, self.drafter = target, drafter
        self.device = choose("cpu") if device is None else device
        self.schedule = Fixed(5 if drafter is not None else 0) if schedule is None else schedule
        self.max_gamma = max(self.schedule.buckets)
        sizes = Sizes(batch, self.max_gamma, ranks, max_tokens)
        self._context = context = EngineContext.allocate(self.device, target, drafter, sizes, eos)
        self.rows, rules = context.rows, RuleChoice(rule, sampled, drafter)
        gammas, slots = self.schedule.buckets, self.rows.scratch
        shapes = ShapeSet.of(self.device, batch, slots, gammas, modes)
        capture = capture_for(self.device) if captured else None
        reader = DraftReader.of(context, shapes, capture)
        processors = tuple(processors)
        self._scheduler = Scheduler(
            context,
            rules,
            shapes,
            self.schedule,
            reader,
            clock,
            processors,
            capture if self.device.captures_at_once else None,  # prompts have many lengths
        )
        fail = self._scheduler.collector.fail
        self._runner = GraphRunner(context, rules, processors, fail, shapes, capture)
        self._preparation = Preparation(context, self._runner, reader, self._scheduler)
        self.threads = self._preparation.threads
        self._guarded = FaultBoundary(self.device, self._scheduler.fail_all)

    @property
    def batch(self) -> int:
        return self.rows.batch

    @property
    def broken(self) -> BrokenError | None:
        """Why the device has failed; None while it answers."""
        return self._guarded.broken

    @property
    def faults(self) -> deque[DecodingError]:
        """The latest faults."""
        return self._context.faults.recent

    @property
    def free(self) -> int:
        """Slots that could take a request in the next step."""
        self._drop_abandoned()
        return max(0, len(self._context.slots.free()) - len(self._scheduler.queue.waiting))

    @property
    def takes_guesses(self) -> bool:
        """Whether requests may have a guess: a drafter that reads the target's states of prompts has none."""
        return not (self._context.needs.prompt and self._context.drafting)

    @property
    def captured(self) -> tuple[Shape, ...]:
        """The shapes that have been captured so far."""
        return self._runner.captured

    @property
    def idle(self) -> bool:
        """Whether no request waits, is decoded, or has a result that `step` did not return yet."""
        self._drop_abandoned()
        return self._scheduler.idle

    @property
    def stats(self) -> Stats:
        """Everything since the engine was made; waits for the device. A broken engine returns what was
        read last."""
        return self._context.stats(lost=self.broken is not None)

    def submit(self, request: Request) -> None:
        """Queues a request; `step` returns its result or, while a run is under way, the run. Raises
        `RequestError` if it cannot be decoded, `BrokenError` once the device has failed."""
        self._drop_abandoned()
        self._guarded.check()
        self._scheduler.submit(request)

    def cancel(self, tag: Hashable) -> int:
        """Cancels all requests with this tag, and returns how many there were. Their slots are free in
        the next step."""
        cancelled = 0
        with self._guarded():
            cancelled = self._scheduler.cancel(tag)
        return cancelled

    def run(self, requests: Iterable[Request]) -> Run:
        """Decodes all requests, pulling them as slots become free; yields results as they end.

        One that cannot be decoded yields a failed result. Leaving the iteration cancels the
        remaining ones. Other requests of this engine go on meanwhile; `step` returns their results.
        """
        return Run(self, self._scheduler.queue, requests)

    @torch.inference_mode()
    def peek(self, known: Mapping[Any, int] = _NOTHING) -> list[Partial]:
        """What unfinished rows have written, as of the last poll; empty between two polls. `known` is how
        many tokens of a text, by tag, to leave out."""
        if self.broken is None and self._scheduler.pacing.rounds == 0:
            with self._guarded():
                return self._scheduler.collector.partials(known)
        return []

    @torch.inference_mode()
    def step(self, inbox: Inbox | None = None) -> list[Result]:
        """Admits waiting requests, runs one round, and returns the results that have ended, often none:
        those of `inbox`, by default of all requests outside of runs. Errors are in the results; it does
        not raise."""
        self._drop_abandoned()
        if self.broken is None:
            with self._guarded():
                mode = self._scheduler.prepare()
                if mode is not None:
                    with self.threads.limited():
                        self._runner.run(self._scheduler.pacing.gamma, mode)
                    self._scheduler.finish()
        return (self._scheduler.queue.own if inbox is None else inbox).take()

    def warm_up(self) -> None:
        """Runs every static shape once on free rows, so that graphs are captured before the first request."""
        self._drop_abandoned()
        self._preparation.warm_up()

    def choose_threads(self) -> None:
        """Measures on a CPU whether rounds are faster with one thread or with all that torch uses in the
        calling thread, within half a second, and keeps to the result in whichever thread calls `step`."""
        self._drop_abandoned()
        self._preparation.choose_threads()

    def _drop_abandoned(self) -> None:
        if self._scheduler.queue.abandoned:
            with self._guarded():
                self._scheduler.drop_abandoned()
