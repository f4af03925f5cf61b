"""Everything that a card can show, in one command of less than ten minutes and without network.

    python -m benchmarks.gpu --json gpu.json                         # the first CUDA card
    python -m benchmarks.gpu --device cpu --small                    # the whole program in 20 s
    python -m benchmarks.gpu --device cpu --dtype bfloat16 --sections decoding

Models are constructed (see `benchmarks.gpu.construction`): every table says so. Exit status 1 where a text
differs, 2 where a section failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks import provenance
from benchmarks.gpu.decoding import decoding
from benchmarks.gpu.dimensions import KNOWN, LARGE_V3, SMALL
from benchmarks.gpu.report import Section, card, run, table
from benchmarks.gpu.sections import Bench, build, end_to_end, equality
from benchmarks.gpu.timings import bandwidth, encoder, kernels, prefill, rounds
from forescribe.speculative.device import at_most, can_set, choose
from forescribe.speculative.errors import DeviceError

SECTIONS = {
    "build": Section(build, 60),
    "bandwidth": Section(bandwidth, 10),
    "equality": Section(equality, 90),
    "encoder": Section(encoder, 20),
    "prefill": Section(prefill, 20),
    "rounds": Section(rounds, 140),
    "end to end": Section(end_to_end, 140),
    "kernels": Section(kernels, 30),
}
"""Sections in their order, with seconds; together less than ten minutes."""

ON_REQUEST = {"decoding": Section(decoding, 500)}
"""Sections that run only when they are named."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    made.add_argument("--device", default="cuda", help="cuda, cuda:N, hpu or cpu")
    made.add_argument("--dtype", help="float16, bfloat16 or float32; by default the device's")
    made.add_argument("--small", action="store_true", help="tiny dimensions, to try the program")
    made.add_argument("--dimensions", choices=sorted(KNOWN), default=LARGE_V3.name)
    made.add_argument("--batches", type=int, nargs="+", metavar="N", help="by default 1 to 64")
    made.add_argument("--tokens", type=int, default=120, help="of a text, at most")
    made.add_argument(
        "--sections",
        nargs="+",
        choices=[*SECTIONS, *ON_REQUEST],
        metavar="NAME",
        help="by default all",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    known_options = parser()
    options = known_options.parse_args(arguments)
    dimensions = SMALL if options.small else KNOWN[options.dimensions]
    batches = options.batches or ((1, 2, 4) if options.small else (1, 4, 8, 16, 32, 64))
    try:
        device = choose(options.device, options.dtype)
    except DeviceError as error:
        known_options.error(str(error))
    bench = Bench(
        dimensions=dimensions,
        device=device,
        batches=tuple(batches),
        tokens=min(options.tokens, 40) if options.small else options.tokens,
    )
    known = SECTIONS | ON_REQUEST
    sections = {name: known[name] for name in options.sections or SECTIONS}
    # Tiny operators on two threads of a busy machine take a hundred times as long: helpers that sleep.
    alone = options.small and device.kind == "cpu" and can_set()
    with at_most(1) if alone else nullcontext():
        found, failed = run(bench, sections)
    record = provenance.record("benchmarks.gpu") | {
        "benchmark": "gpu",
        "weights": "constructed: agreement is set, tokens mean nothing",
        "dimensions": dimensions.__dict__,
        "device": bench.device.name,
        "card": card(bench.device),
        "dtype": str(bench.device.dtype),
        "sections": found,
        "unequal": bench.unequal,
        "failed": failed,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record))
    return 1 if bench.unequal else 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
