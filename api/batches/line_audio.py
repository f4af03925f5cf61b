"""The recording of a line: a file that the client has uploaded, or one that is fetched from a URL.

    with audio.of(request, owner, check) as recording:
        ...  recording.label, recording.audio.path

Fetching is off unless `audio_urls` is set. The address is checked when the connection is made, as for
callbacks; there are no redirects and no proxies, and bytes and time are limited. Does not know rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import httpx

from ..access import addresses, outbound
from ..errors import ApiError
from ..files.file_store import Files
from ..http.validation import label, whole
from ..jobs.blob_storage.blob_store import BlobDraft, BlobStore
from ..settings import Settings
from .line_form import LineRequest

PAUSES_S: Sequence[float] = (1.0, 4.0)
"""Pauses between the attempts to fetch a recording from a server that does not answer well."""

MAX_LENGTH = 2**60


class StoredAudio(Protocol):
    """Audio on disk that becomes a job's blob."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...

    def flush(self) -> None: ...

    def commit(self) -> str: ...


@dataclass(frozen=True)
class KeptBlob:
    """A blob that exists: the content of a file."""

    blobs: BlobStore
    name: str

    @property
    def path(self) -> Path:
        return self.blobs.local(self.name)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def flush(self) -> None:
        """It is on disk."""

    def commit(self) -> str:
        """Its name. Call it while `shared_lock` is held, so that it is not deleted afterwards. Raises
        ApiError `file_not_found` if it has been deleted."""
        try:
            self.blobs.local(self.name)
        except FileNotFoundError as error:
            raise ApiError("file_not_found", "the file has been deleted", param="file") from error
        return self.name


@dataclass(frozen=True)
class LineRecording:
    """The audio, and the client's name for it."""

    audio: StoredAudio
    label: str | None


class LineAudio:
    """Finds or fetches recordings. `check` is called often, and raises if the work is to end."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        resolve: outbound.Resolve = outbound.resolve_name,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.settings, self.files, self.resolve = settings, files, resolve
        self.pauses_s = pauses_s

    @contextmanager
    def of(
        self, request: LineRequest, owner: str, check: Callable[[], None]
    ) -> Iterator[LineRecording]:
        """Raises ApiError: `file_not_found`, `invalid_value`, `file_too_large`, `audio_unreachable`."""
        if request.file is not None:
            try:
                file = self.files.get(request.file, owner)
                name = self.files.blob(request.file, owner)
            except ApiError as error:
                raise ApiError(error.code, error.message, param="file") from error
            yield LineRecording(KeptBlob(self.files.store.blobs, name), file.filename)
            return
        assert request.url is not None
        draft = self._fetched(request.url, check)
        try:
            yield LineRecording(
                draft, label(unquote(urlsplit(request.url).path.rsplit("/", 1)[-1]))
            )
        finally:
            draft.discard()

    def _fetched(self, url: str, check: Callable[[], None]) -> BlobDraft:
        networks = addresses.networks(self.settings.audio_url_networks)
        if not self.settings.audio_urls:
            raise _refused("this server fetches no audio; upload the file, and give its id")
        try:
            addresses.check_url(url, networks)
        except addresses.Refused as error:
            raise _refused(str(error)) from error
        pauses = iter(self.pauses_s)
        while True:
            try:
                return self._fetch(url, networks, check)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                refused = isinstance(_root(error), addresses.Refused)
                pause_s = None if refused else next(pauses, None)
                if pause_s is None:
                    what = str(_root(error)) if refused else type(error).__name__
                    text = f"file_url: the recording cannot be fetched ({what})"
                    raise ApiError("audio_unreachable", text, param="file_url") from error
            end_s = time.monotonic() + pause_s
            while time.monotonic() < end_s:
                check()
                time.sleep(0.05)

    def _fetch(
        self, url: str, networks: Sequence[addresses.Network], check: Callable[[], None]
    ) -> BlobDraft:
        timeout_s, maximum = self.settings.audio_url_timeout_s, self.settings.max_upload_bytes
        draft = self.files.store.blobs.draft()
        try:
            with (
                outbound.client(
                    timeout_s=timeout_s, allowed=networks, resolve=self.resolve
                ) as http,
                http.stream("GET", url, headers={"accept-encoding": "identity"}) as reply,
            ):
                if reply.status_code >= 500 or reply.status_code == 429:
                    raise httpx.HTTPError(f"the server answered {reply.status_code}")
                if reply.status_code != 200:
                    text = f"file_url: the server answered {reply.status_code}"
                    raise ApiError("audio_unreachable", text, param="file_url")
                declared = reply.headers.get("content-length", "0")
                if (whole(declared, MAX_LENGTH) or 0) > maximum:
                    raise _too_large(maximum)
                for piece in reply.iter_raw():
                    check()
                    draft.write(piece)
                    if draft.size > maximum:
                        raise _too_large(maximum)
            return draft
        except BaseException:
            draft.discard()
            raise


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _refused(reason: str) -> ApiError:
    return ApiError("invalid_value", f"file_url: {reason}", param="file_url")


def _too_large(maximum: int) -> ApiError:
    text = f"the recording is larger than {maximum} bytes"
    return ApiError("file_too_large", text, param="file_url")
