"""The training of a draft on labelled rows, by the clock or by steps.

Every step is a function of seed and step number, and a checkpoint holds all that changes, so a run that was
killed goes on where its last checkpoint was. The best state by simulated tokens per round is kept apart.
Knows pairs, batches and losses; nothing of files but its checkpoint.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError
from forescribe.speculative.device import bfloat16_units
from forescribe.speculative.errors import load_cause

from .labels.label_batches import BatchSource, collate
from .labels.label_rows import LabelRow
from .labels.sparse_distribution import CutHead
from .losses import hybrid, parts_of, warm_up
from .on_policy import drafted_batch
from .optimizers import Optimizers, rate
from .pairs.draft_pair import DraftPair, Hook
from .results.draft_selection import Prices, Trace, agreement
from .whole_files import put_bytes

WARM_UP = 0.3
"""Share of the training with divergence and cross-entropy alone."""

EVALUATIONS = 8
SAVE_EVERY_S = 60.0
FALL_FROM = 0.1
PEAK, PEAK_WIDTH, PEAK_POWER = 8e-4, 256, 1.3
"""The highest rate at a width, and how it falls with it: 8e-4 at 256 and 2e-3 at 128 were good for the
bundled drafts, and 1e-4 at 1280 is Distil-Whisper's."""


def peak_rate(width: int) -> float:
    """The highest learning rate for a model of this width."""
    return float(PEAK * (PEAK_WIDTH / width) ** PEAK_POWER)


@dataclass(frozen=True)
class TrainingPlan:
    """How long, and by which seed. Exactly one of `seconds` and `steps` is set; with steps, the same seed
    gives the same draft on the same machine."""

    seed: int = 0
    seconds: float | None = None
    steps: int | None = None
    on_policy: bool = False
    mixed: float = 0.15

    def __post_init__(self) -> None:
        assert (self.seconds is None) != (self.steps is None)

    def progress(self, seconds: float, step: int) -> float:
        """The share that is done."""
        if self.steps is not None:
            return step / self.steps
        assert self.seconds is not None
        return seconds / self.seconds


@dataclass(frozen=True)
class Evaluation:
    """Held-out figures of one moment."""

    step: int
    seconds: float
    gain: float  # expected speed-up over gamma 0
    gamma: int
    agreement: float

    def to_json(self) -> dict[str, float]:
        return {
            "step": self.step,
            "seconds": round(self.seconds, 1),
            "expected_speedup": round(self.gain, 4),
            "gamma": self.gamma,
            "agreement": round(self.agreement, 4),
        }


@dataclass
class Progress:
    """What a checkpoint holds, besides the optimizers: the weights as they are and as they were best."""

    step: int = 0
    seconds: float = 0.0
    evaluations: list[Evaluation] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    finished: bool = False

    @property
    def chosen(self) -> Evaluation:
        """The evaluation that is best. Where drafts do not pay yet, gains are equal, and the draft that
        agrees most is the best; of equals in both the first."""
        return max(self.evaluations, key=lambda e: (e.gain, e.agreement, -e.step))


@torch.inference_mode()
def traces_of(
    pair: DraftPair, draft: Any, rows: Sequence[LabelRow], head: CutHead | None = None
) -> list[Trace]:
    """The accept traces of rows, in float32 and after the target's own text."""
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    found: list[Trace] = []
    together = pair.step_size.rows
    for start in range(0, len(ordered), together):
        group = ordered[start : start + together]
        batch = collate(group).to(pair.device.torch)
        wanted = batch.wanted if head is None else batch.wanted.under(head)
        parts = parts_of(pair.logits(draft, batch, head), wanted, batch.greedy)
        equal = parts.equal if head is None else parts.equal & head.has(batch.wanted.choice)
        accepted = torch.where(batch.greedy, equal.float(), parts.overlap).tolist()
        place = 0
        for row in group:
            values = tuple(accepted[place : place + row.answered])
            found.append(Trace(values, row.greedy, row.kind))
            place += row.answered
    return found


class DraftTraining:
    """One training; `checkpoint` is its file. With a cut head, the draft learns and is tried as it is served
    with that head. Raises UsageError for a checkpoint of another draft."""

    def __init__(
        self,
        pair: DraftPair,
        draft: nn.Module,
        rows: Sequence[LabelRow],
        held_out: Sequence[LabelRow],
        prices: Prices,
        plan: TrainingPlan,
        checkpoint: Path,
        head: CutHead | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pair, self.draft, self.held_out = pair, draft.to(pair.device.torch), held_out
        self.prices, self.plan, self.checkpoint, self.clock = prices, plan, checkpoint, clock
        self.head = head
        size = pair.step_size
        self.source = BatchSource(
            rows,
            seed=plan.seed,
            budget=size.tokens,
            most=size.rows,
            text_ids=pair.text_ids,
            mixed=plan.mixed,
        )
        width = int(getattr(pair.target.config, "hidden_size", PEAK_WIDTH))
        self.optimizers = Optimizers(draft, peak=peak_rate(width))
        self.state = Progress()
        if checkpoint.exists():
            self._load()

    def run(self, stop: Stop, hook: Hook) -> Progress:
        """Train until the plan is done or an end is requested. Raises OutputError where the checkpoint cannot
        be written."""
        state, plan = self.state, self.plan
        if not state.evaluations:
            self._evaluate()
            self.save()
        begun, saved = self.clock() - state.seconds, self.clock()
        loss = 0.0
        while not state.finished and not stop.requested:
            progress = plan.progress(state.seconds, state.step)
            if progress >= 1:
                state.finished = True
                break
            loss = self._step(progress)
            state.step += 1
            state.seconds = self.clock() - begun
            progress = plan.progress(state.seconds, state.step)
            hook("training", 100 * min(1.0, progress), 100, self._note(loss))
            due = progress * EVALUATIONS >= len(state.evaluations)
            if due:
                self._evaluate()
            if due or self.clock() - saved > SAVE_EVERY_S:
                self.save()
                saved = self.clock()
        if state.evaluations[-1].step != state.step:
            self._evaluate()
        self.save()
        return state

    def load_best(self) -> None:
        """Give the draft the weights that were best."""
        self.draft.load_state_dict(self.state.best, strict=False)

    def save(self) -> None:
        """Write the checkpoint. Raises OutputError."""
        buffer = io.BytesIO()
        state = self.state
        torch.save(
            {
                "weights": self._weights(),
                "best": state.best,
                "optimizers": self.optimizers.state(),
                "step": state.step,
                "seconds": state.seconds,
                "finished": state.finished,
                "evaluations": [list(vars(e).values()) for e in state.evaluations],
            },
            buffer,
        )
        put_bytes(self.checkpoint, buffer.getvalue())

    def _load(self) -> None:
        try:
            found = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
            missing = found["weights"].keys() ^ self._weights().keys()
            if missing:
                raise ValueError(f"it has or lacks {sorted(missing)[0]}")
            self.draft.load_state_dict(found["weights"], strict=False)
            self.optimizers.load(found["optimizers"])
        except Exception as error:  # torch raises exceptions of several libraries for damaged files
            raise UsageError(
                f"{self.checkpoint} is no checkpoint of this draft ({load_cause(error)}): --overwrite "
                "begins anew"
            ) from error
        evaluations = [Evaluation(*values) for values in found["evaluations"]]
        self.state = Progress(
            found["step"], found["seconds"], evaluations, found["best"], found["finished"]
        )

    def _weights(self) -> dict[str, Tensor]:
        return {
            name: value.detach().clone()
            for name, value in self.draft.named_parameters()
            if value.requires_grad
        }

    def _step(self, progress: float) -> float:
        state = self.state
        batch = self.source.draw(state.step).to(self.pair.device.torch)
        if self.plan.on_policy and progress > WARM_UP and state.step % 2:
            rows = self.source.draw_rows(state.step)
            batch = drafted_batch(
                self.pair, self.draft, rows, self.plan.seed, state.step, self.head
            )
        if self.head is not None:
            batch = batch.under(self.head)
        with self._autocast():
            logits = self.pair.logits(self.draft, batch, self.head)
        parts = parts_of(logits, batch.wanted, batch.greedy)
        loss = warm_up(parts) if progress < WARM_UP else hybrid(parts)
        loss.backward()
        nn.utils.clip_grad_norm_(self.optimizers.parameters, 1.0)
        self.optimizers.step(rate(progress, state.step, fall_from=FALL_FROM))
        return float(loss.detach())

    def _autocast(self) -> AbstractContextManager[object]:
        kind = self.pair.device.kind
        if kind == "cuda" or (kind == "cpu" and bfloat16_units()):
            return torch.autocast(kind, dtype=torch.bfloat16)
        return nullcontext()

    def _evaluate(self) -> None:
        state = self.state
        traces = traces_of(self.pair, self.draft, self.held_out, self.head)
        gain, gamma = self.prices.gain(traces)
        made = Evaluation(state.step, state.seconds, gain, gamma, agreement(traces))
        state.evaluations.append(made)
        if state.chosen is made:
            state.best = self._weights()

    def _note(self, loss: float) -> str:
        latest = self.state.evaluations[-1]
        return f"loss {loss:.3f}, held out: agreement {latest.agreement:.3f}, expected {latest.gain:.2f}x"
