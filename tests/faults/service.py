"""F23: SIGKILL of the real service with the bundled model, while jobs of many lengths and uploads run.

Recordings are pieces of the samples, so the right text of each is that of an undisturbed job.
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import soundfile

from tests.faults.harness import PATIENCE_S, START_S, Inconclusive, Server, holds, until
from tests.faults.replicas import Balancer

ROOT = Path(__file__).parents[2]
RATE = 16_000

END_S = 3600.0
"""For all jobs together, once nobody is killed any more."""


class Service(Server):
    """`forescribe serve`."""

    def start(
        self, *options: str, env: Mapping[str, str] | None = None, alive: bool = True
    ) -> None:
        command = [sys.executable, "-m", "forescribe", "serve", "--model", "tiny.en"]
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--data-dir", str(self.folder / "data")],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "FORESCRIBE_MIN_FREE_BYTES": "0"}
                | dict(env or {}),
                stderr=log,
            )
        if alive:
            until(self.alive, START_S, "the service does not start")


def kill_the_service(long: bool, rng: random.Random) -> str:
    """Kill after kill: every accepted job is right, none fails, and uploads are right or refused."""
    kills, lengths, gap_s = (
        (30, [20] * 8 + [60] * 4 + [126] * 3 + [600] * 2 + [1200] + [3600], (5.0, 15.0))
        if long
        else (3, [20, 20, 126, 300], (6.0, 12.0))
    )
    audio = {seconds: recording(seconds) for seconds in set(lengths)}
    rng.shuffle(lengths)
    with service() as s:
        s.start()
        client = Balancer([s])
        first = {seconds: client.send(f"first {seconds}", audio[seconds]) for seconds in audio}
        expected = {seconds: s.text(_ended(s, id)) for seconds, id in first.items()}
        uploads = _Uploads(s, audio[20])
        expected_upload = uploads.send()
        sender = _Jobs(client, [(seconds, audio[seconds]) for seconds in lengths])
        sender.start()
        uploads.start()
        hits = 0
        for _ in range(kills):
            time.sleep(rng.uniform(*gap_s))
            open_jobs = client.json("/v1/jobs?state=running")["data"]
            s.kill()
            hits += bool(open_jobs)
            s.start()
        sender.join(END_S)
        holds(len(sender.made) == len(lengths), f"{len(sender.made)} jobs were accepted")
        states = Counter[str]()
        for id, seconds in sender.made.items():
            job = s.job(_ended(s, id))
            states[job["state"] if job["error"] is None else job["error"]["code"]] += 1
            if job["state"] == "succeeded":
                same = s.text(id) == expected[seconds]
                holds(same, f"a job of {seconds} s has another text")
        until(lambda: bool(uploads.texts), PATIENCE_S, "no upload is answered any more")
        uploads.over.set()
        uploads.join(120)
        holds(states == {"succeeded": len(lengths)}, f"jobs: {dict(states)}")
        holds(
            set(uploads.texts) == {expected_upload}, "an upload has another text, or none was right"
        )
    if not hits:
        raise Inconclusive("no kill hit work under way")
    return (
        f"{hits} of {kills} kills hit jobs; {len(lengths)} jobs of {min(lengths)} to {max(lengths)} s, all "
        f"right; {len(uploads.texts)} uploads right, {uploads.refused} cut off or refused"
    )


def recording(seconds: int) -> bytes:
    """The samples one after the other, as FLAC."""
    parts = [soundfile.read(ROOT / "samples" / f"{name}.flac", dtype="float32")[0]
             for name in ("memo", "conversation", "noisy")]  # fmt: skip
    whole = np.concatenate(parts)
    file = io.BytesIO()
    soundfile.write(file, np.resize(whole, seconds * RATE), RATE, format="FLAC")
    return file.getvalue()


@contextmanager
def service() -> Iterator[Service]:
    with TemporaryDirectory() as folder:
        made = Service(Path(folder))
        try:
            yield made
        finally:
            made.stop()
            made.http.close()


def _ended(s: Server, id: str) -> str:
    until(lambda: s.job(id)["finished_at"] is not None, END_S, f"{id} does not end")
    return id


class _Jobs(threading.Thread):
    """A client that submits jobs, every third one as a resumable upload, whatever dies meanwhile."""

    def __init__(self, client: Balancer, recordings: list[tuple[int, bytes]]) -> None:
        super().__init__(daemon=True)
        self.client, self.recordings = client, recordings
        self.made: dict[str, int] = {}

    def run(self) -> None:
        for n, (seconds, audio) in enumerate(self.recordings):
            send = self.client.send if n % 3 else self.client.send_in_pieces
            self.made[send(f"job {n}", audio)] = seconds


class _Uploads(threading.Thread):
    """A client that wants transcriptions at once."""

    def __init__(self, s: Server, audio: bytes) -> None:
        super().__init__(daemon=True)
        self.s, self.audio, self.over = s, audio, threading.Event()
        self.texts: list[str] = []
        self.refused = 0

    def run(self) -> None:
        while not self.over.wait(1.0):
            try:
                self.texts.append(self.send())
            except httpx.HTTPError:
                self.refused += 1

    def send(self) -> str:
        answer = self.s.http.post(
            "/v1/audio/transcriptions",
            files={"file": ("a.flac", self.audio)},
            data={"model": "tiny.en"},
        )
        return str(answer.raise_for_status().json()["text"])
