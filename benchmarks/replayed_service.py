"""The service and its live sessions with a model whose answers are kept: ways of `benchmarks.ceiling`.

The application runs in this process, as `forescribe serve` runs it, over a transcriber that a `Replay` has
made free. Clients are a process of their own, so that what they do does not count.
"""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.live import CHUNK, RATE, serving
from benchmarks.replay import Stages
from benchmarks.service import Clip, load
from forescribe.api.app import create_app
from forescribe.api.http.protocols import HttpProtocol, SocketProtocol
from forescribe.api.process import Failure
from forescribe.api.realtime.streams import MAX_PER_CLIENT
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.options import Options, Outcome
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.live.events import Completed, Event, Failed, LiveOptions, TurnDetection
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.segment.windows import Samples
from forescribe.diarize.diarizer import Diarizer

START_S = 120.0

SCALE = 32768

SESSION = {
    "type": "transcription",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": RATE},
            "turn_detection": {"type": "server_vad"},
        }
    },
}

Texts = dict[str, Any]


# -- a server -------------------------------------------------------------------------------------------


@contextmanager
def application(transcriber: Transcriber, stages: Stages, most: int) -> Iterator[str]:
    """The service on a free port of this machine, for up to `most` clients; its address."""
    failures = list[Failure]()
    given: dict[str, Any] = {"max_requests": 2 * most, "max_streams": most}
    settings = Settings(model="replayed", jobs=False, drain_s=0.0, **given)
    speech = Serving(settings, lambda: transcriber, _no_speakers)
    app = create_app(settings, speech, failed=failures.append)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_config=None, access_log=False, http=HttpProtocol, ws=SocketProtocol
            )
        )
        run = stages.timed("event loop", server.run)
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
    with application(transcriber, stages, count) as address, sending(stages) as pool:
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


def heard(
    transcriber: Transcriber,
    samples: Sequence[Samples],
    options: Options,
    count: int,
    stages: Stages,
) -> Texts:
    """So many WebSockets at once, at the pace of the clock."""
    chosen = [(samples[n % len(samples)] * SCALE).astype("<i2").tobytes() for n in range(count)]
    transcription = {"model": "whisper-1", "language": options.language}
    with application(transcriber, stages, count) as address, clients(stages) as pool:
        pool.submit(speak, address, [chosen[0][: 2 * RATE]], transcription).result()
        stages.clear()
        found: Texts = pool.submit(speak, address, chosen, transcription).result()
        stages.stop()
    return found


def speak(address: str, recordings: Sequence[bytes], transcription: dict[str, Any]) -> Texts:
    """A WebSocket for each recording, 16-bit samples; the texts of its turns."""

    async def all_of_them() -> list[list[str]]:
        count = len(recordings)
        speakers = (
            _speaker(address, own, transcription, number, number / count)
            for number, own in enumerate(recordings)
        )
        return list(await asyncio.gather(*speakers))

    return {str(n): turns for n, turns in enumerate(asyncio.run(all_of_them()))}


async def _speaker(
    address: str, recording: bytes, transcription: dict[str, Any], number: int, delay_s: float
) -> list[str]:
    from websockets.asyncio.client import connect

    own = f"127.0.0.{2 + number // MAX_PER_CLIENT}"  # an address has so many sessions
    url = f"ws://{address}/v1/realtime?intent=transcription"
    async with connect(url, local_addr=(own, 0), max_size=None) as socket:
        turns: dict[str, str | None] = {}
        over = asyncio.Event()

        async def listen() -> None:
            async for text in socket:
                event = json.loads(text)
                kind = event["type"].rpartition(".")[2]
                if event["type"] == "input_audio_buffer.committed":
                    turns[event["item_id"]] = None
                elif kind in ("completed", "failed") and event["item_id"] in turns:
                    turns[event["item_id"]] = event.get("transcript", "")
                elif event["type"] == "error" and "commit" not in str(event["error"]["code"]):
                    raise RuntimeError(text)
                elif event["type"] == "input_audio_buffer.cleared":
                    over.set()

        listening = asyncio.ensure_future(listen())

        async def send(**event: Any) -> None:
            if listening.done():
                listening.result()
            await socket.send(json.dumps(event))

        session = json.loads(json.dumps(SESSION))
        session["audio"]["input"]["transcription"] = transcription
        await send(type="session.update", session=session)
        start_s = time.monotonic() + delay_s
        for at in range(0, len(recording), 2 * CHUNK):
            due_s = start_s + (at // 2 + CHUNK) / RATE
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            audio = base64.b64encode(recording[at : at + 2 * CHUNK]).decode()
            await send(type="input_audio_buffer.append", audio=audio)
        await send(type="input_audio_buffer.commit")
        await send(type="input_audio_buffer.clear")  # whose answer is behind all turns' commits
        await over.wait()
        while None in turns.values():
            if listening.done():
                listening.result()
            await asyncio.sleep(0.02)
        listening.cancel()
        return [text or "" for text in turns.values()]
