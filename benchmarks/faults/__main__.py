"""What happens to jobs when processes are killed, disks fill up, clients leave, and more.

    python -m benchmarks.faults                # a few kills each, seconds to a minute
    python -m benchmarks.faults --long F1 F9   # twenty kills over 500 groups; these faults only

Processes, signals and database are real; the model is a fake with known text (benchmarks/faults/server.py),
except in F5. The work done is read from a log written with O_APPEND. A run in which no fault interrupted
work is reported as *inconclusive*. The numbers of the faults are those of docs/jobs.md. Prints a table and
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from benchmarks import provenance
from benchmarks.faults.catalogue import FAULTS, run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    parser.add_argument(
        "--long",
        action="store_true",
        help="more kills, more jobs, more load: minutes for each fault",
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    unknown = set(asked.faults) - FAULTS.keys()
    if unknown:
        parser.error(f"unknown fault {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    print(f"seed {asked.seed}", flush=True)
    rows = []
    for name in asked.faults or FAULTS:
        rows.append(run(name, asked.long, asked.seed))
        row = rows[-1]
        print(f"{row.fault:4} {row.held:12} {row.wall_s:6.1f} s  {row.what}", flush=True)
    told = {**provenance.record("benchmarks.faults"), "seed": asked.seed, "long": asked.long}
    print(json.dumps({**told, "faults": [asdict(row) for row in rows]}))
    sys.exit(any(row.held in ("no", "inconclusive") for row in rows))


if __name__ == "__main__":
    main()
