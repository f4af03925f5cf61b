"""The packages that an installation with some extras wants, one a line: for images, whose layers should
change only when these do, and for machines whose own torch must stay.

    python scripts/wanted.py serve diarize                   # the project's and those extras'
    python scripts/wanted.py --constraints                   # constraints.txt
    python scripts/wanted.py serve --without torch torchaudio

Reads pyproject.toml and constraints.txt of the folder it is started in; needs nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path


def wanted(extras: list[str]) -> list[str]:
    """As pyproject.toml has them. Raises KeyError for an extra that is not there."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


def pinned() -> list[str]:
    lines = Path("constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def name(requirement: str) -> str:
    """`torch` of `torch>=2.13,<2.15`, spelled as indexes do."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[._-]+", "-", found[0]).lower()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--constraints", action="store_true")
    parser.add_argument("--without", nargs="+", default=[], metavar="PACKAGE")
    given = parser.parse_args()
    left_out = {name(package) for package in given.without}
    lines = pinned() if given.constraints else wanted(given.extras)
    print("\n".join(line for line in lines if name(line) not in left_out))


if __name__ == "__main__":
    main()
