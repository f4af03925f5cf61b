"""How well a target's own layers draft for it: early exits, with and without training, and skipped layers.

    python -m training.exits.measure text MODEL --exits 10 20 --skip 3 6      # such as SmolLM2-135M-Instruct
    python -m training.exits.measure speech MODEL RECORDING ... --exits 1 2   # such as whisper-base

Weights are never changed: what is trained is one matrix behind an exit, so all drafts are lossless
for the published target, and need no memory beside it but that matrix. For the training of LayerSkip, which
changes the target, see `layerskip`. Figures: docs/methods/self-speculation.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from forescribe.asr.decode.transcriber import Transcriber
from forescribe.speculative.models.lean import LeanCausalDecoder, LeanDecoder, LeanWhisperDecoder
from training.exits.states import GAMMA, Layers, Text, answered, tokens_per_round, transcribed
from training.text.kinds import KINDS

STEPS, RATE, TOGETHER = 300, 2e-3, 256
"""Of the matrix behind an exit: steps, learning rate, positions of a step."""
SCORED = 6  # texts that a block of layers is chosen by
REPEATS = 25


def choices(layers: Layers, text: Text, kept: Sequence[int] | None = None) -> Tensor:
    """The best token behind every layer at the target's positions `[L, T]`; with `kept` behind the last one
    alone."""
    states = layers.states(text, kept)[:, text.begin - 1 : -1]
    picked = states[1:] if kept is None else states[-1:]
    return torch.stack([layers.logits(each).argmax(-1) for each in picked])


def share(agreeing: Sequence[Sequence[bool]]) -> float:
    return sum(map(sum, agreeing)) / sum(map(len, agreeing))


def exits(layers: Layers, texts: Sequence[Text]) -> None:
    """Prints how often each exit agrees with the target's last layer."""
    found: list[list[list[bool]]] = [[] for _ in range(layers.depth)]
    for text in texts:
        best = choices(layers, text)
        for depth in range(1, layers.depth):
            found[depth].append((best[depth - 1] == best[-1]).tolist())
    print(f"| exit behind layer | agrees | tokens per round, gamma {GAMMA} |")
    for depth in range(1, layers.depth):
        print(f"| {depth} | {share(found[depth]):.3f} | {tokens_per_round(found[depth]):.2f} |")


def skipped(layers: Layers, texts: Sequence[Text], counts: Sequence[int]) -> None:
    """Prints how often the target without a block of layers agrees with all of it. Of each size it is the
    block that changes the states least, by the angle between what enters and what leaves it (Gromov et al.
    2024, arXiv 2403.17887) on a few of the texts; the figures are of all."""
    angles = torch.zeros(
        layers.depth + 1, layers.depth + 1
    )  # [first layer, the one behind the block]
    for text in texts[:: max(1, len(texts) // SCORED)]:
        states = torch.nn.functional.normalize(layers.states(text), dim=-1)  # [L + 1, T, D]
        cosines = torch.einsum("itd,jtd->ijt", states, states).clamp(-1, 1)
        angles += cosines.arccos().mean(-1)
    print(f"| layers left out | agrees | tokens per round, gamma {GAMMA} |")
    for count in counts:
        first = min(range(layers.depth - count + 1), key=lambda i: float(angles[i, i + count]))
        kept = [i for i in range(layers.depth) if not first <= i < first + count]
        found = []
        for text in texts:
            found.append((choices(layers, text, kept)[-1] == text.tokens[text.begin :]).tolist())
        row = f"{count} of {layers.depth}, from {first + 1} on | {share(found):.3f}"
        print(f"| {row} | {tokens_per_round(found):.2f} |", flush=True)


def adapted(layers: Layers, texts: Sequence[Text], depths: Sequence[int]) -> None:
    """Prints the same of exits with a trained matrix A behind them, `state + A state`. Every third text is
    held out; the loss is of the tokens that occur in the others."""
    held_out = texts[::3]
    learnt = [text for i, text in enumerate(texts) if i % 3]
    print(f"| exit with a matrix | agrees | tokens per round, gamma {GAMMA} | trained |")
    for depth in depths:
        states, wanted = [], []
        for text in learnt:
            of = layers.states(text)[:, :-1]
            states.append(of[depth])
            wanted.append(layers.logits(of[-1]).argmax(-1))
        began = time.process_time()
        matrix = trained(layers, torch.cat(states), torch.cat(wanted))
        spent = time.process_time() - began
        found = []
        for text in held_out:
            of = layers.states(text)[:, text.begin - 1 : -1]
            best = layers.logits(of[-1]).argmax(-1)
            mine = layers.logits(of[depth] + linear(of[depth], matrix)).argmax(-1)
            found.append((mine == best).tolist())
        row = f"{depth} | {share(found):.3f} | {tokens_per_round(found):.2f}"
        print(f"| {row} | {spent:.0f} s, {sum(map(len, states)):,} positions |", flush=True)


def trained(layers: Layers, states: Tensor, wanted: Tensor) -> Tensor:
    """The matrix `[D, D]` for `states [N, D]` whose next tokens are `wanted [N]`."""
    ids, labels = wanted.unique(return_inverse=True)
    torch.manual_seed(0)
    matrix = torch.zeros(states.shape[1], states.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([matrix], lr=RATE)
    pace = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(states), (TOGETHER,))
        with torch.enable_grad():
            logits = layers.logits(states[rows] + linear(states[rows], matrix), ids)
            loss = cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        pace.step()
    return matrix.detach()


def costs(layers: Layers, audio: Tensor | None, depths: Sequence[int]) -> None:
    """Prints what a step of the first layers and the head costs, in steps of the whole target: processor
    time, the best of several turns, one after another."""
    made = {depth: decoder(layers, audio, depth) for depth in (*depths, layers.depth)}
    best = dict.fromkeys(made, float("inf"))
    for _ in range(REPEATS):
        for depth, each in made.items():
            start = torch.tensor([40])
            began = time.process_time()
            for _ in range(4):
                each.score(torch.tensor([[7]]), start, reach=64)
            best[depth] = min(best[depth], (time.process_time() - began) / 4)
    whole = best[layers.depth]
    print(f"a step of all {layers.depth} layers: {whole * 1e3:.1f} ms")
    print("; ".join(f"{d} layers: {best[d] / whole:.2f}" for d in depths))


def decoder(layers: Layers, audio: Tensor | None, depth: int) -> LeanDecoder:
    """The first layers of the target, with its norm and head and its own weights."""
    made: Any = (LeanCausalDecoder if audio is None else LeanWhisperDecoder)(layers.model)
    kept: dict[str, Any] = {"layers": made.weights.layers[:depth]}
    if audio is not None:
        width = made.weights.width
        kept["cross_kv"] = made.weights.cross_kv.rows(slice(2 * width * depth))
    made.weights, made.depth = replace(made.weights, **kept), depth
    made.allocate(1, 64)
    made.prefill(torch.tensor([0]), torch.full((1, 40), 7), [audio])
    found: LeanDecoder = made
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("text", "speech"))
    parser.add_argument("model", type=Path)
    parser.add_argument("recordings", nargs="*")
    parser.add_argument("--exits", type=int, nargs="+", required=True, help="exits to train behind")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th prompt")
    parser.add_argument(
        "--skip", type=int, nargs="*", default=[], help="sizes of blocks to leave out"
    )
    options = parser.parse_args()
    if options.kind == "text":
        from transformers import AutoModelForCausalLM

        prompts = [prompt for prompts in KINDS.values() for prompt in prompts[:: options.every]]
        texts = answered(options.model, prompts)
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    else:
        transcriber = Transcriber.load(
            options.model, "none", language="en", device="cpu", modules=True
        )
        texts, model = transcribed(transcriber, options.recordings), transcriber.whisper.target
    torch.set_num_threads(1)  # the engine has chosen its own
    layers = Layers(model.eval())
    print(f"{len(texts)} texts, {sum(len(t.tokens) - t.begin for t in texts):,} tokens", flush=True)
    costs(layers, texts[0].audio, options.exits)
    exits(layers, texts)
    adapted(layers, texts, options.exits)
    skipped(layers, texts, options.skip)


if __name__ == "__main__":
    main()
