"""Who may import whom, and what may be loaded when: read from the sources."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent

# A part may import those that its line names: forescribe -> api -> diarize -> asr -> speculative, and
# text -> speculative. `forescribe` holds the command, which composes the others.
ALLOWED = {
    "speculative": set(),
    "text": {"speculative"},
    "asr": {"speculative"},
    "diarize": {"speculative", "asr"},
    "api": {"speculative", "text", "asr", "diarize"},
    "forescribe": {"speculative", "text", "asr", "diarize", "api"},
}
OURS = {*ALLOWED, "training", "benchmarks", "tests"}


HEAVY = {
    "torch",
    "torchaudio",
    "transformers",
    "numba",
    "docx",
    "librosa",
    "scipy",
    "av",
    "huggingface_hub",
    "pyannote",
    "sklearn",
}


LIGHT = (
    "cli.main",
    "asr.audio.fork_server",
    "asr.batch.interrupts",
    "asr.decode.options",
    "asr.decode.results",
    "asr.errors",
    "asr.live.events",
    "asr.model.presets",
    "asr.storage.locations",
    "api.workers",
    "api.settings",
    "api.speech.huggingface_contract",
    "diarize.engines.registry",
    "speculative.errors",
    "speculative.models.hub",
    "speculative.requests",
    "text.presets",
)
"""Modules that are imported where nothing may be loaded: by the command before it knows what to do, by
children, and by each other."""


@pytest.fixture(scope="module")
def module_map() -> ModuleType:
    path = ROOT / "scripts" / "module_map.py"
    spec = importlib.util.spec_from_file_location("module_map", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _part(name: str) -> str:
    """The part of a module of ours, or the package of another's: `torch`."""
    names = name.split(".")
    if names[0] == "forescribe":
        return names[1] if len(names) > 1 and names[1] in ALLOWED else "forescribe"
    return names[0]


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(module_map: ModuleType, part: str) -> None:
    for path in module_map.sources(part):
        used = {_part(name) for name in module_map.imports(path, set())}
        wrong = (used & OURS) - ALLOWED[part] - {part}
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def test_inside_a_part_imports_are_relative_and_across_parts_absolute(
    module_map: ModuleType,
) -> None:
    """So every import that leaves a part names the other one; `asr` alone is another project's."""
    for part in ALLOWED:
        for path in module_map.sources(part):
            for node in module_map.statements(path):
                if not isinstance(node, ast.ImportFrom) or node.level:
                    continue
                name = node.module or ""
                assert name.split(".")[0] not in ALLOWED.keys() - {"forescribe"}, path
                assert part == "forescribe" or _part(name) != part, path


def test_no_modules_import_each_other(module_map: ModuleType) -> None:
    assert module_map.cycles(module_map.graph()) == []


def test_a_cycle_would_be_seen(module_map: ModuleType) -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"e"}}
    assert module_map.cycles(edges) == [["a", "b", "c"]]


def test_sibling_folders_do_not_import_each_other(module_map: ModuleType) -> None:
    """Folders are layers: of two beside each other at most one knows the other."""
    used: dict[tuple[str, str], list[str]] = {}
    for module, targets in module_map.graph().items():
        for target in targets:
            if pair := _siblings(module.split("."), target.split(".")):
                used.setdefault(pair, []).append(f"{module} -> {target}")
    assert ("forescribe.asr.decode", "forescribe.asr.model") in used  # the scan sees folders
    mutual = {pair: used[pair] for pair in used if pair[::-1] in used}
    assert not mutual, mutual


def _siblings(module: list[str], target: list[str]) -> tuple[str, str] | None:
    """The two folders beside each other below which a module and one that it imports lie."""
    same = next(
        n for n, (a, b) in enumerate(zip([*module, ""], [*target, ""], strict=False)) if a != b
    )
    pair = (module[: same + 1], target[: same + 1])
    if module == target or not all(
        (ROOT.joinpath(*names[1:])).is_dir() or ROOT.joinpath(*names).is_dir() for names in pair
    ):
        return None
    return ".".join(pair[0]), ".".join(pair[1])


def test_programs_import_one_way_too(module_map: ModuleType) -> None:
    """Benchmarks may read what training made; nothing in the package knows either."""
    for path in module_map.sources("training"):
        used = {_part(name) for name in module_map.imports(path, set())}
        assert "benchmarks" not in used, path


def test_names_of_the_package_are_those_that_a_wheel_has(module_map: ModuleType) -> None:
    """In a checkout `forescribe.tests` and `forescribe.forescribe` can be imported too."""
    known = set(module_map.graph())
    for part in OURS:
        for path in module_map.sources(part):
            used = {n for n in module_map.imports(path, known) if n.split(".")[0] == "forescribe"}
            assert used <= known, f"{path.relative_to(ROOT)}: {sorted(used - known)}"


def test_each_module_of_a_part_has_one_name_and_one_file() -> None:
    """Not `forescribe/asr/errors.py` as well: tracebacks, coverage and git name the same file."""
    import forescribe.asr.errors

    assert Path(forescribe.asr.errors.__file__) == ROOT / "asr" / "errors.py"
    assert [Path(folder) for folder in forescribe.__path__] == [ROOT / "forescribe", ROOT]
    assert not [part for part in ALLOWED if (ROOT / "forescribe" / part).exists()]


def test_only_the_adapters_of_the_core_know_transformers(module_map: ModuleType) -> None:
    for path in module_map.sources("speculative"):
        if "models" not in path.relative_to(ROOT).parts:
            used = {_part(name) for name in module_map.imports(path, set())}
            assert "transformers" not in used, path


def test_the_core_knows_no_audio_no_text_and_no_http(module_map: ModuleType) -> None:
    foreign = {"av", "soundfile", "librosa", "torchaudio", "soxr", "tokenizers", "fastapi", "httpx"}
    for path in module_map.sources("speculative"):
        assert not {_part(name) for name in module_map.imports(path, set())} & foreign, path


def test_light_modules_load_nothing_heavy() -> None:
    """`--help` answers in under half a second; torch alone takes two. One process imports them one after the
    other: the first that loads something is named."""
    modules = ["forescribe", *(f"forescribe.{module}" for module in LIGHT)]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    if loaded := {HEAVY!r} & sys.modules.keys():\n"
        "        sys.exit(f'{name} loads {sorted(loaded)}')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_scan_sees_imports_inside_functions(module_map: ModuleType) -> None:
    """The tests above would pass on any tree if the scan saw nothing."""
    path = ROOT / "asr" / "model" / "checkpoint.py"
    assert "transformers" in set(module_map.imports(path, set()))
    assert "transformers" not in set(module_map.imports(path, set(), lazy=False))
    assert len(module_map.sources("speculative")) > 5


def test_what_mutants_are_made_of_exists() -> None:
    known = runpy.run_path(str(ROOT / "scripts/mutate.py"))
    subjects, missing = known["SUBJECTS"], list[str]()
    for subject in subjects.values():
        missing += (name for name in (subject.module, *subject.tests) if not (ROOT / name).exists())
    for name, function, _ in known["EQUIVALENT"]:
        tree = ast.parse((ROOT / subjects[name].module).read_text())
        names = {getattr(node, "name", None) for node in ast.walk(tree)}
        missing += {f"{name}: {function}"} if function.split(".")[-1] not in names else ()
    assert not missing
