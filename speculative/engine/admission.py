"""Admission: whether a request fits a table, how it enters a free row, and what a drafter has to read.

A drafter reads prompts together, and text that was written without it in pieces of one size, before it
drafts; rows on which that fails are decoded without drafts. Knows prompts, rows, the target's prefill and a
drafter; nothing of rounds, schedules or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ..device import Device, HostReader, upload
from ..errors import PREFILL, READ, RequestError
from ..protocols import EmbeddingModel, StackedModel
from ..requests import Mode, Request, check_in_vocabulary
from ..rounds.beams import BeamRows
from ..rounds.round import Parts, verify
from ..rows import Rows, selected
from .captures import Capture, Function, Graphs, PrefillRunner
from .runner import ShapeSet
from .table import Entry, Table, failed

PROMPT_BUCKETS = (4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)

PIECE = 32
"""Tokens of a row that a drafter reads at once of those written without it: one shape, and its logits
take no more memory than those of a few rounds."""


class Admission:
    """Puts requests into free rows: their state on the device, and their prompt in the target."""

    def __init__(
        self,
        table: Table,
        shapes: ShapeSet,
        read: Callable[[Prompts], None] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._table, self._shapes = table, shapes
        self.prefills: PrefillRunner | None = None  # None: the target's own
        if capture is not None and hasattr(table.target, "prefill_stacked"):
            target = cast(StackedModel, table.target)
            self.prefills = PrefillRunner(target, table.batch, capture)
        self._parts = Parts(table.target, None, table.shared.processors, table.shared.eos)
        self._read = read  # of a drafter that takes requests at once
        self._probes = HostReader(table.device)

    def check(self, request: Request) -> None:
        """Raises `RequestError` for a request that cannot be decoded in this table."""
        table, need, length = self._table, Mode.of([request]), len(request.prompt)
        if length > table.most:
            raise RequestError(f"the prompt has {length} tokens; the model holds {table.most}")
        for name, tokens in {
            "the prompt": request.prompt,
            "the probe": () if request.probe is None else request.probe.tokens,
            "the hint": request.hint,
            "the guess": request.guess,
        }.items():
            check_in_vocabulary(name, tokens, table.target.vocab_size)
        if hasattr(table.target, "check_request"):
            cast(EmbeddingModel, table.target).check_request(request)
        if isinstance(table.rows, BeamRows):
            if request.ranks or need != Mode():
                raise RequestError("beams have neither penalties nor ranked tokens: leave them out")
            return
        ranks = cast(Rows, table.rows).ranks
        if request.ranks > ranks:
            raise RequestError(f"{request.ranks} ranked tokens; this engine keeps {ranks}")
        gamma, most = request.gamma, table.max_gamma
        if gamma is not None and gamma > most:
            raise RequestError(f"gamma is {gamma}; this engine drafts {most} at most")
        if request.guess and not table.takes_guesses:
            raise RequestError(
                "this engine's drafter reads the target's states of prompts; it does not take a guess"
            )
        if table.device.static_shapes and not self._shapes.covers(need):
            raise RequestError(f"no mode of this engine covers {need}; give it one that does")

    def admit(self, chosen: list[tuple[int, Entry]]) -> None:
        """Admits requests into their rows together; one by one if that fails. Those that fail alone get
        a failed result."""
        table = self._table
        unread = table.drafter is not None and self._read is None
        for row, entry in chosen:
            table.occupy(row, entry, prefill_pending=unread)
        table.watch.start()
        self._try(chosen)
        table.watch.mark("prefill")

    def _try(self, chosen: list[tuple[int, Entry]]) -> None:
        table = self._table
        try:
            self._enter(dict(chosen))
            return
        except Exception as error:
            found = table.faults.handle(PREFILL, error)
        if len(chosen) > 1:
            for one in chosen:
                self._try([one])
        else:
            ((row, entry),) = chosen
            table.vacate(row)
            table.shared.ended.append(failed(entry.request, found))

    def _enter(self, chosen: Mapping[int, Entry]) -> None:
        """Begins the texts of all of these, or of none if it raises."""
        table, rows = self._table, self._table.rows
        device, place = table.device, table.device.torch
        pending = {row: entry.request for row, entry in chosen.items()}
        begun = self._write(pending)
        prompts = Prompts.of(pending, device, table.most)
        index, guesses = prompts.index, prompts.guesses
        padded = padded_to_bucket(guesses, device, table.most) if any(guesses) else []
        places = prompts.places(len(padded[0]) + 1 if padded else 0)
        prefill = table.target.prefill if self.prefills is None else self.prefills
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
            verify(cast(Rows, rows), index, self._parts, guess, count, judged, mode)
        for row, chances in probes.items():
            chosen[row].probe = self._probes.read(chances.detach)
        table.counts.target_forwards += 1
        if self._read is not None:
            self._read(replace(prompts, taps=prefilled.taps))

    def _write(self, pending: Mapping[int, Request]) -> Tensor:
        """Writes requests into their rows, which stay inactive: a fault before their prompts have been read
        must not leave active rows without a request. Returns which `[K]` have room for a token."""
        table, rows = self._table, self._table.rows
        staged = rows.free(len(pending), torch.device("cpu"))
        staged.begin_texts([*pending.values()], table.most, table.max_gamma)
        values, place = staged.tensors(), table.device.torch
        index = upload([*pending], torch.int64, place)
        for name, target in rows.tensors().items():
            if name not in rows.computed:
                target[index] = upload(values[name], target.dtype, place)
        return staged.lengths < staged.limits


class DraftReader:
    """Lets the drafter read what it lacks. Rows on which that fails are decoded without drafts.

    The last tokens of the first rows are read in pieces of one size, captured for each number of rows. These
    are graphs of their own, and not a part of a round's: as an axis of rounds they would double its captures.
    How far back a piece begins is data of the device, so that one graph serves every piece. Reading a piece
    again writes the same keys and values, and so does a capture, which reads a few times.
    """

    def __init__(self, table: Table, shapes: ShapeSet, capture: Capture | None = None) -> None:
        assert table.drafter is not None
        self._table, self._drafter, self._shapes = table, table.drafter, shapes
        self._capture = capture  # None: pieces are read operator by operator
        self.graphs = Graphs[int, Function]("readings")  # by the number of rows
        self.piece = min(PIECE, table.slots - 1)
        self._back = torch.zeros(1, dtype=torch.int64, device=table.device.torch)  # of the piece

    def read(self) -> None:
        """Reads all prompts and all text that the drafter lacks, which count as read from here on."""
        table, device = self._table, self._table.device
        if table.unread_prompts:
            pending, table.unread_prompts = table.unread_prompts, {}
            table.watch.start()
            self.read_prompts(Prompts.of(pending, device, table.most))
            table.watch.mark("prefill")
        if table.unread_tokens:
            tokens, table.unread_tokens = min(table.unread_tokens, table.longest), 0
            table.watch.start()
            rows = [row for row, e in table.occupied.items() if e.draft_error is None]
            if rows:
                with self._drafting(rows), table.masked_to(rows):
                    self._catch_up(tokens, max(rows) + 1)
            if device.kind != "cuda":  # without events: the next rounds' time does not include it
                device.synchronize()
            table.watch.mark("draft")

    def warm_up(self) -> None:
        """Captures the reading of text on free rows, all numbers of them, where the schedule may leave text
        unread."""
        if 0 in self._shapes.gammas:
            for count in reversed(self._shapes.batches):
                self._catch_up(1, count)

    def read_prompts(self, prompts: Prompts) -> None:
        """Reads the prompts together."""
        with self._drafting(prompts.rows):
            self._drafter.admit(prompts.index, prompts.tokens, prompts.requests, prompts.taps)
            self._table.counts.draft_forwards += self._drafter.forwards(1)

    @contextmanager
    def _drafting(self, rows: Iterable[int]) -> Iterator[None]:
        """After a fault in its block these rows are decoded without drafts."""
        try:
            yield
        except Exception as error:
            found = self._table.faults.handle(READ, error)
            for row in rows:
                self._table.occupied[row].draft_error = found

    def _catch_up(self, tokens: int, rows: int) -> None:
        """Reads the last `tokens` of the first `rows` rows, and more where a piece is longer."""
        pieces = -(-tokens // self.piece)
        for piece in range(pieces, 0, -1):
            self._back.fill_(2 + piece * self.piece)  # the last two tokens are fed by `propose`
            self._launch(rows)()
        self._table.counts.draft_forwards += pieces * self._drafter.forwards(1)

    def _launch(self, rows: int) -> Function:
        capture, all_rows = self._capture, cast(Rows, self._table.rows)
        count = all_rows.batch if capture is None else self._shapes.batch_for(rows)
        view = selected(all_rows, slice(count), Mode(), all_rows.scratch)
        # A capture must not hold `self`.
        drafter, back, piece = self._drafter, self._back, self.piece
        # Prompts are read, and may have embeddings in place of the tokens that are written there.
        first = view.scratch - piece

        def read() -> None:
            start = torch.maximum(view.lengths - back, view.begin.clamp_max(first))
            drafter.catch_up(view, start, piece)

        graph = None if capture is None else self.graphs.get(count, partial(capture, read))
        return graph or read


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


def padded_to_bucket(texts: Sequence[Sequence[int]], device: Device, most: int) -> list[list[int]]:
    """Texts with zeros behind them, all as long as the longest, or as the next bucket where shapes are
    static."""
    length = max(map(len, texts))
    if device.static_shapes:
        doubled = 1 << (length - 1).bit_length()  # behind the last bucket
        length = min(next((b for b in PROMPT_BUCKETS if b >= length), doubled), most)
    return [[*text, *[0] * (length - len(text))] for text in texts]
