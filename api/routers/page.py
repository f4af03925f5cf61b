"""Pages for browsers: `GET /` with its files, and the routes described at `/docs` and `/openapi.json`.

`GET /` is the page in a browser, and `OK` for programs (Hugging Face contract); `GET /page/NAME` are its
files. They are public: the page holds no data, and its requests carry the user's key. `/docs` is Swagger UI,
from the package fastapi-offline. Where keys are set, it and `/openapi.json` want one (`browser_caller`).

Nothing is loaded from other servers, so none of their scripts runs here and no text can become a script: the
policies allow only this server's own files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

router = APIRouter(include_in_schema=False)

docs_router = APIRouter(include_in_schema=False, tags=["docs"])

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

DOCS_TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

DOCS_HEADERS = {
    # Swagger UI sets styles inline, and its icons are data.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>forescribe: routes</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="page/icon.svg">
</head>
<body>
<div id="routes"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#routes",
  deepLinking: true,
  validatorUrl: null, // else the description is sent to a service that judges it
});
"""


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


@docs_router.get("/openapi.json")
async def description(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi(), headers={"Cache-Control": "no-cache"})


@docs_router.get("/docs")
async def page() -> Response:
    return Response(PAGE, media_type="text/html", headers=DOCS_HEADERS)


@docs_router.get("/docs/{name}")
async def asset(name: str) -> Response:
    if name == "start.js":
        return Response(START, media_type="text/javascript", headers=DOCS_HEADERS)
    if name not in DOCS_TYPES:
        raise HTTPException(404, f"the documentation has no file {name[:100]!r}")
    return Response(_asset(name), media_type=DOCS_TYPES[name], headers=DOCS_HEADERS)


@dataclass(frozen=True)
class File:
    """A file of the page, as it is sent."""

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


def _answer(request: Request, name: str) -> Response:
    page_file = _files()[name]
    headers = {**HEADERS, "ETag": page_file.etag}
    if request.headers.get("if-none-match") == page_file.etag:
        return Response(status_code=304, headers=headers)
    return Response(page_file.body, media_type=page_file.media_type, headers=headers)


@cache
def _asset(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()
