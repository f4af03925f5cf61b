"""Locations: `s3://bucket/calls/a.mp3` and the like, as values that can be shown safely; and sources, the
recordings of a run by path or location.

    location = Location.parse("https://example.com/a.mp3?X-Amz-Signature=9c41")
    location.name                    # a.mp3
    str(location)                    # https://example.com/a.mp3: no password, no signature
    Location.parse("s3://out/2026") / "a/b.srt"

Knows names and the forms of URLs; opens nothing. Import is light.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from ..errors import ForescribeError, UsageError, visible

STDIN = "-"
LIST = ".jsonl"
NAMES = frozenset(
    "wav wave w64 rf64 aif aiff aifc au snd caf flac mp3 mp2 m4a m4b m4v aac ogg oga opus spx "
    "wma asf webm mkv mka mp4 mov 3gp 3g2 avi flv mpg mpeg m2ts mts amr ac3 eac3 dts ape wv tta "
    "tak mpc dsf gsm voc nut mxf".split()
)
"""Extensions of recordings. `ts` is not included: most such files are TypeScript."""

SCHEMES = ("s3", "gs", "az", "hf", "https", "http", "memory", "file")

WRITABLE = frozenset({"s3", "gs", "az", "memory", "file"})
"""Schemes that results can be written to."""

WEB = frozenset({"http", "https"})

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]+)://(?P<rest>.*)", re.DOTALL)

_SIGNATURE = re.compile(
    r"x-amz-.*|x-goog-.*|x-oss-.*|awsaccesskeyid|googleaccessid|key-pair-id|policy|signature|expires|"
    r"sig|se|sp|sv|sr|st|spr|sip|sk[a-z]+|token|access_token|auth|hmac|download",
    re.IGNORECASE,
)
"""Parameters that sign a URL (S3, Google, CloudFront, Azure and others) and change with every signing."""

_SAFE = "/:@!$&'()*+,;=-._~"
"""Characters of a web address that are not percent-encoded."""


@dataclass(frozen=True, repr=False)
class Location:
    """An object or a folder ("prefix") of objects.

    `host` is the bucket, the container, the server or the repository (`datasets/org/name@revision`);
    `key` is the name within it, without a leading slash; `query` is that of a web address, with its
    secrets. `str` and `repr` show neither passwords nor queries.
    """

    scheme: str
    host: str
    key: str = ""
    query: str = ""
    user: str = ""  # user:password of a web address
    path: str = ""  # of a web address as it was given: `%2F` and `/` are not the same to servers

    @classmethod
    def parse(cls, text: str) -> Location:
        """Read a URL. Keys are taken as they are; only web addresses are percent-encoded. Raises
        UsageError."""
        match = _URL.fullmatch(text)
        if match is None:
            raise UsageError(f"{visible(text)!r} is no URL")
        scheme, rest = match["scheme"].lower(), match["rest"]
        if "\0" in rest or "%00" in rest and scheme in (*WEB, "file"):
            raise UsageError(f"a {scheme}:// address holds a NUL character")
        if scheme not in SCHEMES:
            raise UsageError(
                f"{scheme}:// is not supported: use s3://, gs://, az://, hf://, https:// or a path"
            )
        if scheme in WEB:
            return _web(scheme, text)
        if scheme == "file":
            path = rest.removeprefix("localhost") if rest.startswith("localhost/") else rest
            return cls("file", "", "/" + unquote(path).lstrip("/"))
        parts = rest.split("/")
        size = 1
        if scheme == "hf":  # org/name, or datasets/org/name
            size = 3 if parts[0] in ("datasets", "spaces") else 2
        host = "/".join(parts[:size])
        if scheme in ("s3", "gs", "az") and "@" in host:
            raise UsageError(f"{scheme}:// names a bucket alone: take user and password out")
        if len(parts) < size or "" in parts[:size]:
            what = "a repository, as in hf://datasets/org/name" if scheme == "hf" else "a bucket"
            raise UsageError(f"{visible(text)!r} does not name {what}")
        return cls(scheme, host, "/".join(parts[size:]))

    def __str__(self) -> str:
        """The location for messages: no password, no query, no control characters."""
        return visible(self._plain)

    __repr__ = __str__

    @property
    def _plain(self) -> str:
        if self.scheme == "file":
            return f"file://{self.key}"
        return f"{self.scheme}://{self.host}" + (f"/{self.key}" if self.key else "")

    @property
    def identity(self) -> str:
        """What tells this location from others, without secrets: for a web address with a hash of the
        parameters that do not belong to a signature. Signing a URL again does not change it."""
        names = [
            (name, value)
            for name, value in parse_qsl(self.query, keep_blank_values=True)
            if not _SIGNATURE.fullmatch(name)
        ]
        if not names:
            return self._plain
        return f"{self._plain}#{hashlib.sha256(urlencode(names).encode()).hexdigest()[:8]}"

    @property
    def url(self) -> str:
        """The complete URL with its secrets, for requests only."""
        if self.scheme not in WEB:
            return str(self)
        user = f"{self.user}@" if self.user else ""
        query = f"?{self.query}" if self.query else ""
        given = self.path if _key(self.path) == self.key else f"/{quote(self.key, safe=_SAFE)}"
        return f"{self.scheme}://{user}{self.host}{quote(given, safe=f'{_SAFE}%')}{query}"

    @property
    def name(self) -> str:
        """The last part of the key, without slashes; empty for a whole bucket."""
        return posixpath.basename(self.key.rstrip("/"))

    @property
    def root(self) -> Location:
        """The bucket, container, server or repository of this location."""
        return replace(self, key="/" if self.scheme == "file" else "", query="")

    @property
    def parent(self) -> Location:
        """The folder that this location is in."""
        return replace(self, key=posixpath.dirname(self.key.rstrip("/")), query="")

    @property
    def writable(self) -> bool:
        """Whether its scheme can be written to."""
        return self.scheme in WRITABLE

    def __truediv__(self, name: str) -> Location:
        """The location `name` below this one."""
        key = f"{self.key.rstrip('/')}/{name.lstrip('/')}" if self.key else name.lstrip("/")
        return replace(self, key=key, query="")


def is_url(text: str) -> bool:
    """Whether a text is meant as a URL rather than as a path, whatever its scheme is."""
    return _URL.fullmatch(text) is not None


def has_recording_name(path: str) -> bool:
    """Whether a name ends as those of recordings do."""
    return posixpath.splitext(path)[1].lower().removeprefix(".") in NAMES


@dataclass(frozen=True)
class Entry:
    """An object as listed: its key, its bytes, and the tag that changes with its content."""

    key: str
    size: int
    etag: str | None = None

    @property
    def version(self) -> str:
        """Tells contents of one key apart without reading them."""
        return f"{self.size}:{(self.etag or '').strip(chr(34))}"


@dataclass(frozen=True)
class Source:
    """A recording to be transcribed.

    `path` is its path, or the identity of its location. `place` is its path below the folder that was
    named; its results go to the same place below the output folder. `length_s` is its length by a list.
    `error` is the reason why it cannot be read. `location` is where it is fetched from, with what its store
    says about it in `entry`; None for files of this machine.
    """

    path: str
    place: str = ""
    length_s: float | None = None
    error: ForescribeError | None = None
    location: Location | None = None
    entry: Entry | None = None

    @property
    def version(self) -> str | None:
        """Tells contents of a location apart without reading them; None for files of this machine."""
        return self.entry.version if self.entry is not None and self.entry.etag else None


def remote_source(
    location: Location,
    entry: Entry | None = None,
    *,
    place: str = "",
    length_s: float | None = None,
    error: ForescribeError | None = None,
) -> Source:
    """The source at a location."""
    return Source(location.identity, place, length_s, error, location, entry)


def identity(path: str) -> str:
    """The key of a recording: its absolute path, links kept, or its location."""
    return path if path == STDIN or is_url(path) else os.path.abspath(path)


def _web(scheme: str, text: str) -> Location:
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise UsageError("a web address cannot be read: its host or port is malformed") from error
    if not host:
        raise UsageError(f"{scheme}:// without a server")
    user = parts.netloc.rpartition("@")[0]
    shown = f"[{host}]" if ":" in host else host
    path = parts.path or "/"
    return Location(scheme, shown + port, _key(path), parts.query, user, path)


def _key(path: str) -> str:
    return unquote(path).lstrip("/")
