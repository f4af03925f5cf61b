"""Start the service: in this process, or as several workers with this process as their supervisor.

    run(settings)                 # returns at SIGINT or SIGTERM, once the work under way is done

Knows neither routes nor models; `api.process.server` runs one process, `api.process.workers` several.
"""

from __future__ import annotations

import logging
import socket
import sys

from ..settings import Settings
from . import workers
from .server import serve


def run(settings: Settings, listening: socket.socket | None = None) -> None:
    """Serve until SIGINT or SIGTERM, on a bound socket or on the address of the settings.

    After the signal no new work is admitted, and the work under way has `drain_s` seconds to finish.
    Exits with a special status if a model cannot be loaded (`api.process.model_loads`).
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    if settings.workers == 1:
        serve(settings, None if listening is None else [listening])
    else:
        workers.run(settings, listening)
