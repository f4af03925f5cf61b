"""What the routes of jobs ask for, beside what all routes ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from .service import Jobs


def jobs(request: Request) -> Jobs:
    """The routes are there only where there are jobs."""
    found = request.app.state.jobs
    assert isinstance(found, Jobs)
    return found


Jobbing = Annotated[Jobs, Depends(jobs)]
