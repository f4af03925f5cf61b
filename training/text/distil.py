"""Distil the draft on text that the target wrote, which is what it has to predict.

Sequence-level distillation (Kim and Rush 2016; DistillSpec, arXiv 2310.08461): half of the texts are
greedy, half are sampled at temperature 1, as both are used. There is no filter, as the draft should predict
the target's mistakes too.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM

from forescribe.distill.training import Optimizers, rate
from training.text import model as pair
from training.text import packing

WRITTEN_AT_ONCE = 64
LONGEST = 160  # tokens of an answer
WRITING = 0.4  # share of the time
PEAK = 2e-3
ROWS = 4


@torch.inference_mode()
def write(model: Any, prompts: list[list[int]], *, sample: bool) -> list[list[int]]:
    """Generate one text per prompt, including the prompt, up to end-of-text. Prompts are padded on the
    left."""
    end = model.config.eos_token_id
    longest = max(map(len, prompts))
    tokens = torch.tensor([[end] * (longest - len(p)) + p for p in prompts])
    read = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    settings: dict[str, Any] = {"do_sample": sample, "top_k": 0} if sample else {"do_sample": False}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model.generate(
            input_ids=tokens,
            attention_mask=read,
            max_new_tokens=LONGEST,
            pad_token_id=end,
            **settings,
        )
    texts = []
    for prompt, row in zip(prompts, out[:, longest:].tolist(), strict=True):
        stop = row.index(end) + 1 if end in row else len(row)
        texts.append(prompt + row[:stop])
    return texts


def distil(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    prompts: list[list[int]],
    seconds: float,
    log: Path,
) -> None:
    """Generate text for `WRITING` of the time, then train the draft on it for the rest."""
    began, rng = time.time(), random.Random(5)
    target.eval()
    written: list[list[int]] = []
    while not written or time.time() - began < WRITING * seconds:
        for sample in (False, True):
            chosen = rng.sample(prompts, WRITTEN_AT_ONCE // 2)
            written += write(target, chosen, sample=sample)
    started, step = time.time(), 0
    optimizers = Optimizers(draft, peak=PEAK)
    source = packing.batches(written, ROWS, seed=6)
    total = 0.0
    with log.open("w") as lines:
        while (progress := (time.time() - started) / (began + seconds - started)) < 1:
            batch = next(source)
            with torch.no_grad():
                wanted = pair.logits(target, batch)
            loss = pair.distillation(wanted, pair.logits(draft, batch))
            loss.backward()
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizers.step(rate(progress, step, fall_from=0.0))
            step, total = step + 1, total + float(loss.detach())
            if step % 20 == 0:
                minutes = round((time.time() - began) / 60, 2)
                line = {"step": step, "minutes": minutes, "loss": round(total / 20, 4)}
                lines.write(json.dumps(line | {"texts": len(written)}) + "\n")
                lines.flush()
                total = 0.0
