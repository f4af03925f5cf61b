"""`GET /`: the page in a browser, `OK` for programs (Hugging Face contract). `GET /page/NAME`: its files.

Public: the page holds no data, and its requests carry the user's key. Nothing is loaded from other servers,
and no text can become a script: the policy allows only this server's own files.
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
    # Browsers ask each time and get 304: updating the server updates the page.
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
    """The page's files, including those that it shares with reports, by name. Read once; other names do
    not exist."""
    by_name = {}
    for package, folder in (("forescribe.asr.formats", "view"), ("forescribe.api", "page")):
        for entry in (files(package) / folder).iterdir():
            kind = "text/html" if entry.name == INDEX else TYPES.get(entry.name.rpartition(".")[2])
            if kind is None:
                continue  # templates of the report
            assert entry.name not in by_name, f"two files are called {entry.name}"
            body = entry.read_bytes()
            by_name[entry.name] = File(body, kind, f'"{sha256(body).hexdigest()[:20]}"')
    return by_name


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
    page_file = _files()[name]
    headers = {**HEADERS, "ETag": page_file.etag}
    if request.headers.get("if-none-match") == page_file.etag:
        return Response(status_code=304, headers=headers)
    return Response(page_file.body, media_type=page_file.media_type, headers=headers)
