"""Compare trained heads with the bundled draft on held-out prompts: acceptance by depth, speed, equality.

    OMP_NUM_THREADS=1 python -m training.text.heads.evaluate_heads --gamma 4 --batch 1 4

Prints one line of JSON for each draft and batch, all of one process: the drafts take turns, and the fastest
of `--repeats` runs counts. `by_depth` is the share of drafts at each place that were kept, `alpha` the same
among those whose predecessors were. `equal` compares every text with plain decoding by the same engine,
`generate` with transformers' greedy generation.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forescribe.speculative.models.checkpoint import quiet
from forescribe.text import TextGenerator
from forescribe.text.streaming import Options
from training.paths import BUNDLED
from training.text import evaluate
from training.text.export import DRAFT, TARGET
from training.text.heads.train_heads import NAMES
from training.text.heads.written_texts import WORK
from training.text.tokenizer import prompt_of

LONGEST = 96
PLAIN = "none"


@dataclass
class System:
    """One draft at one batch size."""

    name: str
    batch: int
    generator: TextGenerator
    seconds: list[float] = field(default_factory=list)
    texts: list[tuple[int, ...]] = field(default_factory=list)

    def run(self, prompts: list[tuple[int, ...]], temperature: float) -> None:
        options = Options(max_tokens=LONGEST, temperature=temperature)
        began = time.perf_counter()
        done = self.generator.generate(prompts, options)
        self.seconds.append(time.perf_counter() - began)
        self.texts = [d.ids for d in done]
        failed = [d.draft_error for d in done if d.draft_error is not None]
        if failed:
            raise failed[0]


def load(name: str, batch: int, gamma: int, engine: str) -> System:
    model: Path | str = BUNDLED / TARGET
    draft: Path | str | None = None
    if name == "bundled":
        draft = BUNDLED / DRAFT
    elif name == "ngram":
        draft = name
    elif name.startswith("mtp"):  # in a copy of the target
        model, draft = WORK / name, "mtp"
    elif name != PLAIN:
        draft = WORK / name
    made = TextGenerator.load(
        model, draft, device="cpu", batch=batch, gamma=gamma, engine=engine, network=False
    )
    return System(name, batch, made)


def record(system: System, plain: System, gamma: int) -> dict[str, Any]:
    stats, tokens = system.generator.stats, sum(map(len, system.texts))
    pairs = zip(stats.accepted_at_depth, stats.drafted_at_depth, strict=True)
    shares = [kept / drafted for kept, drafted in pairs if drafted]
    alpha = [
        share / before for share, before in zip(shares, [1.0, *shares], strict=False) if before
    ]
    alone = zip(system.texts, plain.texts, strict=True)
    return {
        "draft": system.name,
        "batch": system.batch,
        "gamma": gamma if system.name != PLAIN else 0,
        "engine": str(system.generator.target.engine),
        "tokens_per_s": round(tokens / min(system.seconds), 1),
        "by_depth": [round(share, 3) for share in shares],
        "alpha": [round(a, 3) for a in alpha],
        "mean_acceptance_length": round(stats.mean_acceptance_length, 3),
        "equal": f"{sum(a == b for a, b in alone)} of {len(plain.texts)}",
    }


@torch.inference_mode()
def generated(prompts: list[tuple[int, ...]], model: Any) -> list[tuple[int, ...]]:
    """transformers' greedy texts, one at a time."""
    found = []
    for prompt in prompts:
        row = torch.tensor([prompt])
        with quiet():
            whole = model.generate(
                row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=LONGEST
            )
        found.append(tuple(whole[0, len(prompt) :].tolist()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--drafts", nargs="+", default=["bundled", "ngram", *NAMES])
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = evaluate.Pair.load().tokenizer
    texts = [prompt_of(d) for d in evaluate.prompts()]
    prompts = [tuple(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    for batch in options.batch:
        names = [PLAIN, *options.drafts]
        systems = [load(name, batch, options.gamma, options.engine) for name in names]
        for _ in range(options.repeats):
            for system in systems:
                system.run(prompts, options.temperature)
        for system in systems:
            print(json.dumps(record(system, systems[0], options.gamma)), flush=True)
        if batch == options.batch[0] and options.temperature == 0:
            theirs = generated(prompts, systems[0].generator.target.model)
            same = sum(a == b for a, b in zip(theirs, systems[0].texts, strict=True))
            print(json.dumps({"generate": f"{same} of {len(theirs)} equal to plain decoding"}))


if __name__ == "__main__":
    main()
