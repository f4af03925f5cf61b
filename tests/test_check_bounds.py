"""scripts/check_bounds.py: which Python it chooses, and what it installs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[1]


@pytest.fixture
def check_bounds() -> ModuleType:
    path = ROOT / "scripts" / "check_bounds.py"
    spec = importlib.util.spec_from_file_location("check_bounds", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("here", "there", "chosen"),
    [
        ("3.12", {"python3.13": "3.13", "python3.11": "3.11"}, "python3.13"),
        ("3.13", {"python3.13": "3.13", "python3.11": "3.11"}, "python3.11"),
        ("3.12", {"python3.13": "3.12"}, sys.executable),  # a shim of another version
        ("3.12", {}, sys.executable),
    ],
)
def test_the_newest_other_python_is_chosen(
    check_bounds: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    here: str,
    there: dict[str, str],
    chosen: str,
) -> None:
    versions = {sys.executable: here, **there}
    monkeypatch.setattr(check_bounds, "version", lambda python: versions.get(str(python), ""))
    monkeypatch.setattr(check_bounds, "candidates", lambda uv, wanted: [f"python{wanted}"])
    assert check_bounds.another_python("uv") == chosen


def test_the_versions_are_those_of_the_project(check_bounds: ModuleType) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11,<3.14"' in project
    assert set(check_bounds.VERSIONS) == {"3.11", "3.12", "3.13"}


@pytest.mark.parametrize(
    ("bound", "commands"),
    [("newest", ["[diarize,serve]"]), ("lowest", ["lowest-direct", "--no-deps"])],
)
def test_both_bounds_install_the_wheel(
    check_bounds: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bound: str,
    commands: list[str],
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(
        check_bounds, "run", lambda *command: ran.append(" ".join(map(str, command)))
    )
    monkeypatch.chdir(ROOT)
    check_bounds.install("uv", bound, tmp_path, tmp_path / "a.whl")
    assert len(ran) == len(commands)
    assert all(part in line for part, line in zip(commands, ran, strict=True))
    if bound == "lowest":
        assert "torch" in (tmp_path / "requirements.txt").read_text()


@pytest.mark.parametrize("bound", ["newest", "lowest"])
def test_the_wheel_is_built_from_the_source_distribution(
    check_bounds: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bound: str
) -> None:
    """As an index's archive is installed; a wheel from the checkout would not show what it lacks."""
    checkout, folder = tmp_path / "checkout", tmp_path / "folder"
    (checkout / "kernels" / "build").mkdir(parents=True)
    (checkout / "kernels" / "build" / "compiled.so").touch()
    ran: list[list[str]] = []

    def run(*command: str | Path) -> None:
        ran.append([str(part) for part in command])
        (folder / "a-1.tar.gz").touch()
        (folder / "a-1").mkdir(exist_ok=True)
        (folder / "a.whl").touch()

    folder.mkdir()
    monkeypatch.setattr(check_bounds, "ROOT", checkout)
    monkeypatch.setattr(check_bounds, "run", run)
    assert check_bounds.build("uv", bound, folder) == folder / "a.whl"
    source = folder / "a-1"
    assert ran == [
        ["uv", "build", "--quiet", "--sdist", "--out-dir", str(folder), "."],
        ["tar", "-xzf", str(folder / "a-1.tar.gz"), "-C", str(folder)],
        ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source)],
    ]
    assert (source / "kernels" / "build" / "compiled.so").exists() == (bound == "newest")


SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == sys.argv[2] else 404)
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *args): pass
time.sleep(0.3)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_service_has_to_answer_and_to_end(check_bounds: ModuleType) -> None:
    def served(path: str, wait_s: float) -> None:
        port = check_bounds.free_port()
        check_bounds.try_service([sys.executable, "-c", SERVER, str(port), path], port, wait_s)

    served("/health", 30)
    with pytest.raises(SystemExit, match="/health answered 404"):
        served("/elsewhere", 30)
    with pytest.raises(SystemExit, match="did not answer within 0.5 s"):
        check_bounds.try_service(
            [sys.executable, "-c", "import time; time.sleep(60)"], check_bounds.free_port(), 0.5
        )
    with pytest.raises(SystemExit, match="ended with status 3"):
        check_bounds.try_service([sys.executable, "-c", "raise SystemExit(3)"], 1, 30)


def test_a_program_that_is_missing_has_no_output(check_bounds: ModuleType) -> None:
    assert check_bounds.output("no-such-program-anywhere") == ""
    assert check_bounds.version(sys.executable) == ".".join(map(str, sys.version_info[:2]))
