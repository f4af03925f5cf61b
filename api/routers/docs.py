"""`/docs` and `/openapi.json`: the description of the routes, and Swagger UI to read and try it.

Swagger UI's files come from a package (fastapi-offline, which does nothing else), so no script of
another server runs here; the policy allows this server's own. Where keys are set both want one; a browser,
which can send no bearer token by itself, asks for it as the password of HTTP Basic, under any name.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False, tags=["docs"])

HEADERS = {
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

TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


@cache
def _asset(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()


@router.get("/openapi.json")
async def description(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi(), headers={"Cache-Control": "no-cache"})


@router.get("/docs")
async def page() -> Response:
    return Response(PAGE, media_type="text/html", headers=HEADERS)


@router.get("/docs/{name}")
async def asset(name: str) -> Response:
    if name == "start.js":
        return Response(START, media_type="text/javascript", headers=HEADERS)
    if name not in TYPES:
        raise HTTPException(404, f"the documentation has no file {name[:100]!r}")
    return Response(_asset(name), media_type=TYPES[name], headers=HEADERS)
