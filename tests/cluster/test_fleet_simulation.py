"""A fleet in virtual time: dispatch and records are the real ones, the audio and the clock are not.

A worker has a rate that the recordings it has share, as windows of all of them share an engine's batch. It
may vanish at any moment with all that it has in work; another one takes its place some minutes later.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from forescribe.asr.batch.inputs import discover
from forescribe.asr.batch.outputs import Outputs
from forescribe.asr.batch.results import Writer
from forescribe.asr.records.record_store import RecordStore
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores, open_store
from forescribe.cluster.dispatch import Dispatch
from tests.asr.batch.remote.objects import FaultyStores
from tests.asr.storage.faults import OK, REPLY_LOST, memory
from tests.asr.typists import Outcome, transcript

BYTES_PER_S = 8_000  # 64 kbit/s

RATE = 8.0  # seconds of audio per second
REPLACED_AFTER_S = 180.0


@dataclass
class Worker:
    """`has` holds the seconds of audio that are left of each recording."""

    name: int
    until: float  # when it vanishes
    since: float = 0.0  # as of when `has` holds
    has: dict[str, float] = field(default_factory=dict)

    def advance(self, now: float) -> None:
        share = (now - self.since) * RATE / max(1, len(self.has))
        self.has = {source: left - share for source, left in self.has.items()}
        self.since = now

    def next_end(self) -> float:
        if not self.has:
            return math.inf
        return self.since + min(self.has.values()) * len(self.has) / RATE


class Fleet:
    """`workers` machines; each vanishes `per_hour` times an hour, by a crash of its own in a part `crashing`
    of the times."""

    def __init__(
        self, lengths: dict[str, float], workers: int, per_hour: float, crashing: float, seed: int
    ) -> None:
        self.lengths, self.draw = lengths, random.Random(seed)
        self.per_hour, self.crashing = per_hour, crashing
        longest_first = sorted(lengths, key=lengths.__getitem__, reverse=True)
        self.dispatch = Dispatch(
            {source: lengths[source] for source in longest_first}, workers=workers, batch=8
        )
        self.now, self.lost = 0.0, 0
        self.numbers = itertools.count()
        self.workers: dict[int, Worker] = {}
        self.coming = [0.0] * workers  # when machines start
        self.finished: list[str] = []
        self.given_up: list[str] = []

    def run(self, finish) -> float:
        """Returns the seconds until everything has ended; `finish` is called for each recording."""
        while self.dispatch.open:
            ends = [(w.next_end(), w.name) for w in self.workers.values()]
            goes = [(w.until, w.name) for w in self.workers.values()]
            at, what = min(
                (min(ends, default=(math.inf, -1)), "end"),
                (min(goes, default=(math.inf, -1)), "go"),
                ((min(self.coming, default=math.inf), -1), "come"),
            )
            self.now, name = at
            getattr(self, f"_{what}")(self.workers.get(name), finish)
        return self.now

    def _come(self, _: object, finish) -> None:
        self.coming.remove(self.now)
        life = self.draw.expovariate(self.per_hour / 3600) if self.per_hour else math.inf
        worker = Worker(next(self.numbers), self.now + life, self.now)
        self.workers[worker.name] = worker
        self._fill()

    def _go(self, worker: Worker, finish) -> None:
        del self.workers[worker.name]
        self.lost += len(worker.has)
        crashed = self.draw.random() < self.crashing
        self.given_up += self.dispatch.lost(worker.name, crashed=crashed)
        heapq.heappush(self.coming, self.now + REPLACED_AFTER_S)
        self._fill()

    def _end(self, worker: Worker, finish) -> None:
        worker.advance(self.now)
        source = min(worker.has, key=worker.has.__getitem__)
        del worker.has[source]
        finish(source)
        if self.dispatch.finished(worker.name, source):
            self.finished.append(source)
        self._fill()

    def _fill(self) -> None:
        for worker in self.workers.values():
            for source in self.dispatch.assign(worker.name):
                worker.advance(self.now)
                worker.has[source] = self.lengths[source]


def lognormal_lengths(names: list[str], seed: int) -> dict[str, float]:
    """Seconds: half are below 5 minutes, one in ten above 23, the longest of 10,000 some hours."""
    draw = random.Random(seed)
    return {name: 300 * math.exp(draw.gauss(0, 1.2)) for name in names}


def ideal_s(lengths: dict[str, float], workers: int) -> float:
    return max(sum(lengths.values()) / workers, max(lengths.values())) / RATE


def simulate(count: int, workers: int, folder: Path, *, seed: int, lossy: bool = False):
    """A whole run: listing, planning, work, records, merging. Returns the fleet, the ideal, the time taken,
    the requests of all stores and the location of the output."""
    top, out = memory() / "calls", memory() / "out"
    source_store = open_store(top)
    for number in range(count):
        source_store.put(f"{number % 100:02}/{number:05}.mp3", b"audio")
    before = source_store.requests.total()
    draws = random.Random(seed)
    fate = lambda where, kind: REPLY_LOST if lossy and draws.random() < 0.01 else OK  # noqa: E731
    stores: Stores = FaultyStores(fate)
    sources = discover([str(top)], recursive=True, stores=stores)
    assert len(sources) == count
    lengths = lognormal_lengths([source.path for source in sources], seed)
    sized = {s.path: _with_size(s, lengths[s.path]) for s in sources}
    outputs = Outputs.plan(list(sized.values()), str(out), "json,srt", stores=stores)
    outputs.begin(list(sized.values()), "5e77", overwrite=False)
    writer = Writer(outputs, "5e77")
    text = transcript("words")

    def finish(path: str) -> None:
        store, key = stores.of(sized[path].location)
        store.fetch(key, folder / "copy")
        result = writer.finished(sized[path], Outcome(path, text), "c0ffee")
        assert result.error is None

    fleet = Fleet(lengths, workers, per_hour=0.05, crashing=0.2, seed=seed)
    took = fleet.run(finish)
    writer.close()
    requests = stores.requests()
    assert source_store.requests.total() == before
    return fleet, ideal_s(lengths, workers), took, requests, out


def _with_size(source: Source, length_s: float) -> Source:
    assert source.entry is not None
    return replace(source, entry=replace(source.entry, size=round(length_s * BYTES_PER_S)))


def check_records(out: Location, fleet: Fleet, count: int) -> None:
    records = RecordStore.open(out).load()
    assert len(records) == count and not fleet.given_up
    assert {stored.generation for stored in records.values()} == {1}
    assert Counter(fleet.finished) == Counter(list(records))
    assert all(stored.record.status == "succeeded" for stored in records.values())
    lines = open_store(out).read("manifest.jsonl").splitlines()
    assert len(lines) == count


def test_a_small_fleet_on_a_lossy_store_records_everything_once(tmp_path: Path) -> None:
    fleet, ideal, took, requests, out = simulate(600, 4, tmp_path, seed=1, lossy=True)
    check_records(out, fleet, 600)
    assert took <= 1.25 * ideal and requests / 600 <= 12  # fewer files level out less


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_large_fleet_is_close_to_the_ideal(tmp_path: Path, seed: int) -> None:
    """10,000 recordings, 32 workers of which 5 % vanish in an hour."""
    fleet, ideal, took, requests, out = simulate(10_000, 32, tmp_path, seed=seed)
    assert fleet.lost > 0, "nobody vanished: nothing was shown"
    check_records(out, fleet, 10_000)
    assert took <= 1.1 * ideal, f"{took / ideal:.3f} of the ideal"
    assert requests / 10_000 <= 12, f"{requests / 10_000:.2f} requests per recording"


def test_workers_that_never_vanish_come_within_a_hundredth() -> None:
    """The order alone: what is above the ideal is due to losses, not to the schedule."""
    lengths = lognormal_lengths([f"{n}.mp3" for n in range(10_000)], seed=4)
    fleet = Fleet(lengths, 32, per_hour=0.0, crashing=0.0, seed=4)
    assert fleet.run(lambda source: None) <= 1.01 * ideal_s(lengths, 32)
