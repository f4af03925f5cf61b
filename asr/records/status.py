"""How far a run is, from its records alone: counts, failures, speed over time, and when it may end.

    reader = StatusReader("s3://out/2026")
    status = reader.read()          # again and again: one listing, and what is new since the last time
    status.left, status.failures["invalid_audio"].count

Of a folder the manifest is read. Times are those of the writers' clocks. Knows nothing of terminals.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..batch.manifest import NAME as MANIFEST
from ..errors import UsageError
from ..formats.transcript_parts import Json
from ..storage.locations import Location, is_url
from .record_store import RecordStore
from .stored_records import RECORDS, Run, StoredRecord

NAMES = 3
"""Names that are given for each kind of failure."""

RECENT_S = 600.0
"""The time over which the speed of now is measured."""

BARS = 24
"""Periods that the time of a run is divided into."""


class StatusReader:
    """The status of an output: a URL or a folder."""

    def __init__(self, output: str) -> None:
        location = Location.parse(output) if is_url(output) else None
        if location is not None and location.scheme == "file":
            if not Path(location.key, RECORDS).is_dir():  # a folder, as for `transcribe -o`
                output, location = location.key, None
        self.records = None if location is None else RecordStore.open(location)
        self.where = output if self.records is None else self.records.where

    def read(self) -> RunStatus:
        """Raises UsageError if nothing was ever written there, and LocatedError."""
        if self.records is None:
            return self._of_manifest(Path(self.where, MANIFEST))
        run = self.records.join()
        if run is None:
            raise self._nothing_there()
        known = self.records.load()
        return RunStatus.of(
            known.values(),
            run,
            now=time.time(),
            doubled=self.records.all_doubled,
            crashes=self.records.all_crashes,
        )

    def _of_manifest(self, path: Path) -> RunStatus:
        """Of a folder: its manifest has no times and does not know the total."""
        if not path.is_file():
            raise self._nothing_there()
        latest: dict[str, StoredRecord] = {}
        for line in path.read_bytes().split(b"\n"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                values = {"settings": "", "run": 1} | json.loads(line)
                stored = StoredRecord.from_dict(values)
                latest[stored.source] = stored
        return RunStatus.of(latest.values(), None, now=time.time())

    def _nothing_there(self) -> UsageError:
        return UsageError(
            f"{self.where}: no run has written there; name the output of `transcribe -o`"
        )


@dataclass(frozen=True)
class RunStatus:
    """The state of a run. `total` is None where the run does not know its inputs; times are in seconds, and
    `speed` and `recent_speed` are seconds of audio per second; None where records hold no times.

    `throughput` holds hours of audio per hour in equal periods from `since` to `until`.
    """

    total: int | None = None
    succeeded: int = 0
    failed: int = 0
    audio_s: float = 0.0
    workers: int = 0
    doubled: int = 0
    crashes: int = 0
    since: float | None = None
    until: float | None = None
    speed: float | None = None
    recent_speed: float | None = None
    left_s: float | None = None
    throughput: tuple[float, ...] = ()
    failures: dict[str, Failures] = field(default_factory=dict)

    @property
    def left(self) -> int | None:
        """Recordings without a result; None where the total is not known."""
        if self.total is None:
            return None
        return max(0, self.total - self.succeeded - self.failed)

    def to_dict(self) -> dict[str, Json]:
        values = asdict(self) | {"left": self.left, "throughput": list(self.throughput)}
        values["failures"] = {
            code: {"count": failures.count, "names": list(failures.names)}
            for code, failures in self.failures.items()
        }
        return values

    @classmethod
    def of(
        cls,
        records: Iterable[StoredRecord],
        run: Run | None,
        *,
        now: float,
        doubled: int = 0,
        crashes: int = 0,
    ) -> RunStatus:
        """The state of `run` by its records; without a run, of everything there is."""
        own = [stored for stored in records if run is None or stored.counts_in(run)]
        done = [stored for stored in own if stored.record.status == "succeeded"]
        failed = [stored for stored in own if stored.record.status == "failed"]
        ended = sorted((s for s in (*done, *failed) if s.at), key=lambda stored: stored.at)
        since = _since(ended, run)
        until = ended[-1].at if ended else None
        audio_s = sum(stored.record.audio_s or 0.0 for stored in done)
        timed = sum(stored.record.audio_s or 0.0 for stored in ended)
        recent = [stored for stored in ended if stored.at >= now - RECENT_S]
        spell = min(RECENT_S, now - since) if since is not None else 0.0
        return cls(
            total=run.total if run else None,
            succeeded=len(done),
            failed=len(failed),
            audio_s=audio_s,
            workers=len({stored.worker for stored in own if stored.worker}),
            doubled=doubled,
            crashes=crashes,
            since=since,
            until=until,
            speed=_ratio(timed, (until or 0.0) - (since or 0.0)) if ended else None,
            recent_speed=_ratio(sum(s.record.audio_s or 0.0 for s in recent), spell)
            if recent
            else None,
            left_s=_left_s(run, own, recent, spell),
            throughput=_throughput(ended, since, until),
            failures=_failures(failed),
        )


@dataclass(frozen=True)
class Failures:
    """Recordings that failed with one code: their number, and the first of their names."""

    count: int = 0
    names: tuple[str, ...] = ()


def _since(ended: list[StoredRecord], run: Run | None) -> float | None:
    """When the run began: a run that was continued began with the first record of its predecessors."""
    if not ended:
        return run.started if run else None
    first = ended[0].at - ended[0].record.wall_s
    return first if run is None or run.number > run.since else min(first, run.started or first)


def _ratio(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _left_s(
    run: Run | None, own: list[StoredRecord], recent: list[StoredRecord], spell: float
) -> float | None:
    """Seconds that are left at the speed of now: by bytes where all sizes are known, as the longest go first,
    else by number."""
    if run is None or run.total is None or not recent or spell <= 0:
        return None
    sizes = [stored.size for stored in own]
    if run.total_bytes is not None and None not in sizes:
        left = run.total_bytes - sum(size or 0 for size in sizes)
        speed = sum(stored.size or 0 for stored in recent) / spell
    else:
        left, speed = run.total - len(own), len(recent) / spell
    return max(0.0, left / speed) if speed > 0 else None


def _throughput(
    ended: list[StoredRecord], since: float | None, until: float | None
) -> tuple[float, ...]:
    if since is None or until is None or until <= since:
        return ()
    length = (until - since) / BARS
    sums = [0.0] * BARS
    for stored in ended:
        sums[min(BARS - 1, max(0, int((stored.at - since) / length)))] += (
            stored.record.audio_s or 0.0
        )
    return tuple(round(amount / length, 3) for amount in sums)


def _failures(failed: list[StoredRecord]) -> dict[str, Failures]:
    found: dict[str, list[str]] = {}
    for stored in sorted(failed, key=lambda stored: stored.record.path):
        found.setdefault(stored.record.code or "internal_error", []).append(stored.record.path)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return {code: Failures(len(names), tuple(names[:NAMES])) for code, names in ranked}
