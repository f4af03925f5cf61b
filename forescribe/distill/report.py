"""What a draft is worth: simulated, measured in the engine, and written as a report.

The choice among checkpoints is by the tokens that a round of drafts writes, which loss and word errors do
not say. Every figure of the report is from the engine as it is served and stands beside the equality of its
tokens with gamma 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forescribe.speculative.drafters.model_drafter import DraftTokens
from forescribe.speculative.engine.schedule import Fixed
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Stats

from .labels import LabelRow
from .speech import Pair

GAMMA = 5
"""Draft length at which drafts are compared and reported."""

Trace = list[bool]
"""At each token of an answer, whether the draft's own token there is the target's."""


def tokens_per_round(traces: Iterable[Trace], gamma: int) -> float:
    """E with `gamma` drafts per round, over all answers together. The drafts of a round follow the target's
    own text for as long as they are accepted, so the trace of that text decides all rounds."""
    tokens = rounds = 0
    for trace in traces:
        place = 0
        while place < len(trace):
            kept = 0
            while kept < gamma and place + kept < len(trace) and trace[place + kept]:
                kept += 1
            place, rounds = place + kept + 1, rounds + 1
        tokens += len(trace)
    return tokens / rounds if rounds else 0.0


def agreement(traces: Iterable[Trace]) -> float:
    """The share of tokens at which both choose the same."""
    values = [value for trace in traces for value in trace]
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True)
class Evaluation:
    """Held-out figures of one moment, simulated: tokens per round, and the share of equal choices."""

    step: int
    seconds: float
    tokens: float
    agreement: float


@dataclass(frozen=True)
class EngineRun:
    """What the engine wrote for some rows."""

    tokens: tuple[tuple[int, ...], ...]
    stats: Stats
    wall_s: float


def run_rows(
    pair: Pair,
    draft: Path | None,
    rows: Sequence[LabelRow],
    gamma: int,
    batch: int,
    listed: DraftTokens | None = None,
) -> EngineRun:
    """Decode rows again with a draft of a folder. Raises SpeculativeError where one fails."""
    engine = pair.engine(draft if gamma else None, Fixed(gamma), batch, listed)
    began = time.perf_counter()
    requests = (pair.request(row, number) for number, row in enumerate(rows))
    results = sorted(engine.run(requests), key=lambda r: int(r.request.tag))
    wall_s = time.perf_counter() - began
    for result in results:
        if result.error is not None or result.draft_error is not None:
            raise result.error or result.draft_error or SpeculativeError("a row failed")
    return EngineRun(tuple(result.tokens for result in results), engine.stats, wall_s)


def figures_of(
    pair: Pair, drafts: Mapping[str, Path], rows: Sequence[LabelRow], listed: DraftTokens | None
) -> dict[str, Any]:
    """The figures of each draft on held-out rows, which are decoded one by one with it, and without any."""
    run_rows(pair, None, rows[:1], 0, 1)  # caches, packed weights, threads
    plain = run_rows(pair, None, rows, 0, 1)
    figures: dict[str, Any] = {}
    for name, draft in drafts.items():
        run = run_rows(pair, draft, rows, GAMMA, 1, listed)
        figures[name] = {
            "acceptance_rate": round(run.stats.acceptance_rate, 4),
            "acceptance_at_depth": [round(a, 4) for a in run.stats.acceptance_at_depth],
            "mean_acceptance_length": round(run.stats.mean_acceptance_length, 4),
            "speedup": round(plain.wall_s / run.wall_s, 3),
            "equal_to_gamma_0": run.tokens == plain.tokens,
        }
    return figures


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    rows, seconds = report["rows"], report["seconds"]
    depths = " | ".join(map(str, range(1, GAMMA + 1)))
    table = [
        f"| draft | acceptance | tokens per round | speed | equal to gamma 0 | depth {depths} |",
        "|---|---|---|---|---|" + "---|" * GAMMA,
    ]
    for name in ("before", "after"):
        new = report[name]
        shares = " | ".join(f"{share:.3f}" for share in new["acceptance_at_depth"])
        table.append(
            f"| {name} | {new['acceptance_rate']:.3f} | {new['mean_acceptance_length']:.2f} | "
            f"{new['speedup']:.2f} | {'yes' if new['equal_to_gamma_0'] else '**no**'} | {shares} |"
        )
    parts = [
        "# A distilled draft",
        f"For `{report['settings']['model']}`, from `{report['start']}`: {rows['trained']} windows learnt, "
        f"{rows['held_out']} held out, {seconds['labels']:.0f} s of labels and "
        f"{seconds['training']:.0f} s of training ({report['steps']} steps).",
        f"Held-out data through the engine at gamma {GAMMA}, batch 1, one run each:",
        "\n".join(table),
    ]
    if not report["finished"]:
        parts.append("The training was interrupted: the same command goes on with it.")
    parts += [f"Skipped: {each['name']}: {each['reason']}" for each in report["skipped"]]
    return "\n\n".join(parts) + "\n"
