"""Admission: whether a request fits a table, how it enters a free row, and what a drafter has to read.

A drafter reads prompts together, and text that was written without it in pieces of one size, before it
drafts; a row on which that fails is decoded without drafts. Knows prompts, rows, the target's prefill and a
drafter; nothing of rounds, schedules or results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ..device import Device, HostReader, upload
from ..errors import CATCH_UP, PREFILL, PROMPT, RequestError
from ..protocols import EmbeddingModel, StackedModel
from ..requests import Mode, Request, check_in_vocabulary
from ..rounds.beams import BeamRows
from ..rounds.round import Parts, verify
from ..rows import Rows, selected
from .captures import Capture, Function, PrefillRunner
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
        table, need = self._table, Mode.of([request])
        vocab, max_gamma = table.target.vocab_size, table.max_gamma
        if len(request.prompt) > table.most:
            length = len(request.prompt)
            raise RequestError(f"the prompt has {length} tokens; the model holds {table.most}")
        check_in_vocabulary("the prompt", request.prompt, vocab)
        if request.probe is not None:
            check_in_vocabulary("the probe", request.probe.tokens, vocab)
        if hasattr(table.target, "check_request"):
            cast(EmbeddingModel, table.target).check_request(request)
        check_in_vocabulary("the hint", request.hint, vocab)
        check_in_vocabulary("the guess", request.guess, vocab)
        if isinstance(table.rows, BeamRows):
            if request.ranks or need != Mode():
                raise RequestError("beams have neither penalties nor ranked tokens: leave them out")
            return
        ranks = cast(Rows, table.rows).ranks
        if request.ranks > ranks:
            raise RequestError(f"{request.ranks} ranked tokens; this engine keeps {ranks}")
        if request.gamma is not None and request.gamma > max_gamma:
            raise RequestError(f"gamma is {request.gamma}; this engine drafts {max_gamma} at most")
        if request.guess and table.needs.prompt and table.drafting:
            raise RequestError(
                "this engine's drafter reads the target's states of prompts; it does not take a guess"
            )
        if table.device.static_shapes and not self._shapes.covers(need):
            raise RequestError(f"no mode of this engine covers {need}; give it one that does")

    def admit(self, chosen: list[tuple[int, Entry]]) -> None:
        """Admits requests into their rows together; one by one if that fails. Those that fail alone get
        a failed result."""
        table, left = self._table, dict(chosen)
        table.watch.start()
        try:
            for (row, entry), error in table.faults.isolate(chosen, self._enter, PREFILL):
                del left[row]
                table.shared.ended.append(failed(entry.request, error))
        except Exception as error:  # the device has failed, and these wait no more
            lost = [entry for row, entry in left.items() if row not in table.occupied]
            found = table.faults.record(PREFILL, error)
            table.shared.ended.extend(failed(entry.request, found) for entry in lost)
            raise
        table.watch.mark("prefill")

    def _enter(self, chosen: Sequence[tuple[int, Entry]]) -> None:
        """Admits all of these, or none if it raises."""
        table, rows = self._table, self._table.rows
        device, place = table.device, table.device.torch
        pending = {row: entry.request for row, entry in chosen}
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
        device.mark_step()
        for row, entry in chosen:
            if row in probes:
                entry.probe = self._probes.read(probes[row].detach)
            unread = table.drafter is not None and self._read is None
            table.occupy(row, entry, prefill_pending=unread)
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
    """Lets the drafter read what it lacks. A row on which that fails is decoded without drafts.

    The last tokens of the first rows are read in pieces of one size, captured for each number of rows. These
    are graphs of their own, and not a part of a round's: as an axis of rounds they would double its captures.
    How far back a piece begins is data of the device, so that one graph serves every piece. Reading a piece
    again writes the same keys and values, and so does a capture, which reads a few times.
    """

    def __init__(self, table: Table, shapes: ShapeSet, capture: Capture | None = None) -> None:
        assert table.drafter is not None
        self._table, self._drafter, self._shapes = table, table.drafter, shapes
        self._capture = capture  # None: pieces are read operator by operator
        self._graphs: dict[int, Function] = {}  # by the number of rows
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
            drafting = [row for row, e in table.occupied.items() if e.draft_error is None]
            if drafting:
                self._read_texts(tokens, drafting)
            if device.kind != "cuda":  # without events: the next rounds' time does not include it
                device.synchronize()
            table.watch.mark("draft")

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
        table, count = self._table, len(prompts.rows)

        def admit(picked: Sequence[int]) -> None:
            some = prompts if len(picked) == count else prompts.only(*picked)
            self._drafter.admit(some.index, some.tokens, some.requests, some.taps)
            table.counts.draft_forwards += self._drafter.forwards(1)
            table.device.mark_step()

        for i, error in table.faults.isolate(range(count), admit, PROMPT):
            table.occupied[prompts.rows[i]].draft_error = error

    def _read_texts(self, tokens: int, rows: Sequence[int]) -> None:
        """Reads the last `tokens` of these rows together; one after the other, operator by operator, if that
        fails."""
        table = self._table

        def together(rows: Sequence[int], captured: bool = True) -> None:
            with table.masked_to(rows):
                self._catch_up(tokens, max(rows) + 1, captured=captured)

        def alone(row: int) -> None:
            together([row], captured=False)

        for row, error in table.faults.isolate(rows, together, CATCH_UP, alone):
            table.occupied[row].draft_error = error

    def _catch_up(self, tokens: int, rows: int, *, captured: bool = True) -> None:
        """Reads the last `tokens` of the first `rows` rows, and more where a piece is longer. With `captured`
        False operators run one by one, which locates a fault."""
        pieces = -(-tokens // self.piece)
        for piece in range(pieces, 0, -1):
            self._back.fill_(2 + piece * self.piece)  # the last two tokens are fed by `propose`
            self._launch(rows, captured)()
        self._table.counts.draft_forwards += pieces * self._drafter.forwards(1)

    def _launch(self, rows: int, captured: bool) -> Function:
        capture, all_rows = self._capture if captured else None, cast(Rows, self._table.rows)
        count = all_rows.batch if capture is None else self._shapes.batch_for(rows)
        if capture is not None and count in self._graphs:
            return self._graphs[count]
        view = selected(all_rows, slice(count), Mode(), all_rows.scratch)
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

    def only(self, i: int) -> Prompts:
        """The one of number i alone."""
        one = slice(i, i + 1)
        taps = None if self.taps is None else self.taps[one]
        rows, requests, guesses = self.rows[one], self.requests[one], self.guesses[one]
        return Prompts(rows, self.index[one], self.tokens[one], requests, guesses, taps)

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
