"""F19: SIGKILL in every phase of a job. F20: a job that kills every process that runs it.

The process kills itself in the chosen phase (`server.Trap`), so that a kill always hits it. Only in
`upload` it is killed from outside, in the middle of a request body.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx

from tests.faults.harness import PATIENCE_S, START_S, Server, holds, right, server, until
from tests.faults.receiver import SECRET, Receiver

PHASES = (
    "loading",
    "upload",
    "accepting",
    "queued",
    "decoding",
    "planning",
    "engine",
    "assembling",
    "speakers",
    "result",
    "ended",
    "callback",
    "called",
    "draining",
)
"""The phases in which a process can be killed, in the order of a job."""

GROUPS, PACE_S, LOAD_S = 3, 0.05, 0.3


def kill_in_every_phase(long: bool, rng: random.Random) -> str:
    """Kill and restart in each phase: every accepted job succeeds with the right text."""
    phases = list(PHASES) + [rng.choice(PHASES) for _ in range(6 if long else 0)]
    receiver, made, killed = Receiver(), list[str](), Counter[str]()
    try:
        with server("--load-s", str(LOAD_S), "--concurrency", "4") as s:
            s.start()
            made += [_submit(s, n, receiver, GROUPS * 4) for n in range(6)]
            for phase in phases:
                made += _killed_in(s, phase, len(made), receiver)
                killed[phase] += 1
                s.start()
            made = list(dict.fromkeys(made))
            failed = []
            for id in made:
                job = s.ended(id)
                if job["state"] != "succeeded":
                    failed.append(f"{id} {job['error']}")
                elif not _whole(s.text(id)):
                    failed.append(f"{id} has another text")
            holds(not failed, f"{len(failed)} of {len(made)} jobs: {'; '.join(failed[:3])}")
            ids = {job["id"] for job in _listed(s)}
            holds(
                ids == set(made), f"{len(set(made) - ids)} jobs lost, {len(ids - set(made))} more"
            )
            hooks = [id for id in made if "webhook" in s.job(id)]
            until(
                lambda: all(s.job(id)["webhook"]["state"] == "delivered" for id in hooks),
                PATIENCE_S,
                "a callback was lost",
            )
            deaths = "deaths_beside != 0 or deaths_alone != 0 or risk is not null"
            counted = s.rows(f"select count(*) from forescribe_jobs where {deaths}")[0][0]
            holds(counted == 0, f"{counted} jobs that got on are still held for a death")
            holds(s.rows("pragma integrity_check") == [("ok",)], "the database is damaged")
    finally:
        receiver.close()
    told = ", ".join(f"{phase} {n}" for phase, n in killed.items())
    return f"{killed.total()} kills ({told}); {len(made)} jobs, all right, none failed or lost"


def _killed_in(s: Server, phase: str, n: int, receiver: Receiver) -> list[str]:
    """Submit jobs until the process is dead and return them."""
    assert s.process is not None
    if phase == "upload":
        _die_in_upload(s)
        return []
    made = []
    if phase in ("loading", "draining"):
        made.append(_submit(s, n, receiver))  # a slow machine may still be loading
        (s.folder / f"die-{phase}").touch()
        s.process.send_signal(signal.SIGTERM if phase == "draining" else signal.SIGKILL)
        s.process.wait(START_S)
        if phase == "loading":
            s.start(alive=False)
    else:
        (s.folder / f"die-{phase}").touch()
        made.append(_kept(s, n, receiver))
    until(lambda: s.process is not None and s.process.poll() is not None, PATIENCE_S, phase)
    holds(s.process.returncode == -signal.SIGKILL, f"{phase}: ended with {s.process.returncode}")
    holds(not (s.folder / f"die-{phase}").exists(), f"{phase}: never came by")
    if not made[-1]:  # it died before it accepted the job: the client sends it again
        s.start()
        made[-1] = _submit(s, n, receiver)
        s.kill()
    return made


def _kept(s: Server, n: int, receiver: Receiver) -> str:
    """The job id, or None without an answer."""
    try:
        return _submit(s, n, receiver)
    except httpx.HTTPError:
        return ""


def _submit(s: Server, n: int, receiver: Receiver, groups: int = GROUPS) -> str:
    hook = {"webhook_url": receiver.url, "webhook_secret": SECRET}
    answer = s.submit(f"job{n}", groups, PACE_S, f"key{n}", diarize="true", **hook)
    holds(answer.status_code == 202, f"a job is answered with {answer.status_code}: {answer.text}")
    return str(answer.json()["id"])


def _die_in_upload(s: Server) -> None:
    """Stop sending a body, then kill the process."""
    come, go = threading.Event(), threading.Event()

    def body() -> Iterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        yield b"x" * (1 << 20)
        come.set()
        go.wait(PATIENCE_S)

    def send() -> None:
        kind = {"content-type": "multipart/form-data; boundary=x"}
        try:
            httpx.post(f"{s.url}/v1/jobs", content=body(), headers=kind, trust_env=False)
        except httpx.HTTPError:
            """It was cut off, as it should be."""

    sender = threading.Thread(target=send)
    sender.start()
    come.wait(PATIENCE_S)
    time.sleep(0.1)
    s.kill()
    go.set()
    sender.join()


def _whole(text: str) -> bool:
    """Whether a job refers to it."""
    name, groups = text.split(" ", 1)[0], text.count(".")
    return groups in (GROUPS, 4 * GROUPS) and text == right(name, groups)


def _listed(s: Server) -> list[dict[str, object]]:
    found: list[dict[str, object]] = s.http.get("/v1/jobs", params={"limit": 100}).json()["data"]
    return found


def poison_job(long: bool, rng: random.Random) -> str:
    """Every process that runs one job dies: this job fails, the others succeed."""
    jobs, deaths = 8, 0
    with server("--concurrency", "4") as s:
        s.start()
        audio = json.dumps({"text": "poison", "groups": 2, "pace_s": 0.1, "poison": True}).encode()
        made = [s.submit(f"job{n}", GROUPS, 0.1).json()["id"] for n in range(jobs // 2)]
        poison = s.http.post("/v1/jobs", files={"file": ("a.wav", audio)}).json()["id"]
        made += [_late(s, n) for n in range(jobs // 2)]
        while True:
            assert s.process is not None
            if s.process.poll() is not None:
                deaths += 1
                holds(deaths <= 4, f"{deaths} processes have died, and the job has not failed")
                s.start()
            try:
                if s.job(poison)["finished_at"] is not None:
                    break
            except httpx.HTTPError:
                """It has died just now."""
            time.sleep(0.1)
        made = [id for id in made if id]
        job = s.job(poison)
        holds(job["state"] == "failed", f"the poison is {job['state']}")
        holds(job["error"]["code"] == "crashed", f"it says {job['error']}")
        for id in made:
            told = s.ended(id)
            holds(told["state"] == "succeeded", f"{id}, beside it, is {told['error']}")
        texts = [s.text(id) for id in made]
        holds(len(set(texts)) == len(made), f"texts: {texts}")
    return f"{deaths} processes died; the job that killed them failed, {len(made)} beside it right"


def _late(s: Server, n: int) -> str:
    """Ignores a process that is dead already."""
    try:
        answer = s.submit(f"late{n}", GROUPS, 0.1)
    except httpx.HTTPError:
        return ""
    return str(answer.json()["id"])
