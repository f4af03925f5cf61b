"""A last phase on domain sentences: what is left of the clock goes where the pair is used most.

    python -m training.focus --until 14:31 --team 2 --rank 0    # and rank 1 beside it

Continues from the newest checkpoint of `training.train` on the clips in `work/clips-domain` (links to
the meeting shards), with its own rate: a short rise, then linear to zero. Open-vocabulary spelling
gets no better here and may get worse; the card says so.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from training import pieces
from training.batches import Batcher
from training.model import Speech
from training.monitor import Monitor
from training.muon import Muon
from training.team import Team
from training.train import WORK, _save, clock, losses, rate_groups, split_parameters
from training.windows import Pool

PEAK_MATRIX = 1.0e-3
RISE = 20  # steps
GUIDED = 0.6  # share of the phase with the guide on


def shape(progress: float, step: int) -> float:
    """What `Batcher.draw` takes for its training clock: short windows first, 30 s ones last."""
    return 0.95 if progress > 0.75 and np.random.default_rng(step).random() < 0.6 else 0.7


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", required=True, help="HH:MM at which training ends")
    parser.add_argument("--budget", type=float, default=96.0, help="seconds of audio per step")
    parser.add_argument("--run", type=Path, default=WORK / "focus")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--team", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1 if options.team > 1 else 2)
    options.run.mkdir(parents=True, exist_ok=True)
    team = Team(options.rank, options.team, options.run / "meeting-point")
    model = Speech()
    matrices, others = split_parameters(model)
    adamw = torch.optim.AdamW(
        rate_groups(model, others), betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    muon = Muon(matrices, {id(p) for p in model.whisper.model.decoder.parameters()})
    state = torch.load(WORK / "run" / "checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    adamw.load_state_dict(state["adamw"])
    muon.load_state_dict(state["muon"])
    start, first, end = time.time(), state["step"], clock(options.until)
    step = first
    pool = Pool(WORK / "clips-domain", pieces.load())
    batcher = Batcher(pool, seed=7000 + team.rank, budget=options.budget / team.size)
    monitor = Monitor(pool) if team.rank == 0 else None
    sums, noted = torch.zeros(3), time.time()
    with (options.run / "log.jsonl").open("a") as log:
        while (progress := team.agree((time.time() - start) / (end - start))) < 1:
            batch = batcher.draw(shape(progress, step), step)
            ctc, entropy, guide = losses(model, batch, 1.0, True, progress < GUIDED)
            (0.4 * ctc + entropy + 0.5 * guide).backward()
            team.average(matrices + others)
            nn.utils.clip_grad_norm_(others, 1.0)
            share = min((step - first + 1) / RISE, 1 - progress)
            for group in adamw.param_groups:
                group["lr"] = group["peak"] * share
            adamw.step()
            muon.step(PEAK_MATRIX * share, team)
            model.zero_grad(set_to_none=True)
            step += 1
            sums += torch.stack([ctc.detach(), entropy.detach(), guide.detach()])
            if step % 25 == 0:
                muon.gather(team)
                if monitor is not None:
                    mean, now = (sums / 25).tolist(), time.time()
                    line = {
                        "step": step,
                        "minutes": round((now - start) / 60, 2),
                        "ctc": round(mean[0], 4),
                        "tokens": round(mean[1], 4),
                        "guide": round(mean[2], 4),
                        "rate": round(share, 3),
                        "seconds": round((now - noted) / 25, 2),
                    }
                    if step % 100 == 0:
                        line |= monitor.measure(model, True)
                        _save(options.run / "checkpoint.pt", model, adamw, muon, start, step)
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    noted = time.time()
                sums = torch.zeros(3)
    if monitor is not None:
        final = {"step": step, "minutes": round((time.time() - start) / 60, 2)}
        with (options.run / "log.jsonl").open("a") as log:
            log.write(json.dumps(final | monitor.measure(model, True)) + "\n")
        _save(options.run / "checkpoint.pt", model, adamw, muon, start, step)


if __name__ == "__main__":
    main()
