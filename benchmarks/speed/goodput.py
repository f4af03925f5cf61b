"""The automatic draft length (the default) against plain decoding: at most 5 % slower.

    python -m benchmarks.speed.goodput --json goodput.json

Decodes the same recordings at several batch sizes with the pair itself and with a useless draft of
random weights. Plain and automatic runs alternate, each with a new schedule. Exit status: 0; 1 if a
token differs or automatic is slower than the bound; 2 if nothing could be measured. Run it on an idle
machine, as noise counts against the bound.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks import provenance
from benchmarks.rows import layout
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ForescribeError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import choose

SLOWER = 1.05
ENCODING = ("audio", "encode")
HEAD = (
    "draft",
    "batch",
    "plain s",
    "auto s",
    "auto / plain",
    "decoding alone",
    "accepted",
    "equal",
)

Tokens = dict[tuple[str, int], tuple[int, ...]]  # by recording and window


@dataclass(frozen=True)
class Run:
    """One pass over all recordings."""

    wall_s: float
    decoding_s: float  # without voice activity and encoder
    tokens: Tokens
    acceptance_rate: float | None


@dataclass(frozen=True)
class Compared:
    """Alternating runs, plain and automatic."""

    draft: str
    batch: int
    plain: list[Run]
    auto: list[Run]

    @property
    def equal(self) -> bool:
        return all(run.tokens == self.plain[0].tokens for run in (*self.plain, *self.auto))

    def ratio(self, what: str) -> float:
        """Automatic over plain: the median over pairs of adjacent runs, which noise affects alike."""
        pairs = zip(self.auto, self.plain, strict=True)
        return statistics.median(getattr(a, what) / getattr(p, what) for a, p in pairs)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.goodput", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    samples = sorted(map(str, (provenance.ROOT / "samples").glob("*.flac")))
    add("--model", default="tiny.en", help="preset, hub id in the cache, or folder")
    add("--draft", help="likewise; the model's own by default")
    add("--audio", nargs="+", default=samples, metavar="FILE")
    add("--batch", nargs="+", type=int, default=[1, 8])
    add("--repeats", type=int, default=5)
    add("--threads", type=int, default=torch.get_num_threads())
    add("--json", type=Path, metavar="FILE", help="where the record goes")
    return parser.parse_args(arguments)


def useless(whisper: Whisper) -> Whisper:
    """Return the pair with a draft decoder of random weights."""
    assert whisper.draft is not None
    draft = copy.deepcopy(whisper.draft)
    generator = torch.Generator().manual_seed(0)
    for weights in draft.model.decoder.parameters():
        weights.data = 0.02 * torch.randn(weights.shape, generator=generator).to(weights)
    return replace(whisper, drafts=(replace(whisper.drafts[0], model=draft),))


def run(whisper: Whisper, batch: int, gamma: int | None, audio: Sequence[str]) -> Run:
    transcriber = Transcriber(whisper, batch=batch, gamma=gamma)
    tokens: Tokens = {}
    started = time.perf_counter()
    for outcome in transcriber.transcribe(audio, Options(language="en", keep_encoder_states=True)):
        if outcome.error is not None:
            raise outcome.error
        tokens |= {(outcome.name, each.index): each.result.tokens for each in outcome.decoded}
    wall, stats = time.perf_counter() - started, transcriber.stats()
    decoding = sum(s for stage, s in stats.seconds.items() if stage not in ENCODING)
    return Run(wall, decoding, tokens, stats.acceptance_rate if stats.drafted else None)


def compare(name: str, whisper: Whisper, batch: int, options: argparse.Namespace) -> Compared:
    run(whisper, batch, None, options.audio[:1])  # warm-up: threads and memory
    compared = Compared(name, batch, [], [])
    for turn in range(options.repeats):
        pair: list[tuple[int | None, list[Run]]] = [(0, compared.plain), (None, compared.auto)]
        for gamma, runs in pair if turn % 2 else reversed(pair):
            runs.append(run(whisper, batch, gamma, options.audio))
    return compared


def table(rows: Sequence[Compared]) -> str:
    def cells(row: Compared) -> tuple[str, ...]:
        walls = [statistics.median(r.wall_s for r in runs) for runs in (row.plain, row.auto)]
        rates = [r.acceptance_rate for r in row.auto if r.acceptance_rate is not None]
        return (
            row.draft,
            str(row.batch),
            *(f"{wall:.2f}" for wall in walls),
            f"{row.ratio('wall_s'):.3f}",
            f"{row.ratio('decoding_s'):.3f}",
            f"{statistics.median(rates):.1%}" if rates else "-",
            "yes" if row.equal else "NO",
        )

    return "\n".join(layout([HEAD, *map(cells, rows)]))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    try:
        whisper = load(resolve(options.model, options.draft, "en"), choose("cpu"), network=False)
        if whisper.draft is None:
            raise ValueError(f"{options.model} has no draft")
        drafts = {"its own": whisper, "random": useless(whisper)}
        rows = [
            compare(name, each, batch, options)
            for name, each in drafts.items()
            for batch in options.batch
        ]
    except (ForescribeError, ValueError) as error:
        print(f"benchmarks.speed.goodput: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    print(f"bound: auto / plain at most {SLOWER}; medians of {options.repeats} turns")
    if options.json is not None:
        record = provenance.record("benchmarks.speed.goodput") | {"benchmark": "goodput"}
        record |= {"model": options.model, "rows": [describe(row) for row in rows]}
        options.json.write_text(json.dumps(record) + "\n")
    return int(not all(row.equal and row.ratio("wall_s") <= SLOWER for row in rows))


def describe(row: Compared) -> dict[str, object]:
    """The JSON record; tokens are counted, not listed."""

    def runs(which: Sequence[Run]) -> list[dict[str, object]]:
        return [asdict(r) | {"tokens": sum(map(len, r.tokens.values()))} for r in which]

    ratios = {what: row.ratio(what) for what in ("wall_s", "decoding_s")}
    head = {"draft": row.draft, "batch": row.batch, "equal": row.equal, "auto_over_plain": ratios}
    return head | {"plain": runs(row.plain), "auto": runs(row.auto)}


if __name__ == "__main__":
    sys.exit(main())
