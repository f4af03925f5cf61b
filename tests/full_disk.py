"""A temporary folder on a full disk, for one module of the product.

monkeypatch.setattr(module, "tempfile", full_disk)
"""

from __future__ import annotations

import errno
from typing import Any, BinaryIO, cast


def TemporaryFile(*, buffering: int = -1, **_: Any) -> BinaryIO:
    """It can be opened, and nothing can be written to it."""
    return cast(BinaryIO, open("/dev/full", "w+b", buffering=buffering))


def mkdtemp(**_: Any) -> str:
    raise OSError(errno.ENOSPC, "No space left on device")


TemporaryDirectory = mkdtemp


def gettempdir() -> str:
    return "/tmp"
