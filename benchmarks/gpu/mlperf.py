"""Samples to texts, in MLPerf Inference's shape for Whisper large-v3 too: LibriSpeech dev in 1,633 windows,
offline and as a server.

Samples become features, encoder states and texts on the device. Weights are constructed, so there are no word
errors; every text is known and has to be equal. Texts are as long as theirs: 105,350 words at 1.3 tokens in
1,633 windows are 84 tokens each. The encoder hears 30 s of each window, as there.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from benchmarks.gpu.folders import kinds, sound
from benchmarks.gpu.pair import Known, decode
from benchmarks.gpu.sections import Bench, Record, automatic, encode, release
from forescribe.asr.model.whisper import Extractor, LogMel
from forescribe.speculative import Engine, Request
from forescribe.speculative.requests import Mode

WINDOWS = 1633
MEAN_TOKENS, SPREAD = 84.0, 18.0
GAMMA = 5
LOADS = (0.7, 0.9)
"""Requests per second, as shares of what went through offline."""
SERVED = 400
"""Windows that arrive at each load; few enough that all loads take half a minute."""
TOGETHER = 16
"""Windows that are encoded at a time, at most."""


@dataclass(frozen=True)
class Window:
    """A window: the class of its sound, and the request and text without its encoder states."""

    kind: int
    known: Known


class Feed:
    """Windows whose samples become features and encoder states when they are asked for."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.pair, self.device, d = bench.models, bench.device, bench.dimensions
        self._mel = LogMel(Extractor(feature_size=d.bands), bench.device.torch)
        self._samples = {kind: sound(d, kind, 30.0) for kind in kinds(d)}
        self.windows = list(self._windows(count, bench.tokens))

    def _windows(self, count: int, most: int) -> Iterator[Window]:
        """Texts end with the path where it ends at the right length, else with their budget."""
        path, draw = self.pair.path, random.Random(23)
        steps, mean = len(path.ids), min(MEAN_TOKENS, 0.7 * most)
        to_end = [
            next(n for n in range(steps) if (start + n) % steps in path.ends) + 1
            for start in range(steps)
        ]
        for number in range(count):
            length = round(draw.gauss(mean, SPREAD * mean / MEAN_TOKENS))
            length = max(4, min(length, most, max(to_end)))
            ending = [start for start, left in enumerate(to_end) if left == length]
            longer = [start for start, left in enumerate(to_end) if left > length]
            start, kind = draw.choice(ending or longer), draw.choice(list(self._samples))
            prompt = path.prompt(start, kind)
            request = Request(prompt=prompt, max_new_tokens=length, tag=number)
            yield Window(kind, Known(request, path.follow(start, prompt, kind, length)))

    def requests(self, part: Sequence[Window]) -> list[Request]:
        """Those of windows that are encoded together; no two windows have the same samples."""
        samples = [np.roll(self._samples[w.kind], 997 * w.known.request.tag) for w in part]
        states = encode(self.pair, self._mel(samples).to(self.device.dtype))
        return [
            Request(
                prompt=w.known.request.prompt,
                max_new_tokens=w.known.request.max_new_tokens,
                tag=w.known.request.tag,
                encoder_states=each,
            )
            for w, each in zip(part, states, strict=True)
        ]

    def pulled(self, work: Sequence[Window]) -> Iterator[Known]:
        """All of them, encoded as slots become free."""
        for first in range(0, len(work), TOGETHER):
            part = work[first : first + TOGETHER]
            for window, request in zip(part, self.requests(part), strict=True):
                yield Known(request, window.known.text)


@dataclass(frozen=True)
class Way:
    """How an engine decodes; a gamma of None is chosen by measured cost."""

    batch: int
    gamma: int | None
    agreement: float | None = 0.8

    def __str__(self) -> str:
        gamma = "auto" if self.gamma is None else self.gamma
        return f"batch {self.batch}, gamma {gamma}, agreement {self.agreement}"

    def engine(self, bench: Bench, feed: Feed) -> Engine:
        """An engine that has captured what it needs."""
        release(bench.device, thoroughly=True)
        pair = bench.models
        made = pair.engine(
            self.batch,
            gamma=self.gamma or 0,
            schedule=automatic(pair, self.agreement or 0.8) if self.gamma is None else None,
            agreement=self.agreement,
            modes=(Mode(),),
        )
        made.warm_up()
        for _ in range(2):  # a prefill is captured when its shape comes again
            decode(made, feed.pulled(feed.windows[: 2 * TOGETHER]))
        return made


def end_to_end(bench: Bench) -> Record:
    """Samples to texts of two windows for each row, by batch and agreement."""
    record = bench.record
    for batch in reversed(bench.batches):
        feed = Feed(bench, 2 * batch)
        for gamma, agreement in ((0, None), (5, 0.7), (5, 0.8), (5, 0.9), (None, 0.8)):
            way = Way(batch, gamma, agreement)
            bench.figure(record, str(way), partial(offline, bench, feed, way))
    return record


def mlperf(bench: Bench) -> Record:
    """Tokens per second offline, and the latencies of a server at shares of the best of these."""
    record = bench.record
    largest = max(bench.batches)
    feed, rates = Feed(bench, 6 if bench.small else WINDOWS), dict[Way, float]()

    def measure(*ways: Way) -> None:
        for way in ways:
            name = f"offline, {way}"
            bench.figure(record, name, partial(offline, bench, feed, way))
            if "windows_per_s" in record[name]:
                rates[way] = record[name]["windows_per_s"]

    measure(Way(largest, GAMMA), Way(2 * largest, GAMMA))
    for share in LOADS if rates else ():
        best = max(rates, key=rates.__getitem__)
        name = f"server, {best}, {share:.0%} of offline"
        bench.figure(record, name, partial(server, bench, feed, best, share * rates[best]))
    measure(Way(2 * largest, 0, None), Way(largest, 0, None), Way(4 * largest, 0, None))
    return record


def offline(bench: Bench, feed: Feed, way: Way) -> Record:
    """All windows as fast as they go."""
    engine, work = way.engine(bench, feed), feed.windows
    before = engine.stats
    bench.device.synchronize()
    began = time.perf_counter()
    found = decode(engine, feed.pulled(work))
    wall_s, stats = time.perf_counter() - began, engine.stats - before
    return bench.check(f"offline, {way}", found, [window.known for window in work]) | {
        "tokens_per_s": round(sum(map(len, found.values())) / wall_s, 1),
        "windows_per_s": round(len(work) / wall_s, 2),
        "times_real_time": round(len(work) * bench.dimensions.window_s / wall_s, 1),
        "wall_s": round(wall_s, 3),
        "tokens_per_row_round": round(stats.mean_acceptance_length, 2),
        "shapes_captured": len(engine.captured),
        "stages_s": {stage: round(s, 3) for stage, s in stats.seconds.items()},
    }


def server(bench: Bench, feed: Feed, way: Way, rate: float) -> Record:
    """Windows that arrive by a Poisson process; their latencies include the wait for a slot."""
    engine, work = way.engine(bench, feed), feed.windows[:SERVED]
    draw = random.Random(31)
    due = list(accumulate(draw.expovariate(rate) for _ in work))
    waiting, arrived = deque[Window](), 0
    found, latency = dict[int, tuple[int, ...]](), dict[int, float]()
    began = time.perf_counter()
    while len(found) < len(work):
        now = time.perf_counter() - began
        while arrived < len(work) and due[arrived] <= now:
            waiting.append(work[arrived])
            arrived += 1
        taken = [waiting.popleft() for _ in range(min(len(waiting), engine.free, TOGETHER))]
        for request in feed.requests(taken) if taken else ():
            engine.submit(request)
        if engine.idle:
            time.sleep(max(0.0, due[arrived] - now) if arrived < len(work) else 0.0)
            continue
        for result in engine.step():
            if error := result.error or result.draft_error:
                raise error
            number = result.request.tag
            found[number] = result.tokens
            latency[number] = time.perf_counter() - began - due[number]
    wall_s, spread = time.perf_counter() - began, sorted(latency.values())
    return bench.check(f"server, {way}", found, [window.known for window in work]) | {
        "asked_per_s": round(rate, 2),
        "tokens_per_s": round(sum(map(len, found.values())) / wall_s, 1),
        **{
            f"p{percent}_s": round(spread[percent * (len(spread) - 1) // 100], 3)
            for percent in (50, 90, 99)
        },
    }
