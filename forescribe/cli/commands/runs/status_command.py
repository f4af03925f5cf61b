"""`forescribe status`: how far a run is, from its records alone.

Knows how the status is shown and when watching ends; it is read and counted in `asr.records`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ...options.option_records import DIAGNOSTICS, argument, option, takes

CLEAR = "\x1b[H\x1b[2J"
"""Moves to the top of the terminal and clears it."""


@dataclass(frozen=True)
class StatusOptions:
    """The parsed command line."""

    output: Annotated[
        str,
        argument("OUTPUT", help="Folder or URL that was given to `forescribe transcribe -o`."),
    ]
    watch: Annotated[
        bool,
        option(DIAGNOSTICS, "--watch/--no-watch", "-w", help="Show it again until all has ended."),
    ] = False
    every: Annotated[
        float,
        option(
            DIAGNOSTICS, "--every", metavar="SECONDS", min=1, help="Time from one look to the next."
        ),
    ] = 10.0
    json: Annotated[
        bool,
        option(DIAGNOSTICS, "--json/--no-json", help="Print JSON, one object per look."),
    ] = False


@takes(StatusOptions)
def status(**values: Any) -> None:
    """Show how far a transcription is: counts, failures, speed, and when it may end.

    Read from the records in the output, so that it works from any machine, while many work and after
    they have ended."""
    options = StatusOptions(**values)
    from forescribe.asr.records.status import StatusReader

    from ...terminal.status_text import status_lines

    reader = StatusReader(options.output)
    while True:
        found = reader.read()
        if options.json:
            shown = {"output": reader.records.where} | found.to_dict()
            text = json.dumps(shown)
        else:
            text = "\n".join(status_lines(reader.records.where, found, now=time.time()))
        clear = options.watch and not options.json and sys.stdout.isatty()
        typer.echo((CLEAR if clear else "") + text)
        if not options.watch or found.left == 0 or found.total is None:
            return
        time.sleep(options.every)
