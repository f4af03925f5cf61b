"""The dependency of routes that use files.

Does not know HTTP beyond the application's state; routes that need files exist only if there are jobs.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from .file_store import Files


def files(request: Request) -> Files:
    """The application's files."""
    files = request.app.state.files
    assert isinstance(files, Files)
    return files


FilesDep = Annotated[Files, Depends(files)]
