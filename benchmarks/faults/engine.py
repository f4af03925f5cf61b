"""F5: the engine, a thread of the service, runs out of memory or hangs.

The model is the bundled one; its texts are compared with those of an undisturbed run. Recordings are cut
from a bundled sample.
"""

from __future__ import annotations

import io
import random
import time
from typing import Any

from benchmarks import provenance
from benchmarks.faults.harness import Inconclusive, Server, holds, server, until

SAMPLE = provenance.ROOT / "samples" / "memo.flac"
GREEDY = "0.9"
"""As in benchmarks/faults/server.py, which is not imported for it."""

PATIENCE_S = 540.0
LENGTHS_S = (12.0, 17.0, 21.0)
STALL_S = 20.0
STALLED = 70
"""`api.speech.serving.STALLED`, which is not imported for it."""
TRIES = 4


def break_engine(long: bool, rng: random.Random) -> str:
    """A job that exhausts the memory, then an engine that hangs."""
    stall = f"stall_s={STALL_S}"
    with server("--real", "tiny.en", "--concurrency", "4", "--setting", stall) as s:
        s.start()
        until(
            lambda: s.http.get("/ready").status_code == 200, PATIENCE_S, "the model is not loaded"
        )
        sounds = [_cut(seconds) for seconds in LENGTHS_S]
        texts = [_text(s, _submit(s, sound)) for sound in sounds]
        holds(all(texts), "no speech in the sample, so nothing is compared")
        said = [_memory(s, sounds, texts, 3 if long else 1)]
        said.append(_hang(s, sounds, texts))
    return "; ".join(said)


def _memory(s: Server, sounds: list[bytes], texts: list[str], times: int) -> str:
    for n in range(times):
        jobs = [_submit(s, sound) for sound in sounds]
        greedy = _submit(s, sounds[0], temperature=GREEDY)
        job = _ended(s, greedy)
        failed = job["error"] or {}
        holds(job["state"] == "failed", f"the greedy job is {job['state']}")
        holds(failed["code"] == "overloaded", f"the greedy job says {failed}")
        for id, text in zip(jobs, texts, strict=True):
            holds(_ended(s, id)["state"] == "succeeded", f"{id}, beside the greedy one, has failed")
            holds(_text(s, id) == text, f"{id} has another text")
        faults = sum(line[1] == "memory" for line in s.log())
        if faults < TRIES * (n + 1):
            raise Inconclusive(f"memory ran out {faults} times only")
    answer = s.http.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", sounds[0])},
        data={"model": "tiny.en", "response_format": "text"},
        timeout=PATIENCE_S,
    )
    holds(
        answer.status_code == 200, f"afterwards the route that waits answers {answer.status_code}"
    )
    return (
        f"out of memory {faults} times: the job whose windows do it failed (overloaded), "
        f"{len(sounds) * times} beside it right, the service back in work"
    )


def _hang(s: Server, sounds: list[bytes], texts: list[str]) -> str:
    hang = s.folder / "hang"
    hang.touch()
    made = [_submit(s, sound) for sound in sounds]
    until(lambda: all(s.job(id)["state"] == "running" for id in made), PATIENCE_S, "not begun")
    began_s = time.monotonic()
    assert s.process is not None
    status = s.process.wait(PATIENCE_S)
    after_s = time.monotonic() - began_s
    holds(status == STALLED, f"the process that hangs ended with {status}")
    hang.unlink()
    s.start()
    for id, text in zip(made, texts, strict=True):
        holds(_ended(s, id)["state"] == "succeeded", f"{id} has failed")
        holds(_text(s, id) == text, f"{id} has another text")
    return (
        f"an engine that hangs: the process ended by itself {after_s:.0f} s after all jobs ran (bound of a "
        f"round {STALL_S:.0f} s); the next one did its {len(made)} jobs, right"
    )


def _cut(seconds: float) -> bytes:
    import soundfile

    samples, rate = soundfile.read(SAMPLE, dtype="float32")
    file = io.BytesIO()
    soundfile.write(file, samples[: round(seconds * rate)], rate, format="WAV")
    return file.getvalue()


def _submit(s: Server, sound: bytes, **fields: str) -> str:
    answer = s.http.post("/v1/jobs", files={"file": ("a.wav", sound)}, data=fields)
    holds(answer.status_code == 202, f"a job is answered with {answer.status_code}")
    return str(answer.json()["id"])


def _ended(s: Server, id: str) -> dict[str, Any]:
    until(lambda: s.job(id)["finished_at"] is not None, PATIENCE_S, f"{id} does not end")
    return s.job(id)


def _text(s: Server, id: str) -> str:
    _ended(s, id)
    return s.text(id)
