"""Train the target: encoder and decoder together from the first step, with a CTC loss.

    python -m training.demo.train --until 13:55

The draft is distilled at the same time: it learns from the target's distribution on every batch, and its
gradient is propagated into the encoder, so that few layers can read the encoder states.

The learning rate and the kind of windows depend on the wall clock between the start and `--until`, so that
a run ends in time on a busy machine. A checkpoint is written every three minutes by atomic rename; a
repeated command resumes from it, with the same end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, ctc_loss

from forescribe.distill.losses import distillation
from training.demo.batches import Batch, Batcher
from training.demo.model import Speech
from training.demo.monitor import Monitor
from training.demo.team import Team
from training.demo.windows import IGNORE, Pool
from training.paths import MADE
from training.sentences import vocabulary

WORK = MADE
PEAK = 1e-3
WARM_STEPS = 150
FALL_FROM = 0.45  # the rate is constant before, then linear to zero
CTC_WEIGHT = 0.6
GUIDE_WEIGHT, GUIDE_UNTIL = 0.5, 0.95
DROPOUT = 0.1  # of the decoders; without it they overfit in eight passes
SAVE_EVERY = 180.0


def losses(model: Speech, batch: Batch, guided: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the CTC loss per character, cross-entropy per token, the guide loss (model.stray) or zero,
    and the draft's distillation loss per token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = model.encode(batch.features)  # [B, T, D]
        scores = model.ctc(states)
        known = batch.labels != IGNORE  # [B, L]
        places = batch.places if guided else None
        logits, guide = model.decode(batch.tokens, states, known, places)
        guess, second = model.guess(batch.tokens, states, known, places)
    ctc = ctc_loss(
        scores.float().log_softmax(-1).transpose(0, 1),
        batch.characters,
        torch.full((len(states),), states.shape[1]),
        batch.character_lengths,
        reduction="sum",
        zero_infinity=True,
    ) / max(1, int(batch.character_lengths.sum()))
    entropy = cross_entropy(logits.float(), batch.labels[known])
    return ctc, entropy, guide + second, distillation(logits.detach().float(), guess.float())


def rate(progress: float, step: int) -> float:
    """The learning rate as a share of its peak."""
    return min(1.0, (step + 1) / WARM_STEPS, (1 - progress) / (1 - FALL_FROM))


def clock(text: str) -> float:
    """The HH:MM nearest to now, as seconds since the epoch: a run may pass midnight."""
    hour, minute = map(int, text.split(":"))
    now = datetime.datetime.now()
    today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    days = (today + datetime.timedelta(days=shift) for shift in (-1, 0, 1))
    return min(days, key=lambda moment: abs(moment - now)).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", required=True, help="HH:MM at which training ends")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of audio per step")
    parser.add_argument("--run", type=Path, default=WORK / "run")
    parser.add_argument("--start", type=Path, help="checkpoint of an earlier run to begin with")
    parser.add_argument("--skip", type=float, default=0.0, help="share of the schedule left out")
    parser.add_argument("--peak", type=float, default=PEAK, help="highest learning rate")
    parser.add_argument("--rank", type=int, default=0, help="which member of the team this is")
    parser.add_argument("--team", type=int, default=1, help="number of processes, each one thread")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.team > 1 else int(os.environ.get("OMP_NUM_THREADS", 2)))
    options.run.mkdir(parents=True, exist_ok=True)
    team = Team(options.rank, options.team, options.run.resolve() / "meeting-point")
    model = Speech()
    if options.start:
        model.load(torch.load(options.start, weights_only=True)["model"])
    model.drop(DROPOUT)
    parameters = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(
        parameters, lr=options.peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    start, step = time.time(), 0
    end = clock(options.until)
    checkpoint = options.run / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load(state["model"])
        adamw.load_state_dict(state["adamw"])
        start, step = state["start"], state["step"]
    pool = Pool(WORK / "clips", vocabulary.load())
    batcher = Batcher(pool, seed=1000 + 2 * step + team.rank, budget=options.budget / team.size)
    monitor = Monitor()
    saved = noted = time.time()
    sums = torch.zeros(4)
    audio, noted_step = 0.0, step
    with (options.run / "log.jsonl").open("a") as log:
        if options.start and not step and not team.rank:
            begun = {"step": 0, "minutes": 0.0, "skip": options.skip, "peak": options.peak}
            log.write(json.dumps(begun) + "\n")
        while (elapsed := team.agree((time.time() - start) / (end - start))) < 1:
            progress = options.skip + (1 - options.skip) * elapsed
            batch = batcher.draw(progress, step)
            ctc, entropy, guide, draft = losses(model, batch, progress < GUIDE_UNTIL)
            (CTC_WEIGHT * ctc + entropy + GUIDE_WEIGHT * guide + draft).backward()
            team.average(parameters)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            share = rate(progress, step)
            for group in adamw.param_groups:
                group["lr"] = options.peak * share
            adamw.step()
            model.zero_grad(set_to_none=True)
            step += 1
            sums += torch.stack([part.detach() for part in (ctc, entropy, guide, draft)])
            audio += batch.seconds * team.size
            if step % 50:
                continue
            due = team.agree(time.time() - saved) > SAVE_EVERY
            if due:
                pool.refresh()
                saved = time.time()
            if team.rank:
                continue
            spent, noted = time.time() - noted, time.time()
            mean = (sums / (step - noted_step)).tolist()
            line: dict[str, float] = {
                "step": step,
                "minutes": round((noted - start) / 60, 2),
                "ctc": round(mean[0], 4),
                "tokens": round(mean[1], 4),
                "guide": round(mean[2], 4),
                "draft": round(mean[3], 4),
                "rate": round(share, 3),
                "speed": round(audio / spent, 1),
                "hours": round(pool.hours, 1),
            }
            sums, audio, noted_step = torch.zeros(4), 0.0, step
            if due:
                model.eval()
                line |= monitor.measure(model)
                model.train()
                _save(checkpoint, model, adamw, start, step)
                noted = time.time()
            log.write(json.dumps(line) + "\n")
            log.flush()
        if team.rank:
            return
        minutes = round((time.time() - start) / 60, 2)
        model.eval()
        log.write(json.dumps({"step": step, "minutes": minutes} | monitor.measure(model)) + "\n")
        _save(checkpoint, model, adamw, start, step)


def _save(path: Path, model: Speech, adamw: torch.optim.Optimizer, start: float, step: int) -> None:
    temporary = path.with_suffix(".tmp")
    state = {"model": model.state_dict(), "adamw": adamw.state_dict()}
    torch.save(state | {"start": start, "step": step}, temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
