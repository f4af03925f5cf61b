"""What a draft is worth: simulated, measured in the engine, and written as a report.

The choice among checkpoints is by the tokens that a round of G drafts writes, over the time that it takes,
which loss and word errors do not say: `max over G of E(G) / (G c + t_v(G + 1))`. Every figure of the report
is from the engine as it is served and stands beside the equality of its tokens with gamma 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forescribe.speculative.drafters.model_drafter import DraftTokens
from forescribe.speculative.engine.schedule import Fixed, expected_tokens
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.protocols import Poll
from forescribe.speculative.requests import Stats

from .labels import LabelRow
from .speech import Pair

GAMMAS = (2, 4, 6, 8)
"""Draft lengths that are priced: those of the engine's schedule up to 8."""

TIMED_ROWS, PRICE_TURNS = 6, 2
"""Prices are measured on some hundreds of rounds, in turns."""

REPEATED = 0.3
"""The share of held-out text in the training data from which the report says so. Of 9 readers of books
nothing was in the texts of 45 others."""

GAMMA = 5
"""Draft length at which acceptance is reported."""

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
    """Held-out figures of one moment; `gain` is the expected speed-up over gamma 0."""

    step: int
    seconds: float
    gain: float
    gamma: int
    agreement: float


@dataclass(frozen=True)
class Prices:
    """Seconds of a round by its number of drafts, 0 included: target, draft and all that is around them."""

    round_s: Mapping[int, float]

    def gain(self, traces: Sequence[Trace]) -> tuple[float, int]:
        """The expected speed-up over gamma 0, and the gamma that has it; (1, 0) where drafts do not pay."""
        gains = [
            (tokens_per_round(traces, gamma) * self.round_s[0] / seconds, gamma)
            for gamma, seconds in sorted(self.round_s.items())
            if gamma
        ]
        return max([(1.0, 0), *gains], key=lambda pair: (pair[0], -pair[1]))

    def verdict(self) -> str:
        """The least acceptance rate of single drafts at which drafting is as fast as gamma 0, in words."""
        found = [
            (_rate(seconds / self.round_s[0], gamma), gamma)
            for gamma, seconds in sorted(self.round_s.items())
            if gamma and seconds <= (gamma + 1) * self.round_s[0]
        ]
        if not found:
            return (
                "no draft of this shape can pay here: a round costs more than plain decoding of all its "
                "tokens would. Fewer layers, --cut-head or another device may change that"
            )
        rate, gamma = min(found)
        if rate < 0.01:
            return (
                "rounds with drafts took no longer than rounds without: other work on this machine disturbs "
                "the times, so that no acceptance rate can be named"
            )
        return (
            f"a draft of this shape pays from an acceptance rate of {rate:.2f} on, at gamma {gamma}"
        )


def _rate(tokens: float, gamma: int) -> float:
    """The acceptance rate with which a round of `gamma` drafts writes so many tokens on average."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, gamma) < tokens else (low, middle)
    return high


def measured_prices(
    pair: Pair, draft: Path, rows: Sequence[LabelRow], batch: int, listed: DraftTokens | None
) -> Prices:
    """Times of a round at each draft length, with the head cut to `listed`, which is most of the price of a
    draft of few layers. The lengths take turns and the lower time counts, as another process may slow down
    one turn of them."""
    chosen = rows[:TIMED_ROWS]
    run_rows(pair, draft, chosen[:1], GAMMAS[0], batch, listed)  # caches, packed weights, threads
    turns = [
        {g: run_rows(pair, draft, chosen, g, batch, listed).round_s for g in (0, *GAMMAS)}
        for _ in range(PRICE_TURNS)
    ]
    return Prices({g: min(turn[g] for turn in turns) for g in turns[0]})


@dataclass(frozen=True)
class EngineRun:
    """What the engine wrote for some rows. `round_s` is of the fastest tenth of the rounds: others wait for
    cores that the machine shares."""

    tokens: tuple[tuple[int, ...], ...]
    stats: Stats
    round_s: float
    wall_s: float

    def record(self, plain: EngineRun) -> dict[str, Any]:
        return {
            "acceptance_rate": round(self.stats.acceptance_rate, 4),
            "acceptance_at_depth": [round(a, 4) for a in self.stats.acceptance_at_depth],
            "mean_acceptance_length": round(self.stats.mean_acceptance_length, 4),
            "speedup": round(plain.wall_s / self.wall_s, 3),
            "equal_to_gamma_0": self.tokens == plain.tokens,
        }


@dataclass(frozen=True)
class Metered(Fixed):
    """Notes the seconds of each round."""

    seconds: list[float] = field(default_factory=list)

    def learn(self, poll: Poll) -> None:
        self.seconds.append(poll.seconds / poll.rounds)


def run_rows(
    pair: Pair,
    draft: Path | None,
    rows: Sequence[LabelRow],
    gamma: int,
    batch: int,
    listed: DraftTokens | None = None,
) -> EngineRun:
    """Decode rows again with a draft of a folder. Raises SpeculativeError where one fails."""
    schedule = Metered(gamma)
    engine = pair.engine(draft if gamma else None, schedule, batch, listed)
    began = time.perf_counter()
    requests = (pair.request(row, number) for number, row in enumerate(rows))
    results = sorted(engine.run(requests), key=lambda r: int(r.request.tag))
    wall_s = time.perf_counter() - began
    for result in results:
        if result.error is not None or result.draft_error is not None:
            raise result.error or result.draft_error or SpeculativeError("a row failed")
    seconds = sorted(schedule.seconds)
    round_s = seconds[len(seconds) // 10] if seconds else 0.0
    return EngineRun(tuple(result.tokens for result in results), engine.stats, round_s, wall_s)


def figures_of(
    pair: Pair,
    drafts: Mapping[str, Path],
    rows: Sequence[LabelRow],
    batch: int,
    listed: DraftTokens | None,
) -> dict[str, Any]:
    """The figures of each draft on held-out rows, which are decoded once with it, and once without any."""
    plain = run_rows(pair, None, rows, 0, batch)
    return {
        name: run_rows(pair, draft, rows, GAMMA, batch, listed).record(plain)
        for name, draft in drafts.items()
    }


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    rows, seconds, chosen = report["rows"], report["seconds"], report["chosen"]
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
        f"Rounds as measured before: {report['pays']}. Expected of this draft: {chosen['gain']:.2f}x plain "
        f"decoding at gamma {chosen['gamma']}.",
        f"Held-out data through the engine at gamma {GAMMA}, batch {report['batch']}, one run each:",
        "\n".join(table),
    ]
    if rows["repeated_share"] >= REPEATED:
        parts.append(
            f"**{rows['repeated_share']:.0%} of the held-out text is in the training data too**, as of "
            "recordings that are there in several versions. The acceptance above is that of text which was "
            "learnt by heart: with new text it is lower."
        )
    if chosen["step"] == 0 and report["steps"]:
        parts.append(
            "No checkpoint was better than the draft that training began with: this is that draft."
        )
    if not report["finished"]:
        parts.append("The training was interrupted: the same command goes on with it.")
    parts += [f"Skipped: {each['name']}: {each['reason']}" for each in report["skipped"]]
    return "\n\n".join(parts) + "\n"
