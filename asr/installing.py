"""How to install an optional part, for messages: by the script of a checkout, or as an extra of the wheel.

Imports nothing of the package.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder of a checkout; in a wheel that of the package."""


def how_to_install(*extras: str, root: Path = ROOT) -> str:
    """The command that installs extras of `pyproject.toml`, as a clause: in a checkout `scripts/setup`,
    which knows the pinned versions, else pip."""
    if (root / "scripts" / "setup").is_file():
        # The speakers' packages are among what it installs without arguments.
        groups = [extra for extra in extras if extra != "diarize"]
        return f"run `{' '.join(['scripts/setup', *groups])}` in forescribe's folder"
    return f"run `pip install 'forescribe[{','.join(extras)}]'`"
