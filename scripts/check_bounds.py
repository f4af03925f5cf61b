"""Check that the version ranges in pyproject.toml work.

    python scripts/check_bounds.py newest    # the newest release of every package
    python scripts/check_bounds.py lowest    # the oldest releases that pyproject.toml allows

Builds the source distribution, and from it the wheel, and installs that without constraints.txt into a
temporary environment, on another Python version than this one if the machine has one. Then it transcribes
and diarizes a sample there, and starts the service.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.13", "3.12", "3.11")
"""The supported versions, newest first."""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command. Raises CalledProcessError if it fails."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def output(*command: str | Path) -> str:
    """What a command prints; empty if it fails or does not exist."""
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_uv() -> str:
    return "uv" if output("uv", "--version") else str(ROOT / ".uv" / "bin" / "uv")


def version(python: str | Path) -> str:
    """Such as 3.12; empty if it does not run."""
    return output(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def candidates(uv: str, wanted: str) -> Iterator[str]:
    """Where a Python of this version may be: on the path, of pyenv, of uv."""
    yield f"python{wanted}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(map(str, pyenv.glob(f"versions/{wanted}.*/bin/python")))
    if managed := output(uv, "python", "find", "--managed-python", "--no-python-downloads", wanted):
        yield managed


def another_python(uv: str) -> str:
    """The newest supported Python of another version than this one, else this one."""
    for wanted in VERSIONS:
        if wanted == version(sys.executable):
            continue
        for python in candidates(uv, wanted):
            if version(python) == wanted:
                return python
    print("bounds: this machine has no other Python from 3.11 to 3.13", file=sys.stderr)
    return sys.executable


def build(uv: str, bound: str, folder: Path) -> Path:
    """Build into `folder`: the source distribution, and from it the wheel, which is returned.

    With `newest`, as in CI, a library that was compiled here from the same sources is taken, which saves
    150 s of one core; `lowest` compiles it from the unpacked sources.
    """
    run(uv, "build", "--quiet", "--sdist", "--out-dir", folder, ".")
    (packed,) = folder.glob("*.tar.gz")
    run("tar", "-xzf", packed, "-C", folder)
    source = folder / packed.name.removesuffix(".tar.gz")
    compiled = ROOT / "kernels" / "build"
    if bound == "newest" and compiled.is_dir():
        shutil.copytree(compiled, source / "kernels" / "build")
    run(uv, "build", "--quiet", "--wheel", "--out-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(uv: str, bound: str, folder: Path, wheel: Path) -> None:
    """Install the wheel into `folder`/venv."""
    install = (uv, "pip", "install", "--quiet", "--python", folder / "venv")
    if bound == "newest":
        run(*install, f"{wheel}[diarize,serve]")
        return
    requirements = folder / "requirements.txt"
    lines = output(sys.executable, ROOT / "scripts" / "list_requirements.py", "diarize", "serve")
    requirements.write_text(lines + "\n")
    run(*install, "--resolution", "lowest-direct", "--requirement", requirements)
    run(*install, "--no-deps", wheel)


def try_wheel(folder: Path) -> None:
    """Use the installed wheel, in a folder without the sources. Raises CalledProcessError."""
    program, memo = folder / "venv" / "bin" / "forescribe", ROOT / "samples" / "memo.flac"
    formats = ("-f", "txt,srt,json", "-o", "out")
    run(program, "transcribe", memo, "--model", "tiny.en", *formats, cwd=folder)
    check = ROOT / "scripts" / "check_output.py"
    run(sys.executable, check, "out", "memo", memo.with_suffix(".txt"), "--wer", "0.10", cwd=folder)
    run(program, "diarize", memo, "--diarizer", "embedded", "-f", "rttm", "-o", "out", cwd=folder)
    if not (folder / "out" / "memo.rttm").read_text().strip():
        raise SystemExit("bounds: diarization found no speaker")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def try_service(command: Sequence[str | Path], port: int, wait_s: float = 300) -> None:
    """Start a service and ask for /health. Raises SystemExit where it does not answer with 200."""
    process = subprocess.Popen([str(part) for part in command])
    try:
        status = health(process, port, time.monotonic() + wait_s)
        if status is None:
            raise SystemExit(f"bounds: the service did not answer within {wait_s} s")
        if status != 200:
            raise SystemExit(f"bounds: /health answered {status}")
    finally:
        process.terminate()
        process.wait(60)


def health(process: subprocess.Popen[bytes], port: int, deadline: float) -> int | None:
    """The status that /health answers with; None where nothing listens until the deadline."""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"bounds: the service ended with status {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bound", choices=("newest", "lowest"))
    bound = parser.parse_args().bound
    uv = find_uv()
    python = another_python(uv)
    print(f"bounds: {bound}, on Python {version(python)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(uv, bound, folder)
        run(uv, "venv", "--quiet", "--python", python, folder / "venv")
        install(uv, bound, folder, wheel)
        try_wheel(folder)
        program, port = folder / "venv" / "bin" / "forescribe", free_port()
        stored = f"FORESCRIBE_DATA_DIR={folder / 'data'}"
        try_service(
            ["env", stored, program, "serve", "--model", "tiny.en", "--port", str(port)], port
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("bounds: ended by a signal"))
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"bounds: {error}")
