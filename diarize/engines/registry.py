"""Engines by name: those of this package, a folder, and engines of other packages.

Another package adds an engine by an entry point of the group `forescribe.diarizers`: a function that
takes the name of a device and returns a Diarizer. This module is light; an engine imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from forescribe.asr.errors import ModelError, UsageError
from forescribe.speculative.models import hub
from forescribe.speculative.models.checkpoint import loading

from ..diarizer import Diarizer
from . import community

if TYPE_CHECKING:
    from .embedded import EmbeddedDiarizer

GROUP = "forescribe.diarizers"
AUTO = "auto"
EMBEDDED = "embedded"
GONE = {"nemotron": "use embedded or community-1"}
"""Engines of the version before, and what to use instead."""

Factory = Callable[[str], Diarizer]


def names() -> list[str]:
    """The names that --diarizer accepts, besides folders."""
    return [AUTO, community.NAME, EMBEDDED, *sorted(_entry_points())]


def resolve(name: str, *, network: bool = True) -> str | Path:
    """Resolve `name` to an engine's name or a folder, without loading it.

    `auto` is community-1 if it is on this machine, else the embedded engine; it never downloads.
    `community-1`, also by the name of its repository, is downloaded if necessary and `network` allows it.
    Raises UsageError for an unknown name and ModelError if it is not available.
    """
    if name == AUTO:
        return community.find() or EMBEDDED
    if name in (community.NAME, community.REPOSITORY):
        return community.locate(network=network)
    if name == EMBEDDED or name in _entry_points():
        return name
    if name in GONE:
        raise UsageError(f"--diarizer {name} is gone: {GONE[name]}")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return community.checked(folder)
    raise UsageError(
        f"--diarizer {name} is neither an engine nor a folder; known: {', '.join(names())}"
    )


@loading()
def load(name: str = AUTO, *, device: str = "auto", network: bool = True) -> Diarizer:
    """Load the engine. Raises the errors of `resolve`, DeviceError, and ModelError for weights that
    cannot be loaded."""
    chosen = resolve(name, network=network)
    place = _device(device)
    if isinstance(chosen, Path):
        title = (
            community.NAME if name in (AUTO, community.NAME, community.REPOSITORY) else str(chosen)
        )
        return community.load(chosen, device=place, name=title)
    if chosen == EMBEDDED:
        from .embedded import EmbeddedDiarizer

        return EmbeddedDiarizer(device=place)
    return _create(_entry_points()[chosen], place)


def check_online() -> None:
    """Raises ModelError where the networks of live audio are missing; loads nothing."""
    folder = hub.FOLDER / "speakers"
    if not folder.is_dir():
        raise ModelError(
            f"speakers of live audio need the networks in {str(folder)!r}: install forescribe anew"
        )


@loading()
def load_online(loaded: Diarizer | None = None, *, device: str = "auto") -> EmbeddedDiarizer:
    """The engine of live audio, which is the embedded one; `loaded` if it is one. Raises DeviceError, and
    ModelError if its networks are missing."""
    from .embedded import EmbeddedDiarizer

    if isinstance(loaded, EmbeddedDiarizer):
        return loaded
    return EmbeddedDiarizer(device=_device(device))


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _create(point: EntryPoint, device: str) -> Diarizer:
    try:
        factory: Factory = point.load()
    except Exception as error:  # code of another package may raise anything
        raise ModelError(
            f"--diarizer {point.name}: {point.value} cannot be loaded: {error}"
        ) from error
    return factory(device)


def _device(name: str) -> str:
    """A device that pyannote supports: CUDA, else the CPU."""
    from forescribe.speculative.device import choose

    kind = choose(name).torch
    return str(kind) if kind.type in ("cuda", "cpu") else "cpu"
