"""Write bundled/text/README.md from the measured numbers.

    python -m training.text.card

Reads evaluation.json and the training logs next to the weights and fills card.md.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from string import Template
from typing import Any

from training.paths import BUNDLED
from training.text import model as pair
from training.text.corpus import REPEATS, documents
from training.text.export import DRAFT, TARGET
from training.text.tokenizer import load, text_of
from training.text.train import GROW_AT

TEMPLATE = Path(__file__).parent / "card.md"
AIM = 0.8
SHOWN = (1, 2, 4, 8)
KINDS = {
    "definition": "definitions",
    "example": "examples",
    "minutes": "minutes",
    "plain": "plain sentences",
}


def acceptance_table(record: dict[str, Any]) -> str:
    """One row per temperature, with acceptance rate and mean length per gamma."""
    heads = [f"gamma {g}: kept, length" for g in SHOWN]
    lines = [f"| temperature | alpha | {' | '.join(heads)} |", "|---|---|" + "---|" * len(SHOWN)]
    for temperature, rows in record["acceptance"].items():
        found = {row["gamma"]: row for row in rows}
        cells = [
            f"{found[g]['acceptance_rate']:.3f}, {found[g]['mean_acceptance_length']:.2f}"
            for g in SHOWN
        ]
        lines.append(f"| {temperature} | {found[4]['alpha']:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kinds_table(record: dict[str, Any]) -> str:
    lines = [f"| temperature | {' | '.join(KINDS.values())} |", "|---|" + "---|" * len(KINDS)]
    for temperature, rows in record["acceptance"].items():
        kept = next(row["by_kind"] for row in rows if row["gamma"] == 4)
        lines.append(f"| {temperature} | {' | '.join(f'{kept[k]:.3f}' for k in KINDS)} |")
    return "\n".join(lines)


def losses_table(record: dict[str, Any]) -> str:
    lines = [f"| | {' | '.join(KINDS.values())} |", "|---|" + "---|" * len(KINDS)]
    for name in ("target", "draft"):
        cells = [f"{record['loss'][kind][name]:.2f}" for kind in KINDS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def written(record: dict[str, Any]) -> str:
    """Prompts and answers without special tokens."""
    parts = []
    for _, prompt, answer in [*record["glossary"]["written"][:2], *record["written"]]:
        for sign in ("<|begin|>", "<|user|>", "<|end|>", "<|assistant|>"):
            prompt = prompt.replace(sign, "")
        parts.append(f"> **{prompt}**\n>\n> " + answer.strip().replace("\n", "  \n> "))
    return "\n\n".join(parts)


def tokens_by_kind() -> Counter[str]:
    """Tokens of one pass over the training documents, by kind."""
    known = [d for d in documents() if not d.held_out]
    ids = load()([text_of(d) for d in known], add_special_tokens=False)["input_ids"]
    counts: Counter[str] = Counter()
    for document, row in zip(known, ids, strict=True):
        counts[document.kind] += len(row)
    return counts


def kept_log(path: Path) -> tuple[list[dict[str, Any]], float, int]:
    """Return the log lines that led to the weights, the CPU seconds, and the number of resumptions.

    After a restart the log continues at the checkpoint's step; lines in between are not part of the
    weights, but their CPU time counts.
    """
    lines: list[dict[str, Any]] = []
    seconds, before, resumed = 0.0, 0.0, 0
    for line in map(json.loads, path.read_text("utf-8").splitlines()):
        if lines and line["step"] < lines[-1]["step"]:
            seconds, before, resumed = seconds + before, 0.0, resumed + 1
            lines = [old for old in lines if old["step"] < line["step"]]
        before = line.get("cpu_seconds", before)
        lines.append(line)
    return lines, seconds + before, resumed


def main() -> None:
    folder = BUNDLED / TARGET
    record = json.loads((folder / "evaluation.json").read_text("utf-8"))
    log, processor, resumed = kept_log(folder / "training-log.jsonl")
    draft = kept_log(BUNDLED / DRAFT / "training-log.jsonl")[0][-1]
    kept = next(r for r in record["acceptance"]["0.0"] if r["gamma"] == 4)["acceptance_rate"]
    counts = tokens_by_kind()
    sizes = [f.stat().st_size for n in (TARGET, DRAFT) for f in (BUNDLED / n).iterdir()]
    text = Template(TEMPLATE.read_text("utf-8")).substitute(
        layers=pair.LAYERS,
        few=pair.FEW,
        grow=round(100 * GROW_AT),
        deep=log[-1]["step"] - max(line["step"] for line in log if line.get("layers") == pair.FEW),
        target_size=f"{record['parameters']['target'] / 1e6:.1f}",
        draft_size=f"{record['parameters']['draft'] / 1e6:.1f}",
        prompts=sum(record["prompts"].values()),
        by_kind=", ".join(f"{n} {KINDS[kind]}" for kind, n in record["prompts"].items()),
        equal="yes, all" if record["equal"] else "NO",
        acceptance=acceptance_table(record),
        verdict=f"{kept:.3f}, {'met' if kept >= AIM else 'missed'}",
        kinds=kinds_table(record),
        losses=losses_table(record),
        different=f"{100 * record['different_answers']:.0f} %",
        written=written(record),
        minutes=round(log[-1]["minutes"]),
        processor=f"{processor / 60:.0f} minutes",
        seen=f"{sum(line.get('tokens', 0) for line in log) / 1e6:.1f}",
        resumed=f"It was resumed ({resumed}), with another mixture of text; the scripts carry the last."
        * bool(resumed),
        asked=record["glossary"]["asked"],
        right=record["glossary"]["right"],
        glossary_kept=", ".join(f"{k:.3f}" for k in record["glossary"]["kept"].values()),
        glossary_loss=f"{record['glossary']['loss']['target']:.2f}",
        steps=log[-1]["step"],
        draft_minutes=round(draft["minutes"]),
        texts=draft["texts"],
        wordnet=round((counts["definition"] + counts["example"]) / 1000),
        glossary=round(counts["glossary"] * REPEATS / 2 / 1000),
        minute_tokens=round(counts["minutes"] / 1000),
        plain=round(counts["plain"] / 1000),
        megabytes=f"{sum(sizes) / 1e6:.0f}",
    )
    (folder / "README.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
