"""MLPerf Inference's shape for Whisper large-v3: LibriSpeech dev in 1,633 windows, offline and as a server.

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
from benchmarks.gpu.sections import Bench, Record, encode
from forescribe.asr.model.whisper import Extractor, LogMel
from forescribe.speculative import Engine, Request
from forescribe.speculative.requests import Mode

WINDOWS = 1633
MEAN_TOKENS, SPREAD = 84.0, 18.0
AGREEMENT, GAMMA = 0.8, 5
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


def mlperf(bench: Bench) -> Record:
    """Tokens per second offline, and the latencies of a server at shares of the best of these."""
    record: Record = {}
    small, largest = bench.small, max(bench.batches)
    feed, rates = Feed(bench, 6 if small else WINDOWS), dict[tuple[int, int], float]()

    def measure(factor: int, gamma: int) -> None:
        batch = factor * largest
        name = f"offline, batch {batch}, gamma {gamma}"
        bench.figure(record, name, partial(offline, bench, feed, name, batch, gamma))
        if "windows_per_s" in record[name]:
            rates[batch, gamma] = record[name]["windows_per_s"]

    for factor, gamma in ((1, GAMMA), (2, GAMMA)):
        measure(factor, gamma)
    for share in LOADS if rates else ():
        batch, gamma = max(rates, key=rates.__getitem__)
        rate = share * rates[batch, gamma]
        name = f"server, batch {batch}, gamma {gamma}, {share:.0%} of offline"
        bench.figure(record, name, partial(server, bench, feed, name, batch, gamma, rate))
    for factor, gamma in ((2, 0), (1, 0), (4, 0), (4, GAMMA)):
        measure(factor, gamma)
    return record


def warmed(bench: Bench, feed: Feed, batch: int, gamma: int) -> Engine:
    """An engine that has captured what it needs."""
    agreement = AGREEMENT if gamma else None
    engine = bench.models.engine(batch, gamma=gamma, agreement=agreement, modes=(Mode(),))
    engine.warm_up()
    for _ in range(2):  # a prefill is captured when its shape comes again
        decode(engine, feed.pulled(feed.windows[: 2 * TOGETHER]))
    return engine


def offline(bench: Bench, feed: Feed, name: str, batch: int, gamma: int) -> Record:
    """All windows as fast as they go."""
    engine, work = warmed(bench, feed, batch, gamma), feed.windows
    before = engine.stats
    bench.device.synchronize()
    began = time.perf_counter()
    found = decode(engine, feed.pulled(work))
    wall_s, stats = time.perf_counter() - began, engine.stats - before
    return bench.check(name, found, [window.known for window in work]) | {
        "tokens_per_s": round(sum(map(len, found.values())) / wall_s, 1),
        "windows_per_s": round(len(work) / wall_s, 2),
        "times_real_time": round(len(work) * bench.dimensions.window_s / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "tokens_per_row_round": round(stats.mean_acceptance_length, 2),
        "stages_s": {stage: round(s, 2) for stage, s in stats.seconds.items()},
    }


def server(bench: Bench, feed: Feed, name: str, batch: int, gamma: int, rate: float) -> Record:
    """Windows that arrive by a Poisson process; their latencies include the wait for a slot."""
    engine, work = warmed(bench, feed, batch, gamma), feed.windows[:SERVED]
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
    return bench.check(name, found, [window.known for window in work]) | {
        "asked_per_s": round(rate, 2),
        "tokens_per_s": round(sum(map(len, found.values())) / wall_s, 1),
        **{
            f"p{percent}_s": round(spread[percent * (len(spread) - 1) // 100], 3)
            for percent in (50, 90, 99)
        },
    }
