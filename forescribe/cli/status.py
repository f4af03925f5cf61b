"""`forescribe status`: how far a run is, from its records alone.

Knows how the status is shown, for people in a few lines, and when watching ends; it is read and counted in
`asr.records`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from forescribe.asr.errors import visible

from .option_records import DIAGNOSTICS, arg, opt, takes

if TYPE_CHECKING:
    from forescribe.asr.records.status import RunStatus

CLEAR = "\x1b[H\x1b[2J"
"""Moves to the top of the terminal and clears it."""

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """The parsed command line."""

    output: str = arg("OUTPUT", "Folder or URL that was given to `forescribe transcribe -o`.")
    watch: bool = opt(
        DIAGNOSTICS, "--watch/--no-watch -w", "Show it again until all has ended.", False
    )
    every: float = opt(
        DIAGNOSTICS, "--every SECONDS", "Time from one look to the next.", 10.0, min=1
    )
    json: bool = opt(DIAGNOSTICS, "--json/--no-json", "Print JSON, one object per look.", False)


@takes(StatusOptions)
def status(**values: Any) -> None:
    """Show how far a transcription is: counts, failures, speed, and when it may end.

    Read from the records in the output, from any machine, during and after the run."""
    options = StatusOptions(**values)
    from forescribe.asr.records.status import StatusReader

    reader = StatusReader(options.output)
    while True:
        found = reader.read()
        if options.json:
            shown = {"output": reader.where} | found.to_dict()
            text = json.dumps(shown)
        else:
            text = "\n".join(status_lines(reader.where, found, now=time.time()))
        clear = options.watch and not options.json and sys.stdout.isatty()
        typer.echo((CLEAR if clear else "") + text)
        if not options.watch or found.left == 0 or found.total is None:
            return
        time.sleep(options.every)


def status_lines(where: str, status: RunStatus, *, now: float) -> list[str]:
    """The lines about one output; `now` is in seconds since 1970."""
    lines = [_counts(where, status), _audio(status)]
    if status.left_s is not None and status.left:
        end = datetime.fromtimestamp(now + status.left_s, UTC)
        lines.append(f"  about {_span(status.left_s)} left, until {end:%Y-%m-%d %H:%M} UTC")
    if status.throughput:
        highest = max(status.throughput) or 1.0
        bars = "".join(
            BLOCKS[min(len(BLOCKS) - 1, int(value / highest * len(BLOCKS)))]
            for value in status.throughput
        )
        length = _span((status.until or 0.0) - (status.since or 0.0))
        lines.append(f"  speed over {length}: {bars} (at most {highest:.1f}x real time)")
    extras = [f"{status.workers} worker{'s' * (status.workers != 1)}"] * bool(status.workers)
    extras += [f"{status.doubled} done twice"] * bool(status.doubled)
    extras += [f"{status.crashes} lost to crashes"] * bool(status.crashes)
    if extras:
        lines.append(f"  {', '.join(extras)}")
    for code, failures in status.failures.items():
        names = ", ".join(map(visible, failures.names))
        more = ", ..." if failures.count > len(failures.names) else ""
        lines.append(f"  {failures.count} {code}: {names}{more}")
    return lines


def _counts(where: str, status: RunStatus) -> str:
    ended = status.succeeded + status.failed
    if status.total is None:
        text = f"{ended:,} recordings have ended"
    else:
        share = f" ({ended / status.total:.1%})" if status.total else ""
        text = f"{ended:,} of {status.total:,} recordings have ended{share}"
    return f"{where}: {text}: {status.succeeded:,} succeeded, {status.failed:,} failed"


def _audio(status: RunStatus) -> str:
    text = f"  {_span(status.audio_s)} of audio"
    speeds = []
    if status.recent_speed is not None:
        speeds.append(f"{status.recent_speed:,.1f}x real time in the last 10 minutes")
    if status.speed is not None:
        speeds.append(f"{status.speed:,.1f}x overall")
    return f"{text}, {', '.join(speeds)}" if speeds else text


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"
