"""F13: ten times the sustainable load, on the jobs route and on the synchronous route.

The sustainable load is measured first, with as many clients as slots. Then requests are sent at ten times
that rate, whether or not earlier ones have been answered (an open loop).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from benchmarks.faults.harness import Inconclusive, Server, holds, right, server
from forescribe.api.access.keys import digest, new_key

TEXTS, JOBS_ROUTE = "/v1/audio/transcriptions", "/v1/jobs"
TIMES = 10
PLACES, PER_KEY = 16, 12
"""Concurrent requests. Clients of the synchronous route share one key, with its limit (429); jobs have
another key and the remaining slots."""

JOBS = 25
"""Length of the queue; beyond it the answer is 503."""

MEMORY_MB = 100.0
"""Bytes that overload may need beyond the sustained load."""

WAIT_PACE_S, JOB_PACE_S = 1.0, 3.0
"""Seconds per recording of the fake model: one at a time on the synchronous route, two jobs at a time."""


@dataclass
class Told:
    """The answers on one route: seconds by status code, and the accepted requests."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    accepted: list[tuple[str, str]] = field(
        default_factory=list
    )  # text or job id, and the word that was sent
    careless: int = 0  # refusals without Retry-After
    other: Counter[str] = field(default_factory=Counter)

    def p95(self, *statuses: int) -> float:
        found = [s for status in statuses for s in self.seconds.get(status, [])]
        return statistics.quantiles(found, n=20)[-1] if len(found) > 1 else 0.0

    def count(self, *statuses: int) -> int:
        return sum(len(self.seconds.get(status, [])) for status in statuses)


class Clients:
    """The clients of one server, with a key for each route."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.keys, self.n = keys, 0
        self.http = httpx.AsyncClient(
            base_url=url,
            timeout=120,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def ask(self, route: str, pace_s: float, told: Told) -> None:
        self.n += 1
        word = f"word{self.n}"
        audio = json.dumps({"text": word, "groups": 1, "pace_s": pace_s}).encode()
        began = time.monotonic()
        try:
            answer = await self.http.post(
                route,
                files={"file": ("a.wav", audio)},
                data={"model": "fake"},
                headers={"Authorization": f"Bearer {self.keys[route]}"},
            )
        except httpx.HTTPError as error:
            told.other[type(error).__name__] += 1
            return
        told.seconds.setdefault(answer.status_code, []).append(time.monotonic() - began)
        if answer.status_code in (200, 202):
            body = answer.json()
            told.accepted.append((body.get("id") or body["text"], word))
        elif "retry-after" not in answer.headers:
            told.careless += 1

    async def closed(self, route: str, pace_s: float, clients: int, seconds: float) -> float:
        """Answers a second, with so many clients that each wait for theirs."""
        told, end = Told(), time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < end:
                await self.ask(route, pace_s, told)

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range(clients)))
        return told.count(200, 202) / (time.monotonic() - began)

    async def open(self, route: str, pace_s: float, rate: float, seconds: float) -> Told:
        """So many requests a second, whatever becomes of them."""
        told, began, under_way = Told(), time.monotonic(), set[asyncio.Task[None]]()
        for n in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
            task = asyncio.ensure_future(self.ask(route, pace_s, told))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        return told


def overload_service(long: bool, rng: random.Random) -> str:
    """Ten times the sustainable load: proper refusals, constant memory, bounded waits, no lost job."""
    return asyncio.run(_f13(180.0 if long else 30.0))


async def _f13(seconds: float) -> str:
    keys = {route: new_key() for route in (TEXTS, JOBS_ROUTE)}
    given = {
        "api_keys": {f"team{i}": digest(key) for i, key in enumerate(keys.values())},
        "max_requests": PLACES,
        "max_requests_per_key": PER_KEY,
        "max_queued_jobs_s": 60.0 * JOBS,
    }
    options = [f"--setting={name}={json.dumps(value)}" for name, value in given.items()]
    with server("--concurrency", "2", *options) as s:
        s.http.headers["authorization"] = f"Bearer {keys[JOBS_ROUTE]}"
        await asyncio.to_thread(s.start)
        clients = Clients(s.url, keys)
        try:
            wait_rate = await clients.closed(TEXTS, WAIT_PACE_S, 4, 12.0)
            job_rate = await _job_rate(s, clients)
            steady_mb = _rss_mb(s)
            peak = asyncio.ensure_future(_peak_mb(s))
            waited, jobs = await asyncio.gather(
                clients.open(TEXTS, WAIT_PACE_S, TIMES * wait_rate, seconds),
                clients.open(JOBS_ROUTE, JOB_PACE_S, TIMES * job_rate, seconds),
            )
            began = time.monotonic()
            await asyncio.to_thread(_all_right, s, jobs)
            drained_s = time.monotonic() - began
            peak.cancel()
            peak_mb = max(_rss_mb(s), await _value(peak))
        finally:
            await clients.http.aclose()
        return _judged(waited, jobs, wait_rate, job_rate, steady_mb, peak_mb, drained_s)


def _judged(
    waited: Told,
    jobs: Told,
    wait_rate: float,
    job_rate: float,
    steady_mb: float,
    peak_mb: float,
    drained_s: float,
) -> str:
    for route, told in (("transcriptions", waited), ("jobs", jobs)):
        refused = told.count(429 if told is waited else 503)
        if refused < told.count(200, 202):
            raise Inconclusive(
                f"{route}: {refused} refused, fewer than came in: this is no overload"
            )
        holds(not told.careless, f"{route}: {told.careless} refusals without Retry-After")
        holds(not told.other, f"{route}: {dict(told.other)}")
        extra = told.seconds.keys() - {200, 202, 429, 503}
        holds(not extra, f"{route}: answers {sorted(extra)}")
    wrong = [sent for text, sent in waited.accepted if text != right(sent, 1)]
    holds(not wrong, f"{len(wrong)} texts are others")
    grown_mb = peak_mb - steady_mb
    holds(grown_mb <= MEMORY_MB, f"memory grew by {grown_mb:.0f} MB, more than {MEMORY_MB:.0f}")
    # An accepted request waits for at most all other slots; doubled for a slow machine.
    bound_s = 2 * PLACES / wait_rate
    p95_s = waited.p95(200)
    holds(p95_s <= bound_s, f"95 % of texts within {p95_s:.1f} s, not {bound_s:.1f}")
    holds(jobs.p95(202) <= bound_s, f"95 % of jobs taken within {jobs.p95(202):.1f} s")
    bound_s = 2 * (JOBS + PLACES) / job_rate
    holds(drained_s <= bound_s, f"the jobs' line took {drained_s:.0f} s, not {bound_s:.0f}")
    return (
        f"sustained {wait_rate:.1f} texts/s and {job_rate:.1f} jobs/s, offered ten times that: "
        f"{waited.count(200)} + {jobs.count(202)} taken and right, "
        f"{waited.count(429) + jobs.count(429)} x 429 and {waited.count(503) + jobs.count(503)} x 503, "
        f"all with Retry-After, 95 % within {max(waited.p95(429, 503), jobs.p95(429, 503)):.2f} s; "
        f"texts: 95 % within {p95_s:.1f} s, jobs taken: {jobs.p95(202):.2f} s, done {drained_s:.0f} s "
        f"after; {steady_mb:.0f} MB, at most {peak_mb:.0f}"
    )


async def _job_rate(s: Server, clients: Clients) -> float:
    """Jobs a second, from the first to the end of the last."""
    told, began = Told(), time.monotonic()
    for _ in range(8):
        await clients.ask(JOBS_ROUTE, JOB_PACE_S, told)
    await asyncio.to_thread(_all_right, s, told)
    return len(told.accepted) / (time.monotonic() - began)


def _all_right(s: Server, told: Told) -> None:
    for id, word in told.accepted:
        job = s.ended(id)
        holds(job["state"] == "succeeded", f"{id} is {job['state']}: {job['error']}")
        holds(s.text(id) == right(word, 1), f"{id} has another text")


def _rss_mb(s: Server) -> float:
    assert s.process is not None
    with open(f"/proc/{s.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _peak_mb(s: Server) -> float:
    peak = 0.0
    try:
        while True:
            peak = max(peak, _rss_mb(s))
            await asyncio.sleep(0.2)
    except asyncio.CancelledError:
        return peak


async def _value(task: asyncio.Task[float]) -> float:
    return await task
