"""One forward and one round of a decoder, by every engine, in turns.

    python -m benchmarks.speed.decoder --json decoder.json

The target's forward at ragged lengths, and whole rounds with drafts, for the bundled pairs. transformers'
modules come first; the others are compared with them: the argmax of every position, the largest difference of
a logit, and all tokens of the texts. Exit status: 0; 1 if a token differs. Run it on an idle machine, and
compare figures within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import provenance
from benchmarks.rows import layout
from forescribe.speculative.models.engines import ModelEngine

from . import forward, rounds
from .forward import ForwardRow
from .pairs import PAIRS
from .rounds import RoundRow
from .turns import distinct

ENGINES = tuple(engine for engine in ModelEngine if engine is not ModelEngine.AUTO)

FORWARD = ("pair", "engine", "batch", "N", "threads", "ms", "x modules", "argmax equal", "largest")
ROUND = (
    "pair",
    "engine",
    "batch",
    "gamma",
    "threads",
    "ms per round",
    "tokens",
    "ms per token",
    "x modules",
    "prefill ms",
    "equal",
)


def measure(options: argparse.Namespace) -> tuple[list[ForwardRow], list[RoundRow]]:
    """All rows of the chosen pairs."""
    forwards: list[ForwardRow] = []
    whole: list[RoundRow] = []
    for name in options.pairs:
        pair = PAIRS[name]()
        names = [e for e in pair.engines if e in (ModelEngine.MODULES, *options.engines)]
        _, written = rounds.decoded(pair, ModelEngine.MODULES, 1, 0)
        plain = {rounds.origin(tag): tokens for tag, tokens in written.items()}
        for batch in options.batch:
            shared = {"batch": batch, "threads": options.threads, "turns": options.turns}
            forwards += forward.measure(pair, name, names, plain, nodes=options.nodes, **shared)
            shared["turns"] = options.repeats
            whole += rounds.measure(pair, name, names, plain, gammas=options.gamma, **shared)
    return forwards, whole


def forward_table(rows: Sequence[ForwardRow]) -> str:
    """The table of forwards; `x modules` is the speed relative to them with as many threads."""
    base = {
        (r.pair, r.batch, r.nodes, r.threads): r.ms for r in rows if r.engine == ModelEngine.MODULES
    }
    cells = [
        (
            r.pair,
            r.engine.value,
            str(r.batch),
            str(r.nodes),
            str(r.threads),
            f"{r.ms:.2f}",
            f"{base[r.pair, r.batch, r.nodes, r.threads] / r.ms:.2f}",
            f"{r.argmax_equal} of {r.positions}",
            f"{r.largest_difference:.1e}",
        )
        for r in rows
    ]
    return "\n".join(layout([FORWARD, *cells]))


def round_table(rows: Sequence[RoundRow]) -> str:
    """The table of rounds."""
    base = {
        (r.pair, r.batch, r.gamma, r.threads): r.ms_per_token
        for r in rows
        if r.engine == ModelEngine.MODULES
    }
    cells = [
        (
            r.pair,
            r.engine.value,
            str(r.batch),
            "auto" if r.gamma is None else str(r.gamma),
            str(r.threads),
            f"{r.ms_per_round:.2f}",
            f"{r.tokens_per_round:.2f}",
            f"{r.ms_per_token:.2f}",
            f"{base[r.pair, r.batch, r.gamma, r.threads] / r.ms_per_token:.2f}",
            f"{r.prefill_ms:.1f}",
            f"{r.texts_equal} of {r.texts}",
        )
        for r in rows
    ]
    return "\n".join(layout([ROUND, *cells]))


def numbers(text: str) -> tuple[int, ...]:
    return distinct(int(part) for part in text.split(","))


def gammas(text: str) -> tuple[int | None, ...]:
    return tuple(None if part == "auto" else int(part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    given = argparse.ArgumentParser(prog="python -m benchmarks.speed.decoder")
    given.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    given.add_argument("--engines", nargs="+", type=ModelEngine, default=list(ENGINES))
    given.add_argument("--batch", type=numbers, default=(1, 8))
    given.add_argument("--nodes", type=numbers, default=(1, 6, 12))
    given.add_argument("--gamma", type=gammas, default=(0, 5))
    given.add_argument("--threads", type=numbers, default=distinct((1, cores or 1)))
    given.add_argument("--turns", type=int, default=20, help="of a forward; the best counts")
    given.add_argument("--repeats", type=int, default=1, help="of a decoding; the median counts")
    given.add_argument("--json", type=Path)
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    forwards, whole = measure(options)
    print(forward_table(forwards), round_table(whole), sep="\n\n")
    differing = [r for r in forwards if r.argmax_equal < r.positions]
    unequal = [r for r in whole if r.texts_equal < r.texts]
    print("\nall tokens equal" if not differing and not unequal else "\nTOKENS DIFFER")
    if options.json is not None:
        record = provenance.record("benchmarks.speed.decoder") | {
            "forwards": [asdict(r) for r in forwards],
            "rounds": [asdict(r) for r in whole],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 1 if differing or unequal else 0


if __name__ == "__main__":
    sys.exit(main())
