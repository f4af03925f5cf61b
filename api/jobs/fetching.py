"""Recordings that a line of a batch names by URL.

Fetching is off unless `audio_urls` is set. The address is checked when the connection is made, as for
callbacks; there are no redirects and no proxies, and bytes and time are limited.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx

from ..access import outbound
from ..errors import ApiError
from ..http.bodies import whole
from ..settings import Settings
from .blobs import BlobDraft

TIMEOUT_S = 600.0

MAX_LENGTH = 2**60
"""The largest Content-Length that is read as a number."""


def check_url(url: str, settings: Settings) -> None:
    """Raises ApiError `invalid_value` if audio is not fetched from there."""
    if not settings.audio_urls:
        raise _error(
            "invalid_value", "this server fetches no audio: upload the file, and give its id"
        )
    try:
        outbound.check_url(url, outbound.networks(settings.audio_url_networks))
    except outbound.Refused as error:
        raise _error("invalid_value", str(error)) from error


def fetch(url: str, draft: BlobDraft, settings: Settings, check: Callable[[], None]) -> None:
    """Write the recording to a draft. `check` is called often, and raises if the work is to end. Raises
    ApiError `invalid_value`, `file_too_large`, `audio_unreachable`, which may pass."""
    check_url(url, settings)
    networks, maximum = outbound.networks(settings.audio_url_networks), settings.max_upload_bytes
    try:
        with (
            outbound.client(timeout_s=TIMEOUT_S, allowed=networks) as http,
            http.stream("GET", url, headers={"accept-encoding": "identity"}) as reply,
        ):
            if reply.status_code != 200:
                raise _error("audio_unreachable", f"the server answered {reply.status_code}")
            if (whole(reply.headers.get("content-length", "0"), MAX_LENGTH) or 0) > maximum:
                raise _error("file_too_large", f"the recording is larger than {maximum} bytes")
            for piece in reply.iter_raw():
                check()
                draft.write(piece)
                if draft.size > maximum:
                    raise _error("file_too_large", f"the recording is larger than {maximum} bytes")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = f"the recording cannot be fetched ({type(error).__name__})"
        raise _error("audio_unreachable", reason) from error


def _error(code: str, reason: str) -> ApiError:
    return ApiError(code, f"file_url: {reason}", param="file_url")
