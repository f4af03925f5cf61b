"""LayerSkip: exits are those of the target's own layers, and training makes them agree more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from training.methods import layerskip

pytestmark = pytest.mark.nightly


def test_exits_learn_and_the_target_changes(capsys: pytest.CaptureFixture[str]) -> None:
    samples = [str(path) for path in sorted(Path(ROOT / "samples").glob("*.flac"))]
    layerskip.main(["tiny.en", *samples, "--minutes", "0.3"])
    told = capsys.readouterr().out
    agrees = [float(n) for n in re.findall(r"exit behind 3 of 4 \| ([\d.]+)", told)]
    written = [float(n) for n in re.findall(r"writes ([\d.]+) of the published", told)]
    assert len(agrees) == 2 and 0 < agrees[0] < agrees[1]
    assert written[0] > 0.85
