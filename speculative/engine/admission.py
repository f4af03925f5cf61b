"""Admission: whether a request fits an engine, how it enters a free slot, and what a drafter has to read.

A drafter reads prompts together, and text that was written without it in pieces of one size, before it
drafts; a row on which that fails is decoded without drafts. Knows prompts, slots, the target's prefill and a
drafter; nothing of rounds, schedules or results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..device import Device
from ..errors import RequestError
from ..protocols import Drafter, Processor
from ..requests import Guarantee, Mode, Request, check_in_vocabulary
from ..rounds.accept import RuleChoice
from ..rounds.round import Parts, verify
from ..rows import Rows, first_rows
from ..transfers import HostReader, upload
from .captures import Capture, Function
from .faults import CATCH_UP, PREFILL, PROMPT
from .prefill import PrefillRunner
from .shapes import ShapeSet
from .shared import Shared
from .slots import SlotState, failed

PROMPT_BUCKETS = (4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)

PIECE = 32
"""Tokens of a row that a drafter reads at once of those written without it: one shape, and its logits
take no more memory than those of a few rounds."""

COMPUTED = ("logprobs", "sources", "ranked", "ranked_logprobs")
"""State of a row that rounds write before it is read; an admission sets the rest."""


class Admission:
    """Puts requests into free slots: their state on the device, and their prompt in the target."""

    def __init__(
        self,
        shared: Shared,
        rules: RuleChoice,
        shapes: ShapeSet,
        processors: tuple[Processor, ...] = (),
        read: Callable[[Prompts], None] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._shared, self._rules, self._shapes = shared, rules, shapes
        self._prompts = PrefillRunner(shared.target, shared.rows.batch, capture)
        rule = rules.pick(sampling=False)
        self._parts = Parts(shared.target, None, rule, processors, shared.eos)
        self._read = read  # of a drafter that takes requests at once
        self._probes = HostReader(shared.device)

    def check(self, request: Request) -> None:
        """Raises `RequestError` for a request that this engine cannot decode."""
        shared, need = self._shared, Mode.of([request])
        vocab, ranks, max_gamma = shared.target.vocab_size, shared.rows.ranks, shared.max_gamma
        if len(request.prompt) > shared.max_tokens:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens; the model holds {shared.max_tokens}"
            )
        check_in_vocabulary("the prompt", request.prompt, vocab)
        check_in_vocabulary("the hint", request.hint, vocab)
        check_in_vocabulary("the guess", request.guess, vocab)
        if request.probe is not None:
            check_in_vocabulary("the probe", request.probe.tokens, vocab)
        if request.ranks > ranks:
            raise RequestError(f"{request.ranks} ranked tokens; this engine keeps {ranks}")
        if request.gamma is not None and request.gamma > max_gamma:
            raise RequestError(f"gamma is {request.gamma}; this engine drafts {max_gamma} at most")
        if request.guess and shared.needs.prompt and shared.drafting:
            raise RequestError(
                "this engine's drafter reads the target's states of prompts; it does not take a guess"
            )
        if shared.device.static_shapes and not self._shapes.covers(need):
            raise RequestError(f"no mode of this engine covers {need}; give it one that does")
        if self._rules.guarantee(sampling=need.sampling) is Guarantee.GREEDY_ONLY:
            name = self._rules.pick(sampling=True).name
            raise RequestError(f"rule {name!r} cannot decode at temperature {request.temperature}")

    def admit(self, chosen: list[tuple[int, SlotState]]) -> None:
        """Admits requests into their rows together; one by one if that fails. Those that fail alone get
        a failed result."""
        watch, log = self._shared.watch, self._shared.faults
        watch.start()
        error = log.attempt(partial(self._prefill, chosen), PREFILL)
        if error is not None:
            for row, state in chosen:
                if len(chosen) > 1:
                    error = log.attempt(partial(self._prefill, [(row, state)]), PREFILL)
                if error is not None:
                    state.inbox.put(failed(state.request, error))
        watch.mark("prefill")

    def _prefill(self, chosen: list[tuple[int, SlotState]]) -> None:
        """Admits all of these, or none if it raises."""
        shared, state = self._shared, self._shared.rows
        rows, requests = [row for row, _ in chosen], [slot.request for _, slot in chosen]
        limits = [self._limit(request) for request in requests]
        write(state, rows, requests, limits, shared.max_gamma)
        index, tokens, padded = prompts(rows, requests, shared.device, shared.max_tokens)
        nodes = LogitNodes.of(padded, shared.device, shared.max_tokens)
        places, place = nodes.positions(tokens.shape[1]), shared.device.torch
        prefilled = self._prompts(
            index,
            tokens,
            [r.encoder_states for r in padded],
            None if places is None else upload(places, torch.int64, place),
        )
        probes: list[Tensor | None] = [None] * len(requests)
        if places is not None:
            first = prefilled.logits[:, 0]
            probes = [probabilities(first[i], r) for i, r in enumerate(requests)]
        begun = [len(r.prompt) < limit for r, limit in zip(requests, limits, strict=True)]
        state.active[index[: len(rows)]] = upload(begun, torch.bool, place)
        if nodes.guesses:
            guess, count = (upload(n, torch.int64, place) for n in (nodes.guesses, nodes.count))
            judged, mode = prefilled.logits[:, 1:], Mode.of(requests)
            verify(state, index, self._parts, guess, count, judged, mode)
        shared.device.mark_step()
        at_once = self._read is not None
        for (row, slot), probe in zip(chosen, probes, strict=True):
            slot.probe = None if probe is None else self._probes.read(probe.detach)
            pending = shared.drafter is not None and not at_once
            shared.slots.occupy(row, slot, prefill_pending=pending)
        shared.counts.target_forwards += 1
        if self._read is not None:
            self._read(Prompts(tuple(rows), index, tokens, padded, prefilled.taps))

    def _limit(self, request: Request) -> int:
        """The most tokens of the row, prompt included."""
        limit = self._shared.max_tokens
        if request.max_new_tokens is None:
            return limit
        return min(limit, len(request.prompt) + request.max_new_tokens)


class DraftReader:
    """Lets the drafter read what is in the backlog. A row on which that fails is decoded without drafts."""

    def __init__(
        self,
        shared: Shared,
        drafter: Drafter,
        shapes: ShapeSet,
        capture: Capture | None = None,
    ) -> None:
        self._shared, self._drafter, self._shapes = shared, drafter, shapes
        self._texts = CatchUp(shared.rows, drafter, shapes, capture)

    @classmethod
    def of(
        cls, shared: Shared, shapes: ShapeSet, capture: Capture | None = None
    ) -> DraftReader | None:
        """The reader of an engine; None where nothing is ever drafted."""
        if shared.drafter is None or not shared.drafting:
            return None
        return cls(shared, shared.drafter, shapes, capture)

    def read(self) -> None:
        """Reads all prompts and all text that the drafter lacks."""
        backlog, device = self._shared.slots.backlog, self._shared.device
        if backlog.prompts:
            pending, max_tokens = backlog.take_prompts(), self._shared.max_tokens
            self._shared.watch.start()
            self.read_prompts(Prompts.of(pending, device, max_tokens))
            self._shared.watch.mark("prefill")
        if backlog.tokens:
            self._read_texts(backlog.take_tokens(self._shared.slots.longest))

    def warm_up(self) -> None:
        """Captures the reading of text on free rows, where the schedule may leave text unread."""
        if 0 in self._shapes.gammas:
            self._texts.warm_up()

    def read_prompts(self, prompts: Prompts) -> None:
        """Reads the prompts together; one by one if that fails."""
        log = self._shared.faults
        error = log.attempt(partial(self._admit, prompts), PROMPT)
        if error is not None:
            for one in prompts.alone():
                if len(prompts.rows) > 1:
                    error = log.attempt(partial(self._admit, one), PROMPT)
                if error is not None:
                    self._shared.slots.stop_drafting(one.rows[0], error)

    def _admit(self, prompts: Prompts) -> None:
        self._drafter.admit(prompts.index, prompts.tokens, prompts.requests, prompts.taps)
        self._shared.counts.draft_forwards += self._drafter.forwards(1)
        self._shared.device.mark_step()

    def _read_texts(self, tokens: int) -> None:
        """Reads the last `tokens` of the drafting rows together; row by row if that fails. Waits for a
        device without events, so that the time of the next rounds does not include it."""
        slots, log, watch = self._shared.slots, self._shared.faults, self._shared.watch
        watch.start()
        drafting = slots.drafting()
        if drafting:
            with slots.masked_to(drafting):
                together = partial(self._catch_up, tokens, max(drafting) + 1)
                error = log.attempt(together, CATCH_UP)
            if error is not None:
                self._read_alone(tokens, drafting)
        if self._shared.device.kind != "cuda":
            self._shared.device.synchronize()
        watch.mark("draft")

    def _read_alone(self, tokens: int, rows: Sequence[int]) -> None:
        """Reads the text of one row after the other, operator by operator."""
        slots = self._shared.slots
        for row in rows:
            read = partial(self._catch_up, tokens, row + 1, captured=False)
            with slots.masked_to([row]):
                error = self._shared.faults.attempt(read, CATCH_UP)
            if error is not None:
                slots.stop_drafting(row, error)

    def _catch_up(self, tokens: int, rows: int, *, captured: bool = True) -> None:
        pieces = self._texts.read(tokens, rows, captured=captured)
        self._shared.counts.draft_forwards += pieces * self._drafter.forwards(1)


class CatchUp:
    """Reads the last tokens of the first rows in pieces of one size, captured for each number of rows.

    A graph of its own, and not a part of a round's: as an axis of rounds it would double their captures.
    How far back a piece begins is data of the device, so that one graph serves every piece. Reading a
    piece again writes the same keys and values, and so does a capture, which reads a few times.
    """

    def __init__(
        self, rows: Rows, drafter: Drafter, shapes: ShapeSet, capture: Capture | None = None
    ) -> None:
        self._rows, self._drafter, self._shapes = rows, drafter, shapes
        self._capture = capture  # None: pieces are read operator by operator
        self._graphs: dict[int, Function] = {}  # by the number of rows
        self.piece = min(PIECE, rows.scratch - 1)
        self._back = torch.zeros(1, dtype=torch.int64, device=rows.lengths.device)  # see `read`

    def read(self, tokens: int, rows: int, *, captured: bool = True) -> int:
        """Reads the last `tokens` of the first `rows` rows, and more where a piece is longer; returns how
        many pieces there were. `captured` False runs operators one by one, which locates a fault."""
        pieces = -(-tokens // self.piece)
        for piece in range(pieces, 0, -1):
            self._back.fill_(2 + piece * self.piece)  # the last two tokens are fed by `propose`
            self._launch(rows, captured)()
        return pieces

    def warm_up(self) -> None:
        """Reads one piece of the free rows, so that all numbers of rows are captured."""
        for count in reversed(self._shapes.batches):
            self.read(1, count)

    @property
    def captured(self) -> tuple[int, ...]:
        """The numbers of rows that have been captured so far."""
        return tuple(self._graphs)

    def _launch(self, rows: int, captured: bool) -> Function:
        if self._capture is None or not captured:
            return self._of(self._rows.batch)
        count = self._shapes.batch_for(rows)
        if count not in self._graphs:
            self._graphs[count] = self._capture(self._of(count))
        return self._graphs[count]

    def _of(self, count: int) -> Function:
        view = first_rows(self._rows, count, Mode(), self._rows.scratch)
        # A capture must not hold `self`.
        drafter, back, piece = self._drafter, self._back, self.piece

        def read() -> None:
            drafter.catch_up(view, (view.lengths - back).clamp_min(0), piece)

        return read


@dataclass(frozen=True)
class Prompts:
    """Prompts that a drafter has to read, with their guesses."""

    rows: tuple[int, ...]
    index: Tensor  # [K], the same rows; K may be more, see `prompts`
    tokens: Tensor  # [K, P]
    requests: Sequence[Request]  # K
    taps: Tensor | None = None  # [K, P, H, D]

    @classmethod
    def of(cls, pending: Mapping[int, Request], device: Device, max_tokens: int) -> Prompts:
        """Of requests by row."""
        index, tokens, padded = prompts(list(pending), list(pending.values()), device, max_tokens)
        return cls(tuple(pending), index, tokens, padded)

    def alone(self) -> list[Prompts]:
        """The same, one by one."""
        return [
            Prompts(
                (row,),
                self.index[i : i + 1],
                self.tokens[i : i + 1],
                self.requests[i : i + 1],
                None if self.taps is None else self.taps[i : i + 1],
            )
            for i, row in enumerate(self.rows)
        ]


@dataclass(frozen=True)
class LogitNodes:
    """Which positions of an admission have logits: those that requests probe, and those of guesses."""

    requests: Sequence[Request]
    guesses: Sequence[Sequence[int]]  # padded to one length; empty where no request has one
    count: Sequence[int]  # how many tokens of each guess are meant

    @classmethod
    def of(cls, requests: Sequence[Request], device: Device, max_tokens: int) -> LogitNodes:
        texts = [guess_of(r, max_tokens) for r in requests]
        guesses = padded_to_bucket(texts, device, max_tokens) if any(texts) else []
        return cls(requests, guesses, [len(text) for text in texts])

    def positions(self, length: int) -> list[list[int]] | None:
        """`[K, M]`, of prompts padded to `length`: the probe's position, then those that guesses are verified
        at. None where there is nothing to read."""
        if not self.guesses and all(r.probe is None for r in self.requests):
            return None
        width = len(self.guesses[0]) + 1 if self.guesses else 0
        return [
            [
                0 if r.probe is None else r.probe.slot,
                *(min(len(r.prompt) - 1 + i, length - 1) for i in range(width)),
            ]
            for r in self.requests
        ]


def write(
    state: Rows, rows: Sequence[int], requests: Sequence[Request], limits: Sequence[int], gamma: int
) -> None:
    """Writes the requests into their rows, which stay inactive: a fault before their prompts have been
    read must not leave active rows without a request."""
    staged = Rows.empty(len(rows), state.scratch, torch.device("cpu"), state.ranks)
    for i, request in enumerate(requests):
        staged.tokens[i, : len(request.prompt)] = torch.tensor(request.prompt)
    lengths = torch.tensor([len(r.prompt) for r in requests])
    staged.lengths[:], staged.begin[:] = lengths, lengths
    staged.limits[:] = torch.tensor(limits)
    staged.gamma[:] = torch.tensor([gamma if r.gamma is None else r.gamma for r in requests])
    staged.sampling.write(torch.arange(len(rows)), requests)
    values, place = staged.tensors(), state.tokens.device
    index = upload(rows, torch.int64, place)
    for name, target in state.tensors().items():
        if name not in COMPUTED:
            target[index] = upload(values[name], target.dtype, place)


def prompts(
    rows: Sequence[int], requests: Sequence[Request], device: Device, max_tokens: int
) -> tuple[Tensor, Tensor, list[Request]]:
    """Rows `[K]`, right-padded prompts with their guesses `[K, P]`, and their requests. K and P are one of a
    few sizes on a device with static shapes."""
    rows, requests = list(rows), list(requests)
    if device.static_shapes:
        # Repeats the last row, which is then written twice with the same values.
        padding = (1 << (len(rows) - 1).bit_length()) - len(rows)
        rows, requests = rows + rows[-1:] * padding, requests + requests[-1:] * padding
    fed = [(*r.prompt, *guess_of(r, max_tokens)) for r in requests]
    padded = padded_to_bucket(fed, device, max_tokens)
    place = device.torch
    return upload(rows, torch.int64, place), upload(padded, torch.int64, place), requests


def padded_to_bucket(texts: Sequence[Sequence[int]], device: Device, most: int) -> list[list[int]]:
    """Texts with zeros behind them, all as long as the longest, or as the next bucket where shapes are
    static."""
    length = max(map(len, texts))
    if device.static_shapes:
        doubled = 1 << (length - 1).bit_length()  # behind the last bucket
        length = min(next((b for b in PROMPT_BUCKETS if b >= length), doubled), most)
    return [[*text, *[0] * (length - len(text))] for text in texts]


def guess_of(request: Request, max_tokens: int) -> tuple[int, ...]:
    """As much of a request's guess as a row of `max_tokens` can take, with the token that follows it. How
    much the request's own limit leaves of it is decided where it is verified (`round.checked`)."""
    return request.guess[: max(0, max_tokens - len(request.prompt) - 1)]


def probabilities(logits: Tensor, request: Request) -> Tensor | None:
    """The probabilities of a request's probe `[tokens]`, from the logits `[V]` at its slot."""
    if request.probe is None:
        return None
    chances = logits.float().softmax(-1)
    return chances[upload(request.probe.tokens, torch.int64, logits.device)]
