"""Train target and draft together, from random weights, in one single-threaded process.

    OMP_NUM_THREADS=1 python -m training.text.train --minutes 60

The draft learns from the target's distribution on every batch, and at the end from text that the target
wrote. The learning rate depends on the wall clock, so that a run ends in time on a busy machine. A
checkpoint is written every three minutes by atomic rename; a repeated command resumes from it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from forescribe.distill.training import Optimizers, rate
from training.text import model as pair
from training.text import packing
from training.text.corpus import REPEATS, documents
from training.text.distil import distil
from training.text.tokenizer import WORK, load, prompt_of, text_of

ROWS = 6  # of packing.LENGTH tokens per step
PEAK = 6e-3
GROW_AT = 0.72  # progress at which the target grows
FALL_FROM = 0.5  # progress from which the rate falls
NOTE_EVERY, SAVE_EVERY = 20, 180.0  # steps, seconds
HELD_OUT_ROWS = 8
SOME = 4000  # prompts for the target


def texts(*, held_out: bool) -> list[list[int]]:
    """Token ids of the training or held-out documents, repeated as in a pass and shuffled."""
    chosen = [
        text_of(d)
        for d in documents()
        if d.held_out == held_out
        for _ in range(REPEATS // 2 if d.kind == "glossary" else 1)
    ]
    random.Random(3).shuffle(chosen)
    return list(load()(chosen, add_special_tokens=False)["input_ids"])


def prompts() -> list[list[int]]:
    """Token ids of the prompts of `SOME` training documents."""
    known = [prompt_of(d) for d in documents() if not d.held_out and d.kind != "minutes"]
    known += [prompt_of(d) for d in documents() if not d.held_out and d.kind == "minutes"] * 2
    random.Random(4).shuffle(known)
    return list(load()(known[:SOME], add_special_tokens=False)["input_ids"])


@torch.inference_mode()
def measure(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, pack: packing.Pack
) -> dict[str, float]:
    """Return losses per token on held-out text, and the share of equal choices."""
    wanted, guess = pair.logits(target, pack), pair.logits(draft, pack)
    same = (wanted.argmax(-1) == guess.argmax(-1)).float().mean()
    overlap = torch.minimum(wanted.softmax(-1), guess.softmax(-1)).sum(-1).mean()
    return {
        "held_out": round(float(cross_entropy(wanted, pack.labels)), 4),
        "held_out_draft": round(float(cross_entropy(guess, pack.labels)), 4),
        "agreement": round(float(same), 4),
        "overlap": round(float(overlap), 4),
    }


def train(run: Path, seconds: float) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """Train target and draft for `seconds` from the first start, across restarts."""
    target, draft = pair.target(pair.FEW), pair.draft()
    start, step = time.time(), 0
    checkpoint = run / "checkpoint.pt"
    state: dict[str, Any] | None = None
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        target = pair.target(state["layers"])
        target.load_state_dict(state["target"])
        draft.load_state_dict(state["draft"])
        start, step = state["start"], state["step"]
    optimizers = Optimizers(target, draft, peak=PEAK)
    if state is not None:
        optimizers.load(state["optimizers"])
    source = packing.batches(texts(held_out=False), ROWS, seed=100 + step)
    held_out = packing.pack(packing.rows(texts(held_out=True))[:HELD_OUT_ROWS])
    saved, sums, tokens = time.time(), torch.zeros(2), 0

    def keep() -> None:
        temporary = checkpoint.with_suffix(".tmp")
        kept: dict[str, Any] = {"target": target.state_dict(), "draft": draft.state_dict()}
        kept |= {"layers": target.config.num_hidden_layers, "optimizers": optimizers.state()}
        torch.save(kept | {"start": start, "step": step}, temporary)
        os.replace(temporary, checkpoint)

    with (run / "log.jsonl").open("a") as log:
        while (progress := (time.time() - start) / seconds) < 1:
            if progress > GROW_AT and target.config.num_hidden_layers < pair.LAYERS:
                target = pair.grown(target, pair.LAYERS)
                optimizers = Optimizers(target, draft, peak=PEAK)
            batch = next(source)
            wanted = pair.logits(target, batch)
            entropy = cross_entropy(wanted, batch.labels)
            copied = pair.distillation(wanted.detach(), pair.logits(draft, batch))
            (entropy + copied).backward()
            nn.utils.clip_grad_norm_(target.parameters(), 1.0)
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            share = rate(progress, step, fall_from=FALL_FROM)
            optimizers.step(share)
            step += 1
            sums += torch.stack([entropy.detach(), copied.detach()])
            tokens += len(batch.labels)
            if step % NOTE_EVERY:
                continue
            mean = (sums / NOTE_EVERY).tolist()
            line: dict[str, float] = {
                "step": step,
                "minutes": round((time.time() - start) / 60, 2),
                "cpu_seconds": round(time.process_time(), 1),
                "layers": target.config.num_hidden_layers,
                "loss": round(mean[0], 4),
                "draft": round(mean[1], 4),
                "rate": round(share, 3),
                "tokens": tokens,
            }
            sums, tokens = torch.zeros(2), 0
            if time.time() - saved > SAVE_EVERY:
                line |= measure(target, draft, held_out)
                keep()
                saved = time.time()
            log.write(json.dumps(line) + "\n")
            log.flush()
        minutes = round((time.time() - start) / 60, 2)
        last = {"step": step, "minutes": minutes} | measure(target, draft, held_out)
        log.write(json.dumps(last) + "\n")
        keep()
    return target, draft


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, required=True, help="wall time, restarts included")
    parser.add_argument(
        "--distil", type=float, default=10.0, help="minutes after them for the draft alone"
    )
    parser.add_argument("--run", type=Path, default=WORK / "run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options.run.mkdir(parents=True, exist_ok=True)
    target, draft = train(options.run, 60 * options.minutes)
    distil(target, draft, prompts(), 60 * options.distil, options.run / "draft-log.jsonl")
    torch.save(
        {"target": target.state_dict(), "draft": draft.state_dict()}, options.run / "final.pt"
    )


if __name__ == "__main__":
    main()
