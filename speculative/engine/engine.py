"""Engine: the host side. Slots, admit -> round -> retire; nothing waits for the slowest row.

The engine knows token ids and opaque memories, nothing of tokenizers, audio or text:

    engine = Engine(target, ModelDrafter(draft), batch=8, schedule=Fixed(5), eos=(2,))
    for result in engine.run(requests):
        ...

An exception in a model, a drafter, a processor or a rule fails the request that it happened on and no
other: its result is `Finish.FAILED` with the error. A drafter's leaves its row to plain decoding.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from .. import checks
from ..device import Device, choose
from ..drafts import Distribution
from ..errors import BrokenError, DecodingError, RequestError
from ..protocols import Drafter, Model, Poll, Processor, Rule, Schedule
from ..requests import Finish, Guarantee, Mode, Partial, Ranked, Request, Result, Source
from ..rounds.accept import GreedyMatch, TokenRejection
from ..rounds.round import Parts, run_round
from ..rows import Rows
from . import admission, faults
from .faults import OF_THE_DRAFTER, ForOneRow
from .inbox import Inbox, Run, failed
from .schedule import Fixed
from .stats import Counters, Stats

REACH_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096)
"""How far attention reads: a window of 30 s fills a third of Whisper's positions, as a rule. Each
bucket is a shape of its own."""

CATCH_UP = 32
"""Tokens of a row that a drafter reads at once of those written without it: one shape, and its logits
take no more memory than a few rounds'."""


_NOTHING: Mapping[Any, int] = MappingProxyType({})


TIMED = frozenset({"draft", "score", "accept"})
"""Marks of a round that end a lap of the stopwatch; those between tell a fault's stage."""

CAPTURED = "captured"
"""In place of a mark: a captured round has none."""

REMEMBERED = 16
"""Faults that an engine keeps for whoever asks."""


@dataclass(eq=False)
class SlotState:
    """The host's record of an occupied row."""

    request: Request
    inbox: Inbox
    probe: tuple[float, ...] = ()
    cancelled: bool = False
    error: DecodingError | None = None
    draft_error: DecodingError | None = None  # since then it is decoded without drafts


class Engine:
    """Continuous batching of speculative decoding over `batch` rows.

    `schedule` gives gamma; 0, or no drafter, is plain decoding. `rule=None` takes greedy match while
    all rows are at temperature 0 and `sampled` otherwise, which is token rejection where it is None;
    together they are exact. `ranks` is
    the most likely tokens that a request may ask for at each position; `modes` are those that rounds
    are captured for, where the device captures: the first that covers the rows is played. Raises
    `ValueError` for parts that do not fit: another vocabulary, a law the rule cannot verify, a draft
    length without a drafter. One thread at a time: whoever has several lets one of them play the rounds.
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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        checks.whole("batch", batch, 1)
        self.device = choose("cpu") if device is None else device
        self.target, self.drafter = target, drafter
        default = Fixed(5 if drafter is not None else 0)
        self.schedule = default if schedule is None else schedule
        self.max_gamma = max(self.schedule.buckets)
        if self.max_gamma and drafter is None:
            raise ValueError(f"gamma is {self.max_gamma}, but there is no drafter; use gamma 0")
        if drafter is not None and drafter.vocab_size not in (None, target.vocab_size):
            raise ValueError(
                f"the draft has {drafter.vocab_size} tokens, the target {target.vocab_size}: "
                "a draft must use the target's vocabulary"
            )
        if drafter is not None and drafter.ends_early and self.device.static_shapes:
            raise ValueError(
                "a drafter that ends its drafts early has no static shape, which "
                f"{self.device.kind} needs; use confidence 0"
            )
        if max_tokens is not None:
            checks.whole("max_tokens", max_tokens, 1)
        checks.whole("ranks", ranks, 0, target.vocab_size)
        most = target.max_positions
        self.max_tokens = most if max_tokens is None else min(max_tokens, most)
        self._rule = rule
        self._sampled = TokenRejection() if sampled is None else sampled
        self._processors = tuple(processors)
        self._modes = tuple(modes)
        place = self.device.torch
        # A round writes drafts up to max_gamma slots behind the last token a row can hold.
        slots = self.max_tokens + self.max_gamma + 1
        with self.device.guard():
            self._eos = torch.tensor(sorted(set(eos)), dtype=torch.int64, device=place)
            self.rows = Rows.empty(batch, slots, place, ranks)
            self._counters = Counters.zeros(self.max_gamma, place)
            target.allocate(batch, slots)
            if drafter is not None:
                drafter.allocate(batch, slots, place)
        self._slots: list[SlotState | None] = [None] * batch
        self._waiting: deque[SlotState] = deque()
        self._inbox = Inbox()  # of those who submit and step by themselves
        self._current = self._inbox  # of what is submitted now
        self._dropped: deque[Inbox] = deque()  # whose runs were left; cleared away in the next step
        self._graphs: dict[tuple[int, Mode, int], Callable[[], None]] = {}
        self._longest = 1  # no row is longer; exact after each look
        self._watch = self.device.stopwatch()
        self._rounds = self._target_forwards = self._draft_forwards = self._faults = 0
        self._width = 0  # drafts of the last round
        self._clock = clock
        self._since_poll, self._poll_began, self._gamma = 0, 0.0, 0
        self._unread = 0  # tokens, at most, that rounds without drafts wrote into a row
        self._unread_prompts: dict[int, Request] = {}  # by row, which the drafter has not read
        # Judged and accepted drafts and row rounds that the schedule knows of.
        self._learnt = (0, 0, 0)
        self._marked: str | None = None  # the last stage of the round under way that has ended
        self._disturbed = False  # by a fault, so that the time since the last look is no price
        self._last_stats = Stats()
        self.faults: deque[DecodingError] = deque(maxlen=REMEMBERED)
        self.broken: BrokenError | None = None
        for sampling in (False, True):
            if self._drafting:
                _check(self._pick_rule(sampling), self._distribution(sampling))

    # -- requests ---------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        return self.rows.batch

    @property
    def free(self) -> int:
        """Rows that could take a request in the next step."""
        self._clear_away()
        return max(0, self._slots.count(None) - len(self._waiting))

    @property
    def idle(self) -> bool:
        """Whether nothing waits, is decoded, or has ended and was not yet returned by `step`."""
        self._clear_away()
        empty = not self._waiting and all(slot is None for slot in self._slots)
        return empty and not self._inbox.results

    def submit(self, request: Request) -> None:
        """Queues a request; `step` returns its result or, while a run is under way, the run. Raises
        `RequestError` if it cannot be decoded as asked, `BrokenError` once the device has failed."""
        self._clear_away()
        if self.broken is not None:
            raise BrokenError(str(self.broken)) from self.broken.__cause__
        admission.check(
            request,
            vocab=self.target.vocab_size,
            max_tokens=self.max_tokens,
            max_gamma=self.max_gamma,
            ranks=self.rows.ranked.shape[2],
        )
        need = Mode.of([request])
        if self.device.static_shapes and not any(mode.covers(need) for mode in self._modes):
            raise RequestError(f"no mode of this engine covers {need}; give it one that does")
        if self._guarantee(request) is Guarantee.GREEDY_ONLY:
            name = self._pick_rule(True).name
            raise RequestError(f"rule {name!r} cannot decode at temperature {request.temperature}")
        self._waiting.append(SlotState(request, self._current))
        self._current.pending += 1

    def cancel(self, tag: Hashable) -> int:
        """Drops all requests with this tag; their rows are free in the next step. How many there were."""
        dropped = self._forget_waiting(lambda waiting: waiting.request.tag == tag)
        for row, slot in enumerate(self._slots):
            if slot is not None and slot.request.tag == tag:
                slot.cancelled = True
                self._deactivate(row)
                dropped += 1
        return dropped

    def run(self, requests: Iterable[Request]) -> Run:
        """Decodes all requests, pulling them as rows become free; yields results as they end.

        One that cannot be decoded as asked yields a failed result. Whoever stops iterating cancels what
        is left. Other requests of this engine go on meanwhile; their results stay with their callers.
        """
        return Run(self, requests, self._dropped.append)

    def turn_to(self, inbox: Inbox) -> None:
        """What is submitted from here on belongs to this inbox."""
        self._current = inbox

    def drop(self, inbox: Inbox) -> None:
        """Cancels all requests of an inbox; nobody wants their results."""
        if self._current is inbox:
            self._current = self._inbox
        self._forget_waiting(lambda waiting: waiting.inbox is inbox)
        for row, slot in enumerate(self._slots):
            if slot is not None and slot.inbox is inbox:
                self._vacate(row)
                self._deactivate(row)
        inbox.results.clear()

    def _deactivate(self, row: int) -> None:
        if self.broken is not None:
            return
        try:
            with self.device.guard():
                self.rows.active[row] = False
        except Exception as error:
            self._fail_all(error)

    def _forget_waiting(self, is_one: Callable[[SlotState], bool]) -> int:
        gone = [waiting for waiting in self._waiting if is_one(waiting)]
        for waiting in gone:
            self._waiting.remove(waiting)
            waiting.inbox.pending -= 1
        return len(gone)

    def _clear_away(self) -> None:
        while self._dropped:
            self.drop(self._dropped.popleft())

    @torch.inference_mode()
    def peek(self, known: Mapping[Any, int] = _NOTHING) -> list[Partial]:
        """What unfinished rows have written, as of the host's last look; nothing between two looks.

        `known` says how many tokens of a text, by tag, need not be told again.
        """
        if self._since_poll or self.broken is not None:
            return []
        try:
            with self.device.guard():
                return self._partials(known)
        except Exception as error:
            self._fail_all(error)  # the results come with the next step
            return []

    def _partials(self, known: Mapping[Any, int]) -> list[Partial]:
        state, partials = self.rows, []
        lengths: list[int] = state.lengths.tolist()
        for row, slot in enumerate(self._slots):
            if slot is not None and not slot.cancelled:
                begin = known.get(slot.request.tag, 0)
                span = slice(len(slot.request.prompt) + begin, lengths[row])
                partials.append(
                    Partial(
                        request=slot.request,
                        begin=begin,
                        tokens=tuple(state.tokens[row, span].tolist()),
                        logprobs=tuple(state.logprobs[row, span].tolist()),
                        ranked=self._ranked(row, span, slot.request),
                    )
                )
        return partials

    # -- one step ---------------------------------------------------------------------------------

    def step(self) -> list[Result]:
        """Admits what waits, plays one round, and returns what has ended (often nothing) of the requests
        that `submit` took. Faults are in the results; it does not raise."""
        self.advance()
        results = list(self._inbox.results)
        self._inbox.results.clear()
        return results

    @torch.inference_mode()
    def advance(self) -> None:
        """A step, whose results go to their inboxes."""
        self._clear_away()
        if self.broken is not None:
            return
        try:
            with self.device.guard():
                self._step()
        except Exception as error:
            self._fail_all(error)

    def _step(self) -> None:
        if self._since_poll == 0:  # so that gamma is chosen for the rows that there are
            self._admit()
        busy = [slot for slot in self._slots if slot is not None]
        if not busy:
            self._since_poll = 0
            return
        if all(slot.cancelled for slot in busy):
            self._retire()
            return
        self._play(self._mode([slot.request for slot in busy]))
        self._since_poll += 1
        if self._since_poll >= self.device.rounds_per_poll or self._waiting:
            self._retire()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Plays every (gamma, mode) once on free rows, so that captured graphs exist before work does."""
        if not self.idle:
            raise RuntimeError("warm_up() needs an idle engine: capturing plays rounds")
        rounds, before = self._rounds, (self._target_forwards, self._draft_forwards)
        with self.device.guard():
            for gamma in self.schedule.buckets:
                for mode in self._modes:
                    for reach in self._reaches():
                        self._round(gamma, mode, reach)()
            if self._drafting and 0 in self.schedule.buckets:
                self._read_text(1)
            self.device.synchronize()
        self._rounds, (self._target_forwards, self._draft_forwards) = rounds, before

    def _mode(self, requests: list[Request]) -> Mode:
        need = Mode.of(requests)
        if not self.device.static_shapes:
            return need
        return next((mode for mode in self._modes if mode.covers(need)), need)

    def _play(self, mode: Mode) -> None:
        if self._since_poll == 0:
            self._gamma = self._choose(mode)
            if self._gamma:
                self._introduce()
                self._catch_up()
            self._poll_began = self._clock()
        gamma = self._gamma
        # A draft feeds the last two tokens itself; of those before it lacks one per plain round.
        self._unread += gamma == 0
        self._longest = min(self._longest + gamma + 1, self.rows.scratch)
        reach = next(r for r in self._reaches() if r >= self._longest)
        drafting = [row for row, slot in self._occupied() if slot.draft_error is None]
        plain = [row for row, slot in self._occupied() if slot.draft_error is not None]
        if gamma == 0 or not plain:
            self._try_round(gamma, mode, reach, drafting + plain)
            return
        # Two rounds, so that the drafts of the others are those that they would have been.
        self._disturbed = True
        for rows, drafts in ((drafting, gamma), (plain, 0)):
            if rows:
                with self._only(rows):
                    self._try_round(drafts, mode, reach, rows)

    def _occupied(self) -> list[tuple[int, SlotState]]:
        return [(row, slot) for row, slot in enumerate(self._slots) if slot is not None]

    def _try_round(self, gamma: int, mode: Mode, reach: int, rows: list[int]) -> None:
        """A round of `rows`; if it fails, each row plays it alone, and those that fail alone are failed."""
        if self._attempt(lambda: self._round(gamma, mode, reach)()) is None:
            self._count(gamma)
            return
        for row in rows:
            with self._only([row]):
                error = self._attempt(partial(self._alone, row, gamma, mode, reach))
                if error is not None and error.stage in OF_THE_DRAFTER:
                    self._decode_plainly(row, error)
                    error = self._attempt(partial(self._alone, row, 0, mode, reach))
            if error is not None:
                self._fail(row, error)

    def _count(self, gamma: int) -> None:
        """A round has been played."""
        self.device.mark_step()
        self._rounds += 1
        self._target_forwards += 1
        if gamma and self.drafter is not None:
            self._draft_forwards += self.drafter.forwards(self._width)

    def _alone(self, row: int, gamma: int, mode: Mode, reach: int) -> None:
        """A round in which nobody else takes part, uncaptured."""
        processors = tuple(ForOneRow(p, row, self.batch) for p in self._processors)
        self._eager(self._parts(mode, processors), gamma, mode, reach)
        self._count(gamma)

    @contextmanager
    def _only(self, rows: Collection[int]) -> Iterator[None]:
        """Meanwhile the other rows are masked. It costs no sync."""
        mask = torch.tensor([row in rows for row in range(self.batch)], device=self.device.torch)
        resting = self.rows.active & ~mask
        self.rows.active &= mask
        try:
            yield
        finally:
            self.rows.active |= resting

    def _catch_up(self) -> None:
        """Lets the drafter read what was written without it. Waits for it, so that no round's price
        holds it."""
        if not self._unread or self.drafter is None:
            return
        self._watch.start()
        tokens, self._unread = min(self._unread, self._longest), 0
        read = partial(self._read_text, tokens)
        drafting = [row for row, slot in self._occupied() if slot.draft_error is None]
        with self._only(drafting):
            together = self._attempt(read, faults.CATCH_UP)
        for row in drafting if together is not None else ():
            with self._only([row]):
                error = self._attempt(read, faults.CATCH_UP)
            if error is not None:
                self._decode_plainly(row, error)
        self.device.synchronize()
        self._watch.mark("draft")

    def _read_text(self, tokens: int) -> None:
        """The drafter reads the last `tokens` of every row, and more where its shape asks for it."""
        assert self.drafter is not None
        rows = self.rows
        rows.reach, count = rows.scratch, min(CATCH_UP, rows.scratch - 1)
        for passes in range(-(-tokens // count), 0, -1):
            start = (rows.lengths - 2 - passes * count).clamp_min(0)  # two are fed by `propose`
            self.drafter.catch_up(rows, start, count)
            self._draft_forwards += self.drafter.forwards(1)

    def _reaches(self) -> list[int]:
        slots = self.rows.scratch
        return [*(r for r in REACH_BUCKETS if r < slots), slots]

    def _round(self, gamma: int, mode: Mode, reach: int) -> Callable[[], None]:
        """The round for one static shape, captured where the device captures."""
        key = gamma, mode, reach
        if key not in self._graphs:
            parts = self._parts(mode, self._processors)

            def eager() -> None:
                self._eager(parts, gamma, mode, reach)

            def captured() -> None:
                self.rows.mode, self.rows.reach = mode, reach
                run_round(self.rows, parts, gamma, self._counters)

            with self._only(()):  # capturing runs a few rounds
                graphed = self.device.graph(captured)
            # A captured round is one launch: its stages cannot be timed apart.
            self._graphs[key] = eager if graphed is captured else graphed
        self._width, self._marked = gamma, CAPTURED
        return self._graphs[key]

    def _parts(self, mode: Mode, processors: tuple[Processor, ...]) -> Parts:
        rule = self._pick_rule(mode.sampling)
        return Parts(self.target, self.drafter, rule, processors, self._eos)

    def _eager(self, parts: Parts, gamma: int, mode: Mode, reach: int) -> None:
        self.rows.mode, self.rows.reach = mode, reach
        self._marked = None
        self._watch.start()
        self._width = run_round(self.rows, parts, gamma, self._counters, self._mark)

    def _mark(self, stage: str) -> None:
        self._marked = stage
        if stage in TIMED:
            self._watch.mark(stage)

    # -- admit ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        free = [row for row, slot in enumerate(self._slots) if slot is None]
        chosen = [(row, self._waiting.popleft()) for row in free[: len(self._waiting)]]
        if not chosen:
            return
        self._watch.start()
        error = self._attempt(lambda: self._prefill(chosen), faults.PREFILL)
        if error is not None:
            for one in chosen:
                if len(chosen) > 1:
                    error = self._attempt(partial(self._prefill, [one]), faults.PREFILL)
                if error is not None:
                    one[1].inbox.put(failed(one[1].request, error))
        self._watch.mark("prefill")

    def _prefill(self, chosen: list[tuple[int, SlotState]]) -> None:
        """Takes these into their rows: all of them, or none if it raises."""
        rows, requests = [row for row, _ in chosen], [slot.request for _, slot in chosen]
        limits = [self._limit(request) for request in requests]
        admission.write(self.rows, rows, requests, limits, self.max_gamma)
        index, tokens, all_ = admission.prompts(rows, requests, self.device, self.max_tokens)
        logits = self.target.prefill(index, tokens, [r.encoder_states for r in all_])
        probes = [admission.probabilities(logits[i], r) for i, r in enumerate(requests)]
        begun = [len(r.prompt) < limit for r, limit in zip(requests, limits, strict=True)]
        self.rows.active[index[: len(rows)]] = torch.tensor(begun, device=self.device.torch)
        self.device.mark_step()
        for (row, slot), probe in zip(chosen, probes, strict=True):
            slot.probe = probe
            self._slots[row] = slot
            if self.drafter is not None:
                self._unread_prompts[row] = slot.request
        self._longest = max(self._longest, *(len(r.prompt) for r in requests))
        self._target_forwards += 1

    def _introduce(self) -> None:
        """Lets the drafter read the prompts of rows that came in since it last drafted: where nothing is
        drafted, it costs nothing."""
        if not self._unread_prompts or self.drafter is None:
            return
        self._watch.start()
        new, self._unread_prompts = self._unread_prompts, {}
        error = self._attempt(lambda: self._read_prompts(new), faults.PROMPT)
        if error is not None:
            for row, request in new.items():
                if len(new) > 1:
                    one = {row: request}
                    error = self._attempt(partial(self._read_prompts, one), faults.PROMPT)
                if error is not None:
                    self._decode_plainly(row, error)
        self._watch.mark("prefill")

    def _read_prompts(self, new: Mapping[int, Request]) -> None:
        assert self.drafter is not None
        rows, requests = list(new), list(new.values())
        index, tokens, all_ = admission.prompts(rows, requests, self.device, self.max_tokens)
        self.drafter.admit(index, tokens, all_)
        self._draft_forwards += self.drafter.forwards(1)
        self.device.mark_step()

    def _limit(self, request: Request) -> int:
        if request.max_new_tokens is None:
            return self.max_tokens
        return min(self.max_tokens, len(request.prompt) + request.max_new_tokens)

    # -- faults -----------------------------------------------------------------------------------

    def _attempt(self, act: Callable[[], None], stage: str | None = None) -> DecodingError | None:
        """Does it; the fault if it raises. Without a `stage` it is a round. Raises the fault itself where
        the device has failed with it."""
        try:
            act()
        except Exception as error:
            where = faults.stage_after(self._marked) if stage is None else stage
            found = self._record(faults.fault(where, error))
            self.device.synchronize()  # a device that has failed raises here
            return found
        return None

    def _record(self, error: DecodingError) -> DecodingError:
        self._faults += 1
        self.faults.append(error)
        self._disturbed = True
        return error

    def _decode_plainly(self, row: int, error: DecodingError) -> None:
        """From here on the row is decoded without drafts."""
        slot = self._slots[row]
        assert slot is not None
        slot.draft_error = error

    def _fail(self, row: int, error: DecodingError) -> None:
        """The row's result is what it has written so far, and the error."""
        slot = self._slots[row]
        assert slot is not None
        slot.error = error
        self._end(row, slot)
        # What made it fail must not be read in the rounds of the others.
        self.rows.clear(row)

    def _fail_all(self, error: Exception) -> None:
        """After a fault outside all that is attempted row by row: what is in the rows fails. If the device
        has failed, what waits does too, and nothing more is taken."""
        found = self._record(faults.fault(faults.ENGINE, error))
        for row, slot in self._occupied():
            self._vacate(row)
            slot.inbox.put(failed(slot.request, found))
        self._since_poll, self._unread, self._longest = 0, 0, 1
        try:
            with self.device.guard():
                for row in range(self.batch):
                    self.rows.clear(row)
                self.device.synchronize()
        except Exception as lost:
            self.broken = BrokenError(f"the device {self.device.name} has failed: {lost}")
            self.broken.__cause__ = lost
            while self._waiting:
                waiting = self._waiting.popleft()
                waiting.inbox.put(failed(waiting.request, self.broken))

    # -- retire -----------------------------------------------------------------------------------

    def _retire(self) -> None:
        active: list[bool] = self.rows.active.tolist()
        self._teach(self._clock() - self._poll_began)
        self._since_poll = 0
        for row, slot in self._occupied():
            if not active[row]:
                self._end(row, slot)
        lengths: list[int] = self.rows.lengths.tolist()
        self._longest = max((lengths[row] for row, _ in self._occupied()), default=1)

    def _end(self, row: int, slot: SlotState) -> None:
        """The row is free, and its result is where it belongs."""
        self._vacate(row)
        try:
            result = self._collect(row, slot)
        except Exception as raised:
            found = self._record(faults.fault(faults.RESULT, raised))
            result = failed(slot.request, slot.error or found)
        slot.inbox.put(result)

    def _vacate(self, row: int) -> None:
        self._slots[row] = None
        self._unread_prompts.pop(row, None)

    def _choose(self, mode: Mode) -> int:
        """The schedule's gamma; the fewest drafts it knows where it fails."""
        gamma = min(self.schedule.buckets)
        try:
            chosen = self.schedule.choose(sampling=mode.sampling)
            if chosen not in self.schedule.buckets:
                raise ValueError(f"gamma {chosen} is none of its {self.schedule.buckets}")
            gamma = chosen
        except Exception as error:
            self._record(faults.fault(faults.SCHEDULE, error))
        return gamma

    def _teach(self, seconds: float) -> None:
        """Tells the schedule what came of the rounds since the last look."""
        if isinstance(self.schedule, Fixed):
            return  # spares a device two reads
        count = self._counters
        known = int(count.judged), int(count.accepted.sum()), int(count.row_rounds)
        judged, accepted, row_rounds = (a - b for a, b in zip(known, self._learnt, strict=True))
        self._learnt = known
        disturbed, self._disturbed = self._disturbed, False
        if disturbed or not self._since_poll:
            return
        poll = Poll(
            gamma=self._gamma,
            rounds=self._since_poll,
            row_rounds=row_rounds,
            judged=judged,
            accepted=accepted,
            seconds=seconds,
            sampling=self.rows.mode.sampling,
        )
        try:
            self.schedule.learn(poll)
        except Exception as error:
            self._record(faults.fault(faults.SCHEDULE, error))

    def _collect(self, row: int, slot: SlotState) -> Result:
        state, request = self.rows, slot.request
        span = slice(int(state.begin[row]), int(state.lengths[row]))
        tokens: list[int] = state.tokens[row, span].tolist()
        stopped = bool(tokens) and tokens[-1] in self._eos.tolist()
        finish = Finish.STOP if stopped else Finish.LENGTH
        if slot.error is not None:
            finish = Finish.FAILED
        elif slot.cancelled:
            finish = Finish.CANCELLED
        return Result(
            request=request,
            tokens=tuple(tokens),
            logprobs=tuple(state.logprobs[row, span].tolist()),
            sources=tuple(Source(s) for s in state.sources[row, span].tolist()),
            finish=finish,
            rounds=int(state.rounds[row]),
            drafted=int(state.drafted[row]),
            accepted=int(state.accepted[row]),
            probe=slot.probe,
            ranked=self._ranked(row, span, request),
            guarantee=self._guarantee(request),
            error=slot.error,
            draft_error=slot.draft_error,
        )

    def _ranked(self, row: int, span: slice, request: Request) -> Ranked:
        if not request.ranks:
            return ()
        state, kept = self.rows, slice(request.ranks)
        tokens: list[list[int]] = state.ranked[row, span, kept].tolist()
        logprobs: list[list[float]] = state.ranked_logprobs[row, span, kept].tolist()
        return tuple(tuple(zip(*pair, strict=True)) for pair in zip(tokens, logprobs, strict=True))

    # -- rules and statistics ---------------------------------------------------------------------

    def _pick_rule(self, sampling: bool) -> Rule:
        if self._rule is not None:
            return self._rule
        return self._sampled if sampling else GreedyMatch()

    @property
    def _drafting(self) -> bool:
        return self.drafter is not None and self.max_gamma > 0

    def _distribution(self, sampling: bool) -> Distribution:
        return (
            self.drafter.distribution(sampling=sampling)
            if self.drafter is not None
            else Distribution.ONE_HOT
        )

    def _guarantee(self, request: Request) -> Guarantee:
        """What the result may claim; a greedy request needs no more than a greedy-only rule."""
        sampling = request.temperature > 0
        guarantee = self._pick_rule(sampling).guarantee(self._distribution(sampling))
        if guarantee is Guarantee.GREEDY_ONLY and not sampling:
            return Guarantee.EXACT
        return guarantee

    @property
    def stats(self) -> Stats:
        """Everything since the engine was made; reading it waits for the device. Of a broken engine it is
        what was read last."""
        if self.broken is None:
            with self.device.guard():
                self._last_stats = Stats(
                    rounds=self._rounds,
                    row_rounds=int(self._counters.row_rounds),
                    emitted=int(self._counters.emitted),
                    drafted_at_depth=tuple(self._counters.drafted.tolist()),
                    accepted_at_depth=tuple(self._counters.accepted.tolist()),
                    target_forwards=self._target_forwards,
                    draft_forwards=self._draft_forwards,
                    faults=self._faults,
                    seconds=self._watch.seconds,
                )
        return replace(self._last_stats, faults=self._faults)


def _check(rule: Rule, distribution: Distribution) -> None:
    if distribution not in rule.distributions:
        known = ", ".join(sorted(member.value for member in rule.distributions))
        raise ValueError(
            f"rule {rule.name!r} cannot verify {distribution.value} drafts; it takes: {known}"
        )
