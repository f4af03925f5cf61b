"""The public name `forescribe`: what it exports, what it loads, and that no other project shadows it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import forescribe
from forescribe.asr.errors import AudioError, UsageError
from tests.asr.model import folders
from tests.test_architecture import HEAVY, ROOT

PARTS = ("speculative", "text", "asr", "diarize", "api", "bundled", "benchmarks", "training")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(folders.write(tmp_path_factory.mktemp("model"), max_target_positions=24))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "noise.wav"
    rng = np.random.default_rng(0)
    soundfile.write(path, 0.1 * rng.standard_normal(2 * 16_000), 16_000)
    return path


# Names


def test_all_public_names_can_be_imported() -> None:
    for name in forescribe.__all__:
        assert getattr(forescribe, name).__name__ == name
    assert set(forescribe.__all__) <= set(dir(forescribe))


def test_the_three_lists_of_public_names_agree() -> None:
    """`__all__`, the table of modules, and the imports that type checkers read."""
    tree = ast.parse(Path(forescribe.__file__).read_text(encoding="utf-8"))
    checked = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == forescribe._MODULES
    assert sorted(forescribe.__all__) == sorted(imports)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'transcribed'"):
        forescribe.transcribed  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, forescribe; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


# transcribe()


def test_a_recording_becomes_a_transcript(model: str, recording: Path) -> None:
    transcript = forescribe.transcribe(recording, model, device="cpu", word_timestamps=True)
    assert isinstance(transcript, forescribe.Transcript)
    assert transcript.duration == 2.0
    assert all(segment.words is not None for segment in transcript.segments)
    assert transcript.settings["guards"] is not None


def test_bytes_are_a_recording_too(model: str, recording: Path) -> None:
    data = recording.read_bytes()
    assert forescribe.transcribe(data, model, device="cpu").duration == 2.0


def test_speakers_are_labelled_on_request(model: str, recording: Path) -> None:
    transcript = forescribe.transcribe(
        recording, model, device="cpu", diarize=True, num_speakers=1, local_files_only=True
    )
    assert transcript.diarized


def test_errors_are_raised(model: str) -> None:
    with pytest.raises(AudioError, match="no such file"):
        forescribe.transcribe("nowhere.wav", model, device="cpu")
    with pytest.raises(UsageError, match="unknown language"):
        forescribe.transcribe("nowhere.wav", model, device="cpu", language="klingon")
    with pytest.raises(UsageError, match="num_speakers needs diarize"):
        forescribe.transcribe("nowhere.wav", model, num_speakers=2)


# Shadowing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Another project, with packages named like our parts."""
    for name in PARTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} of this project')")
    return tmp_path


COMMANDS = {
    "the command": [str(Path(sys.executable).with_name("forescribe")), "models"],
    "the module": [sys.executable, "-m", "forescribe", "models"],
    "an import": [
        sys.executable,
        "-c",
        "import forescribe; [getattr(forescribe, name) for name in forescribe.__all__]; print('large')",
    ],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_project_with_packages_of_our_names_breaks_nothing(project: Path, command: str) -> None:
    if not Path(COMMANDS[command][0]).exists():
        pytest.skip("the console script is not installed beside this Python")
    run = subprocess.run(
        COMMANDS[command],
        cwd=project,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, "large" in run.stdout) == (0, True), run.stderr
