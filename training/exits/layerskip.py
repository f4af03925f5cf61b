"""A short training of early exits as LayerSkip does it (Elhoushi et al. 2024, arXiv 2404.16710), which
changes the target: drafts are then lossless for the new weights alone.

    python -m training.exits.layerskip MODEL RECORDING ... --minutes 15     # such as whisper-tiny.en

The loss is the cross-entropy of the last layer and of one exit, another one in every step, with what the
published weights have written; layers are not dropped. The decoder's layers and its last norm are trained.
Every third window is held out. Prints the exits' agreement before and after, and how many of the target's own
tokens have changed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from forescribe.asr.decode.transcriber import Transcriber
from training.exits.measure import choices, exits, share
from training.exits.states import Layers, Text, transcribed

RATE, TOGETHER = 1e-4, 4  # windows of a step


def train(layers: Layers, texts: Sequence[Text], minutes: float) -> int:
    """Trains in place; returns the number of steps."""
    parameters = [*layers.all.parameters(), *layers.norm.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer, chosen = torch.optim.AdamW(parameters, lr=RATE), random.Random(0)
    began, steps = time.monotonic(), 0
    while time.monotonic() < began + 60 * minutes:
        depth = 1 + steps % (layers.depth - 1)
        for text in chosen.sample(list(texts), TOGETHER):
            states = layers.states(text)[:, text.begin - 1 : -1]
            wanted = text.tokens[text.begin :]
            exit_loss, last_loss = (
                cross_entropy(layers.logits(states[each]), wanted) for each in (depth, -1)
            )
            ((exit_loss + last_loss) / TOGETHER).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


@torch.no_grad()
def report(layers: Layers, texts: Sequence[Text]) -> None:
    """Prints the agreement of the exits, and that of the last layer with what the published weights wrote:
    their own is below 1, as Whisper's rules for timestamps decide some tokens."""
    exits(layers, texts)
    kept = [(choices(layers, t)[-1] == t.tokens[t.begin :]).tolist() for t in texts]
    print(f"the last layer writes {share(kept):.3f} of the published tokens", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--minutes", type=float, default=15)
    options = parser.parse_args()
    transcriber = Transcriber.load(options.model, "none", language="en", device="cpu", modules=True)
    texts = transcribed(transcriber, options.recordings)
    torch.set_num_threads(1)  # the engine has chosen its own
    layers = Layers(transcriber.whisper.target.eval())
    held_out, learnt = texts[::3], [text for i, text in enumerate(texts) if i % 3]
    print(f"{len(learnt)} windows, {len(held_out)} held out", flush=True)
    report(layers, held_out)
    steps = train(layers, learnt, options.minutes)
    print(f"{steps} steps of {TOGETHER} windows", flush=True)
    report(layers, held_out)


if __name__ == "__main__":
    main()
