"""What routes and jobs report of usage, and the meter that counts nothing.

Without a job database there is nothing to count in; `api.access.usage` has the meter that counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Meter:
    """Counts nothing and refuses nothing; `Usage` does both."""

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
