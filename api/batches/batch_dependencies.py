"""The dependency of routes that use batches.

Does not know HTTP beyond the application's state; routes that need batches exist only if there are jobs.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from .batch_service import Batches


def batches(request: Request) -> Batches:
    """The application's batches."""
    batches = request.app.state.batches
    assert isinstance(batches, Batches)
    return batches


BatchesDep = Annotated[Batches, Depends(batches)]
