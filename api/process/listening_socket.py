"""The listening socket, bound before slow imports: a port in use is reported at once. Import is light."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from forescribe.asr.errors import UsageError

if TYPE_CHECKING:
    from ..settings import Settings

BACKLOG = 2048


def bound(settings: Settings) -> socket.socket:
    """Bind and listen on the address of the settings. Raises UsageError if it is not available."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        address = f"{settings.host}:{settings.port}"
        raise UsageError(
            f"cannot listen on {address}: {error.strerror}; choose another with --host and --port"
        ) from error
    return listening
