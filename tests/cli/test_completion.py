"""Completion in a shell: what typer installs, run by bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_bash_completes_commands_options_and_half_typed_lines(tmp_path) -> None:
    program = tmp_path / "forescribe"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m forescribe "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

    def bash(script: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    def completed(*words: str) -> list[str]:
        typed = f"COMP_WORDS=(forescribe {' '.join(words)}); COMP_CWORD={len(words)}"
        show = 'eval "$(forescribe --show-completion)"'
        return bash(f'{show}; {typed}; _forescribe_completion forescribe; echo "${{COMPREPLY[@]}}"')

    assert completed("trans") == ["transcribe"]
    assert {"--language", "--local-files-only"} <= {*completed("transcribe", "--l")}
    assert completed("transcribe", "--beam-size", "5", "--num-sp") == ["--num-speakers"]
    bash("forescribe --install-completion; true")
    assert completed("speakers", "ad") == ["add"]
    assert (tmp_path / ".bash_completions" / "forescribe.sh").is_file()
    installed = 'source "$HOME/.bashrc"; complete -p forescribe'
    assert "_forescribe_completion" in bash(installed)
