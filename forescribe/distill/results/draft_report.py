"""The report of a distillation: acceptance before and after by kind and depth, speed, settings, versions.

Every figure is from the engine and stands beside the equality of its tokens with gamma 0. Knows pairs, rows
and numbers.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from forescribe.speculative.drafters.draft_tokens import DraftTokens

from ..labels.label_rows import LabelRow
from ..pairs.draft_pair import DraftPair
from .engine_runs import EngineRun, run_rows

GAMMA = 5
"""Draft length at which acceptance is reported."""

PACKAGES = ("forescribe", "torch", "transformers", "safetensors")


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


def speedup(figures: Mapping[str, KindFigures]) -> float:
    """Time of all rows without drafts over that with them, in one run each. Drawn rows differ in their
    tokens, so it is per token."""
    plain = sum(f.plain.wall_s for f in figures.values())
    drafted = sum(f.drafted.wall_s for f in figures.values())
    tokens = [sum(sum(map(len, run.tokens)) for run in runs) for runs in _runs(figures)]
    return (plain / tokens[0]) / (drafted / tokens[1])


def _runs(figures: Mapping[str, KindFigures]) -> tuple[list[EngineRun], list[EngineRun]]:
    return [f.plain for f in figures.values()], [f.drafted for f in figures.values()]


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
