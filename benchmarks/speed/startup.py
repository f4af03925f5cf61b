"""The time of `forescribe --help`.

    python -m benchmarks.speed.startup

Exit status 1 if the median exceeds the bound (half a second).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import provenance


def command() -> list[str]:
    """The installed script of this environment, as a user would start it."""
    script = Path(sys.executable).with_name("forescribe")
    if script.is_file():
        return [str(script), "--help"]
    return [sys.executable, "-c", "from forescribe.cli.main import main; main()", "--help"]


def wall_s() -> float:
    started = time.perf_counter()
    subprocess.run(command(), check=True, capture_output=True, cwd=provenance.ROOT)
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.startup")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--bound", type=float, default=0.5, help="seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the record goes")
    options = parser.parse_args(arguments)
    wall_s()  # the first run compiles bytecode and fills the page cache
    walls = [wall_s() for _ in range(options.runs)]
    median = statistics.median(walls)
    print(
        f"forescribe --help: median {median:.3f} s of {options.runs} "
        f"({min(walls):.3f} to {max(walls):.3f}), bound {options.bound} s"
    )
    if options.json is not None:
        record = provenance.record("benchmarks.speed.startup")
        record |= {"benchmark": "startup", "walls_s": walls, "median_s": median}
        options.json.write_text(json.dumps(record | {"bound_s": options.bound}) + "\n")
    return 0 if median <= options.bound else 1


if __name__ == "__main__":
    sys.exit(main())
