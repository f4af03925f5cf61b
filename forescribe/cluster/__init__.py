"""Many machines by Ray: `transcribe --cluster`, the operator of Ray Data, the application of Ray Serve.

    forescribe transcribe calls -r -o out --cluster ray://head:10001
    serve run forescribe.cluster:app model=large

`ray_connection`, `ray_fleet`, `operator` and `serve_app` call Ray, and import it inside of functions. The
rest knows workers and recordings and nothing of Ray, and is tested without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, str]) -> Application:
    """The application of Ray Serve; `args` are settings of the service. See `serve_app`."""
    from .serve_app import application

    return application(args)
