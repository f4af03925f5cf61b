"""Usage per key and day, in the job database; and the quotas that refuse more.

    usage.check("team")                                 # before a body is received
    usage.spend("team", requests=1, audio_s=12.5)       # raises `insufficient_quota`, or counts all of it
    usage.spend_in(tx, "team", requests=1, audio_s=60)  # together with the row of a job
    usage.later("team", tokens=250)                     # what is known only afterwards

Increments are single statements, so any number of processes count together, and a job is counted in the
transaction that creates it, so neither a crash nor another attempt counts it twice. Days and months are
those of UTC. Without a job database there is nothing to count in: a `Meter` counts nothing. Does not know
HTTP.
"""

from __future__ import annotations

import calendar
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import OutputError

from ..errors import ApiError
from ..jobs.database import Database, Tx, insert_into
from ..jobs.tables import META
from .keys import Rights

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "requests": "requests",
        "audio_s": "seconds of audio",
        "tokens": "tokens",
    }
)
"""What is counted, and its name in messages."""

ROUNDING = 1e-6

USAGE = sa.Table(
    "forescribe_usage",
    META,
    sa.Column("tenant", sa.String, primary_key=True),  # the name of the API key
    sa.Column("day", sa.String, primary_key=True),  # 2026-11-23
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("audio_s", sa.Float, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)


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

    def spend_in(self, tx: Tx, owner: str, *, requests: int = 0, audio_s: float = 0.0) -> None:
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


class Usage(Meter):
    """The usage of all keys. `rights` finds those of a key, None for a caller without a key, who is not
    counted; `now` gives the time in Unix seconds."""

    counts = True

    def __init__(
        self,
        database: Database,
        rights: Callable[[str], Rights | None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._rights, self._now = database, rights, now
        self._insert = insert_into(database.engine.dialect, USAGE)
        self._late = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._lock = threading.Lock()
        self._unsaved: dict[str, Amount] = defaultdict(Amount)  # while the database is away

    def create(self) -> None:
        """Create the table, if it is missing."""
        self._database.create(USAGE)

    # -- counting ---------------------------------------------------------------------------------

    def check(self, owner: str) -> None:
        """Raises ApiError `insufficient_quota` if a quota of requests or audio is used up already."""
        self._check(owner, ("requests", "audio_s"))

    def check_tokens(self, owner: str) -> None:
        """Raises ApiError `insufficient_quota` if a quota of requests or tokens is used up already."""
        self._check(owner, ("requests", "tokens"))

    def spend(self, owner: str, *, requests: int = 0, audio_s: float = 0.0) -> None:
        """Count an amount. Raises ApiError `insufficient_quota`, and then nothing is counted; and
        DBAPIError or OutputError if the key has a quota and the database is away."""
        rights = self._rights(owner)
        if rights is None:
            return
        amount = Amount(requests, audio_s)
        try:
            with self._database.transaction() as tx:
                self._spend(tx, owner, rights, amount)
        except (DBAPIError, OutputError):
            if rights.has_quota:
                raise
            self._keep(owner, amount)

    def refund(self, owner: str, *, requests: int = 0, audio_s: float = 0.0) -> None:
        """Take back what was spent on a request that was then refused."""
        if self._rights(owner) is not None:
            self._add(owner, Amount(-requests, -audio_s))

    def spend_in(self, tx: Tx, owner: str, *, requests: int = 0, audio_s: float = 0.0) -> None:
        """As `spend`, in a transaction of the caller's."""
        rights = self._rights(owner)
        if rights is not None:
            self._spend(tx, owner, rights, Amount(requests, audio_s))

    def later(self, owner: str, *, tokens: int) -> None:
        """Count tokens that were written, in another thread. May exceed a quota; then `check` refuses."""
        if self._rights(owner) is not None and tokens:
            with suppress(RuntimeError):  # the process ends
                self._late.submit(self._add, owner, Amount(tokens=tokens))

    def close(self) -> None:
        """Count what is waiting, and release the database."""
        self._late.shutdown()
        self._database.close()

    # -- reading ----------------------------------------------------------------------------------

    def days(self, owner: str, since: date) -> dict[date, Amount]:
        """What was used on each day from `since` on."""
        with self._database.engine.connect() as tx:
            return self._days(tx, owner, since)

    def today(self) -> date:
        return datetime.fromtimestamp(self._now(), UTC).date()

    # -- parts ------------------------------------------------------------------------------------

    def _check(self, owner: str, units: tuple[str, ...]) -> None:
        rights = self._rights(owner)
        if rights is None or not rights.has_quota:
            return
        today = self.today()
        days = self.days(owner, today.replace(day=1))
        for unit in units:
            for period, quota in _quotas(rights, unit):
                used = _used(days, today, period).of(unit)
                if used + ROUNDING >= quota:
                    raise self._refused(unit, used, quota, period)

    def _spend(self, tx: Tx, owner: str, rights: Rights, amount: Amount) -> None:
        today = self.today()
        unsaved = self._taken(owner)
        try:
            self._increment(tx, owner, today, amount + unsaved)
            self._check_sum(tx, owner, rights, amount, today)
        except BaseException:  # the transaction is rolled back
            self._keep(owner, unsaved)
            raise

    def _check_sum(self, tx: Tx, owner: str, rights: Rights, amount: Amount, today: date) -> None:
        if not rights.has_quota:
            return
        days = self._days(tx, owner, today.replace(day=1))  # other processes wait for this row
        for unit in UNITS:
            for period, quota in _quotas(rights, unit) if amount.of(unit) > 0 else ():
                used = _used(days, today, period).of(unit)
                if used > quota + ROUNDING:
                    used -= amount.of(unit)
                    raise self._refused(unit, used, quota, period, amount.of(unit))

    def _add(self, owner: str, amount: Amount) -> None:
        amount += self._taken(owner)
        try:
            with self._database.transaction() as tx:
                self._increment(tx, owner, self.today(), amount)
        except (DBAPIError, OutputError):
            self._keep(owner, amount)

    def _increment(self, tx: Tx, owner: str, day: date, amount: Amount) -> None:
        units = {unit: getattr(amount, unit) for unit in UNITS}
        new = self._insert.values(tenant=owner, day=day.isoformat(), **units)
        sums = {unit: USAGE.c[unit] + new.excluded[unit] for unit in UNITS}
        tx.execute(new.on_conflict_do_update(index_elements=["tenant", "day"], set_=sums))

    def _days(self, tx: Tx, owner: str, since: date) -> dict[date, Amount]:
        query = sa.select(USAGE).where(USAGE.c.tenant == owner, USAGE.c.day >= since.isoformat())
        return {
            date.fromisoformat(row.day): Amount(row.requests, row.audio_s, row.tokens)
            for row in tx.execute(query.order_by(USAGE.c.day))
        }

    def _keep(self, owner: str, amount: Amount) -> None:
        with self._lock:
            self._unsaved[owner] += amount

    def _taken(self, owner: str) -> Amount:
        with self._lock:
            return self._unsaved.pop(owner, Amount())

    def _refused(
        self, unit: str, used: float, quota: float, period: str, more: float | None = None
    ) -> ApiError:
        text = f"you have used {used:.10g} of {quota:.10g} {UNITS[unit]} this {period}, the quota of this key"
        if more is not None and unit != "requests":
            text += f"; this needs {more:.10g} more"
        ends = until(self.today(), period).timestamp()
        # OpenAI's clients would try again in a second.
        return ApiError(
            "insufficient_quota",
            text,
            retry_after=int(ends - self._now()) + 1,
            more={"x-should-retry": "false"},
        )


def until(day: date, period: str) -> datetime:
    """The end of a day, or of its month."""
    length = calendar.monthrange(day.year, day.month)[1]
    last = day if period == "day" else day.replace(day=length)
    return datetime.combine(last + timedelta(days=1), datetime.min.time(), UTC)


def _quotas(rights: Rights, unit: str) -> list[tuple[str, float]]:
    """The quotas of a unit, by period."""
    periods = ((p, getattr(rights, f"{unit}_per_{p}")) for p in ("day", "month"))
    return [(period, float(quota)) for period, quota in periods if quota is not None]


def _used(days: Mapping[date, Amount], today: date, period: str) -> Amount:
    if period == "day":
        return days.get(today, Amount())
    return sum(days.values(), Amount())
