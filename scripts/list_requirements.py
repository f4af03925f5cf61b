"""Print the requirements of an installation with some extras, one per line.

    python scripts/list_requirements.py serve diarize         # of the project and these extras
    python scripts/list_requirements.py --constraints         # constraints.txt
    python scripts/list_requirements.py serve --without torch torchaudio

Container images use it for layers that change only when the requirements do, and for machines whose
own torch must be kept. It reads pyproject.toml and constraints.txt in the current folder and needs
nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path


def requirements(extras: list[str]) -> list[str]:
    """The requirements in pyproject.toml. Raises KeyError for an unknown extra."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


def constraints() -> list[str]:
    """The lines of constraints.txt without comments."""
    lines = Path("constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def package(requirement: str) -> str:
    """The normalised name: `torch` of `torch>=2.13,<2.15`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[._-]+", "-", match[0]).lower()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--constraints", action="store_true")
    parser.add_argument("--without", nargs="+", default=[], metavar="PACKAGE")
    options = parser.parse_args()
    excluded = {package(name) for name in options.without}
    lines = constraints() if options.constraints else requirements(options.extras)
    print("\n".join(line for line in lines if package(line) not in excluded))


if __name__ == "__main__":
    main()
