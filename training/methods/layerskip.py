"""Drafts from a Whisper's own first layers: early exits, and LayerSkip (Elhoushi et al. 2024, 2404.16710).

    python -m training.methods.layerskip MODEL RECORDING ...                 # exits and layers left out
    python -m training.methods.layerskip MODEL RECORDING ... --minutes 15    # LayerSkip's training, too

Along the target's own greedy answers a draft is kept where its choice is the target's, so the tokens per
round of a chain follow from one forward over each answer. LayerSkip's loss is the cross-entropy of the last
layer and of one exit, another one in every step, with what the published weights wrote: it changes the
target, and drafts are then lossless for the new weights alone. Figures: docs/methods/self-speculation.md.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from forescribe.asr.decode.options import Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.distill.report import Trace, agreement, tokens_per_round
from forescribe.distill.speech import Pair, labelled

GAMMA = 4
RATE, TOGETHER = 1e-4, 4  # windows of a step


@dataclass(frozen=True, eq=False)
class Text:
    """A window: `tokens [T]` with the prompt; those from `begin` on are the target's. `audio [S, D]` are the
    encoder's states."""

    tokens: Tensor
    begin: int
    audio: Tensor

    @property
    def written(self) -> Tensor:
        return self.tokens[self.begin :]


class Layers:
    """The decoder of a Whisper, layer by layer."""

    def __init__(self, model: Any) -> None:
        self.body, self.all = model.model.decoder, model.model.decoder.layers
        self.head: Tensor = model.get_output_embeddings().weight

    def states(self, text: Text, kept: Sequence[int] | None = None) -> Tensor:
        """The states behind the embeddings and every layer `[L + 1, T, D]` at the positions whose next tokens
        the target wrote; with `kept` of these layers alone."""
        found: list[Tensor] = []
        used = list(self.all) if kept is None else [self.all[i] for i in kept]
        hooks = [used[0].register_forward_pre_hook(lambda _, args: found.append(args[0]))]
        hooks += [each.register_forward_hook(lambda *a: found.append(a[2])) for each in used]
        self.body.layers = torch.nn.ModuleList(used)
        try:
            self.body(
                input_ids=text.tokens[None],
                encoder_hidden_states=text.audio[None],
                use_cache=False,
            )
        finally:
            self.body.layers = self.all
            for hook in hooks:
                hook.remove()
        states = [each[0] if isinstance(each, tuple) else each for each in found]
        return torch.stack(states)[:, 0, text.begin - 1 : -1]

    def logits(self, states: Tensor) -> Tensor:
        """Of states behind any layer: what an exit is."""
        return linear(self.body.layer_norm(states), self.head)


def row(name: str, traces: Sequence[Trace]) -> str:
    return f"| {name} | {agreement(traces):.3f} | {tokens_per_round(traces, GAMMA):.2f} |"


@torch.no_grad()
def report(layers: Layers, texts: Sequence[Text], skipped: Sequence[int]) -> None:
    """Prints how often each exit agrees with the last layer; how often the target without a block of layers
    does, the one that turns the states least (Gromov et al. 2024); and what the last layer writes of the
    published tokens: less than all, as Whisper's rules for timestamps decide some."""
    depth = len(layers.all)
    found: list[list[Trace]] = [[] for _ in range(depth + 1)]
    angles = torch.zeros(depth + 1, depth + 1)
    for text in texts:
        states = layers.states(text)
        best = [layers.logits(each).argmax(-1) for each in states]
        for place in range(1, depth):
            found[place].append((best[place] == best[-1]).tolist())
        found[depth].append((best[-1] == text.written).tolist())
        unit = torch.nn.functional.normalize(states, dim=-1)
        angles += torch.einsum("itd,jtd->ijt", unit, unit).clamp(-1, 1).arccos().mean(-1)
    print(f"| draft | agrees | tokens per round, gamma {GAMMA} |")
    for place in range(1, depth):
        print(row(f"exit behind {place} of {depth}", found[place]))
    for count in skipped:
        first = min(range(depth - count + 1), key=lambda i: float(angles[i, i + count]))
        kept = [i for i in range(depth) if not first <= i < first + count]
        traces = [
            (layers.logits(layers.states(text, kept)[-1]).argmax(-1) == text.written).tolist()
            for text in texts
        ]
        print(row(f"without {count} of {depth}, from {first + 1} on", traces))
    print(
        f"the last layer writes {agreement(found[depth]):.3f} of the published tokens", flush=True
    )


def train(layers: Layers, texts: Sequence[Text], seconds: float) -> int:
    """Trains the layers and the last norm in place; returns the number of steps."""
    parameters = [*layers.all.parameters(), *layers.body.layer_norm.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer, chosen = torch.optim.AdamW(parameters, lr=RATE), random.Random(0)
    began, steps = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        depth = 1 + steps % (len(layers.all) - 1)
        for text in chosen.sample(list(texts), min(TOGETHER, len(texts))):
            states = layers.states(text)
            losses = [cross_entropy(layers.logits(states[i]), text.written) for i in (depth, -1)]
            (torch.stack(losses).sum() / TOGETHER).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def windows(transcriber: Transcriber, recordings: Sequence[str]) -> list[Text]:
    """What the target writes in the windows of recordings."""
    texts = []
    options = Options(language="en", keep_encoder_states=True)
    for outcome in transcriber.transcribe(recordings, options):
        for each in labelled(Pair.of(transcriber.whisper), outcome):
            audio = each.states()[0].float().clone()  # out of inference mode
            texts.append(Text(torch.tensor(each.tokens), each.begin, audio))
    return texts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="such as whisper-tiny.en, its folder or name")
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--skip", type=int, nargs="*", default=[1], help="sizes of blocks left out")
    parser.add_argument("--minutes", type=float, default=0, help="LayerSkip's training")
    given = parser.parse_args(arguments)
    model = str(Path(given.model))
    transcriber = Transcriber.load(model, "none", language="en", device="cpu", modules=True)
    texts = windows(transcriber, given.recordings)
    torch.set_num_threads(1)  # the engine has chosen its own
    layers = Layers(
        copy.deepcopy(Pair.of(transcriber.whisper).target).eval()
    )  # out of inference mode
    held_out, learnt = texts[::3], [text for i, text in enumerate(texts) if i % 3]
    print(f"{len(learnt)} windows, {len(held_out)} held out", flush=True)
    report(layers, held_out, given.skip)
    if given.minutes:
        print(f"{train(layers, learnt, 60 * given.minutes)} steps", flush=True)
        report(layers, held_out, given.skip)


if __name__ == "__main__":
    main()
