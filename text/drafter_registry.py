"""Drafters of other packages, by name.

A package adds one by an entry point of the group `forescribe.drafters`: a function that takes a
`DrafterSetting` and returns a `speculative.protocols.Drafter`. Light: a factory imports what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from forescribe.speculative.errors import LoadError

if TYPE_CHECKING:
    from forescribe.speculative.device import Device
    from forescribe.speculative.protocols import Drafter

    from .language_model import LanguageModel

GROUP = "forescribe.drafters"


@dataclass(frozen=True)
class DrafterSetting:
    """What a factory may need to know."""

    target: LanguageModel
    device: Device
    gamma: int | None  # drafted tokens per round; None: chosen by measured speed
    context: int  # tokens of a row, prompt included


def names() -> list[str]:
    """The names that other packages add to --draft."""
    return sorted(_entry_points())


def create(name: str, setting: DrafterSetting) -> Drafter:
    """The drafter of another package. Raises LoadError, with its name, where the package cannot be loaded or
    gives something else."""
    point = _entry_points().get(name)
    if point is None:
        known = f"; of other packages: {', '.join(names())}" if names() else ""
        raise LoadError(f"--draft {name} is no drafter{known}")
    try:
        factory: Callable[[DrafterSetting], Drafter] = point.load()
        drafter = factory(setting)
    except LoadError:
        raise
    except Exception as error:  # code of another package may raise anything
        raise LoadError(
            f"--draft {name}: {point.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    lacks = [part for part in ("needs", "bind", "propose", "observe") if not hasattr(drafter, part)]
    if lacks:
        raise LoadError(
            f"--draft {name}: {point.value} returns a {type(drafter).__name__}, which is no drafter: it "
            f"lacks {lacks[0]}"
        )
    return drafter


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
