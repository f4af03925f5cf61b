"""Settings of a service on several machines, checked together: what would lose something is refused.

Knows the settings only; whether other processes keep their blobs elsewhere is checked against the database
(`api.jobs.joining`).
"""

from __future__ import annotations

from typing import Protocol

from forescribe.asr.errors import UsageError


class MachineSettings(Protocol):
    """The settings that depend on each other (`api.settings`)."""

    jobs: bool
    database_url: str | None
    blobs_url: str | None
    blob_cache_bytes: int
    max_upload_bytes: int
    front_end: bool
    text_model: str | None


def check_machines(settings: MachineSettings) -> None:
    """Raises ValueError with the setting that has to be changed."""
    named = "blobs_url" if settings.blobs_url is not None else "front_end"
    if not settings.jobs:
        raise ValueError(f"{named} is for jobs, and jobs = false: set jobs = true")
    if settings.database_url is None or settings.database_url.startswith("sqlite"):
        raise ValueError(
            f"{named} needs a database that several machines can reach, and SQLite is a file of this "
            "one: set database_url = postgresql://user:password@host/name"
        )
    if settings.front_end and settings.text_model is not None:
        raise ValueError("front_end loads no model, and text_model names one: remove one of them")
    if settings.blobs_url is None:
        return
    _check_location(settings.blobs_url)
    if settings.blob_cache_bytes < settings.max_upload_bytes:
        raise ValueError(
            f"blob_cache_bytes {settings.blob_cache_bytes} is less than max_upload_bytes "
            f"{settings.max_upload_bytes}: a recording has to fit in"
        )


def _check_location(url: str) -> None:
    from forescribe.asr.storage.locations import Location

    try:
        location = Location.parse(url)
    except UsageError as error:
        raise ValueError(f"blobs_url: {error.message}") from error
    if not location.writable or location.scheme == "memory":
        raise ValueError(
            f"blobs_url: {location.scheme}:// cannot be written; use s3://, gs:// or az://"
        )
