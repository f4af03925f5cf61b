"""Runs the walkthrough from top to bottom, in a fresh kernel.

    python scripts/run_notebook.py            # keeps the results in the file
    python scripts/run_notebook.py --check    # keeps nothing

Exit status 0; 1 with the cell and its error where one fails, or where a result would not do.
What it was made from is kept in its metadata, so that a test can tell whether its results are old.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "walkthrough.ipynb"
MADE_FROM = "made_from"
MOST_BYTES = 2_000_000


def fingerprint(notebook: Any) -> str:
    """Of everything that decides the results and that somebody may change: cells, helpers, models."""
    digest = hashlib.sha256()
    for cell in notebook.cells:
        digest.update(f"{cell.cell_type}\n{cell.source}\n".encode())
    names = ("demo", "demo-draft", "text", "text-draft")
    weights = [ROOT / "bundled" / name / "model.safetensors" for name in names]
    for path in [*sorted(NOTEBOOK.parent.glob("*.py")), *weights]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def run(notebook: Any) -> None:
    """Fills in the results. Raises CellExecutionError."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        notebook,
        timeout=1800,  # for one cell, on a machine that does much else
        startup_timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        extra_arguments=["--log-level=40"],  # it warns that it listens, on this machine alone
    ).execute()
    # The version of whoever ran it last is no content.
    notebook.metadata.language_info = {"name": "python"}


def shrink(notebook: Any) -> None:
    """Pictures with a palette of 256 colours: a third of the bytes, and the repository has to stay
    small enough to travel."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
                small = io.BytesIO()
                picture.convert("RGB").quantize(256).save(small, "PNG", optimize=True)
                data["image/png"] = base64.b64encode(small.getvalue()).decode()


def faults(notebook: Any, size: int) -> list[str]:
    """What must not be seen by a reader: warnings, and a file that is slow to open."""
    found = [f"{size} bytes; at most {MOST_BYTES}"] if size > MOST_BYTES else []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                found.append(f"cell {number} writes to stderr: {output.text.strip()[:300]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="keep nothing")
    check = parser.parse_args().check
    notebook, began = read(), time.perf_counter()
    try:
        run(notebook)
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    shrink(notebook)
    notebook.metadata[MADE_FROM] = fingerprint(notebook)
    text = nbformat.writes(notebook) + "\n"
    found = faults(notebook, len(text.encode()))
    print(*found, f"ran in {time.perf_counter() - began:.0f} s, {len(text)} bytes", sep="\n")
    if not check:
        NOTEBOOK.write_text(text, encoding="utf-8")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
