"""The interface of traces, and the one that traces nothing.

    with tracing.span("decode"):                       # a child of what is in progress in this context
        ...
    tracing.record("queue", began_ns, ended_ns)        # what is over already
    PLACE.get()                                        # the place in the trace, as W3C's `traceparent`

A place in a trace is text (`00-<trace>-<span>-<flags>`), so it can be stored with a job and continued by
another process. Imports nothing of OpenTelemetry: `api.telemetry.otel` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forescribe.asr.decode.options import PhaseTimes

Value = str | int | float | bool

PLACE: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""The place in the trace of the work in progress."""

TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span:
    """A span in progress, to which facts can be added."""

    def set(self, **facts: Value) -> None:
        """Add attributes."""

    def rename(self, name: str) -> None:
        """Change the name, once it is known."""

    def fail(self, code: str) -> None:
        """The work has failed; `code` is one of `api.errors`, never a message."""


class Tracing:
    """Traces nothing."""

    active = False

    def span(
        self, name: str, *, parent: str | None = None, server: bool = False, **facts: Value
    ) -> AbstractContextManager[Span]:
        """Time a block, as a child of `parent` or else of what is in progress. An exception marks it as
        failed, by its code or type."""
        return _nothing()

    def record(
        self, name: str, began_ns: int, ended_ns: int, *, parent: str | None = None, **facts: Value
    ) -> str | None:
        """Record what is over, in Unix nanoseconds, and return its place."""
        return None

    def phases(self) -> PhaseTimes | None:
        """What the engine's thread writes times to; None if nobody reads them."""
        return None

    def record_phases(self, phases: PhaseTimes | None, parent: str | None) -> None:
        """Record the phases of a recording."""

    def close(self) -> None:
        """Send what has been recorded."""


@contextmanager
def _nothing() -> Iterator[Span]:
    yield Span()


def valid(place: str | None) -> str | None:
    """The place, if it is one: clients send anything."""
    return place if place is not None and TRACEPARENT.fullmatch(place) else None
