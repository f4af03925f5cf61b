"""The service and its live sessions in this process: ways of `benchmarks.ceiling` and `benchmarks.gpu`.

The application runs in this process, as `forescribe serve` runs it, over a transcriber that a `Replay` has
made free. Clients are a process of their own, so that what they do does not count.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from benchmarks.live import CHUNK, serving
from benchmarks.replay import Stages
from forescribe.api.app import create_app
from forescribe.api.http.protocols import HttpProtocol, SocketProtocol
from forescribe.api.process import Failure
from forescribe.api.settings import NO_DIARIZER, Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.results import Outcome
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.live.events import Completed, Event, Failed, LiveOptions, TurnDetection
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.segment.windows import Samples
from forescribe.diarize.diarizer import Diarizer

START_S = 120.0

SCALE = 32768

Texts = dict[str, Any]


# -- a server -------------------------------------------------------------------------------------------


@contextmanager
def application(transcriber: Transcriber, most: int, stages: Stages | None = None) -> Iterator[str]:
    """The service on a free port of this machine, for up to `most` clients; its address."""
    failures = list[Failure]()
    given: dict[str, Any] = {"max_requests": 2 * most, "max_streams": most}
    settings = Settings(model="replayed", jobs=False, diarizer=NO_DIARIZER, drain_s=0.0, **given)
    speech = Serving(settings, lambda: transcriber, _no_speakers)
    app = create_app(settings, speech, failed=failures.append)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, http=HttpProtocol, ws=SocketProtocol
            )
        )
        run = server.run if stages is None else stages.timed("event loop", server.run)
        thread = threading.Thread(target=run, args=([listening],))
        thread.start()
        try:
            end_s = time.monotonic() + START_S
            while not (server.started and speech.life.state == "ready"):
                if failures or time.monotonic() > end_s:
                    raise SystemExit(f"the service does not start: {failures}")
                time.sleep(0.05)
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _no_speakers() -> Diarizer:
    raise SystemExit("uploads are sent without speakers")


@contextmanager
def clients(stages: Stages) -> Iterator[Executor]:
    """A process that has loaded what clients need."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        stages.foreign.add(pool.submit(os.getpid).result())
        yield pool


# -- uploads --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip:
    """A recording to send."""

    name: str
    data: bytes
    seconds: float


@dataclass(frozen=True)
class Answer:
    clip: Clip
    text: str
    latency_s: float  # from the start of the first try, with waits
    refusals: tuple[int, ...]  # status codes before it was accepted


def load(
    address: str, work: Sequence[Clip], clients: int, fields: dict[str, str]
) -> tuple[float, list[Answer]]:
    """Send all clips with concurrent clients. Returns seconds, and answers in order of completion."""
    waiting: queue.SimpleQueue[Clip] = queue.SimpleQueue()
    for clip in work:
        waiting.put(clip)
    done: list[Answer] = []
    failed: list[BaseException] = []

    def client() -> None:
        try:
            with httpx.Client(base_url=address, timeout=None, trust_env=False) as http:
                while not failed:
                    try:
                        clip = waiting.get_nowait()
                    except queue.Empty:
                        return
                    done.append(_sent(http, clip, fields))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    if failed:
        raise RuntimeError(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return wall_s, done


def _sent(http: httpx.Client, clip: Clip, fields: dict[str, str]) -> Answer:
    refusals: list[int] = []
    start = time.perf_counter()
    while True:
        files = {"file": (f"{clip.name}.flac", clip.data)}
        answer = http.post("/v1/audio/transcriptions", files=files, data=fields)
        if answer.status_code == 200:
            latency_s = time.perf_counter() - start
            return Answer(clip, answer.json()["text"], latency_s, tuple(refusals))
        if answer.status_code not in (429, 503):
            raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")
        refusals.append(answer.status_code)
        time.sleep(float(answer.headers["retry-after"]))


def clips_of(outcomes: Sequence[Outcome]) -> list[Clip]:
    return [
        Clip(o.name, Path(str(o.source)).read_bytes(), o.transcript.duration)
        for o in outcomes
        if o.transcript is not None
    ]


def uploaded(
    transcriber: Transcriber,
    clips: Sequence[Clip],
    options: Options,
    count: int,
    stages: Stages,
    sending: Callable[[Stages], AbstractContextManager[Executor]] = clients,
) -> Texts:
    """By so many clients at once, who send one recording after the other; the texts of the answers."""
    fields = {"model": "whisper-1", "language": options.language or "auto"}
    if options.words:
        fields |= {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    with application(transcriber, count, stages) as address, sending(stages) as pool:
        url = f"http://{address}"
        pool.submit(load, url, clips[:1], 1, fields).result()  # what is loaded with the first
        stages.clear()
        _, answers = pool.submit(load, url, clips, count, fields).result()
        stages.stop()
    return {answer.clip.name: answer.text for answer in answers}


# -- live sessions --------------------------------------------------------------------------------------


def samples_of(paths: Sequence[str]) -> list[Samples]:
    """In steps of 16 bits, as clients send them."""
    found = []
    for path in paths:
        steps = np.clip(np.rint(read_audio(path) * SCALE), -SCALE, SCALE - 1)
        found.append((steps / SCALE).astype(np.float32))
    return found


def spoken(
    transcriber: Transcriber, samples: Sequence[Samples], options: Options, count: int
) -> Texts:
    """The texts of the turns of each recording, `count` streams at a time, in chunks of 100 ms. The next one
    is fed when what the one before has begun has ended, so that the model is always asked the same."""
    live = LiveOptions(replace(options, words=False), turns=TurnDetection())
    found: Texts = {}
    with serving(transcriber) as session:
        for first in range(0, len(samples), count):
            some = samples[first : first + count]
            turns: list[dict[int, str]] = [{} for _ in some]
            streams = [LiveStream(session, live, _told(own)) for own in turns]
            for at in range(0, max(map(len, some)), CHUNK):
                for stream, own in zip(streams, some, strict=True):
                    if at < len(own):
                        stream.feed(own[at : at + CHUNK])
                for stream in streams:
                    stream.wait(idle=True)
            for stream in streams:
                stream.commit()
                stream.wait()
            found |= {str(first + n): _in_order(own) for n, own in enumerate(turns)}
    return found


def _told(turns: dict[int, str]) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if isinstance(event, Completed):
            turns[event.item] = event.transcript.text
        elif isinstance(event, Failed):
            turns[event.item] = str(event.error)

    return tell


def _in_order(turns: dict[int, str]) -> list[str]:
    return [turns[number] for number in sorted(turns)]


def fed(
    transcriber: Transcriber,
    samples: Sequence[Samples],
    options: Options,
    count: int,
    stages: Stages,
) -> Texts:
    """So many streams at once."""
    chosen = [samples[n % len(samples)] for n in range(count)]
    result: Texts = stages.timed("feeding", spoken)(transcriber, chosen, options, count)
    return result
