"""F11: interrupted uploads."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tests.faults.harness import Wrong, holds, server


def interrupt_uploads(long: bool, rng: random.Random) -> str:
    """Uploads: the server killed during a PATCH, two writers, a wrong offset, too much data."""
    audio = json.dumps({"text": "whole", "groups": 2, "pace_s": 0.01}).encode().ljust(40 << 20)
    tus = {"Tus-Resumable": "1.0.0"}
    body = {**tus, "Content-Type": "application/offset+octet-stream"}
    with server() as s:
        s.start()
        made = s.http.post("/v1/uploads", headers={**tus, "Upload-Length": str(len(audio))})
        place = made.headers["location"]

        def offset() -> int:
            return int(s.http.head(place, headers=tus).headers["upload-offset"])

        def patch(at: int, data: Any) -> httpx.Response:
            return s.http.patch(place, headers={**body, "Upload-Offset": str(at)}, content=data)

        def slowly() -> Iterator[bytes]:
            for at in range(0, len(audio), 1 << 20):
                yield audio[at : at + (1 << 20)]
                time.sleep(0.05)
                if at == 30 << 20:
                    s.kill()

        try:
            patch(0, slowly())
            raise Wrong("the server was to be killed")
        except httpx.HTTPError:
            pass
        s.start()
        at = offset()
        holds(0 < at < len(audio), f"nothing of the first piece was kept ({at})")
        holds(patch(at + 1, b"x").status_code == 409, "a wrong offset")
        holds(patch(at, b"x" * (len(audio) - at + 1)).status_code == 413, "too much")
        holds(offset() == at, "a refused piece was kept")
        statuses: list[int] = []
        go = threading.Event()

        def first() -> Iterator[bytes]:
            yield audio[at : at + 1000]
            go.wait(30)
            yield audio[at + 1000 :]

        writer = threading.Thread(target=lambda: statuses.append(patch(at, first()).status_code))
        writer.start()
        time.sleep(2)
        second = httpx.patch(
            s.url + place, headers={**body, "Upload-Offset": str(at)}, content=b"y", trust_env=False
        )
        go.set()
        writer.join()
        holds(second.status_code == 423, f"a second writer has {second.status_code}")
        holds(statuses == [204] and offset() == len(audio), f"the first has {statuses}")
        id = s.http.post(
            "/v1/jobs", data={"upload_id": place.split("/")[-1]}, files={"x": b""}
        ).json()
        if "id" not in id:
            id = s.http.post("/v1/jobs", files={"upload_id": (None, place.split("/")[-1])}).json()
        holds(s.ended(id["id"])["state"] == "succeeded", "the job of the upload")
        heard = hashlib.sha256(s.http.get(f"/v1/jobs/{id['id']}/audio").content).digest()
        holds(heard == hashlib.sha256(audio).digest(), "the hash differs")
    return f"killed in mid-PATCH, {at >> 20} of 40 MiB kept, hash right after; 409, 413, 423"
