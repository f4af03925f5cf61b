"""How messages say what to install: in a checkout and in a wheel, and that none says it by itself."""

from __future__ import annotations

import re
from pathlib import Path

from forescribe.asr.errors import ROOT, how_to_install

PARTS = ("api", "asr", "diarize", "forescribe", "speculative", "text")


def test_a_checkout_has_a_script() -> None:
    assert how_to_install("serve", "s3") == "run `scripts/setup serve s3` in forescribe's folder"
    assert how_to_install("diarize") == "run `scripts/setup` in forescribe's folder"


def test_a_wheel_has_extras(tmp_path: Path) -> None:
    for extras in (("serve",), ("serve", "s3"), ("diarize",)):
        advice = how_to_install(*extras, root=tmp_path)
        assert advice == f"run `pip install 'forescribe[{','.join(extras)}]'`"


def test_every_advice_names_extras_and_groups_that_there_are() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    calls = [
        call for _, text in _sources() for call in re.findall(r"how_to_install\(([^)]*)\)", text)
    ]
    named = {extra for call in calls for extra in re.findall(r"[\"'](\w+)[\"']", call)}
    assert named >= {"serve", "s3", "otel", "cluster", "diarize"}
    optional = project[project.index("[project.optional-dependencies]") :]
    assert [
        extra for extra in named if not re.search(rf"^{extra} = \[", optional, re.MULTILINE)
    ] == []


def test_no_message_names_the_script_by_itself() -> None:
    """Whoever has a wheel lacks it."""
    texts = [(path, text) for path, text in _sources() if path != ROOT / "asr" / "errors.py"]
    assert [path for path, text in texts if re.search(r"run `scripts/setup", text)] == []


def _sources() -> list[tuple[Path, str]]:
    paths = {path.resolve() for part in PARTS for path in (ROOT / part).rglob("*.py")}
    return [(path, path.read_text()) for path in sorted(paths)]
