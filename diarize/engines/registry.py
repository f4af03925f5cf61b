"""Engines by name: the two that come with the package, a folder, and those that others bring.

Another package adds one by an entry point of the group `forescribe.diarizers`: a function that takes
a device's name and returns a Diarizer. Importing this is light; torch comes in with an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from forescribe.asr.errors import ModelError, UsageError
from forescribe.speculative.models.load_lock import loading

from ..diarizer import Diarizer
from . import community

GROUP = "forescribe.diarizers"
AUTO = "auto"
EMBEDDED = "embedded"

Factory = Callable[[str], Diarizer]


def names() -> list[str]:
    """What --diarizer takes, apart from folders."""
    return [AUTO, community.NAME, EMBEDDED, *sorted(_others())]


def resolve(name: str, *, network: bool = True) -> str | Path:
    """What `name` will load: an engine's name, or a folder. Loads nothing, downloads community-1
    where it was asked for and may be.

    `auto` is community-1 where it is on this machine, else embedded: no download that nobody asked
    for. Raises UsageError for an unknown name, ModelError where community-1 cannot be had.
    """
    if name == AUTO:
        return community.find() or EMBEDDED
    if name == community.NAME:
        return community.locate(network=network)
    if name == EMBEDDED or name in _others():
        return name
    folder = Path(name).expanduser()
    if folder.is_dir():
        return community.checked(folder)
    raise UsageError(
        f"--diarizer {name} is neither an engine nor a folder; known: {', '.join(names())}"
    )


@loading()
def load(name: str = AUTO, *, device: str = "auto", network: bool = True) -> Diarizer:
    """The engine, ready to work. Raises what `resolve` raises, DeviceError, and ModelError for
    weights that cannot be loaded."""
    chosen = resolve(name, network=network)
    place = _device(device)
    if isinstance(chosen, Path):
        title = community.NAME if name in (AUTO, community.NAME) else str(chosen)
        return community.load(chosen, device=place, name=title)
    if chosen == EMBEDDED:
        from . import embedded

        return embedded.build(embedded.folder(), device=place)
    return _made(_others()[chosen], place)


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _made(point: EntryPoint, device: str) -> Diarizer:
    try:
        factory: Factory = point.load()
    except Exception as error:  # another package's code: anything may be wrong with it
        raise ModelError(
            f"--diarizer {point.name}: {point.value} cannot be loaded: {error}"
        ) from error
    return factory(device)


def _device(name: str) -> str:
    """A device that pyannote runs on; where ours is another, the processor."""
    from forescribe.speculative.device import choose

    kind = choose(name).torch
    return str(kind) if kind.type in ("cuda", "cpu") else "cpu"
