"""Engine: the host side. Slots, admit -> round -> retire; nothing waits for the slowest row.

The engine knows token ids and opaque memories, nothing of tokenizers, audio or text:

    engine = Engine(target, ModelDrafter(draft), batch=8, schedule=Fixed(5), eos=(2,))
    for result in engine.run(requests):
        ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from speculative.accept import GreedyMatch, TokenRejection
from speculative.device import Device, choose
from speculative.drafters.model import ModelDrafter
from speculative.round import Parts, play
from speculative.sampling import enter
from speculative.schedule import Fixed
from speculative.stats import Counters, Stats
from speculative.types import (
    Drafter,
    Finish,
    Guarantee,
    Law,
    Look,
    Mode,
    Model,
    Partial,
    Processor,
    Ranked,
    Request,
    Result,
    Rows,
    Rule,
    Schedule,
    Source,
)

PROMPT_BUCKETS = (4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)
REACH_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096)
"""How far attention reads: a window of 30 s fills a third of Whisper's positions, as a rule. Each
bucket is a shape of its own."""

CATCH_UP = 32
"""Tokens of a row that a drafter reads at once of those written without it: one shape, and its logits
take no more memory than a few rounds'."""


_NOTHING: Mapping[Any, int] = MappingProxyType({})


@dataclass
class _Tenant:
    """The host's record of an occupied row."""

    request: Request
    probe: tuple[float, ...]
    cancelled: bool = False


class Engine:
    """Continuous batching of speculative decoding over `batch` rows.

    `schedule` gives gamma; 0, or no drafter, is plain decoding. `rule=None` takes greedy match while
    all rows are at temperature 0 and `sampled` otherwise, which is token rejection where it is None;
    together they are exact. `ranks` is
    the most likely tokens that a request may ask for at each position; `modes` are those that rounds
    are captured for, where the device captures: the first that covers the rows is played. Raises
    `ValueError` for parts that do not fit: another vocabulary, a law the rule cannot verify, a draft
    length without a drafter.
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
        if batch < 1:
            raise ValueError(f"batch is {batch}; it must be 1 or more")
        self.device = device or choose("cpu")
        self.target, self.drafter = target, drafter
        self.schedule = schedule or Fixed(5 if drafter is not None else 0)
        self.max_gamma = max(self.schedule.buckets)
        if self.max_gamma and drafter is None:
            raise ValueError(f"gamma is {self.max_gamma}, but there is no drafter; use gamma 0")
        if isinstance(drafter, ModelDrafter) and drafter.model.vocab_size != target.vocab_size:
            raise ValueError(
                f"the draft has {drafter.model.vocab_size} tokens, the target {target.vocab_size}: "
                "a draft must use the target's vocabulary"
            )
        if isinstance(drafter, ModelDrafter) and drafter.confidence and self.device.static_shapes:
            raise ValueError(
                f"a draft that ends early (confidence {drafter.confidence}) has no static shape, which "
                f"{self.device.kind} needs; use confidence 0"
            )
        self.max_tokens = min(max_tokens or target.max_positions, target.max_positions)
        self._rule, self._sampled = rule, sampled or TokenRejection()
        self._processors = tuple(processors)
        self._modes = tuple(modes)
        place = self.device.torch
        self._eos = torch.tensor(sorted(set(eos)), dtype=torch.int64, device=place)
        # A round writes drafts up to max_gamma slots behind the last token a row can hold.
        slots = self.max_tokens + self.max_gamma + 1
        self.rows = Rows.empty(batch, slots, place, ranks)
        self._counters = Counters.zeros(self.max_gamma, place)
        target.allocate(batch, slots)
        if drafter is not None:
            drafter.allocate(batch, slots, place)
        self._tenants: list[_Tenant | None] = [None] * batch
        self._waiting: deque[Request] = deque()
        self._graphs: dict[tuple[int, Mode, int], Callable[[], None]] = {}
        self._longest = 1  # no row is longer; exact after each look
        self._watch = self.device.stopwatch()
        self._rounds = self._target_forwards = self._draft_forwards = 0
        self._width = 0  # drafts of the last round
        self._clock = clock
        self._since_look, self._look_began, self._gamma = 0, 0.0, 0
        self._unread = 0  # tokens, at most, that rounds without drafts wrote into a row
        self._strangers: dict[int, Request] = {}  # by row, whose prompt the drafter has not read
        self._learnt = (
            0,
            0,
            0,
        )  # judged and accepted drafts and row rounds that the schedule knows of
        for sampling in (False, True):
            if self._drafting:
                _check(self._pick_rule(sampling), self._law(sampling))

    # -- requests ---------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        return self.rows.batch

    @property
    def free(self) -> int:
        """Rows that could take a request in the next step."""
        return max(0, self._tenants.count(None) - len(self._waiting))

    @property
    def idle(self) -> bool:
        return not self._waiting and all(t is None for t in self._tenants)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises `ValueError` if it cannot be decoded as asked."""
        if len(request.prompt) > self.max_tokens:
            raise ValueError(
                f"the prompt has {len(request.prompt)} tokens; the model holds {self.max_tokens}"
            )
        if request.probe is not None and request.probe.slot >= len(request.prompt):
            raise ValueError(f"probe slot {request.probe.slot} is behind the prompt")
        most = self.rows.ranked.shape[2]
        if request.ranks > most:
            raise ValueError(f"{request.ranks} ranked tokens; this engine keeps {most}")
        need = Mode.of([request])
        if self.device.static_shapes and not any(mode.covers(need) for mode in self._modes):
            raise ValueError(f"no mode of this engine covers {need}; give it one that does")
        guarantee = self._guarantee(request)
        if guarantee is Guarantee.GREEDY_ONLY:
            raise ValueError(
                f"rule {self._pick_rule(True).name!r} cannot decode at temperature {request.temperature}"
            )
        self._waiting.append(request)

    def cancel(self, tag: Hashable) -> int:
        """Drops all requests with this tag; their rows are free in the next step. How many there were."""
        waiting = len(self._waiting)
        self._waiting = deque(r for r in self._waiting if r.tag != tag)
        dropped = waiting - len(self._waiting)
        for row, tenant in enumerate(self._tenants):
            if tenant is not None and tenant.request.tag == tag:
                tenant.cancelled = True
                self.rows.active[row] = False
                dropped += 1
        return dropped

    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Decodes all requests, pulling them as rows become free; yields results as they end."""
        source = iter(requests)
        more = True
        while more or not self.idle:
            while more and self.free:
                request = next(source, None)
                if request is None:
                    more = False
                else:
                    self.submit(request)
            yield from self.step()

    def peek(self, known: Mapping[Any, int] = _NOTHING) -> list[Partial]:
        """What unfinished rows have written, as of the host's last look; nothing between two looks.

        `known` says how many tokens of a text, by tag, need not be told again.
        """
        if self._since_look:
            return []
        state, partials = self.rows, []
        lengths: list[int] = state.lengths.tolist()
        for row, tenant in enumerate(self._tenants):
            if tenant is not None and not tenant.cancelled:
                begin = known.get(tenant.request.tag, 0)
                span = slice(len(tenant.request.prompt) + begin, lengths[row])
                partials.append(
                    Partial(
                        request=tenant.request,
                        begin=begin,
                        tokens=tuple(state.tokens[row, span].tolist()),
                        logprobs=tuple(state.logprobs[row, span].tolist()),
                        ranked=self._ranked(row, span, tenant.request),
                    )
                )
        return partials

    # -- one step ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """Admits what waits, plays one round, and returns what has ended (often nothing)."""
        if self._since_look == 0:  # so that gamma is chosen for the rows that there are
            self._admit()
        busy = [t for t in self._tenants if t is not None]
        if not busy:
            return []
        self._play(self._mode([t.request for t in busy]))
        self._since_look += 1
        if self._since_look < self.device.rounds_per_look and not self._waiting:
            return []
        return self._retire()

    def warm_up(self) -> None:
        """Plays every (gamma, mode) once on free rows, so that captured graphs exist before work does."""
        if not self.idle:
            raise RuntimeError("warm_up() needs an idle engine: capturing plays rounds")
        rounds, before = self._rounds, (self._target_forwards, self._draft_forwards)
        with torch.inference_mode():
            for gamma in self.schedule.buckets:
                for mode in self._modes:
                    for reach in self._reaches():
                        self._round(gamma, mode, reach)()
            if self._drafting and 0 in self.schedule.buckets:
                self._unread = 1
                self._catch_up()
        self._rounds, (self._target_forwards, self._draft_forwards) = rounds, before
        self.device.synchronize()

    def _mode(self, requests: list[Request]) -> Mode:
        need = Mode.of(requests)
        if not self.device.static_shapes:
            return need
        return next((mode for mode in self._modes if mode.covers(need)), need)

    def _play(self, mode: Mode) -> None:
        if self._since_look == 0:
            self._gamma = self.schedule.choose(sampling=mode.sampling)
            if self._gamma:
                self._introduce()
                self._catch_up()
            self._look_began = self._clock()
        gamma = self._gamma
        # A draft feeds the last two tokens itself; of those before it lacks one per plain round.
        self._unread += gamma == 0
        self._longest = min(self._longest + gamma + 1, self.rows.dump)
        reach = next(r for r in self._reaches() if r >= self._longest)
        self._width = gamma
        self._round(gamma, mode, reach)()
        self.device.mark_step()
        self._rounds += 1
        self._target_forwards += 1
        if gamma and self.drafter is not None:
            self._draft_forwards += self.drafter.forwards(self._width)

    def _catch_up(self) -> None:
        """Lets the drafter read what was written without it. Waits for it, so that no round's price
        holds it."""
        if not self._unread or self.drafter is None:
            return
        self._watch.start()
        rows = self.rows
        rows.reach, count = rows.dump, min(CATCH_UP, rows.dump - 1)
        for passes in range(-(-min(self._unread, self._longest) // count), 0, -1):
            start = (rows.lengths - 2 - passes * count).clamp_min(0)  # two are fed by `propose`
            self.drafter.catch_up(rows, start, count)
            self._draft_forwards += self.drafter.forwards(1)
        self._unread = 0
        self.device.synchronize()
        self._watch.mark("draft")

    def _reaches(self) -> list[int]:
        slots = self.rows.dump
        return [*(r for r in REACH_BUCKETS if r < slots), slots]

    def _round(self, gamma: int, mode: Mode, reach: int) -> Callable[[], None]:
        """The round for one static shape, captured where the device captures."""
        key = gamma, mode, reach
        if key not in self._graphs:
            parts = Parts(
                self.target,
                self.drafter,
                self._pick_rule(mode.sampling),
                self._processors,
                self._eos,
            )

            def eager() -> None:
                self.rows.mode, self.rows.reach = mode, reach
                self._watch.start()
                self._width = play(self.rows, parts, gamma, self._counters, self._watch.mark)

            def captured() -> None:
                self.rows.mode, self.rows.reach = mode, reach
                play(self.rows, parts, gamma, self._counters)

            graphed = self.device.graph(captured)
            # A captured round is one launch: its stages cannot be timed apart.
            self._graphs[key] = eager if graphed is captured else graphed
        return self._graphs[key]

    # -- admit ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        free = [row for row, tenant in enumerate(self._tenants) if tenant is None]
        chosen = [(row, self._waiting.popleft()) for row in free[: len(self._waiting)]]
        if not chosen:
            return
        self._watch.start()
        rows, requests = [row for row, _ in chosen], [request for _, request in chosen]
        probes = self._prefill(rows, requests)
        for row, request, probe in zip(rows, requests, probes, strict=True):
            self._tenants[row] = _Tenant(request, probe)
        self._watch.mark("prefill")

    def _prefill(self, rows: list[int], requests: list[Request]) -> list[tuple[float, ...]]:
        self._enter(rows, requests)
        index, tokens, all_ = self._prompts(rows, requests)
        logits = self.target.prefill(index, tokens, [r.memory for r in all_])
        self._target_forwards += 1
        if self.drafter is not None:
            self._strangers |= dict(zip(rows, requests, strict=True))
        self.device.mark_step()
        return [_probe(logits[i], request) for i, request in enumerate(requests)]

    def _introduce(self) -> None:
        """Lets the drafter read the prompts of rows that came in since it last drafted: where nothing is
        drafted, it costs nothing."""
        if not self._strangers or self.drafter is None:
            return
        self._watch.start()
        index, tokens, requests = self._prompts(
            list(self._strangers), list(self._strangers.values())
        )
        self.drafter.admit(index, tokens, requests)
        self._draft_forwards += self.drafter.forwards(1)
        self._strangers.clear()
        self.device.mark_step()
        self._watch.mark("prefill")

    def _prompts(
        self, rows: list[int], requests: list[Request]
    ) -> tuple[Tensor, Tensor, list[Request]]:
        """Rows [K], right-padded prompts [K, P] and their requests; a few static shapes where the device
        needs them."""
        place, count = self.device.torch, len(rows)
        if self.device.static_shapes:
            # The last row again: it is written twice, with the same values.
            padding = (1 << (count - 1).bit_length()) - count
            rows, requests = rows + rows[-1:] * padding, requests + requests[-1:] * padding
        length = max(len(r.prompt) for r in requests)
        if self.device.static_shapes:
            bucket = next((b for b in PROMPT_BUCKETS if b >= length), self.max_tokens)
            length = min(bucket, self.max_tokens)
        prompts = [[*r.prompt, *[0] * (length - len(r.prompt))] for r in requests]
        tokens = torch.tensor(prompts, dtype=torch.int64, device=place)  # [K, P]
        return torch.tensor(rows, device=place), tokens, requests

    def _enter(self, rows: list[int], requests: list[Request]) -> None:
        """Writes the requests' state into their rows."""
        place, state = self.device.torch, self.rows
        index = torch.tensor(rows, device=place)

        def put(target: Tensor, values: list[int] | list[float] | list[bool]) -> None:
            target[index] = torch.tensor(values, dtype=target.dtype, device=place)

        prompts = torch.zeros((len(rows), state.tokens.shape[1]), dtype=torch.int64)
        for i, request in enumerate(requests):
            prompts[i, : len(request.prompt)] = torch.tensor(request.prompt)
        state.tokens[index] = prompts.to(place)
        lengths = [len(r.prompt) for r in requests]
        self._longest = max(self._longest, *lengths)
        limits = [self._limit(r) for r in requests]
        put(state.lengths, lengths)
        put(state.begin, lengths)
        put(state.limits, limits)
        put(state.active, [a < b for a, b in zip(lengths, limits, strict=True)])
        enter(state, index, requests)
        put(state.gamma, [self.max_gamma if r.gamma is None else r.gamma for r in requests])
        for counter in (state.rounds, state.drafted, state.accepted):
            counter[index] = 0

    def _limit(self, request: Request) -> int:
        if request.max_new_tokens is None:
            return self.max_tokens
        return min(self.max_tokens, len(request.prompt) + request.max_new_tokens)

    # -- retire -----------------------------------------------------------------------------------

    def _retire(self) -> list[Result]:
        active: list[bool] = self.rows.active.tolist()
        self._teach(self._clock() - self._look_began)
        self._since_look = 0
        results = []
        for row, tenant in enumerate(self._tenants):
            if tenant is not None and not active[row]:
                results.append(self._collect(row, tenant))
                self._tenants[row] = None
                self._strangers.pop(row, None)
        lengths: list[int] = self.rows.lengths.tolist()
        busy = [lengths[row] for row, tenant in enumerate(self._tenants) if tenant is not None]
        self._longest = max(busy, default=1)
        return results

    def _teach(self, seconds: float) -> None:
        """Tells the schedule what came of the rounds since the last look."""
        if isinstance(self.schedule, Fixed):
            return  # spares a device two reads
        count = self._counters
        known = int(count.judged), int(count.accepted.sum()), int(count.row_rounds)
        judged, accepted, row_rounds = (a - b for a, b in zip(known, self._learnt, strict=True))
        self._learnt = known
        self.schedule.learn(
            Look(
                gamma=self._gamma,
                rounds=self._since_look,
                row_rounds=row_rounds,
                judged=judged,
                accepted=accepted,
                seconds=seconds,
                sampling=self.rows.mode.sampling,
            )
        )

    def _collect(self, row: int, tenant: _Tenant) -> Result:
        state, request = self.rows, tenant.request
        span = slice(int(state.begin[row]), int(state.lengths[row]))
        tokens: list[int] = state.tokens[row, span].tolist()
        stopped = bool(tokens) and tokens[-1] in self._eos.tolist()
        finish = Finish.STOP if stopped else Finish.LENGTH
        return Result(
            request=request,
            tokens=tuple(tokens),
            logprobs=tuple(state.logprobs[row, span].tolist()),
            sources=tuple(Source(s) for s in state.sources[row, span].tolist()),
            finish=Finish.CANCELLED if tenant.cancelled else finish,
            rounds=int(state.rounds[row]),
            drafted=int(state.drafted[row]),
            accepted=int(state.accepted[row]),
            probe=tenant.probe,
            ranked=self._ranked(row, span, request),
            guarantee=self._guarantee(request),
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

    def _law(self, sampling: bool) -> Law:
        return self.drafter.law(sampling=sampling) if self.drafter is not None else Law.ONE_HOT

    def _guarantee(self, request: Request) -> Guarantee:
        """What the result may claim; a greedy request needs no more than a greedy-only rule."""
        sampling = request.temperature > 0
        guarantee = self._pick_rule(sampling).guarantee(self._law(sampling))
        if guarantee is Guarantee.GREEDY_ONLY and not sampling:
            return Guarantee.EXACT
        return guarantee

    @property
    def stats(self) -> Stats:
        """Everything since the engine was made; reading it waits for the device."""
        return Stats(
            rounds=self._rounds,
            row_rounds=int(self._counters.row_rounds),
            emitted=int(self._counters.emitted),
            drafted_at_depth=tuple(self._counters.drafted.tolist()),
            accepted_at_depth=tuple(self._counters.accepted.tolist()),
            target_forwards=self._target_forwards,
            draft_forwards=self._draft_forwards,
            seconds=self._watch.seconds,
        )


def _check(rule: Rule, law: Law) -> None:
    if law not in rule.laws:
        known = ", ".join(sorted(member.value for member in rule.laws))
        raise ValueError(f"rule {rule.name!r} cannot verify {law.value} drafts; it takes: {known}")


def _probe(logits: Tensor, request: Request) -> tuple[float, ...]:
    """The probabilities a request asked for, from its prompt's logits `[P, V]`."""
    if request.probe is None:
        return ()
    probabilities = logits[request.probe.slot].float().softmax(-1)
    return tuple(float(probabilities[token]) for token in request.probe.tokens)
