"""What routes and jobs report of usage, and the meter that counts nothing.

Without a job database there is nothing to count in; `api.access.usage` has the meter that counts.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection


UNITS: Mapping[str, str] = MappingProxyType(
    {
        "requests": "requests",
        "audio_s": "seconds of audio",
        "tokens": "tokens",
    }
)
"""What is counted, and its name in messages."""


@dataclass(frozen=True)
class Amount:
    """An amount of use."""

    requests: int = 0
    audio_s: float = 0.0
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.requests + other.requests,
            self.audio_s + other.audio_s,
            self.tokens + other.tokens,
        )

    def of(self, unit: str) -> float:
        return float(getattr(self, unit))


class Meter:
    """Counts nothing and refuses nothing; `Usage` does both."""

    counts = False

    def check(self, owner: str) -> None:
        """Refuse a request for a transcript before its body is received."""

    def check_tokens(self, owner: str) -> None:
        """Refuse a request for a text before its body is received."""

    def spend(self, owner: str, *, requests: int = 0, audio_s: float = 0.0) -> None:
        """Count an amount, or refuse it."""

    def refund(self, owner: str, *, requests: int = 0, audio_s: float = 0.0) -> None:
        """Take back what was spent on a request that was then refused."""

    def spend_in(
        self, tx: Connection, owner: str, *, requests: int = 0, audio_s: float = 0.0
    ) -> None:
        """As `spend`, in a transaction of the caller's."""

    def later(self, owner: str, *, tokens: int) -> None:
        """Count tokens that were written, in another thread."""

    def close(self) -> None:
        """Count what is waiting."""

    def days(self, owner: str, since: date) -> dict[date, Amount]:
        """What was used on each day from `since` on."""
        return {}

    def today(self) -> date:
        """The day in UTC."""
        return datetime.now(UTC).date()


def until(day: date, period: str) -> datetime:
    """The end of a day, or of its month."""
    length = calendar.monthrange(day.year, day.month)[1]
    last = day if period == "day" else day.replace(day=length)
    return datetime.combine(last + timedelta(days=1), datetime.min.time(), UTC)
