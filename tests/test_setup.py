"""scripts/setup: the uv commands that it runs, and its messages where something is missing.

The path holds fake programs only, so that nothing is installed.
"""

from __future__ import annotations

import shutil
import stat
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PARTS = ("forescribe", "api", "asr", "diarize", "speculative", "text")
TOOLS = ("bash", "dirname", "sed", "df", "awk", "rm", "mkdir", "ln")


@dataclass(frozen=True)
class Run:
    status: int
    output: str
    uv_calls: list[str]  # arguments


class Machine:
    """A copy of the script, and a path with the few programs of a minimal system."""

    def __init__(self, folder: Path) -> None:
        self.root, self.path = folder / "forescribe", folder / "bin"
        self.log = folder / "log"
        (self.root / "scripts").mkdir(parents=True)
        self.path.mkdir()
        shutil.copy(ROOT / "scripts" / "setup", self.root / "scripts")
        shutil.copytree(ROOT / "scripts" / "lib", self.root / "scripts" / "lib")
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.path / tool).symlink_to(found)

    def program(self, name: str, script: str) -> None:
        path = self.path / name
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def uv(self) -> None:
        """Add a fake uv that logs its arguments and creates an environment with a fake Python."""
        self.program(
            "uv",
            f'echo "$@" >> "{self.log}"\n'
            'if [ "$1" = venv ]; then\n'
            '    for last; do :; done; mkdir -p "$last/bin"\n'
            f'    ln -s "{self.path}/environments-python" "$last/bin/python"\n'
            "fi",
        )
        self.program("environments-python", "exit ${TORCHAUDIO_FAILS:-0}")

    def setup(self, *arguments: str, **variables: str) -> Run:
        done = subprocess.run(
            [str(self.root / "scripts" / "setup"), *arguments],
            env={"PATH": str(self.path), **variables},
            capture_output=True,
            text=True,
        )
        asked = self.log.read_text().splitlines() if self.log.exists() else []
        return Run(done.returncode, done.stdout + done.stderr, [a for a in asked if a[:2] != "--"])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ([], ".[diarize]"),
        (["serve"], ".[diarize,serve]"),
        (["test"], ".[diarize] --group test"),
        (["serve", "dev", "bench"], ".[diarize,serve] --group dev --group bench"),
    ],
)
def test_groups_and_extras_are_installed(machine: Machine, named: list[str], asked: str) -> None:
    machine.uv()
    done = machine.setup(*named)
    assert done.status == 0 and "ready: .venv/bin/forescribe" in done.output
    assert done.uv_calls[-1].endswith(f"--constraints constraints.txt --editable {asked}")


def test_a_developers_editor_finds_every_part_in_one_folder(machine: Machine) -> None:
    machine.uv()
    for part in PARTS:
        (machine.root / part).mkdir()
        (machine.root / part / "__init__.py").touch()
    assert machine.setup("test").status == 0
    assert not (machine.root / ".editor").exists()
    for _ in range(2):
        assert machine.setup("test", "dev").status == 0
        seen = machine.root / ".editor" / "forescribe"
        assert {path.name for path in seen.iterdir()} == {"__init__.py", *PARTS[1:]}
        for part in PARTS[1:]:
            assert (seen / part / "__init__.py").samefile(machine.root / part / "__init__.py")
        assert (seen / "__init__.py").samefile(machine.root / "forescribe" / "__init__.py")


def test_a_name_that_is_no_group_changes_nothing(machine: Machine) -> None:
    machine.uv()
    done = machine.setup("test", "sevre")
    assert (done.status, done.uv_calls) == (2, [])
    assert done.output == (
        "setup: there is no group 'sevre'; known: "
        "serve s3 otel gguf live redact wyoming test dev notebook cluster real bench\n"
    )


def test_every_group_of_the_project_is_known_and_explained(machine: Machine) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = set(project["project"]["optional-dependencies"]) - {"diarize"}
    known = machine.setup("nosuch").output.split("known: ")[1].split()
    assert set(known) == extras | set(project["dependency-groups"])
    help_ = machine.setup("--help")
    assert help_.status == 0
    assert [name for name in known if f"scripts/setup {name} " not in help_.output] == []
    assert "set -euo" not in help_.output


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("exit 127", "no Python 3.11 to 3.13 found"),  # none, or another
        ('[ "$1" = -c ]', "python3 has neither venv nor pip"),  # Debian's without python3-venv
    ],
)
def test_what_is_missing_is_said_with_the_command_that_gives_it(
    machine: Machine, python: str, said: str
) -> None:
    machine.program("python3", python)
    done = machine.setup()
    assert done.status == 1 and said in done.output
    assert "apt-get install python3-venv" in done.output.splitlines()[-1]
    assert not (machine.root / ".uv").exists()


def test_little_disk_is_said_before_the_download(machine: Machine) -> None:
    machine.uv()
    (machine.path / "df").unlink()
    machine.program("df", 'echo head; echo "/dev/x 9000000 0 2500000 0% /"')
    done = machine.setup()
    assert done.status == 0 and "only 2 GB are free here; 6.6 are needed" in done.output
    assert "GB" not in machine.setup().output  # the environment is there


def test_a_backend_whose_packages_do_not_fit_is_no_success(machine: Machine) -> None:
    machine.uv()
    assert machine.setup(TORCHAUDIO_FAILS="1").status == 0  # asked only where it may differ
    done = machine.setup(UV_TORCH_BACKEND="cpu", TORCHAUDIO_FAILS="1")
    assert done.status == 1 and "of the backend 'cpu' do not fit" in done.output
    assert machine.setup(UV_TORCH_BACKEND="cpu").status == 0
