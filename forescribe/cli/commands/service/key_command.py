"""`forescribe key`: make an API key for the service.

Knows how a key is printed; keys and their hashes are in `forescribe.api.access`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ...options.option_records import argument


def key(name: Annotated[str, argument("NAME", help="Name of the key's owner.")]) -> None:
    """Make an API key for the service.

    The key is printed once; the settings file holds its hash.
    """
    from forescribe.api.access.keys import digest, new_key

    value = new_key()
    typer.echo(value)
    typer.echo(f'for the settings file, under [api_keys]: {name} = "{digest(value)}"', err=True)
