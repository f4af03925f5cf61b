"""BeamSearch: continuous batching of beam search, beside an engine and with its steps.

    search = BeamSearch(target, size=5, batch=8, longest=224, eos=(2,))
    search.submit(Request(prompt, states, beams=Beams(5)))
    while not search.idle:
        results = search.step()

The `batch` rows are windows, each with all of its beams (`rounds.beams`), in caches of their own; a row that
ends makes room for the next request. The result of a request does not depend on the others, and an exception
fails only the request in which it occurred. Rounds and prefills are captured where the device captures.
Knows requests and rows; nothing of audio or text.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ..device import Device, Stopwatch, choose, upload
from ..errors import ENGINE, PREFILL, RESULT, SCORE, RequestError
from ..protocols import BeamModel, Model, Processor, StackedModel
from ..requests import Finish, Mode, Request, Result, Source, Stats
from ..rounds.beams import BeamRows, beam_round
from .admission import Prompts, check_prompt
from .captures import Function, PrefillRunner, capture_for
from .runner import ShapeSet
from .slots import FaultLog, failed

log = logging.getLogger(__name__)

REACH = 128
"""Slots that attention reads are a multiple of this in rounds that are not captured."""


class BeamSearch:
    """Decodes requests with up to `size` beams, and up to `longest` tokens of text. Raises `ValueError` for a
    target that cannot. Not thread-safe."""

    def __init__(
        self,
        target: Model,
        *,
        size: int,
        batch: int,
        longest: int,
        eos: Iterable[int],
        processors: Iterable[Processor] = (),
        device: Device | None = None,
    ) -> None:
        if not hasattr(target, "score_paths"):
            raise ValueError(f"{type(target).__name__} has no beams: it lacks score_paths")
        self.device = device = choose("cpu") if device is None else device
        self.size, self.batch, self.longest = size, batch, longest
        self.faults, self._target = FaultLog(device), target
        self._processors, self._watch = tuple(processors), Stopwatch(device)
        self._waiting: deque[Request] = deque()
        self._states: dict[int, _State] = {}  # by row
        self._rounds = self._row_rounds = self._emitted = self._forwards = 0
        self._capture = capture = capture_for(device)
        self._prefills: PrefillRunner | None = None  # None: the target's own
        if capture and device.captures_at_once and hasattr(target, "prefill_stacked"):
            self._prefills = PrefillRunner(cast(StackedModel, target), batch, capture)
        self._graphs: dict[tuple[int, int], Function] = {}  # by rows and reach
        with device.guard():
            self.rows = BeamRows.empty(batch, size, target.max_positions, longest, device.torch)
            self._eos = torch.tensor(sorted(set(eos)), dtype=torch.int64, device=device.torch)
            target.tap(())
            target.allocate(batch, self.rows.slots + 1)
        self._shapes = ShapeSet.of(device, batch, self.rows.slots, (0,), (Mode(),))

    @property
    def captured(self) -> tuple[tuple[int, int], ...]:
        """The rows and reaches of the rounds that have been captured so far."""
        return tuple(self._graphs)

    @property
    def free(self) -> int:
        """Rows that could take a request in the next step."""
        return max(0, self.batch - len(self._states) - len(self._waiting))

    @property
    def idle(self) -> bool:
        """Whether no request waits or is decoded."""
        return not (self._states or self._waiting)

    @property
    def stats(self) -> Stats:
        """Everything since it was made."""
        return Stats(
            rounds=self._rounds,
            row_rounds=self._row_rounds,
            emitted=self._emitted,
            target_forwards=self._forwards,
            faults=self.faults.count,
            seconds=self._watch.seconds,
        )

    def submit(self, request: Request) -> None:
        """Queues a request; `step` returns its result. Raises `RequestError` if it cannot be decoded."""
        if request.beams is None or request.beams.size != self.size:
            raise RequestError(f"this search has {self.size} beams, the request {request.beams}")
        if request.ranks:
            raise RequestError("beams report no further tokens at each position: leave out ranks")
        check_prompt(request, self._target, self._target.max_positions)
        self._waiting.append(request)

    def cancel(self, tag: Hashable) -> None:
        """Drops all requests with this tag, without results."""
        self._waiting = deque(request for request in self._waiting if request.tag != tag)
        for row in [row for row, state in self._states.items() if state.request.tag == tag]:
            self._vacate(row)

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """Admits waiting requests, runs a round, and returns the results of those that have ended. Errors are
        in the results; it does not raise."""
        try:
            with self.device.guard():
                ended = self._admit()
                if self._states:
                    ended += self._round()
                return ended
        except Exception as error:  # the last line of defence: the device has failed
            found = self.faults.record(ENGINE, error)
            lost = [state.request for state in self._states.values()]
            self._states = {}
            return [failed(request, found) for request in lost]

    def _admit(self) -> list[Result]:
        free = sorted(set(range(self.batch)) - self._states.keys())
        chosen = {row: self._waiting.popleft() for row in free[: len(self._waiting)]}
        if not chosen:
            return []
        self._watch.start()
        ended = []
        if self.faults.attempt(lambda: self._prefill(chosen), PREFILL) is not None:
            for row, request in chosen.items():
                alone = {row: request}
                error = self.faults.attempt(lambda alone=alone: self._prefill(alone), PREFILL)  # type: ignore[misc]
                if error is not None:
                    ended.append(failed(request, error))
        self._watch.mark("prefill")
        return ended

    def _prefill(self, chosen: dict[int, Request]) -> None:
        """Reads the prompts of all of these, or admits none if it raises."""
        place, probes = self.device.torch, dict[int, Tensor]()
        prompts = Prompts.of(chosen, self.device, self._target.max_positions)
        nodes = prompts.places(0)
        prefill = self._target.prefill if self._prefills is None else self._prefills
        prefilled = prefill(
            prompts.index,
            prompts.tokens,
            [request.encoder_states for request in prompts.requests],
            None if nodes is None else upload(nodes, torch.int64, place),
        )
        for i, (row, request) in enumerate(chosen.items()):
            if request.probe is not None:
                probed = upload(request.probe.tokens, torch.int64, place)
                probes[row] = prefilled.logits[i, 0].float().softmax(-1)[probed]
        for i, (row, request) in enumerate(chosen.items()):
            assert request.beams is not None
            new = self.longest if request.max_new_tokens is None else request.max_new_tokens
            self.rows.begin_row(
                row,
                prompts.tokens[i, : len(request.prompt)],
                longest=min(new, self.longest),
                wanted=request.beams.candidates,
            )
            self._states[row] = _State(request, probes.get(row))
        self._forwards += 1

    def _round(self) -> list[Result]:
        """A round of all rows; after a fault one for each row alone. Returns the results of those that have
        ended by it."""
        self._watch.start()
        error = self.faults.attempt(lambda: self._run(list(self._states)), SCORE)
        ended = []
        if error is not None:
            for row, state in list(self._states.items()):
                run = partial(self._run, [row], captured=False)
                alone = self.faults.attempt(run, SCORE)
                if alone is not None:
                    self._vacate(row)
                    ended.append(failed(state.request, alone))
        for state in self._states.values():
            state.rounds += 1
        self._rounds, self._row_rounds = self._rounds + 1, self._row_rounds + len(self._states)
        if self._rounds % self.device.rounds_per_poll == 0:
            active = self.rows.active.tolist()
            ended += [self._result(row) for row in list(self._states) if not active[row]]
        self._watch.mark("score")
        return ended

    def _run(self, chosen: Sequence[int], *, captured: bool = True) -> None:
        """One round of these rows, with the others masked."""
        count, slots = max(self._states) + 1, self.rows.slots
        longest = max(
            len(s.request.prompt) + (s.rounds + 1) * self.size for s in self._states.values()
        )
        reach = min(-(-longest // REACH) * REACH, slots)
        run = self._round_of(count, reach)
        if captured and self._capture is not None:
            shape = self._shapes.pick(count, 0, Mode(), min(longest, slots))
            run = self._captured(shape.rows, shape.reach) or run
        rows = self.rows.first(count)
        masked = [row not in chosen for row in range(count)]
        resting = rows.active & upload(masked, torch.bool, self.device.torch)
        rows.active &= ~resting
        try:
            run()
        finally:
            rows.active |= resting
        self._forwards += 1
        self.device.mark_step()

    def _round_of(self, count: int, reach: int) -> Function:
        rows, target = self.rows.first(count), cast(BeamModel, self._target)
        processors, eos = self._processors, self._eos

        def round_() -> None:
            beam_round(rows, target, processors, eos, reach=reach)

        return round_

    def _captured(self, count: int, reach: int) -> Function | None:
        """The captured round of the first rows. None after a capture has failed, for lack of memory, say:
        rounds run operator by operator from then on."""
        key, active = (count, reach), self.rows.active
        if key not in self._graphs:
            assert self._capture is not None
            before = active.clone()
            active.fill_(False)  # capturing runs a few rounds, which change no row that rests
            try:
                self._graphs[key] = self._capture(self._round_of(count, reach))
            except Exception as error:
                self._capture = None
                log.warning("beams of %d rows are not captured, and slower: %s", count, error)
                return None
            finally:
                active.copy_(before)
        return self._graphs[key]

    def _vacate(self, row: int) -> None:
        del self._states[row]
        self.rows.active[row] = False

    def _result(self, row: int) -> Result:
        """The result of a row that has ended; its row is free."""
        state = self._states.pop(row)
        try:
            result = best_text(self.rows, row, state.request)
        except Exception as error:
            return failed(state.request, self.faults.record(RESULT, error))
        self._emitted += len(result.tokens)
        probe = () if state.probe is None else tuple(state.probe.tolist())
        return replace(result, rounds=state.rounds, probe=probe)


@dataclass
class _State:
    request: Request
    probe: Tensor | None
    rounds: int = 0


def best_text(rows: BeamRows, row: int, request: Request) -> Result:
    """The best text of a row: of those that have ended and, where they are fewer than beams, of the most
    probable ones that have not (openai/whisper, `BeamSearchDecoder.finalize` and `MaximumLikelihoodRanker`).
    Reads the device."""
    beams, begin = request.beams, len(request.prompt)
    assert beams is not None
    count, length = int(rows.ended[row]), int(rows.lengths[row])
    tokens, parents, logprobs = (
        values[row].tolist() for values in (rows.tokens, rows.parents, rows.logprobs)
    )
    ends: list[tuple[float, int, tuple[int, ...], tuple[float, ...]]] = list(
        zip(
            rows.ended_sums[row, :count].tolist(),
            rows.ended_at[row, :count].tolist(),
            [(token,) for token in rows.ended_tokens[row, :count].tolist()],
            [(value,) for value in rows.ended_logprobs[row, :count].tolist()],
            strict=True,
        )
    )
    last = rows.paths[row, :, length - 1].tolist()
    for total, at in zip(rows.sums[row].tolist(), last, strict=True):  # the most probable first
        if len(ends) < beams.size:
            ends.append((total, at, (), ()))
    texts = []
    for total, at, end, ending in ends:
        slots = []
        while at >= begin:
            slots.append(at)
            at = parents[at]
        text = tuple(tokens[slot] for slot in reversed(slots)) + end
        chances = tuple(logprobs[slot] for slot in reversed(slots)) + ending
        texts.append((beams.score(total, len(slots)), text, chances, bool(end)))
    _, text, chances, stopped = max(texts, key=lambda found: found[0])
    return Result(
        request=request,
        tokens=text,
        logprobs=chances,
        sources=(Source.PLAIN,) * len(text),
        finish=Finish.STOP if stopped else Finish.LENGTH,
        rounds=0,
        drafted=0,
        accepted=0,
    )
