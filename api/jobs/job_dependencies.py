"""The dependency of routes that use jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from .service import Jobs


def jobs(request: Request) -> Jobs:
    """The application's jobs. Routes that need them exist only if there are jobs."""
    jobs = request.app.state.jobs
    assert isinstance(jobs, Jobs)
    return jobs


JobsDep = Annotated[Jobs, Depends(jobs)]
