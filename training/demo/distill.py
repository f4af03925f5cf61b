"""Distil the draft further, with the target's encoder frozen.

    python -m training.demo.distill --until 14:09

After Distil-Whisper (arXiv 2311.00430): the encoder is frozen and shared; embeddings and decoder layers
were copied from the target before training.demo.train trained both; the loss is cross-entropy on the
target's choice plus KL divergence. There is no filter by word error rate, as a draft should predict the
target's mistakes too. The target's choice is its argmax after the reference prefix, in one parallel pass;
at a few per cent of errors this differs little from its own output and takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import WhisperForCausalLM

from forescribe.distill.losses import distillation
from training.demo.batches import Batch, Batcher
from training.demo.export import export, export_ctc
from training.demo.model import DRAFT_LAYERS, Speech, configuration
from training.demo.team import Team
from training.demo.train import WORK, clock
from training.demo.windows import IGNORE, Pool
from training.paths import BUNDLED
from training.sentences import vocabulary

# Progress at which windows are drawn: mostly single clips, then mostly 30 s.
EARLY, LATE, LATE_FROM = 0.5, 0.9, 0.2
GUIDE_WEIGHT, GUIDE_UNTIL = 0.5, 0.9
PEAK, WARM_STEPS, FALL_FROM = 8e-4, 50, 0.3


def checkpoint(model: Speech) -> WhisperForCausalLM:
    """The decoder that was trained with the target, without an encoder, as it uses the target's."""
    draft = WhisperForCausalLM(configuration(decoder_layers=DRAFT_LAYERS))
    draft.model.decoder.load_state_dict(model.draft.state_dict())
    return draft


def loss(model: Speech, batch: Batch, guide_weight: float) -> tuple[Tensor, float]:
    """Return the distillation loss and the share of positions with the same choice."""
    known = batch.labels != IGNORE
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            states = model.encode(batch.features)
            wanted, _ = model.decode(batch.tokens, states, known)
        places = batch.places if guide_weight > 0 else None
        guess, guide = model.guess(batch.tokens, states, known, places)
    agreement = float((guess.argmax(-1) == wanted.argmax(-1)).float().mean())
    return distillation(wanted.float(), guess.float()) + guide_weight * guide, agreement


def distil(model: Speech, end: float, options: argparse.Namespace) -> None:
    team = Team(options.rank, options.team, options.run.resolve() / "meeting-point-draft")
    model.requires_grad_(False)
    model.draft.requires_grad_(True)
    parameters = [p for p in model.draft.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(parameters, lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    pool = Pool(options.clips, vocabulary.load())
    batcher = Batcher(pool, seed=77 + options.rank, budget=options.budget / options.team)
    start, step, total = time.time(), 0, 0.0
    log = (options.run / "draft-log.jsonl").open("a" if options.rank else "w")
    while (progress := team.agree((time.time() - start) / (end - start))) < 1:
        batch = batcher.draw(EARLY if progress < LATE_FROM else LATE, 10_000_000 + step)
        guide_weight = GUIDE_WEIGHT if progress < GUIDE_UNTIL else 0.0
        value, agreement = loss(model, batch, guide_weight)
        value.backward()
        team.average(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        share = min(1.0, (step + 1) / WARM_STEPS, (1 - progress) / (1 - FALL_FROM))
        for group in adamw.param_groups:
            group["lr"] = PEAK * share
        adamw.step()
        model.draft.zero_grad(set_to_none=True)
        step += 1
        total += agreement
        if step % 50 == 0 and options.rank == 0:
            minutes = round((time.time() - start) / 60, 2)
            line = {"step": step, "minutes": minutes, "loss": round(float(value.detach()), 4)}
            log.write(json.dumps(line | {"agreement": round(total / 50, 4)}) + "\n")
            log.flush()
            total = 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--until", help="HH:MM at which it ends; without it the folders are written as they are"
    )
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of audio per step")
    parser.add_argument("--run", type=Path, default=WORK / "run")
    parser.add_argument("--clips", type=Path, default=WORK / "clips", help="what it listens to")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--team", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Speech()
    model.load(torch.load(options.run / "checkpoint.pt", weights_only=True)["model"])
    if options.until:
        distil(model, clock(options.until), options)
    if options.rank == 0:
        export(model.whisper, options.out / "demo")
        export_ctc(model.ctc, options.out / "demo" / "ctc_head.safetensors")
        export(checkpoint(model), options.out / "demo-draft")


if __name__ == "__main__":
    main()
