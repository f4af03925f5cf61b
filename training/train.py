"""Trains the target: CTC on the encoder first, then encoder and decoder together.

    python -m training.train --until 13:55

The learning rate and the kind of windows follow the wall clock between the start and `--until`, so
a run ends in time whatever else the machine does. A checkpoint is written every three minutes by
atomic rename; starting again resumes from it, with the same end.
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

from training import pieces
from training.batches import CTC_ONLY, Batch, Batcher
from training.model import Speech
from training.monitor import Monitor
from training.muon import Muon
from training.team import Team
from training.windows import IGNORE, Pool

WORK = Path(__file__).parent / "work"
PEAK_MATRIX = 1.2e-3
PEAK_OTHER = 5e-4
PEAK_EMBEDDING = 2.5e-3
WARM_STEPS = 60
# Between waking the decoder and this point the encoder learns from every third batch only.
LISTEN_FROM = 0.67
GUIDE_UNTIL = 0.8
PARTIAL, ALL_FROM = 1.0, 0.45  # share of rows decoded at first, and when it becomes all
SAVE_EVERY = 180.0


def losses(
    model: Speech, batch: Batch, decoding: float, listening: bool, guided: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """CTC loss per character, cross-entropy per token and the guide; zero where not asked for.

    `decoding` is the share of rows that go through the decoder; without `listening` the encoder is
    only read, which saves two thirds of its price.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.set_grad_enabled(listening):
            states = model.encode(batch.features, batch.offsets)  # [B, T, D]
        scores = model.ctc(states)
        known = batch.labels != IGNORE  # [B, L]
        # Some of the rows teach the decoder while the encoder still has most to learn.
        rows = slice(0, max(1, round(len(known) * decoding)))
        logits, guide = None, torch.zeros(())
        if decoding:
            places = batch.places[rows] if guided else None
            logits, guide = model.decode(batch.tokens[rows], states[rows], known[rows], places)
    if not listening:
        assert logits is not None
        entropy = cross_entropy(logits.float(), batch.labels[rows][known[rows]])
        return torch.zeros(()), entropy, guide
    count = torch.full((len(states),), states.shape[1])
    ctc = ctc_loss(
        scores.float().log_softmax(-1).transpose(0, 1),
        batch.characters,
        count,
        batch.character_lengths,
        reduction="sum",
        zero_infinity=True,
    ) / max(1, int(batch.character_lengths.sum()))
    if logits is None:
        return ctc, torch.zeros(()), guide
    return ctc, cross_entropy(logits.float(), batch.labels[rows][known[rows]]), guide


def split_parameters(model: Speech) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Hidden matrices for Muon; embeddings, convolutions, norms, biases, CTC for AdamW."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        hidden = ".layers." in name and p.ndim == 2
        (matrices if hidden else others).append(p)
    return matrices, others


def rate_groups(model: Speech, others: list[nn.Parameter]) -> list[dict[str, object]]:
    """AdamW's groups: the decoder's embeddings start tiny and wake late, so they move faster."""
    embeddings = {id(p) for n, p in model.named_parameters() if "decoder.embed_" in n}
    return [
        {"params": [p for p in others if id(p) not in embeddings], "peak": PEAK_OTHER},
        {"params": [p for p in others if id(p) in embeddings], "peak": PEAK_EMBEDDING},
    ]


def rate(progress: float, step: int) -> float:
    """Share of the peak rate: short warm-up, constant, then linear to zero over the last 40 %."""
    return min(1.0, (step + 1) / WARM_STEPS, (1 - progress) / 0.4)


def decoded_share(progress: float) -> float:
    """Share of rows decoded: none, then some, then all."""
    return 0.0 if progress < CTC_ONLY else PARTIAL if progress < ALL_FROM else 1.0


def clock(text: str) -> float:
    """HH:MM of today as seconds since the epoch."""
    hour, minute = map(int, text.split(":"))
    now = datetime.datetime.now()
    return now.replace(hour=hour, minute=minute, second=0, microsecond=0).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", required=True, help="HH:MM at which training ends")
    parser.add_argument("--budget", type=float, default=160.0, help="seconds of audio per step")
    parser.add_argument("--run", type=Path, default=WORK / "run")
    parser.add_argument("--rate", type=float, default=PEAK_MATRIX)
    parser.add_argument("--rank", type=int, default=0, help="which member of the team this is")
    parser.add_argument("--team", type=int, default=1, help="number of processes, each one thread")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.team > 1 else 2)
    options.run.mkdir(parents=True, exist_ok=True)
    team = Team(options.rank, options.team, options.run / "meeting-point")
    model = Speech()
    matrices, others = split_parameters(model)
    adamw = torch.optim.AdamW(
        rate_groups(model, others), betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    # The decoder wakes late and has the longer way to go.
    muon = Muon(matrices, {id(p) for p in model.whisper.model.decoder.parameters()})
    start, step = time.time(), 0
    end = clock(options.until)
    checkpoint = options.run / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        if len(state["adamw"]["param_groups"]) == len(adamw.param_groups):
            adamw.load_state_dict(state["adamw"])
        muon.load_state_dict(state["muon"])
        start, step = state["start"], state["step"]
    pool = Pool(WORK / "clips", pieces.load())
    batcher = Batcher(pool, seed=1000 + 2 * step + team.rank, budget=options.budget / team.size)
    monitor = Monitor(pool)
    saved = noted = time.time()
    sums = torch.zeros(3)
    audio, noted_step, heard = 0.0, step, 0
    with (options.run / "log.jsonl").open("a") as log:
        while (progress := team.agree((time.time() - start) / (end - start))) < 1:
            decoding = decoded_share(progress)
            batch = batcher.draw(progress, step)
            listening = not CTC_ONLY <= progress < LISTEN_FROM or step % 3 == 0
            guided = progress < GUIDE_UNTIL
            ctc, entropy, guide = losses(model, batch, decoding, listening, guided)
            weight = 0.6 if progress < CTC_ONLY else 0.4
            (weight * ctc + entropy + 0.6 * guide).backward()
            team.average(matrices + others)
            nn.utils.clip_grad_norm_(others, 1.0)
            share = rate(progress, step)
            for group in adamw.param_groups:
                group["lr"] = group["peak"] * share
            adamw.step()
            muon.step(options.rate * share, team)
            model.zero_grad(set_to_none=True)
            step += 1
            heard += listening
            sums += torch.stack([ctc.detach(), entropy.detach(), guide.detach()])
            audio += batch.seconds * team.size
            if step % 25 == 0:
                due = team.agree(time.time() - saved) > SAVE_EVERY
                if due:
                    muon.gather(team)
                    pool.refresh()
                    saved = time.time()
            if step % 25 == 0 and team.rank == 0:
                spent, noted = time.time() - noted, time.time()
                mean = (sums / torch.tensor([max(1, heard)] + 2 * [step - noted_step])).tolist()
                line: dict[str, float] = {
                    "step": step,
                    "minutes": round((noted - start) / 60, 2),
                    "ctc": round(mean[0], 4),
                    "tokens": round(mean[1], 4),
                    "guide": round(mean[2], 4),
                    "rate": round(share, 3),
                    "speed": round(audio / spent, 1),
                    "hours": round(pool.hours, 1),
                }
                sums, audio, noted_step, heard = torch.zeros(3), 0.0, step, 0
                if due:
                    line |= monitor.measure(model, decoding > 0)
                    _save(checkpoint, model, adamw, muon, start, step)
                    noted = time.time()
                log.write(json.dumps(line) + "\n")
                log.flush()
        if team.rank:
            return
        final = monitor.measure(model, True)
        log.write(
            json.dumps({"step": step, "minutes": round((time.time() - start) / 60, 2)} | final)
        )
        log.write("\n")
        _save(checkpoint, model, adamw, muon, start, step)


def _save(
    path: Path, model: Speech, adamw: torch.optim.Optimizer, muon: Muon, start: float, step: int
) -> None:
    temporary = path.with_suffix(".tmp")
    state = {"model": model.state_dict(), "adamw": adamw.state_dict(), "muon": muon.state_dict()}
    torch.save(state | {"start": start, "step": step}, temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
