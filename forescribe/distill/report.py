"""What a draft is worth: simulated from accept traces, measured in the engine, and written as a report.

The choice among checkpoints is by the tokens that a round of G drafts writes, over the time that it takes,
which loss and word errors do not say:

    max over G of E(G) / (G c + t_v(G + 1))

Every figure of the report is from the engine as it is served and stands beside the equality of its tokens
with gamma 0. Knows pairs, rows, schedules and numbers; nothing of training.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from forescribe.speculative.drafters.draft_tokens import DraftTokens
from forescribe.speculative.engine.schedule import expected_tokens
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.protocols import Poll
from forescribe.speculative.stats import Stats

from .labels import LabelRow
from .pair import DraftPair

GAMMAS = (2, 4, 6, 8)
"""Draft lengths that are priced: those of the engine's schedule up to 8."""

TIMED_ROWS = 6
"""Rows that prices are measured on: some hundreds of rounds."""

PRICE_TURNS = 2

REPEATED = 0.3
"""The share of held-out text in the training data from which the report says so. Of 9 readers of books
nothing was in the texts of 45 others."""

GAMMA = 5
"""Draft length at which acceptance is reported."""

PACKAGES = ("forescribe", "torch", "transformers", "safetensors")


@dataclass(frozen=True)
class Trace:
    """How probable it is, at each token of an answer, that the draft's own token there is accepted; 0 or 1 in
    greedy rows. `kind` is that of the row."""

    accepted: tuple[float, ...]
    greedy: bool
    kind: str


def simulated(trace: Trace, gamma: int) -> tuple[float, float]:
    """Tokens and rounds of an answer with `gamma` drafts per round.

    The drafts of a round follow the target's own text for as long as they are accepted, so the trace of that
    text decides all rounds. Greedy rounds are counted one after the other; the drawn ones by the mean tokens
    of a round that starts at any place.
    """
    accepted = trace.accepted
    if not trace.greedy:
        starts = [_expected(accepted[i : i + gamma]) for i in range(len(accepted))]
        mean = sum(starts) / len(starts)
        return float(len(accepted)), len(accepted) / mean
    place = rounds = 0
    while place < len(accepted):
        for kept in accepted[place : place + gamma]:
            if kept < 0.5:
                break
            place += 1
        place, rounds = place + 1, rounds + 1
    return float(len(accepted)), float(rounds)


def tokens_per_round(traces: Iterable[Trace], gamma: int) -> float:
    """E: over all answers together."""
    pairs = [simulated(trace, gamma) for trace in traces]
    rounds = sum(r for _, r in pairs)
    return sum(t for t, _ in pairs) / rounds if rounds else 0.0


def agreement(traces: Iterable[Trace]) -> float:
    """The mean probability that a draft after the target's own text is accepted."""
    values = [value for trace in traces for value in trace.accepted]
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True)
class Prices:
    """Seconds of a round by its number of drafts, 0 included: target, draft and all that is around them."""

    round_s: Mapping[int, float]

    def gain(self, traces: Sequence[Trace]) -> tuple[float, int]:
        """The expected speed-up over gamma 0, and the gamma that has it; (1, 0) where drafts do not pay."""
        plain = self.round_s[0]
        gains = [
            (tokens_per_round(traces, gamma) * plain / seconds, gamma)
            for gamma, seconds in sorted(self.round_s.items())
            if gamma
        ]
        return max([(1.0, 0), *gains], key=lambda pair: (pair[0], -pair[1]))

    def break_even(self) -> tuple[float, int] | None:
        """The least acceptance rate of single drafts at which drafting is as fast as gamma 0, and the gamma
        that needs no more; None where not even drafts that are always accepted pay."""
        found = [
            (_rate(seconds / self.round_s[0], gamma), gamma)
            for gamma, seconds in sorted(self.round_s.items())
            if gamma and seconds <= (gamma + 1) * self.round_s[0]
        ]
        return min(found, default=None)

    def verdict(self) -> str:
        """`break_even` in words."""
        found = self.break_even()
        if found is None:
            return (
                "no draft of this shape can pay here: a round costs more than plain decoding of all its "
                "tokens would. Fewer layers, --cut-head or another device may change that"
            )
        rate, gamma = found
        if rate < 0.01:
            return (
                "rounds with drafts took no longer than rounds without: other work on this machine disturbs "
                "the times, so that no acceptance rate can be named"
            )
        return (
            f"a draft of this shape pays from an acceptance rate of {rate:.2f} on, at gamma {gamma}"
        )

    def to_json(self) -> dict[str, float]:
        """By gamma, in milliseconds."""
        return {str(gamma): round(1e3 * s, 4) for gamma, s in sorted(self.round_s.items())}


def measured_prices(
    pair: DraftPair,
    draft: Path,
    rows: Sequence[LabelRow],
    batch: int,
    listed: DraftTokens | None = None,
    gammas: Sequence[int] = GAMMAS,
) -> Prices:
    """Times of a round at each draft length, on a few greedy rows where there are any; with the head cut to
    `listed`, which is most of the price of a draft of few layers. The lengths take turns and the lower time
    counts, as another process may slow down one turn of them."""
    chosen = ([row for row in rows if row.greedy] or list(rows))[:TIMED_ROWS]
    run_rows(pair, draft, chosen[:1], gammas[0], batch, listed)  # caches, packed weights, threads
    turns = [
        {g: run_rows(pair, draft, chosen, g, batch, listed).round_s for g in (0, *gammas)}
        for _ in range(PRICE_TURNS)
    ]
    return Prices({g: min(turn[g] for turn in turns) for g in turns[0]})


def run_rows(
    pair: DraftPair,
    draft: Path | None,
    rows: Sequence[LabelRow],
    gamma: int,
    batch: int,
    listed: DraftTokens | None = None,
) -> EngineRun:
    """Decode rows again with a draft of a folder. Raises SpeculativeError where one fails."""
    schedule = Metered(gamma)
    engine = pair.engine(draft if gamma else None, schedule, batch, listed)
    requests = (pair.request(row, number) for number, row in enumerate(rows))
    began = time.perf_counter()
    results = sorted(engine.run(requests), key=lambda r: int(r.request.tag))
    wall_s = time.perf_counter() - began
    for result in results:
        if result.error is not None or result.draft_error is not None:
            raise result.error or result.draft_error or SpeculativeError("a row failed")
    return EngineRun(
        tuple(result.tokens for result in results),
        engine.stats,
        schedule.accepted / schedule.judged if schedule.judged else 0.0,
        _low(schedule.seconds),
        wall_s,
    )


@dataclass(frozen=True)
class EngineRun:
    """What the engine wrote for some rows; `alpha` is the probability that a draft is accepted, given that
    those before it were."""

    tokens: tuple[tuple[int, ...], ...]
    stats: Stats
    alpha: float
    round_s: (
        float  # of the fastest tenth of the rounds: others wait for cores that the machine shares
    )
    wall_s: float


@dataclass
class Metered:
    """A fixed draft length, like `Fixed`, that notes the seconds of each round."""

    gamma: int
    judged: int = 0
    accepted: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def buckets(self) -> tuple[int, ...]:
        return (self.gamma,)

    def choose(self, *, sampling: bool) -> int:
        return self.gamma

    def learn(self, poll: Poll) -> None:
        self.judged += poll.judged
        self.accepted += poll.accepted
        self.seconds.append(poll.seconds / poll.rounds)


def figures_of(
    pair: DraftPair,
    drafts: Mapping[str, Path],
    rows: Sequence[LabelRow],
    batch: int,
    listed: DraftTokens | None = None,
) -> dict[str, dict[str, KindFigures]]:
    """The figures of each draft by kind. Each row is decoded once with every draft, and once without."""
    found: dict[str, dict[str, KindFigures]] = {name: {} for name in drafts}
    for kind in sorted({row.kind for row in rows}):
        chosen = [row for row in rows if row.kind == kind]
        greedy = tuple(row.greedy for row in chosen)
        plain = run_rows(pair, None, chosen, 0, batch)
        for name, draft in drafts.items():
            drafted = run_rows(pair, draft, chosen, GAMMA, batch, listed)
            found[name][kind] = KindFigures(drafted, plain, greedy)
    return found


@dataclass(frozen=True)
class KindFigures:
    """Held-out rows of one kind with one draft beside `plain`, the same rows without drafts."""

    drafted: EngineRun
    plain: EngineRun
    greedy: tuple[bool, ...]

    @property
    def equal(self) -> bool:
        """Whether greedy rows are those of gamma 0; drawn ones are other draws of the same distribution."""
        runs = zip(self.greedy, self.drafted.tokens, self.plain.tokens, strict=True)
        return all(one == other for greedy, one, other in runs if greedy)

    def to_json(self) -> dict[str, Any]:
        stats = self.drafted.stats
        return {
            "rows": len(self.greedy),
            "tokens": sum(map(len, self.drafted.tokens)),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "alpha": round(self.drafted.alpha, 4),
            "acceptance_at_depth": [round(a, 4) for a in stats.acceptance_at_depth],
            "mean_acceptance_length": round(stats.mean_acceptance_length, 4),
            "drafted_s": round(self.drafted.wall_s, 3),
            "plain_s": round(self.plain.wall_s, 3),
            "equal_to_gamma_0": self.equal,
        }


def speedup(figures: Mapping[str, KindFigures]) -> float:
    """Time of all rows without drafts over that with them, in one run each. Drawn rows differ in their
    tokens, so it is per token."""
    plain = sum(f.plain.wall_s for f in figures.values())
    drafted = sum(f.drafted.wall_s for f in figures.values())
    plain_tokens = sum(len(t) for f in figures.values() for t in f.plain.tokens)
    drafted_tokens = sum(len(t) for f in figures.values() for t in f.drafted.tokens)
    return (plain / plain_tokens) / (drafted / drafted_tokens)


def versions() -> dict[str, str]:
    """Of what decides the figures."""
    return {name: version(name) for name in PACKAGES} | {
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    rows, seconds = report["rows"], report["seconds"]
    lines = [
        "# A distilled draft",
        "",
        f"For `{report['settings']['model']}`, from `{report['start']}`: {rows['trained']} rows learnt, "
        f"{rows['held_out']} held out, {seconds['labels']:.0f} s of labels and "
        f"{seconds['training']:.0f} s of training ({report['steps']} steps).",
        *_repeated(rows),
        "",
        f"Rounds as measured before: {report['pays']}.",
        "",
        f"Held-out data through the engine at gamma {GAMMA}, batch {report['batch']}:",
        "",
        *_by_kind(report["before"], report["after"]),
        "",
        "Acceptance by depth:",
        "",
        *_by_depth(report["before"], report["after"]),
        "",
        _speed(report),
    ]
    if report["chosen"]["step"] == 0:
        lines += [
            "",
            "No checkpoint was better than the draft that training began with: this is that draft.",
        ]
    if not report["finished"]:
        lines += ["", "The training was interrupted: the same command goes on with it."]
    for skipped in report["skipped"]:
        lines += ["", f"Skipped: {skipped['name']}: {skipped['reason']}"]
    return "\n".join(lines) + "\n"


def _repeated(rows: Mapping[str, Any]) -> list[str]:
    share = rows["repeated_share"]
    if share < REPEATED:
        return []
    return [
        "",
        f"**{share:.0%} of the held-out text is in the training data too**, as of recordings that are there "
        "in several versions. The acceptance below is that of text which was learnt by heart: with new text "
        "it is lower.",
    ]


def _expected(chain: Sequence[float]) -> float:
    total, alive = 1.0, 1.0
    for probability in chain:
        alive *= probability
        total += alive
    return total


def _rate(tokens: float, gamma: int) -> float:
    """The acceptance rate with which a round of `gamma` drafts writes so many tokens on average."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if expected_tokens(middle, gamma) < tokens:
            low = middle
        else:
            high = middle
    return high


def _low(seconds: Sequence[float]) -> float:
    """The end of the fastest tenth; 0 without rounds."""
    return sorted(seconds)[len(seconds) // 10] if seconds else 0.0


def _by_kind(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    lines = [
        "| kind | rows | acceptance before | after | tokens per round before | after | equal to gamma 0 |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, new in after.items():
        old = before[kind]
        equal = "yes" if old["equal_to_gamma_0"] and new["equal_to_gamma_0"] else "**no**"
        lines.append(
            f"| {kind} | {new['rows']} | {old['acceptance_rate']:.3f} | {new['acceptance_rate']:.3f} | "
            f"{old['mean_acceptance_length']:.2f} | {new['mean_acceptance_length']:.2f} | {equal} |"
        )
    return lines


def _by_depth(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    depths = " | ".join(map(str, range(1, GAMMA + 1)))
    lines = [f"| kind | draft | {depths} |", "|---|---|" + "---|" * GAMMA]
    for kind in after:
        for name, figures in (("before", before[kind]), ("after", after[kind])):
            shares = " | ".join(f"{share:.3f}" for share in figures["acceptance_at_depth"])
            lines.append(f"| {kind} | {name} | {shares} |")
    return lines


def _speed(report: Mapping[str, Any]) -> str:
    speed, chosen = report["speedup"], report["chosen"]
    return (
        f"Speed at batch {report['batch']} and gamma {GAMMA}, one run each: {speed['before']:.2f}x plain "
        f"decoding before, {speed['after']:.2f}x after. Expected by measured rounds at gamma "
        f"{chosen['gamma']}: {chosen['expected_speedup']:.2f}x."
    )
