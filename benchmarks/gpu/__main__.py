"""Everything that a card can show, in one command without network.

    python -m benchmarks.gpu --everything --json gpu.json     # the first CUDA card, 12 minutes at most
    python -m benchmarks.gpu --json gpu.json                  # without recordings, in less than ten
    python -m benchmarks.gpu --everything --small --device cpu                      # a rehearsal

The record is written after each section, and `--continue` runs those that it lacks. Models are constructed
(see `benchmarks.gpu.construction`) except in the sections `real`, `service` and `live`. Exit status 1 where a
text differs, 2 where a section or figure failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from benchmarks import provenance
from benchmarks.gpu.dimensions import KNOWN, LARGE_V3, SMALL
from benchmarks.gpu.report import Section, card, failures, run, table
from benchmarks.gpu.sections import Bench, Record, build, equality, memory
from benchmarks.gpu.timings import bandwidth, beams, encoder, end_to_end, rounds
from benchmarks.gpu.whole import live, real, service
from forescribe.speculative.device import at_most, choose
from forescribe.speculative.errors import DeviceError

SECTIONS = {
    "build": Section(build, 60),
    "bandwidth": Section(bandwidth, 10),
    "equality": Section(equality, 90),
    "encoder": Section(encoder, 20),
    "rounds": Section(rounds, 140),
    "beams": Section(beams, 50),
    "end to end": Section(end_to_end, 140),
}
"""Sections in their order, with seconds; together less than ten minutes."""

EVERYTHING = {
    "build": SECTIONS["build"],
    "real": Section(real, 110),
    "equality": Section(equality, 40),
    "service": Section(service, 80),
    "live": Section(live, 60),
    "memory": Section(memory, 20),
    "bandwidth": SECTIONS["bandwidth"],
    "encoder": SECTIONS["encoder"],
    "rounds": SECTIONS["rounds"],
    "beams": SECTIONS["beams"],
    "end to end": SECTIONS["end to end"],
}
"""With recordings, transcripts and the service: what is worth most first, as the last may find no time."""

TWELVE_MINUTES = 720.0
REHEARSAL_S = 1200.0
SAMPLES = provenance.ROOT / "samples"


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
        choices=list(EVERYTHING),
        metavar="NAME",
        help="by default those without recordings",
    )
    made.add_argument(
        "--everything", action="store_true", help="all sections, what is worth most first"
    )
    made.add_argument(
        "--seconds", type=float, metavar="S", help="for all together; everything: 720"
    )
    made.add_argument(
        "--real",
        nargs="+",
        default=["tiny.en"],
        metavar="MODEL",
        help="published weights: names or folders  [default: the bundled tiny.en]",
    )
    made.add_argument(
        "--voices", type=Path, metavar="FOLDER", help="recordings of people  [default: samples]"
    )
    made.add_argument(
        "--expected",
        type=Path,
        default=Path(os.devnull),
        metavar="FILE",
        help="what a CPU writes of the voices: read, or computed and written where it is not there",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    made.add_argument(
        "--continue",
        dest="goes_on",
        action="store_true",
        help="leave out the sections that FILE has from an earlier run",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    known_options = parser()
    options = known_options.parse_args(arguments)
    names = options.sections or list(EVERYTHING if options.everything else SECTIONS)
    known = EVERYTHING | SECTIONS
    dimensions = SMALL if options.small else KNOWN[options.dimensions]
    batches = options.batches or ((1, 2, 4) if options.small else (1, 4, 8, 16, 32, 64))
    voices = sorted((options.voices or SAMPLES).glob("*.flac"))
    try:
        device = choose(options.device, options.dtype)
    except DeviceError as error:
        known_options.error(str(error))
    if not voices:
        known_options.error(f"--voices {options.voices}: no FLAC file there")
    if options.goes_on and options.json is None:
        known_options.error("--continue needs --json FILE, the record of the earlier run")
    bench = Bench(
        dimensions=dimensions,
        device=device,
        batches=tuple(batches),
        tokens=min(options.tokens, 40) if options.small else options.tokens,
        small=options.small,
        real=options.real,
        voices=voices[:1] if options.small else voices,
        expected=options.expected,
    )
    record: Record = provenance.record("benchmarks.gpu") | {
        "benchmark": "gpu",
        "weights": "constructed: agreement is set, tokens mean nothing",
        "dimensions": dimensions.__dict__,
        "device": bench.device.name,
        "card": card(bench.device),
        "dtype": str(bench.device.dtype),
        "sections": {},
        "unequal": [],
        "failed": [],
    }
    if options.goes_on and options.json.is_file():
        record |= json.loads(options.json.read_text(encoding="utf-8"))
    unequal_before = list(record["unequal"])

    def told(name: str, found: Record) -> None:
        record["sections"][name] = found
        record["unequal"] = unequal_before + bench.unequal
        record["failed"] = list(failures(record["sections"]))
        if options.json is not None:
            save(options.json, record)

    # Models are built again for the sections that are left.
    left = {n: known[n] for n in names if n not in done(record["sections"]) or n == "build"}
    whole_s = TWELVE_MINUTES if options.everything and not options.small else math.inf
    if options.small:  # a rehearsal is for what the program does, however busy the machine is
        left = {name: replace(section, seconds=REHEARSAL_S) for name, section in left.items()}
    # Tiny operators on two threads of a busy machine take a hundred times as long: helpers that sleep.
    alone = options.small and device.kind == "cpu"
    with at_most(1) if alone else nullcontext():
        run(bench, left, seconds=options.seconds or whole_s, told=told)
    print(table(record))
    return 1 if record["unequal"] else 2 if record["failed"] else 0


def done(sections: Mapping[str, Record]) -> set[str]:
    """Those that have been measured without an error."""
    failed = {each.partition(", ")[0] for each in failures(sections)}
    return {name for name, found in sections.items() if "left out" not in found} - failed


def save(path: Path, record: Mapping[str, object]) -> None:
    """Writes it whole or not at all: a run may be ended at any time."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())
