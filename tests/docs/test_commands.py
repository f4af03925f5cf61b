"""Every command in the documentation can be typed: options exist, programs and routes are there.

Commands on samples with the bundled pair are run, on the first seconds of each; what needs weights, a
server or a GPU is parsed.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.main import get_command

from tests.docs.commands import Command, documented
from tests.docs.pages import ROOT, blocks, pages

EVERY = documented()
PARTS = ("forescribe", "api", "asr", "diarize", "speculative", "text")


# Parsed


def cli() -> Any:
    from forescribe.cli.main import app

    return get_command(app)


def check_forescribe(command: Command) -> None:
    """Raises what the command line would say."""
    from forescribe.cli.main import with_command

    group, name, words = cli(), "forescribe", with_command(list(command.words[1:]))
    parent = group.make_context(name, [], resilient_parsing=True)  # which normalises options
    while (children := getattr(group, "commands", None)) is not None:
        if words and words[0] in ("-h", "--help", "--version", "--install-completion"):
            return
        name, group, words = f"{name} {words[0]}", children[words[0]], words[1:]
    group.make_context(name, words, parent=parent)


def check_python(command: Command) -> None:
    """Modules exist and know the options."""
    if command.words[1] != "-m":
        return
    found = importlib.util.find_spec(command.words[2])
    assert found is not None and found.origin, f"no module {command.words[2]}"
    if not Path(found.origin).is_relative_to(ROOT) or "site-packages" in found.origin:
        return
    module = Path(found.origin)
    if module.name == "__init__.py":  # a package, which runs its `__main__`
        module = module.with_name("__main__.py")
    declared = [module]  # and where options are shared
    if module.is_relative_to(ROOT / "benchmarks"):
        declared += [ROOT / "benchmarks" / name for name in ("comparison.py", "quality/words.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in declared)
    for word in command.words[3:]:
        option = word.partition("=")[0]
        assert not option.startswith("--") or f'"{option}"' in source, f"no option {option}"


def check_script(command: Command) -> None:
    path = ROOT / command.words[0]
    assert path.is_file() and path.stat().st_mode & 0o100, f"{path.name} cannot be run"
    if path.name == "setup":
        known = {*project()["project"]["optional-dependencies"], *project()["dependency-groups"]}
        assert set(command.words[1:]) <= known


def check_curl(command: Command) -> None:
    """What it asks our service for is a route."""
    for word in command.words:
        match = re.match(
            r"(https?://)?(localhost|127\.0\.0\.1|\$?\w*HOST)(:\d+)?(?P<path>/[^?]*)", word
        )
        if match:
            shapes = [re.sub(r"\{[^}]+\}", "[^/]+", route) for route in routes()]
            path = match["path"]
            assert any(re.fullmatch(shape, path) for shape in shapes), f"no route {path}"


@cache
def routes() -> list[str]:
    from forescribe.api.app import create_app
    from forescribe.api.settings import load

    jobs: Any = Mock(also_erased=[])  # their routes are there with whatever keeps them
    app = create_app(load(), jobs=jobs)
    return [*app.openapi()["paths"], *(getattr(route, "path", "") for route in app.routes)]


def check_install(command: Command) -> None:
    """Extras and groups that are asked for exist; our own name is in no index."""
    extras, groups = project()["project"]["optional-dependencies"], project()["dependency-groups"]
    for word in command.words:
        assert not word.startswith("forescribe"), "the package is not published"
        if match := re.search(r"\.\[([\w,]+)\]", word):
            assert set(match[1].split(",")) <= set(extras)
    if "--group" in command.words:
        assert command.words[command.words.index("--group") + 1] in groups


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


CHECKS: dict[str, Callable[[Command], None]] = {
    "forescribe": check_forescribe,
    "python": check_python,
    "python3": check_python,
    "curl": check_curl,
    "pip": check_install,
}


def check(command: Command) -> None:
    from forescribe.api.settings import OTHER_PREFIXES, PREFIX, Settings

    for name in command.variables:
        known = {PREFIX + field.upper() for field in Settings.model_fields}
        ours = name.startswith(PREFIX) and not name.startswith(OTHER_PREFIXES)
        assert not ours or name in known, f"{name} is no setting"
    if not command.words:
        return
    if command.program.startswith("scripts/"):
        return check_script(command)
    near = difflib.get_close_matches(command.program, CHECKS, n=1, cutoff=0.8)
    assert not near or near == [command.program], f"{command.program}: a misspelt {near}?"
    CHECKS.get(command.program, lambda command: None)(command)


@pytest.mark.parametrize("command", EVERY, ids=str)
def test_a_command_can_be_typed(command: Command) -> None:
    check(command)


# In the shell's path


ACTIVATE = ("source", ".venv/bin/activate")
INSTALLED = ("forescribe", "python", "python3", "pip", "pytest", "ruff", "mypy", "hf", "jupyter")
"""Programs of the environment: without it the shell finds none of that name, or another's."""


def not_in_the_path(every: list[Command]) -> list[Command]:
    """Commands that need the environment before their page has said how to enter it."""
    entered: set[str] = set()
    found = []
    for command in every:
        page = command.place.rpartition(":")[0]
        if command.words[:2] == ACTIVATE:
            entered.add(page)
        elif command.words[:1] and command.words[0] in INSTALLED and page not in entered:
            found.append(command)
    return found


def test_a_page_enters_the_environment_before_its_first_command() -> None:
    assert list(map(str, not_in_the_path(EVERY))) == []


def test_nothing_tells_people_to_install_a_package_that_is_not_published() -> None:
    asked = re.compile(r"pip install '?forescribe")
    shown = [*pages(), ROOT / "scripts" / "setup"]
    sources = [p for name in PARTS for p in (ROOT / name).rglob("*.py")]
    sources.remove(ROOT / "asr" / "errors.py")  # for those who have a wheel, and only there
    assert [p.name for p in shown + sources if asked.search(p.read_text(encoding="utf-8"))] == []


# Run


def runnable(command: Command) -> bool:
    """Needs nothing but the repository, and ends by itself."""
    words = command.words
    if command.program != "forescribe" or "serve" in words:
        return False
    if words[1] in ("models", "key"):
        return True
    named = [word for word in words if word.startswith("samples/")]
    bundled = "tiny.en" in words or "embedded" in words
    return bundled and bool(named) and all((ROOT / name).exists() for name in named)


LINES = sorted({c.words[1:]: c for c in EVERY if runnable(c)}.values(), key=str)


def run_command(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs `forescribe WORDS` in this process; its exit status."""
    from forescribe.cli.main import main

    monkeypatch.setattr(sys, "argv", ["forescribe", *words])
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def marked(command: Command) -> Any:
    """A command whose target is in 8 bits needs the native engine."""
    native = "--quantize" in command.words
    return pytest.param(command, marks=[pytest.mark.native] if native else [], id=str(command))


@pytest.mark.slow
@pytest.mark.parametrize("command", [marked(command) for command in LINES])
def test_a_command_on_the_samples_works(command: Command, samples, tmp_path, monkeypatch, capfd):
    (tmp_path / "samples").symlink_to(samples)
    monkeypatch.chdir(tmp_path)
    status = run_command(command.words[1:], monkeypatch)
    out, err = capfd.readouterr()
    assert status == 0, err
    assert "Traceback" not in err
    wanted = [command.words[i + 1] for i, word in enumerate(command.words) if word == "-o"]
    if wanted and wanted != ["-"] and "--dry-run" not in command.words:
        assert any(tmp_path.joinpath(wanted[0]).iterdir()), "it wrote nothing"
    else:
        assert out.strip(), "it said nothing"


GENERATE = 'forescribe generate "Write the minutes of the research meeting on April 4." --chat'


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/text.md"])
def test_the_pages_show_what_generate_prints(page: str, capsys, monkeypatch) -> None:
    """A shown text that ends in "..." is the beginning of what is printed."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert GENERATE in text
    shown = next(
        b.text for b in blocks("text") if b.page == page and b.text.startswith("Minutes of")
    )
    assert run_command(shlex.split(GENERATE)[1:], monkeypatch) == 0
    printed = capsys.readouterr().out
    start = shown.removesuffix("...\n")
    assert printed.startswith(start) and (start != shown or printed.strip() == shown.strip())


def test_the_readmes_main_command_is_among_those_that_run() -> None:
    main = ("transcribe", "samples/memo.flac", "--model", "tiny.en", "-o", "out")
    assert main in {command.words[1:] for command in LINES}
    assert len(LINES) > 8
