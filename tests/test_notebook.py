"""The walkthrough runs from top to bottom, its results are of today, and its pictures can be read."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import nbformat
import numpy as np
import pytest
import soundfile
from matplotlib.figure import Figure

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Segment, Span, Word
from forescribe.speculative.engine.schedule import expected_tokens
from forescribe.speculative.requests import Stats

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
LONGEST_CELL = 18


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made  # dataclasses look for their module
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def plots() -> Iterator[ModuleType]:
    from matplotlib import pyplot

    matplotlib.use("Agg")
    with matplotlib.rc_context():
        made = module(FOLDER / "plots.py")
        made.style()
        yield made
    pyplot.close("all")


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return module(ROOT / "scripts" / "run_notebook.py")


@pytest.fixture(scope="module")
def notebook(runner: ModuleType) -> Any:
    return runner.read()


# The file


def test_the_notebook_runs_from_top_to_bottom() -> None:
    command = [sys.executable, ROOT / "scripts" / "run_notebook.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


def test_its_results_are_of_today(runner: ModuleType, notebook: Any) -> None:
    if any(cell.get("outputs") for cell in notebook.cells):
        made_from = notebook.metadata.get(runner.MADE_FROM)
        assert made_from == runner.fingerprint(notebook), "run scripts/notebook, and commit it"


def test_its_results_can_be_shown(runner: ModuleType, notebook: Any) -> None:
    text = runner.NOTEBOOK.read_text(encoding="utf-8")
    nbformat.validate(notebook)
    assert runner.faults(notebook, len(text.encode())) == []
    assert '"ename"' not in text, "a cell failed"
    for place in (str(ROOT), tempfile.gettempdir(), str(Path.home())):
        assert f"{place}/" not in text, "it names a folder of the machine that ran it"


def test_its_cells_are_short(notebook: Any) -> None:
    lengths = {i: len(c.source.splitlines()) for i, c in enumerate(notebook.cells)}
    code = {i for i, c in enumerate(notebook.cells) if c.cell_type == "code"}
    assert {i: n for i, n in lengths.items() if i in code and n > LONGEST_CELL} == {}


def test_warnings_and_size_are_faults(runner: ModuleType) -> None:
    cell = nbformat.v4.new_code_cell("1")
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="careful")]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    assert runner.faults(notebook, 1) == ["cell 0 writes to stderr: careful"]
    assert len(runner.faults(notebook, runner.MOST_BYTES + 1)) == 2


def test_another_text_is_another_fingerprint(runner: ModuleType, notebook: Any) -> None:
    before = runner.fingerprint(notebook)
    changed = nbformat.from_dict(notebook)
    changed.cells[0].source += " "
    assert runner.fingerprint(changed) != before


# The pictures


def labelled(figure: Figure) -> list[str]:
    """Every axis has a label, and quantities have a unit."""
    figure.canvas.draw()  # a picture that cannot be drawn fails here
    labels = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    return [text for text in labels if text]


def test_a_round_says_what_became_of_every_token(plots: ModuleType) -> None:
    part = plots.Round((" a", " b", " c"), 1, " d")
    assert part.kinds == [
        (" a", "accepted"), (" b", "rejected"), (" c", "rejected"), (" d", "correction")
    ]  # fmt: skip
    assert plots.Round((" a",), 1, " b").kinds == [(" a", "accepted"), (" b", "bonus")]
    marks = [mark for _, _, mark in plots.STYLES.values()]
    assert len(set(marks)) == len(marks) == 4, "without colours they look alike"
    assert plots.visible(" the\n") == "·the\\n"
    figure = plots.rounds([part] * 3)
    figure.canvas.draw()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("×·b") == 3 and texts.count("→·d") == 3 and "round 3" in texts


def test_what_drafts_earn_is_computed_from_the_counts(plots: ModuleType) -> None:
    stats = Stats(row_rounds=10, drafted_at_depth=(10, 10, 10), accepted_at_depth=(8, 4, 1))
    assert plots.survival(stats) == pytest.approx((8 + 4 + 1) / (10 + 8 + 4))
    with pytest.raises(ValueError, match="nothing was drafted"):
        plots.survival(Stats())
    formula = plots.tokens_per_round(0.6, np.array([0.0, 3.0]))
    assert formula == pytest.approx([expected_tokens(0.6, 0), expected_tokens(0.6, 3)])
    figure = plots.acceptance({1: stats, 3: stats})
    assert "gamma (drafted tokens per round)" in labelled(figure)
    (points,) = [line for line in figure.axes[1].lines if line.get_label() == "measured"]
    assert points.get_ydata() == pytest.approx([stats.mean_acceptance_length] * 2)


def test_words_stand_at_their_times_by_speaker(plots: ModuleType) -> None:
    words = tuple(
        Word(f" w{n}", 8_000 * n, 8_000 * n + 4_000, speaker="AB"[n % 2]) for n in range(20)
    )
    transcript = Transcript(
        segments=(Segment(0, 0, 0, 0, 160_000, " text", words=words),),
        sample_count=160_000,
        coverage=Coverage((Span(0, 160_000, "decoded"),)),
        diarized=True,
    )
    figure = plots.timeline(transcript, until_s=8, line_s=4)
    assert "time (s)" in labelled(figure)
    shown = [t.get_text() for axes in figure.axes for t in axes.texts]
    assert sorted(shown) == sorted(f"w{n}" for n in range(16))  # those that begin before 8 s
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["A", "B"]


def test_the_player_holds_the_sound(plots: ModuleType) -> None:
    tone = (0.3 * np.sin(np.arange(32_000) * 0.2)).astype(np.float32)
    sound, rate = soundfile.read(io.BytesIO(plots.player(tone).data))
    assert rate == 16_000 and len(sound) == pytest.approx(32_000, rel=0.1)


def test_a_service_that_does_not_start_is_an_error_and_leaves_no_process() -> None:
    service = module(FOLDER / "service.py")
    started: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.subprocess, "Popen", Popen)
        with pytest.raises(RuntimeError, match="did not start"), service.serving("x", timeout_s=0):
            raise AssertionError("it is not ready")
    assert [process.poll() is not None for process in started] == [True]
