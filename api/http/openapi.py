"""The OpenAPI description: bodies that are parsed by hand, and the errors of each route, in OpenAI's form.

Errors are added to the generated description, so that no route can omit one. Knows the meaning of the routes'
tags only.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

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
    "description": "An API key, made with `forescribe key NAME`. Its scopes may exclude some routes.",
}
PUBLIC = frozenset({"health", "page"})
"""Tags of routes that need no key."""

EVERYWHERE = {405: "the route does not have this method", 500: "a fault of the server"}
PRIVATE = {401: "the key is missing or wrong", 403: "the key lacks the scope"}
BODIES = {
    400: "a field or the recording is wrong",
    404: "no such model or object",
    408: "the body arrived too slowly",
    413: "too many bytes, or too much audio",
    415: "unsupported media type",
    429: "the key has reached a limit",
    503: "the queue is full, or the server is loading or stopping",
    504: "it took too long",
    507: "the disk is full",
}
ABOUT = {
    400: "a value is wrong",
    404: "no such object",
    416: "the range is outside the recording",
    503: "loading, or stopping",
}
JOBS = {
    409: "the state of the job or upload does not allow it",
    412: "unsupported version of the upload protocol, or the object has been changed meanwhile",
    422: "the idempotency key was used for another request",
    423: "another request is writing",
    428: "If-Match is missing",
}

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


def form_body(
    form: type[BaseModel] | None, *, file: str = "file", file_required: bool = True
) -> dict[str, Any]:
    """The body of a route that takes a form with a file, which FastAPI cannot derive. `form` is None where
    there is nothing else in it."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if form is not None:
        schema = form.model_json_schema()
    schema["properties"][file] = {"type": "string", "format": "binary"}
    if file_required:
        schema["required"] = [file, *schema.get("required", ())]
    return _body("multipart/form-data", schema)


def json_body(form: type[BaseModel]) -> dict[str, Any]:
    """Likewise of a route that takes JSON."""
    return _body("application/json", form.model_json_schema())


def describe(app: FastAPI) -> None:
    """Replace the application's OpenAPI function. Call it once all routes are added."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            parts = document.setdefault("components", {})
            parts.setdefault("schemas", {}).update({"Error": ERROR, "Detail": DETAIL})
            parts["securitySchemes"] = {"key": KEY}
            keyed = bool(app.state.keyring.rights)
            for path in document["paths"].values():
                for method, operation in path.items():
                    if method in METHODS:
                        _complete(method, operation, keyed=keyed)
            _move_definitions(document, document["components"]["schemas"])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def statuses(method: str, tags: list[str]) -> dict[int, str]:
    """The error statuses of a route, with descriptions."""
    tag = tags[0] if tags else ""
    errors = dict(EVERYWHERE)
    if tag in PUBLIC:
        return {**errors, **ABOUT}
    errors |= PRIVATE | (BODIES if method in ("post", "patch", "put") else ABOUT)
    return errors | (JOBS if tag == "jobs" else {})


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def _move_definitions(node: Any, schemas: dict[str, Any]) -> None:
    """Move pydantic's nested definitions to the top level, where references of the description point."""
    if isinstance(node, list):
        for child in node:
            _move_definitions(child, schemas)
    if not isinstance(node, dict):
        return
    for name, definition in node.pop("$defs", {}).items():
        _move_definitions(definition, schemas)
        assert schemas.setdefault(name, definition) == definition, (
            f"two definitions are called {name}"
        )
    reference = node.get("$ref")
    if isinstance(reference, str):
        node["$ref"] = reference.replace("#/$defs/", "#/components/schemas/")
    for child in list(node.values()):
        _move_definitions(child, schemas)


def _complete(method: str, operation: dict[str, Any], *, keyed: bool) -> None:
    """Add the errors, and whether a key is needed: not if the operation is public or there are no keys."""
    tags = operation.get("tags", [])
    operation["security"] = [{"key": []}] if keyed and set(tags) - PUBLIC else []
    answers = operation.setdefault("responses", {})
    answers.pop("422", None)  # the framework's; ours are 400
    name = "Detail" if "endpoints" in tags and method == "post" else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    for status, text in sorted(statuses(method, tags).items()):
        answers.setdefault(str(status), {"description": text, "content": content})
