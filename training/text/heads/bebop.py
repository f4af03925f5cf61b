"""Bebop (arXiv 2606.12370): an MTP layer that is trained for what sampling accepts.

    OMP_NUM_THREADS=1 python -m training.text.heads.written_texts
    OMP_NUM_THREADS=1 python -m training.text.heads.bebop --minutes 12
    OMP_NUM_THREADS=1 python -m training.text.heads.evaluate_heads --batch 4 --temperature 1 \\
        --drafts mtp-ce mtp-kl mtp-tv mtp-e2e

Rejection sampling keeps a token that is drawn from q with the probability sum min(p, q), that is 1 minus
TV(p, q). Four layers learn from the same texts of the target at temperature 1: `ce` from the tokens, `kl`
from the target's distribution, `tv` on the total variation of each step and `e2e` on the tokens of a
whole draft, both after a first half with `kl`. Each is saved as `train_heads` does. Prints what is kept
of the first draft by the entropy of the target's distribution, on held-out texts. Figures:
docs/methods/heads.md.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, nll_loss
from transformers import LlamaForCausalLM

from forescribe.distill.training import rate
from forescribe.speculative.models.heads.mtp import mtp_head
from forescribe.speculative.models.heads.records import ChainHead, TargetShape
from training.paths import BUNDLED
from training.text import packing
from training.text.export import TARGET, opened
from training.text.heads import published
from training.text.heads.losses import DECAY, Lesson, chain_states
from training.text.heads.train_heads import HELD_OUT, Student
from training.text.heads.written_texts import TEXTS, WORK

DEPTHS, ROWS, PEAK = 4, 4, 1.5e-3
BINS = 0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 9.0  # nats


def kept(log_p: Tensor, log_q: Tensor) -> Tensor:
    """The probability that a token drawn from q is accepted, `[...]` of `[..., V]`."""
    return torch.minimum(log_p, log_q).exp().sum(-1)


def steps(head: ChainHead, lesson: Lesson) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of each depth the positions `[R, T]` behind which the target has written the token that is drafted,
    these tokens `[K]`, and the logarithms of the target's and the head's distributions `[K, V]`."""
    pack = lesson.pack
    for depth, (known, states, logits) in enumerate(chain_states(head, lesson, DEPTHS)):
        known = known & pack.known.roll(-1 - depth, 1)
        log_q = linear(head.output.normed(states[known]), lesson.table).log_softmax(-1)
        yield known, pack.tokens.roll(-2 - depth, 1)[known], logits[known].log_softmax(-1), log_q


def loss(name: str, head: ChainHead, lesson: Lesson) -> Tensor:
    """`ce`, `kl`, `tv` or `e2e` of a draft of `DEPTHS` tokens behind every position."""
    total, lost, all_kept = torch.zeros(()), torch.ones(()), torch.ones(lesson.pack.tokens.shape)
    for depth, (known, labels, log_p, log_q) in enumerate(steps(head, lesson)):
        if name == "ce":
            each = nll_loss(log_q, labels, reduction="none")
        elif name == "kl":
            each = (log_p.exp() * (log_p - log_q)).sum(-1)
        else:
            each = 1 - kept(log_p, log_q)
            chance = all_kept[known] * (1 - each)
            all_kept = torch.zeros_like(all_kept).masked_scatter(known, chance)
            lost = lost - chance.mean() / DEPTHS
        total = total + DECAY**depth * each.mean()
    return lost if name == "e2e" else total


@torch.no_grad()
def by_entropy(head: ChainHead, lesson: Lesson) -> tuple[list[tuple[int, float]], list[float]]:
    """Positions and what is kept of the first draft, by bins of the target's entropy; and what is kept at
    each depth, given that those before were, with the expected tokens per round as the last entry."""
    bins, depths, expected = list[tuple[int, float]](), list[float](), 1.0
    before = torch.ones(lesson.pack.tokens.shape)
    for known, _, log_p, log_q in steps(head, lesson):
        share, weight = kept(log_p, log_q), before[known]
        if not bins:
            entropy = -(log_p.exp() * log_p).sum(-1)
            for low, high in itertools.pairwise(BINS):
                inside = (entropy >= low) & (entropy < high)
                bins.append((int(inside.sum()), float(share[inside].mean())))
        depths.append(float((weight * share).sum() / weight.sum()))
        before = torch.zeros_like(before).masked_scatter(known, weight * share)
        expected += float((weight * share).mean())
    return bins, [*depths, expected]


def begun(name: str, target: LlamaForCausalLM, tensors: dict[str, Tensor]) -> Student:
    config, _ = published.mtp(target.config, inner=target.config.intermediate_size)
    config = json.loads((BUNDLED / TARGET / "config.json").read_text()) | config
    return Student(f"mtp-{name}", config, tensors, mtp_head, DEPTHS)


def head_of(student: Student, shape: TargetShape) -> ChainHead:
    head = student.build(student.config, student.tensors, shape, student.name)
    assert isinstance(head, ChainHead)
    return head


def train(seconds: float, texts: list[list[int]]) -> None:
    target = opened(BUNDLED / TARGET)
    target.requires_grad_(False)
    size = target.config
    shape = TargetShape(TARGET, size.hidden_size, size.num_hidden_layers, size.vocab_size)
    _, tensors = published.mtp(size, inner=size.intermediate_size)
    learning = {name: begun(name, target, copy.deepcopy(tensors)) for name in ("ce", "kl")}
    source = packing.batches(texts[HELD_OUT:], ROWS, seed=1)
    start, step, progress = time.time(), 0, 0.0
    while (progress := (time.time() - start) / seconds) < 1:
        if progress > 0.5 and len(learning) == 2:
            for name in ("tv", "e2e"):
                now = {n: t.detach().clone() for n, t in learning["kl"].tensors.items()}
                learning[name] = begun(name, target, now)
        lesson = Lesson.of(target, next(source))
        for name, student in learning.items():
            loss(name, head_of(student, shape), lesson).backward()
            nn.utils.clip_grad_norm_(student.module.parameters(), 1.0)
            student.optimizers.step(rate(progress, step, fall_from=0.3) * PEAK / 3e-3)
        step += 1
        if step % 50 == 0:
            print(f"step {step}, {progress:.2f}", flush=True)
    held_out = Lesson.of(target, packing.pack(packing.rows(texts[:HELD_OUT])))
    print(f"{step} steps; entropy bins {BINS}")
    for name, student in learning.items():
        student.save()
        bins, depths = by_entropy(head_of(student, shape), held_out)
        line: dict[str, Any] = {"loss": name, "bins": [(n, round(s, 3)) for n, s in bins]}
        print(json.dumps(line | {"depths": [round(d, 3) for d in depths]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(60 * options.minutes, json.loads((WORK / TEXTS).read_text("utf-8"))[1::2])


if __name__ == "__main__":
    main()
