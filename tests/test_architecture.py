"""Who may import whom, and what may be loaded when: read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A package may import those that its line names: api -> diarize -> asr -> speculative. Speech does not
# know that somebody may ask who spoke; diarize builds on its records, its audio and its voice activity.
ALLOWED = {
    "speculative": set(),
    "bundled": set(),
    "diarize": {"speculative", "bundled", "asr"},
    "asr": {"speculative", "bundled"},
    "api": {"speculative", "bundled", "diarize", "asr"},
}
# The command puts together what the packages offer, inside of commands; only the console entry imports it.
COMPOSES = {"asr/cli.py": {"diarize"}}
OURS = {*ALLOWED, "training", "benchmarks", "tests"}

# Everything else in the core is tensors and token ids, whatever library the models come from.
MAY_IMPORT_TRANSFORMERS = {"speculative/cache.py", "speculative/models"}

HEAVY = {
    "torch",
    "torchaudio",
    "transformers",
    "numba",
    "librosa",
    "scipy",
    "av",
    "huggingface_hub",
    "pyannote",
    "sklearn",
}


def _sources(package: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / package).rglob("*.py")))


def _imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports anywhere in it, type checking included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
    return names


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    for path in _sources(package):
        packages = {name.split(".")[0] for name in _imports(path)}
        wrong = (packages & OURS) - ALLOWED[package] - {package} - COMPOSES.get(_name(path), set())
        assert not wrong, f"{_name(path)} imports {', '.join(sorted(wrong))}"


def test_only_the_adapters_of_the_core_know_transformers() -> None:
    for path in _sources("speculative"):
        name = _name(path)
        if any(
            name == allowed or name.startswith(f"{allowed}/") for allowed in MAY_IMPORT_TRANSFORMERS
        ):
            continue
        assert "transformers" not in {i.split(".")[0] for i in _imports(path)}, name


def test_the_core_knows_no_audio_no_text_and_no_http() -> None:
    strangers = {
        "av",
        "soundfile",
        "librosa",
        "torchaudio",
        "soxr",
        "tokenizers",
        "fastapi",
        "httpx",
    }
    for path in _sources("speculative"):
        assert not {i.split(".")[0] for i in _imports(path)} & strangers, _name(path)


@pytest.mark.parametrize("module", ["asr.cli", "asr.presets", "asr.errors", "diarize.cli"])
def test_the_command_starts_without_loading_anything_heavy(module: str) -> None:
    """`--help` answers in under half a second; torch alone takes two."""
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_the_scan_sees_imports_inside_functions(tmp_path: Path) -> None:
    """The tests above would pass on any tree if the scan saw nothing."""
    path = tmp_path / "late.py"
    path.write_text("def f():\n    from asr.errors import ModelError\n    import torch.fx\n")
    assert _imports(path) == {"asr.errors", "torch.fx"}
    assert len(list(_sources("speculative"))) > 5
