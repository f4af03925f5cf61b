"""Evaluate the text pair on held-out prompts: loss, acceptance, equality, and output.

    python -m training.text.evaluate               # writes bundled/text/evaluation.json

Runs `forescribe.speculative.Engine` in float32, with the forward that `auto` chooses: the acceptance for
every draft length and temperature, and at temperature 0 the equality with gamma 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from forescribe.speculative import Engine, ModelDrafter, Request, Result, Stats
from forescribe.speculative.model_engines import causal_decoder
from forescribe.speculative.protocols import Poll, Schedule
from training.paths import BUNDLED
from training.text.corpus import Document, documents
from training.text.export import DRAFT, TARGET, opened
from training.text.tokenizer import prompt_of, text_of

COUNTS = {"definition": 16, "example": 8, "minutes": 4, "plain": 8}
GAMMAS = {0.0: tuple(range(1, 9)), 0.5: (1, 2, 4, 8), 1.0: (1, 2, 4, 8)}
"""Draft lengths by temperature."""
LONGEST = 128  # new tokens
BATCH = 8


@dataclass(frozen=True)
class Pair:
    """Both models and their tokenizer."""

    target: Any
    draft: Any
    tokenizer: Any

    @staticmethod
    def load(folder: Path = BUNDLED) -> Pair:
        target, draft = (opened(folder / name) for name in (TARGET, DRAFT))
        return Pair(target, draft, AutoTokenizer.from_pretrained(folder / TARGET))

    def engine(self, schedule: Schedule, batch: int = BATCH) -> Engine:
        """The engine, with the draft unless the schedule never drafts."""
        return Engine(
            causal_decoder(self.target),
            ModelDrafter(causal_decoder(self.draft)) if any(schedule.buckets) else None,
            batch=batch,
            eos=[self.tokenizer.eos_token_id],
            schedule=schedule,
        )

    def engines(self) -> dict[str, str]:
        """What runs each model's forward: the engine that `auto` chooses."""
        return {
            "target": str(causal_decoder(self.target).engine),
            "draft": str(causal_decoder(self.draft).engine),
        }

    def requests(self, chosen: Sequence[Document], temperature: float) -> list[Request]:
        """One request per document, with its index as tag and seed."""
        ids = self.tokenizer([prompt_of(d) for d in chosen], add_special_tokens=False)["input_ids"]
        return [
            Request(tuple(p), max_new_tokens=LONGEST, temperature=temperature, seed=i, tag=i)
            for i, p in enumerate(ids)
        ]


def prompts() -> list[Document]:
    """Held-out documents to answer: `COUNTS` of each kind."""
    held_out = [d for d in documents() if d.held_out]
    return [
        document
        for kind, count in COUNTS.items()
        for document in [d for d in held_out if d.kind == kind][:count]
    ]


@dataclass
class Counted:
    """A fixed draft length, like `Fixed`, that counts the judged drafts, which `Stats` does not."""

    gamma: int
    trials: int = 0
    accepted: int = 0

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    @property
    def alpha(self) -> float:
        """The probability that a draft is accepted, given that those before it were."""
        return self.accepted / self.trials if self.trials else 0.0

    def choose(self) -> int:
        return self.gamma

    def learn(self, poll: Poll) -> None:
        self.trials += poll.judged
        self.accepted += poll.accepted


@dataclass(frozen=True)
class Run:
    """Results in the order of the documents."""

    results: list[Result]
    stats: Stats
    alpha: float


def run(pair: Pair, chosen: Sequence[Document], gamma: int, temperature: float) -> Run:
    schedule = Counted(gamma)
    engine = pair.engine(schedule)
    found = {r.request.tag: r for r in engine.run(pair.requests(chosen, temperature))}
    return Run([found[i] for i in range(len(chosen))], engine.stats, schedule.alpha)


@torch.inference_mode()
def losses(pair: Pair, chosen: Sequence[Document]) -> dict[str, float]:
    """The loss of both models on the answers, in nats per token."""
    sums, count = {"target": 0.0, "draft": 0.0}, 0
    for document in chosen:
        whole = pair.tokenizer(text_of(document), add_special_tokens=False)["input_ids"]
        begin = 1
        if document.question is not None:
            begin = len(pair.tokenizer(prompt_of(document), add_special_tokens=False)["input_ids"])
        row = torch.tensor([whole])
        count += len(whole) - begin
        for name, model in (("target", pair.target), ("draft", pair.draft)):
            logits = model(row).logits[0, begin - 1 : -1]
            sums[name] += float(cross_entropy(logits, row[0, begin:], reduction="sum"))
    return {name: round(total / count, 4) for name, total in sums.items()}


def evaluate(pair: Pair) -> dict[str, Any]:
    chosen = prompts()
    record: dict[str, Any] = {
        "prompts": COUNTS,
        "engines": pair.engines(),
        "loss": {
            kind: losses(pair, [d for d in documents() if d.held_out and d.kind == kind][:50])
            for kind in COUNTS
        },
        "acceptance": {},
    }
    plain = run(pair, chosen, 0, 0.0).results
    record["equal"] = True
    for temperature, gammas in GAMMAS.items():
        rows = []
        for gamma in gammas:
            made = run(pair, chosen, gamma, temperature)
            results, stats = made.results, made.stats
            if temperature == 0:
                same = all(a.tokens == b.tokens for a, b in zip(results, plain, strict=True))
                record["equal"] = record["equal"] and same
            rows.append(
                {
                    "gamma": gamma,
                    "alpha": round(made.alpha, 4),
                    "acceptance_rate": round(stats.acceptance_rate, 4),
                    "mean_acceptance_length": round(stats.mean_acceptance_length, 3),
                    "tokens": stats.emitted,
                }
            )
        record["acceptance"][str(temperature)] = rows
    return record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=BUNDLED, help="where both models are")
    options = parser.parse_args()
    pair = Pair.load(options.folder)
    record = evaluate(pair)
    path = options.folder / TARGET / "evaluation.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    names = record["engines"]
    print(
        f"{path}: equal {record['equal']}, engine {names['target']}, of the draft {names['draft']}"
    )


if __name__ == "__main__":
    main()
