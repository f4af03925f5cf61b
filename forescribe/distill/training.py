"""The training of a draft on labelled rows, by the clock or by steps.

Every step is a function of seed and step number, and a checkpoint holds all that changes, so a run that was
killed goes on where its last checkpoint was. The best state by simulated tokens per round is kept apart.

Losses. A draft token is accepted where both choices are equal. The probability of the target's choice has
hardly any gradient where the models disagree, so training begins with KL divergence and cross-entropy (after
Distil-Whisper, arXiv 2311.00430) and goes over to the hybrid of the LK losses: `w KL + (1 - w) (1 - alpha)`
with `w = exp(-3 alpha)`, alpha being that probability, in w without gradient.

Optimizers. Muon for the matrices in layers and AdamW for the rest, in about half the steps of AdamW alone;
that one on CPUs that only emulate bfloat16, in which torch's Muon takes 54 to 67 times as long.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError, output_errors
from forescribe.asr.formats.files import put
from forescribe.speculative.device import bfloat16_units

from .labels import LOWEST_LOG, BatchSource, LabelBatch, LabelRow, SparseDistribution
from .report import GAMMA, Evaluation, Trace, agreement, tokens_per_round
from .speech import Hook, Pair

WARM_UP = 0.3
"""Share of the training with divergence and cross-entropy alone."""

EVALUATIONS = 8
SAVE_EVERY_S = 60.0
FALL_FROM = 0.1
STEP_TOKENS, STEP_ROWS = 512, 4
PEAK, PEAK_WIDTH, PEAK_POWER = 8e-4, 256, 1.3
"""The highest rate at a width, and how it falls with it: 8e-4 at 256 and 2e-3 at 128 were good for the
bundled drafts, and 1e-4 at 1280 is Distil-Whisper's."""

CHOICE_WEIGHT = 0.5
"""Of the cross-entropy on the target's choice, beside the divergence."""

SHARPNESS = 3.0
"""How fast the hybrid leaves the divergence as drafts become accepted."""

TINY = 1e-6


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
        """The evaluation that is best; of equals the first."""
        return max(self.evaluations, key=lambda e: (e.tokens, e.agreement, -e.step))


class DraftTraining:
    """One training, for `seconds` or `steps`; with steps, the same seed gives the same draft on the same
    machine. `checkpoint` is its file. Raises UsageError for a checkpoint of another draft."""

    def __init__(
        self,
        pair: Pair,
        draft: nn.Module,
        rows: Sequence[LabelRow],
        held_out: Sequence[LabelRow],
        checkpoint: Path,
        *,
        seed: int = 0,
        seconds: float = math.inf,
        steps: int | None = None,
    ) -> None:
        self.pair, self.draft, self.held_out = pair, draft.to(pair.device.torch), held_out
        self.checkpoint, self.seconds, self.steps = checkpoint, seconds, steps
        text_ids = pair.whisper.tokens.end
        self.source = BatchSource(
            rows, seed=seed, budget=STEP_TOKENS, most=STEP_ROWS, text_ids=text_ids
        )
        width = int(pair.target.config.d_model)
        self.optimizers = Optimizers(draft, peak=PEAK * (PEAK_WIDTH / width) ** PEAK_POWER)
        self.state = Progress()
        if checkpoint.exists():
            self._load()

    @property
    def share(self) -> float:
        """What is done of the whole."""
        if self.steps is None:
            return self.state.seconds / self.seconds
        return self.state.step / self.steps if self.steps else 1.0

    def run(self, stop: Stop, hook: Hook) -> Progress:
        """Train until it is done or an end is requested. Raises OutputError where the checkpoint cannot be
        written."""
        state = self.state
        if not state.evaluations:
            self._evaluate()
            self.save()
        begun = saved = time.monotonic()
        begun -= state.seconds
        while not stop.requested:
            if self.share >= 1:
                state.finished = True
                break
            loss = self._step()
            state.step += 1
            state.seconds = time.monotonic() - begun
            latest = state.evaluations[-1]
            figures = f"agreement {latest.agreement:.3f}, {latest.tokens:.2f} tokens per round"
            note = f"loss {loss:.3f}, held out: {figures}"
            hook("training", 100 * min(1.0, self.share), 100, note)
            due = self.share * EVALUATIONS >= len(state.evaluations)
            if due:
                self._evaluate()
            if due or time.monotonic() - saved > SAVE_EVERY_S:
                self.save()
                saved = time.monotonic()
        if state.evaluations[-1].step != state.step:
            self._evaluate()
        self.save()
        return state

    def save(self) -> None:
        """Write the checkpoint. Raises OutputError."""
        state, buffer = self.state, io.BytesIO()
        content = {**vars(state), "evaluations": [asdict(e) for e in state.evaluations]}
        optimizers = self.optimizers.state()
        torch.save({"state": content, "weights": self._weights(), "optimizers": optimizers}, buffer)
        with output_errors(str(self.checkpoint), "make room and run the same command again"):
            put(self.checkpoint, buffer.getvalue())

    def _load(self) -> None:
        found = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
        if found["weights"].keys() != self._weights().keys():
            raise UsageError(
                f"{self.checkpoint} is no checkpoint of this draft: --overwrite begins anew"
            )
        self.draft.load_state_dict(found["weights"], strict=False)
        self.optimizers.load(found["optimizers"])
        evaluations = [Evaluation(**each) for each in found["state"].pop("evaluations")]
        self.state = Progress(**found["state"], evaluations=evaluations)

    def _weights(self) -> dict[str, Tensor]:
        named = self.draft.named_parameters()
        return {name: value.detach().clone() for name, value in named if value.requires_grad}

    def _step(self) -> float:
        share, device = self.share, self.pair.device
        batch = self.source.draw(self.state.step).to(device.torch)
        half: AbstractContextManager[object] = nullcontext()
        if device.kind == "cuda" or (device.kind == "cpu" and bfloat16_units()):
            half = torch.autocast(device.kind, dtype=torch.bfloat16)
        with half:
            logits = self.pair.logits(self.draft, batch)
        parts = Parts.of(logits, batch.wanted)
        loss = parts.warm_up() if share < WARM_UP else parts.hybrid()
        loss.backward()
        nn.utils.clip_grad_norm_(self.optimizers.parameters, 1.0)
        self.optimizers.step(rate(share, self.state.step, fall_from=FALL_FROM))
        return float(loss.detach())

    def _evaluate(self) -> None:
        state, traces = self.state, traces_of(self.pair, self.draft, self.held_out)
        tokens = tokens_per_round(traces, GAMMA)
        made = Evaluation(state.step, state.seconds, tokens, agreement(traces))
        state.evaluations.append(made)
        if state.chosen is made:
            state.best = self._weights()


@torch.inference_mode()
def traces_of(pair: Pair, draft: Any, rows: Sequence[LabelRow]) -> list[Trace]:
    """At each token of an answer, after the target's own text, whether the draft's choice is the target's."""
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    found: list[Trace] = []
    for start in range(0, len(ordered), STEP_ROWS):
        group = ordered[start : start + STEP_ROWS]
        batch = LabelBatch.of(group).to(pair.device.torch)
        equal = pair.logits(draft, batch).argmax(-1) == batch.wanted.choice
        found += [part.tolist() for part in equal.split([row.answered for row in group])]
    return found


def rate(progress: float, step: int, *, fall_from: float, warm: int = 20) -> float:
    """The share of the peak rate: rises for `warm` steps, falls linearly to zero from `fall_from`."""
    return min(1.0, (step + 1) / warm, (1 - progress) / (1 - fall_from))


@dataclass(frozen=True, eq=False)
class Parts:
    """Of N positions, with gradients: `divergence` KL(p || q), `choice` -log q(argmax p)."""

    divergence: Tensor
    choice: Tensor

    @classmethod
    def of(cls, logits: Tensor, wanted: SparseDistribution) -> Parts:
        """From the draft's logits [N, V]. All tokens that `wanted` does not list count as one."""
        logs = logits.float().log_softmax(-1)
        q = logs.gather(1, wanted.ids)  # [N, R]
        p = wanted.logs.exp()
        rest = (1 - p.sum(-1)).clamp(min=0)
        listed = torch.where(wanted.logs > LOWEST_LOG, q.exp(), 0.0).sum(-1)
        lump = (1 - listed).clamp(min=TINY).log()
        divergence = (p * (wanted.logs - q)).sum(-1) + rest * (rest.clamp(min=TINY).log() - lump)
        return cls(divergence, -q[:, 0])

    def warm_up(self) -> Tensor:
        """Divergence and cross-entropy: the loss of the beginning."""
        return self.divergence.mean() + CHOICE_WEIGHT * self.choice.mean()

    def hybrid(self) -> Tensor:
        """The divergence fades as the acceptance grows, see the module's docstring."""
        alpha = (-self.choice).exp().mean()
        weight = math.exp(-SHARPNESS * float(alpha.detach()))
        return weight * self.warm_up() + (1 - weight) * (1 - alpha)


class Optimizers:
    """All optimizers over the parameters of models that are not frozen, stepped as one."""

    def __init__(self, *models: nn.Module, peak: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in (named for m in models for named in m.named_parameters()):
            if weight.requires_grad:
                (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
        self.peak, self.parameters = peak, [*matrices, *others]
        emulated = self.parameters[0].device.type == "cpu" and not bfloat16_units()
        rest = self.parameters if emulated else others
        self.all: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=peak, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        ]
        if not emulated:
            muon = torch.optim.Muon(
                matrices, lr=peak, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
            )
            self.all.append(muon)

    def step(self, share: float) -> None:
        """Make one step at `share` of the peak rate and clear the gradients."""
        for optimizer in self.all:
            for group in optimizer.param_groups:
                group["lr"] = self.peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.all]

    def load(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)
