"""The OpenAPI description's errors: which statuses a route answers with, and that their body is OpenAI's.

Written into the description once it is made, so that no route can forget one. Knows what the routes'
tags mean, nothing else of them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ..errors import STATUS

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {
                    "type": "string",
                    "enum": ["invalid_request_error", "rate_limit_error", "server_error"],
                },
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"], "enum": [*sorted(STATUS), None]},
            },
        }
    },
}
DETAIL: dict[str, Any] = {
    "type": "object",
    "required": ["detail"],
    "properties": {"detail": {"type": "string"}},
}

KEY: dict[str, Any] = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key, made with `forescribe key NAME`. It may be for some of the routes only.",
}
PUBLIC = frozenset({"health", "page"})
"""Tags of routes that want no key."""

EVERYWHERE = {405: "no such method here", 500: "a fault of the server"}
PRIVATE = {401: "no key, or a wrong one", 403: "the key is not for this"}
BODIES = {
    400: "a field or the recording is wrong",
    404: "no such model, or no such thing",
    408: "the body came too slowly",
    413: "too many bytes, or too much audio",
    415: "another media type",
    429: "this key has its share",
    503: "the queue is full, or the server is loading or stopping",
    504: "it took too long",
    507: "no room on the disk",
}
ABOUT = {
    400: "a value is wrong",
    404: "no such thing",
    416: "a range that the recording has not",
    503: "loading, or stopping",
}
JOBS = {
    409: "not yet, or not any more",
    412: "another version of the upload protocol",
    422: "the idempotency key was used for another request",
    423: "somebody else is writing",
}

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


def describe(app: FastAPI) -> None:
    """Lets the application describe itself with its errors, once it has all of its routes."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            parts = made.setdefault("components", {})
            parts.setdefault("schemas", {}).update({"Error": ERROR, "Detail": DETAIL})
            parts["securitySchemes"] = {"key": KEY}
            keyed = bool(app.state.keyring)
            for path in made["paths"].values():
                for method, operation in path.items():
                    if method in METHODS:
                        _complete(method, operation)
                        _secure(operation, keyed=keyed)
            _move_definitions(made, made["components"]["schemas"])
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def statuses(method: str, tags: list[str]) -> dict[int, str]:
    """Of the errors of a route."""
    tag = tags[0] if tags else ""
    found = dict(EVERYWHERE)
    if tag in PUBLIC:
        return {**found, **ABOUT}
    found |= PRIVATE | (BODIES if method in ("post", "patch", "put") else ABOUT)
    return found | (JOBS if tag == "jobs" else {})


def _move_definitions(node: Any, schemas: dict[str, Any]) -> None:
    """pydantic writes a record's parts beside it; here references start at the whole description."""
    if isinstance(node, list):
        for one in node:
            _move_definitions(one, schemas)
    if not isinstance(node, dict):
        return
    for name, definition in node.pop("$defs", {}).items():
        _move_definitions(definition, schemas)
        assert schemas.setdefault(name, definition) == definition, f"two parts are called {name}"
    reference = node.get("$ref")
    if isinstance(reference, str):
        node["$ref"] = reference.replace("#/$defs/", "#/components/schemas/")
    for one in list(node.values()):
        _move_definitions(one, schemas)


def _secure(operation: dict[str, Any], *, keyed: bool) -> None:
    """What the operation wants: a key where keys are set; the public ones and a server without keys want
    none, and say so."""
    public = not set(operation.get("tags", [])) - PUBLIC
    operation["security"] = [{"key": []}] if keyed and not public else []


def _complete(method: str, operation: dict[str, Any]) -> None:
    tags = operation.get("tags", [])
    answers = operation.setdefault("responses", {})
    answers.pop("422", None)  # the framework's; ours are 400
    name = "Detail" if "endpoints" in tags and method == "post" else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    for status, text in sorted(statuses(method, tags).items()):
        answers.setdefault(str(status), {"description": text, "content": content})
