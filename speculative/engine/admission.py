"""Admission: whether a request fits an engine, how it enters a free slot, and what a drafter has to read.

A drafter reads prompts together, and text that was written without it in pieces of one size, before it
drafts; a row on which that fails is decoded without drafts. Knows prompts, slots, the target's prefill and a
drafter; nothing of rounds, schedules or results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ..device import Device, HostReader, upload
from ..errors import CATCH_UP, PREFILL, PROMPT, RequestError
from ..protocols import EmbeddingModel, Model, Processor, StackedModel
from ..requests import Mode, Request, check_in_vocabulary
from ..rounds.round import Parts, verify
from ..rows import Rows, selected
from .captures import Capture, Function, PrefillRunner
from .runner import ShapeSet
from .slots import Shared, SlotState, failed

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
        shapes: ShapeSet,
        processors: tuple[Processor, ...] = (),
        read: Callable[[Prompts], None] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._shared, self._shapes = shared, shapes
        self._prefills: PrefillRunner | None = None  # None: the target's own
        if capture is not None and hasattr(shared.target, "prefill_stacked"):
            target = cast(StackedModel, shared.target)
            self._prefills = PrefillRunner(target, shared.rows.batch, capture)
        self._parts = Parts(shared.target, None, processors, shared.eos)
        self._read = read  # of a drafter that takes requests at once
        self._probes = HostReader(shared.device)

    def check(self, request: Request) -> None:
        """Raises `RequestError` for a request that this engine cannot decode."""
        shared, need = self._shared, Mode.of([request])
        vocab, ranks, max_gamma = shared.target.vocab_size, shared.rows.ranks, shared.max_gamma
        check_prompt(request, shared.target, shared.max_tokens)
        check_in_vocabulary("the hint", request.hint, vocab)
        check_in_vocabulary("the guess", request.guess, vocab)
        if request.ranks > ranks:
            raise RequestError(f"{request.ranks} ranked tokens; this engine keeps {ranks}")
        if request.beams is not None:
            raise RequestError("an engine has no beams: submit the request to a BeamSearch")
        if request.gamma is not None and request.gamma > max_gamma:
            raise RequestError(f"gamma is {request.gamma}; this engine drafts {max_gamma} at most")
        if request.guess and shared.needs.prompt and shared.drafting:
            raise RequestError(
                "this engine's drafter reads the target's states of prompts; it does not take a guess"
            )
        if shared.device.static_shapes and not self._shapes.covers(need):
            raise RequestError(f"no mode of this engine covers {need}; give it one that does")

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
        shared, rows = self._shared, self._shared.rows
        device, place = shared.device, shared.device.torch
        pending = {row: slot.request for row, slot in chosen}
        begun = self._write(pending)
        prompts = Prompts.of(pending, device, shared.max_tokens)
        index, guesses = prompts.index, prompts.guesses
        padded = padded_to_bucket(guesses, device, shared.max_tokens) if any(guesses) else []
        places = prompts.places(len(padded[0]) + 1 if padded else 0)
        prefill = shared.target.prefill if self._prefills is None else self._prefills
        prefilled = prefill(
            index,
            prompts.tokens,
            [request.encoder_states for request in prompts.requests],
            None if places is None else upload(places, torch.int64, place),
        )
        probes: dict[int, Tensor] = {}
        for i, (row, request) in enumerate(pending.items()):
            if request.probe is not None:
                chances = prefilled.logits[i, 0].float().softmax(-1)
                probes[row] = chances[upload(request.probe.tokens, torch.int64, place)]
        rows.active[index[: len(begun)]] = upload(begun, torch.bool, place)
        if padded:
            guess, count = (
                upload(numbers, torch.int64, place) for numbers in (padded, [*map(len, guesses)])
            )
            judged, mode = prefilled.logits[:, 1:], Mode.of(pending.values())
            verify(rows, index, self._parts, guess, count, judged, mode)
        device.mark_step()
        for row, slot in chosen:
            if row in probes:
                slot.probe = self._probes.read(probes[row].detach)
            unread = shared.drafter is not None and self._read is None
            shared.slots.occupy(row, slot, prefill_pending=unread)
        shared.counts.target_forwards += 1
        if self._read is not None:
            self._read(replace(prompts, taps=prefilled.taps))

    def _write(self, pending: Mapping[int, Request]) -> Tensor:
        """Writes requests into their rows, which stay inactive: a fault before their prompts have been read
        must not leave active rows without a request. Returns which `[K]` have room for a token."""
        shared, rows = self._shared, self._shared.rows
        staged = Rows.empty(len(pending), rows.scratch, torch.device("cpu"), rows.ranks)
        for i, request in enumerate(pending.values()):
            length, most, limit = len(request.prompt), request.max_new_tokens, shared.max_tokens
            staged.tokens[i, :length] = torch.tensor(request.prompt)
            staged.lengths[i] = staged.begin[i] = length
            staged.limits[i] = limit if most is None else min(limit, length + most)
            staged.gamma[i] = shared.max_gamma if request.gamma is None else request.gamma
        staged.sampling.write(torch.arange(len(pending)), [*pending.values()])
        values, place = staged.tensors(), shared.device.torch
        index = upload([*pending], torch.int64, place)
        for name, target in rows.tensors().items():
            if name not in COMPUTED:
                target[index] = upload(values[name], target.dtype, place)
        return staged.lengths < staged.limits


class DraftReader:
    """Lets the drafter read what it lacks. A row on which that fails is decoded without drafts.

    The last tokens of the first rows are read in pieces of one size, captured for each number of rows. These
    are graphs of their own, and not a part of a round's: as an axis of rounds they would double its captures.
    How far back a piece begins is data of the device, so that one graph serves every piece. Reading a piece
    again writes the same keys and values, and so does a capture, which reads a few times.
    """

    def __init__(self, shared: Shared, shapes: ShapeSet, capture: Capture | None = None) -> None:
        assert shared.drafter is not None
        self._shared, self._drafter, self._shapes = shared, shared.drafter, shapes
        self._capture = capture  # None: pieces are read operator by operator
        self._graphs: dict[int, Function] = {}  # by the number of rows
        self.piece = min(PIECE, shared.rows.scratch - 1)
        self._back = torch.zeros(1, dtype=torch.int64, device=shared.device.torch)  # of the piece

    def read(self) -> None:
        """Reads all prompts and all text that the drafter lacks, which count as read from here on."""
        shared, slots = self._shared, self._shared.slots
        if slots.unread_prompts:
            pending, slots.unread_prompts = slots.unread_prompts, {}
            shared.watch.start()
            self.read_prompts(Prompts.of(pending, shared.device, shared.max_tokens))
            shared.watch.mark("prefill")
        if slots.unread_tokens:
            tokens, slots.unread_tokens = min(slots.unread_tokens, slots.longest), 0
            shared.watch.start()
            drafting = [row for row, s in slots.occupied.items() if s.draft_error is None]
            if drafting:
                self._read_texts(tokens, drafting)
            if (
                shared.device.kind != "cuda"
            ):  # without events: the next rounds' time does not include it
                shared.device.synchronize()
            shared.watch.mark("draft")

    def warm_up(self) -> None:
        """Captures the reading of text on free rows, all numbers of them, where the schedule may leave text
        unread."""
        if 0 in self._shapes.gammas:
            for count in reversed(self._shapes.batches):
                self._catch_up(1, count)

    @property
    def captured(self) -> tuple[int, ...]:
        """The numbers of rows that have been captured so far."""
        return tuple(self._graphs)

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

    def _read_texts(self, tokens: int, rows: Sequence[int]) -> None:
        """Reads the last `tokens` of these rows together; one after the other, operator by operator, if that
        fails."""
        slots, log = self._shared.slots, self._shared.faults
        with slots.masked_to(rows):
            together = partial(self._catch_up, tokens, max(rows) + 1)
            error = log.attempt(together, CATCH_UP)
        if error is None:
            return
        for row in rows:
            with slots.masked_to([row]):
                alone = partial(self._catch_up, tokens, row + 1, captured=False)
                error = log.attempt(alone, CATCH_UP)
            if error is not None:
                slots.stop_drafting(row, error)

    def _catch_up(self, tokens: int, rows: int, *, captured: bool = True) -> None:
        """Reads the last `tokens` of the first `rows` rows, and more where a piece is longer. With `captured`
        False operators run one by one, which locates a fault."""
        pieces = -(-tokens // self.piece)
        for piece in range(pieces, 0, -1):
            self._back.fill_(2 + piece * self.piece)  # the last two tokens are fed by `propose`
            self._launch(rows, captured)()
        self._shared.counts.draft_forwards += pieces * self._drafter.forwards(1)

    def _launch(self, rows: int, captured: bool) -> Function:
        capture, shared = self._capture if captured else None, self._shared
        count = shared.rows.batch if capture is None else self._shapes.batch_for(rows)
        if capture is not None and count in self._graphs:
            return self._graphs[count]
        view = selected(shared.rows, slice(count), Mode(), shared.rows.scratch)
        # A capture must not hold `self`.
        drafter, back, piece = self._drafter, self._back, self.piece
        # Prompts are read, and may have embeddings in place of the tokens that are written there.
        first = view.scratch - piece

        def read() -> None:
            start = torch.maximum(view.lengths - back, view.begin.clamp_max(first))
            drafter.catch_up(view, start, piece)

        if capture is None:
            return read
        self._graphs[count] = graph = capture(read)
        return graph


@dataclass(frozen=True)
class Prompts:
    """Prompts that target and drafter have to read, with their guesses. On a device with static shapes K and
    P are one of a few sizes."""

    rows: tuple[int, ...]
    index: Tensor  # [K], the same rows; K may be more
    tokens: Tensor  # [K, P], right-padded prompts with their guesses
    requests: Sequence[Request]  # K
    guesses: Sequence[Sequence[int]]  # K
    taps: Tensor | None = None  # [K, P, H, D]

    @classmethod
    def of(cls, pending: Mapping[int, Request], device: Device, max_tokens: int) -> Prompts:
        """Of requests by row."""
        rows, requests = list(pending), list(pending.values())
        if device.static_shapes:
            # Repeats the last row, which is then written twice with the same values.
            padding = (1 << (len(rows) - 1).bit_length()) - len(rows)
            rows, requests = rows + rows[-1:] * padding, requests + requests[-1:] * padding
        fed, guesses = [], []
        for request in requests:
            # As much of a guess as the row can take, with the token that follows it. How much the request's
            # own limit leaves of it is decided where it is verified (`round.checked`).
            guess = request.guess[: max(0, max_tokens - len(request.prompt) - 1)]
            fed.append((*request.prompt, *guess))
            guesses.append(guess)
        place, tokens = device.torch, padded_to_bucket(fed, device, max_tokens)
        index = upload(rows, torch.int64, place)
        return cls(tuple(pending), index, upload(tokens, torch.int64, place), requests, guesses)

    def alone(self) -> list[Prompts]:
        """The same, one by one."""
        return [
            Prompts(
                (row,),
                self.index[i : i + 1],
                self.tokens[i : i + 1],
                self.requests[i : i + 1],
                self.guesses[i : i + 1],
                None if self.taps is None else self.taps[i : i + 1],
            )
            for i, row in enumerate(self.rows)
        ]

    def places(self, judged: int) -> list[list[int]] | None:
        """The positions `[K, 1 + judged]` that have logits: the probe's, and so many from the prompt's last
        token on, which guesses are verified at. None where there is nothing to read."""
        if not judged and all(request.probe is None for request in self.requests):
            return None
        places, end = [], self.tokens.shape[1] - 1
        for request in self.requests:
            probe, last = request.probe, len(request.prompt) - 1
            guessed = (min(last + i, end) for i in range(judged))
            places.append([0 if probe is None else probe.slot, *guessed])
        return places


def check_prompt(request: Request, target: Model, most: int) -> None:
    """Raises `RequestError` for a prompt that a target of `most` positions cannot read."""
    if len(request.prompt) > most:
        raise RequestError(f"the prompt has {len(request.prompt)} tokens; the model holds {most}")
    check_in_vocabulary("the prompt", request.prompt, target.vocab_size)
    if request.probe is not None:
        check_in_vocabulary("the probe", request.probe.tokens, target.vocab_size)
    if hasattr(target, "check_request"):
        cast(EmbeddingModel, target).check_request(request)


def padded_to_bucket(texts: Sequence[Sequence[int]], device: Device, most: int) -> list[list[int]]:
    """Texts with zeros behind them, all as long as the longest, or as the next bucket where shapes are
    static."""
    length = max(map(len, texts))
    if device.static_shapes:
        doubled = 1 << (length - 1).bit_length()  # behind the last bucket
        length = min(next((b for b in PROMPT_BUCKETS if b >= length), doubled), most)
    return [[*text, *[0] * (length - len(text))] for text in texts]
