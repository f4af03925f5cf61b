"""Write bundled/README.md from the measured numbers.

    python -m training.demo.card

Reads bundled/demo/evaluation.json and training-log.jsonl and fills card.md.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from string import Template
from typing import Any

from safetensors import safe_open

from training.paths import BUNDLED

TEMPLATE = Path(__file__).parent / "card.md"
BOUNDS = {"domain": 0.04, "open": 0.10, "acceptance": 0.75}


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def verdict(value: float, bound: float, *, at_least: bool = False) -> str:
    met = value >= bound if at_least else value <= bound
    return "met" if met else "**missed**"


def voices_table(result: dict[str, Any]) -> str:
    rows = ["| voice | domain | open |", "|---|---|---|"]
    for voice, wer in result["domain"]["wer_per_voice"].items():
        rows.append(
            f"| {voice} | {percent(wer)} | {percent(result['open']['wer_per_voice'][voice])} |"
        )
    return "\n".join(rows)


def summary_table(result: dict[str, Any]) -> str:
    rows = ["| measured | aim | result | |", "|---|---|---|---|"]
    for name, what in (("domain", "domain sentences"), ("open", "ordinary sentences")):
        wer = result[name]["wer"]
        rows.append(
            f"| word error rate, {what} ({result[name]['words']} words) | at most "
            f"{percent(BOUNDS[name])} | {percent(wer)} | {verdict(wer, BOUNDS[name])} |"
        )
        rate = result[name]["acceptance"]
        length = result[name]["mean_acceptance_length"]
        rows.append(
            f"| acceptance at gamma 5, {what} | at least 0.75 | {rate:.3f} "
            f"(mean acceptance length {length:.2f}) "
            f"| {verdict(rate, BOUNDS['acceptance'], at_least=True)} |"
        )
    quiet = result["quiet"]
    rows.append(
        f"| words on silence and {quiet['kinds'] - 1} kinds of noise, 60 s each | 0 "
        f"| {quiet['words']} | {verdict(quiet['words'], 0)} |"
    )
    return "\n".join(rows)


def quiet_list(result: dict[str, Any]) -> str:
    loud = {k: n for k, n in result["quiet"].items() if k not in ("kinds", "words")}
    if not loud:
        return "No kind of silence or noise made it write a word."
    return "Words were written on: " + ", ".join(f"{k} ({n})" for k, n in loud.items()) + "."


def examples(result: dict[str, Any]) -> str:
    lines = []
    for said, written in result["open"]["examples"][:3]:
        lines.append(f"- said: {said}\n  written: {written}")
    return "\n".join(lines)


def kept_log() -> tuple[list[dict[str, Any]], int]:
    """Return the log lines that led to the weights, and the number of resumptions.

    After a restart the log continues at the checkpoint's step; lines in between are not part of the
    weights. A line with `skip` marks a run that started from the weights of an earlier one.
    """
    path = BUNDLED / "demo" / "training-log.jsonl"
    lines: list[dict[str, Any]] = []
    resumed = 0
    for line in map(json.loads, path.read_text().splitlines()):
        resumed += "skip" in line or bool(lines and line["step"] < lines[-1]["step"])
        lines = [*(old for old in lines if old["step"] < line["step"]), line]
    return lines, resumed


def minutes_beside(log: list[dict[str, Any]]) -> float:
    """Minutes for which the draft was trained with the target."""
    first = next(i for i, line in enumerate(log) if "draft" in line)
    return float(log[-1]["minutes"] - log[max(0, first - 1)]["minutes"])


def hours_heard(log: list[dict[str, Any]]) -> float:
    """Hours of audio, from the speed between lines."""
    pairs = zip(log, log[1:], strict=False)
    return sum((b["minutes"] - a["minutes"]) * b.get("speed", 0) for a, b in pairs) / 60


def shape(name: str) -> tuple[int, str]:
    """Decoder layers and millions of parameters of a bundled model."""
    folder = BUNDLED / name
    layers: int = json.loads((folder / "config.json").read_text())["decoder_layers"]
    with safe_open(folder / "model.safetensors", "np") as weights:
        total = sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())
    return layers, f"{total / 1e6:.1f}"


def main() -> None:
    target_layers, target_size = shape("demo")
    draft_layers, draft_size = shape("demo-draft")
    result = json.loads((BUNDLED / "demo" / "evaluation.json").read_text())
    log, resumed = kept_log()
    times = f"{resumed} time" + "s" * (resumed != 1)
    draft_log = (BUNDLED / "demo-draft" / "training-log.jsonl").read_text().splitlines()
    draft = json.loads(draft_log[-1])
    text = Template(TEMPLATE.read_text("utf-8")).substitute(
        summary=summary_table(result),
        voices=voices_table(result),
        quiet=quiet_list(result),
        examples=examples(result),
        target_layers=target_layers,
        target_size=target_size,
        draft_layers=draft_layers,
        draft_size=draft_size,
        steps=log[-1]["step"],
        minutes=round(log[-1]["minutes"]),
        beside=round(minutes_beside(log)),
        seen=10 * round(hours_heard(log) / 10),
        resumed=f"It was resumed from a checkpoint {times}, with changed settings; the scripts carry "
        "the last ones." * bool(resumed),
        draft_steps=draft["step"],
        draft_minutes=round(draft["minutes"]),
        hours=round(max(line.get("hours", 0) for line in log)),
    )
    (BUNDLED / "README.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
