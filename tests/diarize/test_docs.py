"""The example in the documentation works as an engine."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from forescribe.diarize.blocks import diarize_blocks
from forescribe.diarize.diarizer import Diarizer

DOCS = Path(__file__).parent.parent.parent / "docs" / "speakers.md"


def test_the_ten_line_engine_of_the_documentation_works() -> None:
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
        if "Mine" in block
    )
    names: dict[str, object] = {}
    exec(code, names)
    engine: Diarizer = names["Mine"]()  # type: ignore[operator]
    found = diarize_blocks(engine, [np.zeros(16_000, np.float32)] * 3)
    assert [(t.start, t.end, t.speaker) for t in found.regular] == [
        (0, 1, "Speaker A"),
        (1, 2, "Speaker B"),
        (2, 3, "Speaker C"),
    ]  # without voices speakers of two blocks are not linked
    assert not engine.diarize(np.zeros(0, np.float32)).regular
