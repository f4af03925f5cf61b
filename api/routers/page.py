"""`GET /`: the page, for people; for programs the ancestor's `OK`. `GET /page/NAME`: its files.

Public: the page holds no data, and what it asks the routes for carries the caller's key. Nothing is
loaded from elsewhere, and no text can become a program: the policy allows this server's own files only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

router = APIRouter(include_in_schema=False)

INDEX = "index.html"

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Asked for each time, answered with 304: an update of the server is an update of the page.
    "Cache-Control": "no-cache",
    "Vary": "Accept",
}


@dataclass(frozen=True)
class File:
    body: bytes
    media_type: str
    etag: str


@cache
def _files() -> dict[str, File]:
    """All of the page's files, those that it shares with reports among them. Read once: a name that is
    not here leads nowhere."""
    found = {}
    for package, folder in (("forescribe.asr.formats", "view"), ("forescribe.api", "page")):
        for entry in (files(package) / folder).iterdir():
            kind = "text/html" if entry.name == INDEX else TYPES.get(entry.name.rpartition(".")[2])
            if kind is None:
                continue  # the report's templates
            assert entry.name not in found, f"two files are called {entry.name}"
            body = entry.read_bytes()
            found[entry.name] = File(body, kind, f'"{sha256(body).hexdigest()[:20]}"')
    return found


@router.get("/")
@router.head("/")
async def root(request: Request) -> Response:
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse("OK", headers={"Vary": "Accept"})
    return _answer(request, INDEX)


@router.get("/page/{name}")
@router.head("/page/{name}")
async def file(request: Request, name: str) -> Response:
    if name not in _files():
        raise HTTPException(404, f"the page has no file {name!r}")
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    found = _files()[name]
    headers = {**HEADERS, "ETag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
