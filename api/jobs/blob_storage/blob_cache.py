"""Local copies of blobs: a bounded folder of files, fetched once for all who need them at a time.

    with cache.held(name) as path: ...

Copies in use are never removed; others are, the longest unused first, when room is needed and after
`IDLE_S`. If all copies are in use, the next one waits for room. Does not know object storage: `fetch`
writes a blob to a new file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

IDLE_S = 60.0
"""How long a copy is kept after its last use: a browser plays a recording by many requests."""


@dataclass
class _Copy:
    path: Path
    size: int
    users: int = 0
    used_s: float = 0.0
    fetching: threading.Lock = field(default_factory=threading.Lock)
    complete: bool = False


class BlobCache:
    """Copies in `folder`, which belongs to this object alone: files in it are removed at the start.

    Args:
        max_bytes: of all copies together. One that is larger is fetched when no other is in use.
        size: the size of a blob. Raises FileNotFoundError.
        fetch: writes a blob to a new file.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        size: Callable[[str], int],
        fetch: Callable[[str, Path], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.max_bytes, self.clock = folder, max_bytes, clock
        self._size, self._fetch = size, fetch
        self._changed = threading.Condition()
        self._copies: dict[str, _Copy] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()

    @contextmanager
    def held(self, name: str) -> Iterator[Path]:
        """The copy of a blob, which exists for the block. Raises FileNotFoundError, and what `fetch`
        raises."""
        copy = self._enter(name)
        try:
            with copy.fetching:
                if not copy.complete:
                    self._fetch(name, copy.path)
                    copy.complete = True
            yield copy.path
        finally:
            self._leave(name, copy)

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        with self._changed:
            return self._bytes()

    def trim(self, idle_s: float = IDLE_S) -> int:
        """Remove copies that nobody has used for `idle_s` seconds, and return their number."""
        with self._changed:
            oldest = self.clock() - idle_s
            return self._remove(
                [name for name in self._idle() if self._copies[name].used_s <= oldest]
            )

    def drop(self, name: str) -> None:
        """Remove the copy of a blob that was deleted, at the end of its use."""
        with self._changed:
            copy = self._copies.get(name)
            if copy is not None and not copy.users:
                self._remove([name])
            elif copy is not None:
                copy.complete = False  # removed by its last user

    def _enter(self, name: str) -> _Copy:
        with self._changed:
            known = name in self._copies
        size = 0 if known else self._size(name)  # a request, so not under the lock
        with self._changed:
            self._changed.wait_for(lambda: name in self._copies or self._has_room(size))
            copy = self._copies.get(name)
            if copy is None:
                copy = _Copy(self.folder / uuid4().hex, size or self._size(name))
                self._copies[name] = copy
            copy.users += 1
            return copy

    def _leave(self, name: str, copy: _Copy) -> None:
        with self._changed:
            copy.users -= 1
            copy.used_s = self.clock()
            if not copy.users and not copy.complete:
                self._remove([name])
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        """Whether a copy of this size fits in, once the longest unused copies are removed."""
        for name in self._idle():
            if self._bytes() + size <= self.max_bytes:
                break
            self._remove([name])
        return not self._copies or self._bytes() + size <= self.max_bytes

    def _idle(self) -> list[str]:
        """Copies without a user, the longest unused first."""
        idle = [name for name, copy in self._copies.items() if not copy.users]
        return sorted(idle, key=lambda name: self._copies[name].used_s)

    def _remove(self, names: list[str]) -> int:
        for name in names:
            self._copies.pop(name).path.unlink(missing_ok=True)
        return len(names)

    def _bytes(self) -> int:
        return sum(copy.size for copy in self._copies.values())
