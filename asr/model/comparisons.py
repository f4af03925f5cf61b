"""Comparisons that a model has passed on this machine, so that they are not repeated at every start.

When a model is loaded, its engine's logits and its native encoder's states are compared with those of its
plain forward, as often as a process starts (tiny.en and its draft: 0.5 of 7 s). What comes out depends on
the files of the model, on the code, the kernels and torch, and on device and processor. So what passed is
kept in the user's cache under a digest of all these, and is compared again as soon as one of them is another.
What failed is not kept. A file counts as changed with its size or its time of modification.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.native.library import load, missing

from .conversion.converting import cache_folder, state_of

log = logging.getLogger(__name__)

_CODE = (Path(__file__).parent, Path(inspect.getfile(Device)).parent)
"""What computes: models as they are read, and the packages of the core."""

ENCODER = "encoder"
"""The native encoder; decoders have the names of their engines."""

MOST = 200
"""Kept results, a file of about 30 bytes each. The oldest ones go first."""


class Comparisons:
    """Those of the model in a folder on a device; `lender` is the folder of the target that lends a draft the
    weights it lacks."""

    def __init__(self, folder: Path, device: Device, lender: Path | None = None) -> None:
        files = [f for part in (folder, lender) if part is not None for f in _files(part)]
        code = [f for place in _CODE for f in place.rglob("*.py")]
        if missing() is None:
            code.append(load().path)  # compiled again, it has the same name
        setup = [
            *(f"{os.path.realpath(f)} {state_of(f)}" for f in (*files, *sorted(code))),
            str(lender is None),
            repr(device),
            torch.__version__,
            version("transformers"),
            _processor(device),
            missing() or load().describe(),
        ]
        digest = hashlib.sha256("\0".join(setup).encode(errors="surrogateescape")).hexdigest()
        self._path = cache_folder() / "compared" / digest[:32]
        self.passed = self._read()

    def _read(self) -> frozenset[str]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return frozenset()
        return frozenset(map(str, found)) if isinstance(found, list) else frozenset()

    def add(self, name: str) -> None:
        """Keep that a comparison was passed. Where the cache cannot be written, the next start compares
        again."""
        if name in self.passed:
            return
        self.passed |= {name}
        try:
            self._write(json.dumps(sorted(self.passed)))
        except OSError as error:
            log.debug("comparisons are not kept: %s", error)

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=self._path.parent, prefix=".")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(scratch, self._path)  # whole or not at all, also beside another process
        except OSError:
            os.unlink(scratch)
            raise
        kept = [path for path in os.scandir(self._path.parent) if path.is_file()]
        for path in sorted(kept, key=_changed, reverse=True)[MOST:]:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _changed(entry: os.DirEntry[str]) -> float:
    """When a file was changed last; 0 for one that another process has removed."""
    with suppress(FileNotFoundError):
        return entry.stat().st_mtime
    return 0.0


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _processor(device: Device) -> str:
    """The processor, and the accelerator where a model is on one."""
    able = sorted(name for name, has in torch.cpu.get_capabilities().items() if has)
    found = f"{platform.machine()} {able}"
    return f"{found} {torch.cuda.get_device_name(device.torch)}" if device.kind == "cuda" else found
