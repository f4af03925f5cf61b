"""Draw docs/images/terminal.svg: what commands print that are run here, on the samples.

    python scripts/draw_terminal.py    # on an idle machine, with the native kernels

Each command runs in an empty folder that has only samples/. The first of them runs once before, so that files
and bytecode are in the machine's memory as they are for a user's second command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
SAMPLES = ("conversation.flac", "memo.flac", "noisy.flac", "silence.flac")

WIDTH, TOP, LINE, MARGIN = 940, 50, 19, 20
COLUMNS = 112
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


@dataclass(frozen=True)
class Command:
    line: str
    remark: str = ""  # shown behind it, as a shell's comment


COMMANDS = (
    Command(
        "forescribe transcribe samples/conversation.flac --model tiny.en --diarize -o out -f txt,srt"
    ),
    Command("tail -n 7 out/conversation.txt"),
    Command(
        "forescribe transcribe samples -r --model tiny.en --diarize -o out -f txt,srt",
        "again: what is done is skipped",
    ),
    Command("forescribe audit samples/memo.flac --model tiny.en"),
)


def printed(command: Command, folder: Path) -> list[str]:
    """What the command writes to both outputs. Raises SystemExit where it fails."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command.line],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": str(COLUMNS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{command.line}: status {done.returncode}\n{done.stdout}")
    return done.stdout.splitlines()


def drawn(shown: Sequence[tuple[Command, Sequence[str]]]) -> str:
    """The picture, as SVG: each command with its output, long lines wrapped."""
    texts: list[str] = []
    y = TOP
    for command, output in shown:
        line = f'<tspan fill="#7fd18b">$ </tspan><tspan fill="#fff">{escape(command.line)}</tspan>'
        if command.remark:
            line += f'<tspan fill="#8a93a6">     # {escape(command.remark)}</tspan>'
        wrapped = [
            part
            for each in output
            for part in textwrap.wrap(each, COLUMNS, subsequent_indent="    ") or [""]
        ]
        for text in (line, *(escape(part, quote=False) for part in wrapped)):
            texts.append(f'<text x="{MARGIN}" y="{y}">{text}</text>')
            y += LINE
        y += LINE
    height = y - LINE
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="{FONT}" font-size="13">',
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#1f2430"/>',
            '<g fill="#5c6475"><circle cx="20" cy="18" r="5"/><circle cx="38" cy="18" r="5"/>'
            '<circle cx="56" cy="18" r="5"/></g>',
            '<g fill="#d5dae3" xml:space="preserve">',
            *texts,
            "</g>",
            "</svg>\n",
        )
    )


def main() -> None:
    from forescribe.speculative.native import library

    reason = library.missing()
    if reason is not None:
        raise SystemExit(f"draw_terminal: the picture shows the native kernels' speed: {reason}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "samples").mkdir()
        for sample in SAMPLES:
            shutil.copy(ROOT / "samples" / sample, folder / "samples")
        printed(Command(COMMANDS[0].line.replace("-o out", "-o warm")), folder)
        PICTURE.write_text(drawn([(each, printed(each, folder)) for each in COMMANDS]))


if __name__ == "__main__":
    main()
