"""The listening socket. Bound before anything that takes time is imported: a port that somebody else has is
told at once, not after the model's libraries."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from forescribe.asr.errors import UsageError

if TYPE_CHECKING:
    from ..settings import Settings

BACKLOG = 2048


def bound(settings: Settings) -> socket.socket:
    """Raises UsageError that says what to do."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((settings.host, settings.port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        place = f"{settings.host}:{settings.port}"
        raise UsageError(
            f"cannot listen on {place}: {error.strerror}; choose another with --host and --port"
        ) from error
    return made
