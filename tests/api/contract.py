"""OpenAI's own schemas, to hold answers against."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FILE = Path(__file__).parent / "data" / "openai-audio.yaml"


@cache
def components() -> dict[str, Any]:
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))["components"]
    # The published text refers to this one without defining it.
    code = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    found["schemas"]["TranscriptionLanguage"] = code
    return found


def conforms(body: object, name: str) -> None:
    """Raises where a body is not what the schema `name` says."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": components()}
    Draft202012Validator(schema).validate(body)
