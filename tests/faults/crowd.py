"""Two hundred uploads at once on the real service: none is refused that fits the bounds, whoever came first
is answered first, and memory does not grow with the number of those who wait."""

from __future__ import annotations

import io
import statistics
import threading
import time
from dataclasses import dataclass

import httpx
import numpy as np
import psutil
import soundfile

from tests.faults.harness import holds
from tests.faults.service import RATE, ROOT, Service, service

CLIENTS, SECONDS = 200, 30

BOUNDS = {"FORESCRIBE_MAX_REQUESTS": "256"}

APART_S = 0.02
"""Between two clients, so that it is known who came first."""

MOST_MB = 150.0
"""More than after the first upload: samples of those who wait are in files."""


@dataclass(frozen=True)
class Answer:
    status: int
    arrived_s: float
    took_s: float
    text: str


def crowd(clients: int = CLIENTS, seconds: int = SECONDS) -> str:
    samples, rate = soundfile.read(ROOT / "samples" / "conversation.flac", dtype="int16")
    assert rate == RATE
    sent = [_part(samples, n, seconds) for n in range(clients)]
    with service() as s:
        s.start(env=BOUNDS)
        first = _upload(s, sent[0], 0)
        holds(first.status == 200, f"the first upload is answered {first.status}")
        before = _memory_mb(s)
        answers, most = _at_once(s, sent)
        after = _memory_mb(s)
    statuses = {answer.status for answer in answers}
    holds(statuses == {200}, f"uploads are answered {statuses}")
    holds(answers[0].text == first.text, "the same recording has another text in a crowd")
    took = [answer.took_s for answer in answers]
    slowest, mean = max(took), statistics.mean(took)
    late = _passed(answers)
    told = (
        f"{clients} uploads of {seconds} s at once: all answered; mean {mean:.1f} s, slowest "
        f"{slowest:.1f} s; passed by {late} later ones at most; memory {before:.0f} MB after one upload, "
        f"{most:.0f} MB at most, {after:.0f} MB afterwards"
    )
    holds(slowest <= 2.1 * mean, told)
    holds(late <= clients // 8, told)
    holds(most <= before + MOST_MB, told)
    return told


def _part(samples: np.ndarray, n: int, seconds: int) -> bytes:
    """Another part of the recording for each client."""
    start = n * (len(samples) - seconds * RATE) // CLIENTS
    file = io.BytesIO()
    soundfile.write(file, samples[start : start + seconds * RATE], RATE, format="FLAC")
    return file.getvalue()


def _upload(s: Service, audio: bytes, n: int) -> Answer:
    """From an address of its own, as clients of many machines are."""
    here = httpx.HTTPTransport(local_address=f"127.0.{1 + n // 250}.{1 + n % 250}")
    began = time.monotonic()
    with httpx.Client(base_url=s.url, timeout=1800, transport=here) as http:
        answer = http.post(
            "/v1/audio/transcriptions",
            files={"file": ("a.flac", audio)},
            data={"model": "tiny.en", "language": "en"},
        )
    text = answer.json()["text"] if answer.status_code == 200 else answer.text
    return Answer(answer.status_code, began, time.monotonic() - began, text)


def _at_once(s: Service, sent: list[bytes]) -> tuple[list[Answer], float]:
    """The answers, and the most memory meanwhile."""
    answers: dict[int, Answer] = {}

    def client(n: int) -> None:
        answers[n] = _upload(s, sent[n], n)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(len(sent))]
    for thread in threads:
        thread.start()
        time.sleep(APART_S)
    most = 0.0
    while any(thread.is_alive() for thread in threads):
        most = max(most, _memory_mb(s))
        time.sleep(1.0)
    holds(len(answers) == len(sent), f"{len(sent) - len(answers)} clients have no answer")
    return [answers[n] for n in range(len(sent))], most


def _passed(answers: list[Answer]) -> int:
    """By how many that arrived later an upload was passed, at most."""
    ends = sorted(answers, key=lambda answer: answer.arrived_s)
    done = [answer.arrived_s + answer.took_s for answer in ends]
    return max(sum(other < own for other in done[n + 1 :]) for n, own in enumerate(done))


def _memory_mb(s: Service) -> float:
    """Of the service and its child processes, what is theirs alone."""
    assert s.process is not None
    first = psutil.Process(s.process.pid)
    total = 0
    for one in (first, *first.children(recursive=True)):
        try:
            total += one.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6
