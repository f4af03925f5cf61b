"""Two hundred uploads at once on the real service: none is refused that fits the bounds, one that comes later
does not pass them, and memory does not grow with the number of those who wait."""

from __future__ import annotations

import io
import statistics
import threading
import time
from dataclasses import dataclass

import httpx
import numpy as np
import soundfile

from tests.faults.harness import START_S, holds, memory_mb, until
from tests.faults.service import RATE, ROOT, Service, service

CLIENTS, SECONDS = 200, 30

BOUNDS = {"FORESCRIBE_MAX_REQUESTS": "256"}

APART_S = 0.02
"""Between two clients, so that it is known who came first."""

LATE_S = 45.0
"""When one more comes: its windows are due behind all that the others have."""

PASSED = 16
"""That it may pass: those whose windows are decoded together with its own, and their word times."""


@dataclass(frozen=True)
class Answer:
    status: int
    began_s: float
    ended_s: float
    text: str

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


def crowd(clients: int = CLIENTS, seconds: int = SECONDS) -> str:
    samples, rate = soundfile.read(ROOT / "samples" / "conversation.flac", dtype="int16")
    assert rate == RATE
    sent = [_part(samples, n, clients, seconds) for n in range(clients)]
    with service() as s:
        s.start(env=BOUNDS)
        until(lambda: s.http.get("/ready").status_code == 200, START_S, "it is not ready")
        first = _upload(s, sent[0], 0)
        alone_mb = memory_mb(s.pid)
        _, few_mb = _at_once(s, sent[: clients // 4])
        answers, many_mb = _at_once(s, sent, late=sent[0])
    late = answers.pop()
    statuses = {answer.status for answer in (first, late, *answers)}
    holds(statuses == {200}, f"uploads are answered {statuses}")
    holds({first.text, late.text} == {answers[0].text}, "a recording has another text in a crowd")
    took = [answer.took_s for answer in answers]
    slowest, mean = max(took), statistics.mean(took)
    passed = sum(answer.ended_s > late.ended_s for answer in answers)
    told = (
        f"{clients} uploads of {seconds} s at once: all answered; mean {mean:.1f} s, slowest "
        f"{slowest:.1f} s; one that came {LATE_S:g} s later passed {passed}; memory {alone_mb:.0f} MB after "
        f"one upload, {few_mb:.0f} MB with {clients // 4}, {many_mb:.0f} MB with {clients}"
    )
    holds(slowest <= 2 * mean, told)
    holds(passed <= PASSED, told)
    holds(many_mb - alone_mb <= 2 * (few_mb - alone_mb), told)
    return told


def _part(samples: np.ndarray, n: int, clients: int, seconds: int) -> bytes:
    """Another part of the recording for each client."""
    start = n * (len(samples) - seconds * RATE) // clients
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
    return Answer(answer.status_code, began, time.monotonic(), text)


def _at_once(
    s: Service, sent: list[bytes], late: bytes | None = None
) -> tuple[list[Answer], float]:
    """The answers, that of the late one last, and the memory meanwhile in MB: the mean of each second."""
    answers: dict[int, Answer] = {}

    def client(n: int) -> None:
        if n == len(sent):
            time.sleep(LATE_S)
        answers[n] = _upload(s, (sent + [late or b""])[n], n)

    count = len(sent) + (late is not None)
    threads = [threading.Thread(target=client, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
        time.sleep(APART_S)
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen.append(memory_mb(s.pid))
        time.sleep(1.0)
    holds(len(answers) == count, f"{count - len(answers)} clients have no answer")
    return [answers[n] for n in range(count)], statistics.mean(seen)
