"""Run the walkthrough from top to bottom in a fresh kernel.

    python scripts/run_notebook.py            # stores the outputs in the notebook
    python scripts/run_notebook.py --check    # stores nothing

Exit status 1 with the error of a failing cell, or if an output is not acceptable. A fingerprint of the
sources is stored in the metadata, so that a test can tell whether the outputs are out of date.
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
    """A hash of everything that determines the outputs: cells, helper modules and models."""
    digest = hashlib.sha256()
    for cell in notebook.cells:
        digest.update(f"{cell.cell_type}\n{cell.source}\n".encode())
    names = ("tiny.en", "tiny.en-draft", "text", "text-draft")
    weights = [ROOT / "bundled" / name / "model.safetensors" for name in names]
    for path in [*sorted(NOTEBOOK.parent.glob("*.py")), *weights]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def run(notebook: Any) -> None:
    """Execute the cells and store their outputs. Raises CellExecutionError."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        notebook,
        timeout=1800,  # seconds for one cell, on a busy machine
        startup_timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        extra_arguments=[
            "--log-level=40"
        ],  # without the warning that it listens on the local machine
    ).execute()
    # The Python version of the last run is not part of the content.
    notebook.metadata.language_info = {"name": "python"}


def shrink(notebook: Any) -> None:
    """Reduce pictures to a palette of 16 colours, a sixth of the bytes, to keep the repository small."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
                small = io.BytesIO()
                picture.convert("RGB").quantize(16).save(small, "PNG", optimize=True)
                data["image/png"] = base64.b64encode(small.getvalue()).decode()


def faults(notebook: Any, size: int) -> list[str]:
    """What is not acceptable: output to stderr, and a file that is too large."""
    found = [f"{size} bytes; at most {MOST_BYTES}"] if size > MOST_BYTES else []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                found.append(f"cell {number} writes to stderr: {output.text.strip()[:300]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="store nothing")
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
