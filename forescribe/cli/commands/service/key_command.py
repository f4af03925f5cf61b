"""`forescribe key`: make an API key for the service.

Knows how a key and its rights are printed; keys and their hashes are in `forescribe.api.access`.
"""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Annotated, Any

import typer

from forescribe.asr.errors import UsageError

from ...options.option_records import SERVICE, argument, option

BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Names that TOML takes without quotes."""


def key(
    name: Annotated[str, argument("NAME", help="Name of the key's owner.")],
    scope: Annotated[
        list[str] | None,
        option(
            SERVICE, "--scope", metavar="SCOPE", help="audio, text, jobs or metrics; repeatable."
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        option(
            SERVICE,
            "--limit",
            metavar="NAME=N",
            help="A limit or quota, such as requests_per_minute=60 or audio_s_per_month=36000; repeatable.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        option(SERVICE, "--expires", metavar="DATE", help="Last day of the key, as 2027-01-31."),
    ] = None,
) -> None:
    """Make an API key for the service.

    The key is printed once; the settings file holds its hash and its rights.
    """
    from forescribe.api.access.keys import digest, new_key

    rights: dict[str, Any] = {}
    if scope:
        rights["scopes"] = scope
    if expires is not None:
        rights["expires"] = _day(expires)
    rights |= dict(_limit(text) for text in limit or ())
    value = new_key()
    _check({"hash": digest(value), **rights})
    typer.echo(value)
    typer.echo(_lines(name, digest(value), rights), err=True)


def _check(rights: dict[str, Any]) -> None:
    """Raises UsageError that names the wrong right."""
    from pydantic import ValidationError

    from forescribe.api.access.keys import Rights

    try:
        Rights.model_validate(rights)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"][0] if first["loc"] else "rights"
        if first["type"] == "extra_forbidden":
            known = [n for n in Rights.model_fields if n not in ("hashes", "scopes", "expires")]
            raise UsageError(f"--limit {place}: unknown; known: {', '.join(known)}") from error
        raise UsageError(f"{place}: {first['msg']}") from error


def _limit(text: str) -> tuple[str, int | float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
        return name, int(number) if number.is_integer() else number
    except (ValueError, OverflowError):
        raise UsageError(f"--limit {text}: give NAME=N, such as requests_per_day=1000") from None


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--expires {text}: give a date as 2027-01-31") from None


def _lines(name: str, hash: str, rights: dict[str, Any]) -> str:
    """The lines for the settings file."""
    shown = name if BARE.fullmatch(name) else json.dumps(name)
    if not rights:
        return f'for the settings file, under [api_keys]: {shown} = "{hash}"'
    lines = [f"[api_keys.{shown}]", f'hash = "{hash}"']
    for right, value in rights.items():
        text = value.isoformat() if isinstance(value, date) else json.dumps(value)
        lines.append(f"{right} = {text}")
    return "for the settings file:\n" + "\n".join(lines)
