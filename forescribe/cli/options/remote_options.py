"""Values of options about object storage: sizes, and URLs in messages.

Knows how they are written; requests nothing.
"""

from __future__ import annotations

import re

from forescribe.asr.errors import UsageError

UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(option: str, text: str | None) -> int | None:
    """A number of bytes: 500MB, 1.5 GiB, 20g, 1000000; None for None. Raises UsageError."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    number = (
        float(match[1]) * (1024 if match[3] else 1000) ** UNITS[match[2].lower()] if match else 0
    )
    if number < 1:
        raise UsageError(f"{option} {text}: not a size; write it as 500MB or 20GB")
    return int(number)


def refuse_links(link_speakers: bool, output: str) -> None:
    """Raises UsageError where voices would have to be kept in object storage."""
    from forescribe.asr.storage.locations import is_url

    if link_speakers and is_url(output):
        raise UsageError(
            "--link-speakers keeps voices in the output folder: name a folder of this machine with -o"
        )


def shown_url(text: str) -> str:
    """A URL without its secrets; one of an unknown kind by its scheme alone."""
    from forescribe.asr.storage.locations import Location

    try:
        return Location.parse(text).shown
    except UsageError:
        return text.partition("://")[0] + "://..."


__all__ = ["parse_bytes", "refuse_links", "shown_url"]
