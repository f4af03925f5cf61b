"""Speculative beams on paper: how many steps of beam search one pass of the target could verify.

    python -m training.methods.beam_drafts TARGET DRAFT AUDIO...

Runs the true search of five beams on the first 30 s of each recording. From each of its steps the draft grows
a tree of its own beams, D levels of W nodes, ranked by the target's sums at the root and its own
log-probabilities from there. A level is verified if every true beam is a node of it, or need not be one: a
beam whose sum is below the last sum of the next step has no continuation there, because sums only fall.
Prints the steps for each pass of the target, and CPU milliseconds of forwards by their nodes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.rules import whisper_rules
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.speculative.rounds.beams import NEVER, BeamRows, _best, beam_round
from forescribe.speculative.types import Paths

BEAMS, DEPTH, LONGEST = 5, 4, 224
WIDTHS = (5, 8, 10, 20)
NODES = (5, 8, 10, 13, 15, 20, 21, 25, 35, 45)
REACH = 128


@dataclass(frozen=True)
class Step:
    paths: Tensor  # [K, L] slots
    texts: list[tuple[int, ...]]
    sums: Tensor  # [K]


def score(model: Any, tokens: Tensor, paths: Paths, reach: int) -> Tensor:
    """As `score_paths`, of a draft under the target's ids too."""
    if hasattr(model, "inner"):
        read = model.inner.score_paths(model._to_draft[tokens], paths, reach=reach)
        return model._written(read)
    return model.score_paths(tokens, paths, reach=reach)


class Trees:
    """True searches of a target, and trees of a draft."""

    def __init__(self, target: str, draft: str) -> None:
        self.transcriber = Transcriber.load(
            target, draft, gamma=1, batch=1, device="cpu", dtype="float32", engine="native"
        )
        self.whisper = whisper = self.transcriber.whisper
        self.target, self.draft = whisper.decoder(), whisper.drafts[0].decoder(0)
        config = whisper.target.config
        self.rules = whisper_rules(whisper.target.generation_config, config, "cpu")
        self.eos = torch.tensor(sorted(set(whisper.tokens.ends)))
        prompt = whisper.tokens.prompt("en", "transcribe", timestamps=True, previous=())
        self.prompt = torch.tensor(prompt)
        self.slots = self._rows().slots
        self.target.tap(())
        self.draft.tap(())

    def _rows(self) -> BeamRows:
        positions = self.target.max_positions
        return BeamRows.empty(1, BEAMS, positions, LONGEST, torch.device("cpu"))

    def states(self, file: str) -> Any:
        features = self.transcriber.context.features([read_audio(file)[:480000]])
        return self.whisper.encode(*features)[0]

    def search(self, states: Any) -> tuple[list[Step], Tensor]:
        """Every step of the true search, and the tokens by slot."""
        rows, first, steps = self._rows(), torch.zeros(1, dtype=torch.int64), []
        self.target.allocate(1, rows.slots + 1)
        self.draft.allocate(1, rows.slots + 65)
        for model in (self.target, self.draft):
            model.prefill(first, self.prompt[None], [states], None)
        rows.begin_row(0, self.prompt, longest=LONGEST, wanted=BEAMS)
        while True:
            paths = rows.paths[0, :, : int(rows.lengths[0])].clone()
            texts = [tuple(text) for text in rows.tokens[0][paths].tolist()]
            steps.append(Step(paths, texts, rows.sums[0].clone()))
            if not rows.active[0]:
                return steps, rows.tokens[0]
            longest = len(self.prompt) + len(steps) * BEAMS
            reach = min(-(-longest // REACH) * REACH, rows.slots)
            beam_round(rows, self.target, self.rules, self.eos, reach=reach)

    def _children(
        self, known: Tensor, nodes: Sequence[list[int]], sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best tokens `[N, W]` after each path of slots, and the sums with them."""
        slots, lengths = torch.tensor(nodes)[None], torch.tensor([len(nodes[0])])
        pad = torch.zeros(1, len(nodes), 1, dtype=torch.int64)
        view = SimpleNamespace(
            paths=torch.cat([slots, pad], 2), tokens=known, begin=torch.tensor([len(self.prompt)])
        )
        reach = min(-(-(int(slots.max()) + 1) // REACH) * REACH, known.shape[1])
        logits = score(self.draft, known[0][slots[..., -1]], Paths(view.paths, lengths), reach)
        tokens, logprobs = _best(view, self.rules, logits, lengths - 1, WIDTHS[-1] + 1)  # type: ignore[arg-type]
        totals = sums[:, None] + logprobs[0]
        return tokens[0], totals.masked_fill(torch.isin(tokens[0], self.eos), NEVER)

    def verified(self, steps: Sequence[Step], tokens: Tensor) -> list[dict[str, int]]:
        """By step and kind of tree, how many levels hold."""
        known, found = torch.zeros(1, self.slots + 65, dtype=torch.int64), []
        for n, step in enumerate(steps[:-1]):
            known[0, : len(tokens)] = tokens
            live = [j for j in range(BEAMS) if step.sums[j] > NEVER]
            roots = [step.paths[j].tolist() for j in live]
            first = self._children(known, roots, step.sums[live])
            item = {}
            for width in WIDTHS:
                level, (best, totals) = roots, first
                texts, tree = [step.texts[j] for j in live], []
                slot = len(self.prompt) + (n + 1) * BEAMS + 1
                for depth in range(DEPTH):
                    top = totals.flatten().topk(min(width, int((totals > NEVER).sum())))
                    if not len(top.values):
                        break
                    parents = (top.indices // best.shape[1]).tolist()
                    chosen = best.flatten()[top.indices].tolist()
                    texts = [(*texts[p], t) for p, t in zip(parents, chosen, strict=True)]
                    tree.append(set(texts))
                    if depth + 1 < DEPTH:
                        places = range(slot, slot + len(chosen))
                        known[0, list(places)] = torch.tensor(chosen)
                        level = [[*level[p], s] for p, s in zip(parents, places, strict=True)]
                        slot += len(chosen)
                        best, totals = self._children(known, level, top.values)
                item[f"{width}, all"] = held(tree, steps[n + 1 :], bounded=False)
                item[f"{width}, bounded"] = held(tree, steps[n + 1 :], bounded=True)
            found.append(item)
        return found

    def cost(self, model: Any, states: Any, batch: int, repeats: int = 7) -> dict[int, float]:
        """CPU milliseconds of a pass by the nodes of each row, the least of all runs."""
        model = getattr(model, "inner", model)
        model.allocate(batch, 2 * REACH)
        prompt = torch.randint(10, 20000, (batch, 44))
        model.prefill(torch.arange(batch), prompt, [states] * batch, None)
        found = {}
        for nodes in NODES:
            slots = torch.arange(45).expand(batch, nodes, -1).clone()
            slots[..., -1] = 44 + torch.arange(nodes)
            paths, seconds = Paths(slots, torch.full((batch,), 45)), []
            for _ in range(repeats):
                began = time.thread_time()
                model.score_paths(torch.randint(10, 20000, (batch, nodes)), paths, reach=REACH)
                seconds.append(time.thread_time() - began)
            found[nodes] = round(min(seconds) * 1e3, 2)
        return found


def held(tree: Sequence[set[tuple[int, ...]]], steps: Sequence[Step], *, bounded: bool) -> int:
    """The leading levels of a tree that are verified by the steps after its root."""
    levels = 0
    for nodes, step, following in zip(tree, steps, steps[1:], strict=False):
        last = following.sums[BEAMS - 1] if bounded else torch.tensor(NEVER)
        for text, total in zip(step.texts, step.sums, strict=True):
            if not (text in nodes or total == NEVER or (bounded and total < last)):
                return levels
        levels += 1
    return levels


def passes(found: Sequence[dict[str, int]], kind: str, depth: int) -> int:
    at = count = 0
    while at < len(found):
        at, count = at + 1 + min(found[at][kind], depth), count + 1
    return count


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("audio", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    trees = Trees(given.target, given.draft)
    searches = []
    for file in given.audio:
        searches.append(trees.verified(*trees.search(trees.states(file))))
    steps = sum(map(len, searches))
    print(f"{len(searches)} windows, {steps} steps; steps for each pass, of 1 to {DEPTH} levels:")
    for kind in searches[0][0]:
        made = [steps / sum(passes(s, kind, d) for s in searches) for d in range(1, DEPTH + 1)]
        print(f"width {kind}:", *(f"{value:.2f}" for value in made))
    states = trees.states(given.audio[0])
    for batch in (1, 8):
        for name, model in (("target", trees.target), ("draft", trees.draft)):
            print(f"ms of the {name}, batch {batch}:", trees.cost(model, states, batch))


if __name__ == "__main__":
    main()
