"""The training of a draft on labelled rows, by the clock or by steps.

Every step is a function of seed and step number, and a checkpoint holds all that changes, so a run that was
killed goes on where its last checkpoint was. The best state by simulated tokens per round is kept apart.

Losses. A draft token is accepted with probability `sum_x min(p(x), q(x))` in sampled rows, and in greedy
ones where both choices are equal. Plain total variation has hardly any gradient where the models disagree,
so training begins with KL divergence and cross-entropy (after Distil-Whisper, arXiv 2311.00430) and goes
over to the hybrid of the LK losses: `w KL + (1 - w) TV` with `w = exp(-3 alpha)`, alpha without gradient.

On-policy batches (after arXiv 2306.13649, 2310.08461): an answer is cut at a random place, the draft writes
up to `LENGTH` tokens there, and the target says what it would have written at each.

Optimizers. Muon for the matrices in layers and AdamW for the rest, in about half the steps of AdamW alone.

Knows pairs, batches and tensors; nothing of files but its checkpoint.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError
from forescribe.speculative.device import bfloat16_units
from forescribe.speculative.errors import load_cause

from .files import put_bytes
from .labels import (
    LOWEST_LOG,
    BatchSource,
    CutHead,
    LabelBatch,
    LabelRow,
    SparseDistribution,
    collate,
)
from .pair import DraftPair, Hook
from .report import Prices, Trace, agreement

WARM_UP = 0.3
"""Share of the training with divergence and cross-entropy alone."""

EVALUATIONS = 8
SAVE_EVERY_S = 60.0
FALL_FROM = 0.1
PEAK, PEAK_WIDTH, PEAK_POWER = 8e-4, 256, 1.3
"""The highest rate at a width, and how it falls with it: 8e-4 at 256 and 2e-3 at 128 were good for the
bundled drafts, and 1e-4 at 1280 is Distil-Whisper's."""

LENGTH = 5
"""Tokens that the draft writes: the drafts of a round."""

CHOICE_WEIGHT = 0.5
"""Of the cross-entropy on the target's choice, beside the divergence."""

SHARPNESS = 3.0
"""How fast the hybrid leaves the divergence as drafts become accepted."""

TINY = 1e-6


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


def peak_rate(width: int) -> float:
    """The highest learning rate for a model of this width."""
    return float(PEAK * (PEAK_WIDTH / width) ** PEAK_POWER)


def rate(progress: float, step: int, *, fall_from: float, warm: int = 20) -> float:
    """The share of the peak rate: rises for `warm` steps, falls linearly to zero from `fall_from`."""
    return min(1.0, (step + 1) / warm, (1 - progress) / (1 - fall_from))


@torch.no_grad()
def drafted_batch(
    pair: DraftPair,
    draft: Any,
    rows: Sequence[LabelRow],
    seed: int,
    step: int,
    head: CutHead | None = None,
) -> LabelBatch:
    """The rows, each cut at a random place of its answer and continued by the draft: its choice in greedy
    rows, drawn in others. Labels are the target's, for the drafted positions and the one before."""
    rng = np.random.default_rng((seed, step, 1))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    ends = [max(row.begin, len(row.tokens) - LENGTH) for row in rows]
    cuts = [int(rng.integers(row.begin, end + 1)) for row, end in zip(rows, ends, strict=True)]
    batch = collate(rows).to(pair.device.torch)
    device = batch.tokens.device
    cut = torch.tensor(cuts, device=device)
    number = torch.arange(len(rows), device=device)
    width = max(cuts) + LENGTH
    tokens = torch.nn.functional.pad(batch.tokens, (0, max(0, width - batch.tokens.shape[1])))
    greedy = torch.tensor([row.greedy for row in rows], device=device)
    for ahead in range(LENGTH):
        asked = replace(batch, tokens=tokens, row=number, place=cut + ahead - 1)
        chosen = _next(pair.logits(draft, asked, head), greedy, generator)
        tokens[number, cut + ahead] = chosen if head is None else head.ids[chosen]
    places = cut[:, None] - 1 + torch.arange(LENGTH, device=device)
    asked = LabelBatch(
        tokens,
        number.repeat_interleave(LENGTH),
        places.flatten(),
        batch.wanted,
        greedy.repeat_interleave(LENGTH),
        batch.states,
    )
    begins = torch.tensor([row.begin for row in rows], device=device)
    return replace(asked, wanted=SparseDistribution.of(pair.target_logits(asked, begins)))


@dataclass(frozen=True, eq=False)
class Parts:
    """Of N positions: `divergence` KL(p || q), `choice` -log q(argmax p), `overlap` the probability [N] that
    a drawn token is accepted, with gradients; and whether the choices are `equal` [N], without."""

    divergence: Tensor
    choice: Tensor
    overlap: Tensor
    equal: Tensor


def parts_of(logits: Tensor, wanted: SparseDistribution, greedy: Tensor) -> Parts:
    """From the draft's logits [N, V]. Where `greedy` [N] is set, the target's distribution is its choice, so
    the overlap is the probability of that one token.

    All tokens that `wanted` does not list count as one in the divergence, and not at all in the overlap,
    which is therefore a lower bound.
    """
    logs = logits.float().log_softmax(-1)
    q = logs.gather(1, wanted.ids)  # [N, R]
    p, rest = wanted.probabilities, wanted.rest
    listed = torch.where(wanted.logs > LOWEST_LOG, q.exp(), 0.0).sum(-1)
    lump = (1 - listed).clamp(min=TINY).log()
    divergence = (p * (wanted.logs - q)).sum(-1) + rest * (rest.clamp(min=TINY).log() - lump)
    chosen = q[:, 0]
    drawn = torch.minimum(p, q.exp()).sum(-1)
    return Parts(
        divergence,
        -chosen,
        torch.where(greedy, chosen.exp(), drawn),
        logs.argmax(-1) == wanted.choice,
    )


def warm_up(parts: Parts) -> Tensor:
    """Divergence and cross-entropy: the loss of the beginning."""
    return parts.divergence.mean() + CHOICE_WEIGHT * parts.choice.mean()


def hybrid(parts: Parts) -> Tensor:
    """The LK hybrid: the divergence fades as the mean overlap grows, see the module's docstring."""
    overlap = parts.overlap.mean()
    weight = math.exp(-SHARPNESS * float(overlap.detach()))
    return weight * warm_up(parts) + (1 - weight) * (1 - overlap)


def distillation(wanted: Tensor, guess: Tensor) -> Tensor:
    """Divergence and cross-entropy per token from the logits [N, V] of both models, where all of them are at
    hand: a target that is trained at the same time has no labels to keep."""
    divergence = kl_div(
        guess.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    return divergence + CHOICE_WEIGHT * cross_entropy(guess, wanted.argmax(-1))


class Optimizers:
    """Both optimizers over the parameters of models that are not frozen, stepped as one."""

    def __init__(self, *models: nn.Module, peak: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in (named for m in models for named in m.named_parameters()):
            if weight.requires_grad:
                (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
        self.peak = peak
        self.parameters = [*matrices, *others]
        emulated = self.parameters[0].device.type == "cpu" and not bfloat16_units()
        muon = Float32Muon if emulated else torch.optim.Muon
        self.both: tuple[torch.optim.Optimizer, ...] = (
            muon(matrices, lr=peak, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=peak, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )

    def step(self, share: float) -> None:
        """Make one step at `share` of the peak rate and clear the gradients."""
        for optimizer in self.both:
            for group in optimizer.param_groups:
                group["lr"] = self.peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.both]

    def load(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.both, states, strict=True):
            optimizer.load_state_dict(state)


class Float32Muon(torch.optim.Muon):
    """torch's Muon with its products in float32, and the same state. torch computes them in bfloat16, which
    takes 54 to 67 times as long on a CPU that only emulates it (256 x 256 and 256 x 1024, AVX2)."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step; `closure` is not supported."""
        assert closure is None
        for group in self.param_groups:
            for weight in (w for w in group["params"] if w.grad is not None):
                state, lr = self.state[weight], float(group["lr"])
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                momentum = state["momentum_buffer"]
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                nesterov = group["nesterov"]
                mean = weight.grad.lerp(momentum, group["momentum"]) if nesterov else momentum
                weight.mul_(1 - lr * group["weight_decay"])
                scale = 0.2 * math.sqrt(max(weight.shape))  # `match_rms_adamw`
                weight.add_(_orthogonal(mean, group), alpha=-lr * scale)
        return None


def _orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """The nearest semi-orthogonal matrix `[A, B]`, nearly, by Newton and Schulz's iteration."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def _next(logits: Tensor, greedy: Tensor, generator: torch.Generator) -> Tensor:
    """The next tokens [B] by logits [B, V]."""
    drawn = torch.multinomial(logits.float().softmax(-1).cpu(), 1, generator=generator)[:, 0]
    return torch.where(greedy, logits.argmax(-1), drawn.to(logits.device))
