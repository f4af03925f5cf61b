"""A service as the page sees it, without models: the contract of jobs and uploads.

Everything is told by the test: what is there, when a running job goes on. `Server` is stopped and started
again at its address; the Fake that it runs keeps what it has.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.responses import StreamingResponse as Stream

from forescribe.api.errors import checked
from forescribe.api.http.origins import OriginGuard
from forescribe.api.jobs.corrections import Corrections
from forescribe.api.routers import page
from forescribe.asr.formats.files import json_
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import (
    Coverage,
    Notice,
    Segment,
    Span,
    Word,
    samples_at,
)


def transcript(
    lines: list[tuple[str | None, str]], *, pace_s: float = 0.4, failed_s: float = 0.0, **more: Any
) -> Transcript:
    """Words at one pace, a segment for each line of (speaker, text), half a second between them."""
    segments, at, n = [], 0.5, 0
    for number, (speaker, text) in enumerate(lines):
        start, words = at, []
        for word in text.split():
            end = samples_at(at + pace_s)
            words.append(
                Word(f" {word}", samples_at(at), end, 0.9, speaker, 0.9)  # type: ignore[arg-type]
            )
            at, n = at + pace_s, n + 1
        segments.append(
            Segment(
                number,
                0,
                0,
                samples_at(start),
                samples_at(at),
                f" {text}",
                words=tuple(words),
                speaker=speaker,
            )
        )
        at += 0.5
    ends = [samples_at(end) for end in (0.5, at - 0.5, at, at + failed_s)]
    spans = [Span(0, ends[0], "silent"), Span(ends[0], ends[1], "decoded")]
    spans += [Span(ends[1], ends[2], "silent")]
    spans += [Span(ends[2], ends[3], "failed", "numbers broke")] if failed_s else []
    told = {"language": "en", "diarized": any(s for s, _ in lines), **more}
    return Transcript(tuple(segments), ends[3 if failed_s else 2], Coverage(tuple(spans)), **told)


@dataclass
class Job:
    told: Transcript
    view: dict[str, Any]
    going: threading.Event = field(default_factory=threading.Event)  # set: it runs to its end
    saved: list[dict[str, Any]] = field(default_factory=list)  # versions of its corrections

    @property
    def state(self) -> str:
        return str(self.view["state"])


@dataclass
class Upload:
    """An upload by tus, as far as it has come."""

    name: str
    length: int
    body: bytearray = field(default_factory=bytearray)


class Fake:
    """It has so many `recordings`. `jobs` False: they are switched off. `key`: requests must carry it.
    `loading`: no job comes in."""

    def __init__(
        self,
        audio: Path,
        told: Transcript,
        *,
        recordings: int = 0,
        jobs: bool = True,
        key: str = "",
    ) -> None:
        self.audio, self.told, self.key, self.on = audio, told, key, jobs
        self.jobs: dict[str, Job] = {}
        self.made = 0
        self.forms: list[dict[str, Any]] = []
        self.resumed: list[str] = []
        self.refuse: tuple[int, str, str] | None = None  # of what is posted
        self.loading = False
        self.languages = {"en": "English", "ba": "Bashkir", "bo": "Tibetan", "de": "German"}
        self.uploads: dict[str, Upload] = {}
        self.offsets: list[int] = []  # of each PATCH
        self.holds_at: int | None = None  # bytes after which an upload gets no further
        self.forbidden: list[str] = []  # requests that the service would refuse to this page
        self.audio_gone = False
        self.bodies: list[bytes] = []  # of finished uploads
        self.names: list[str] = []  # theirs
        self.held = threading.Event()  # set: one has got there
        self.app = self._app()
        for _ in range(recordings):
            self.add()

    def add(self, told: Transcript | None = None, **view: Any) -> Job:
        told = told or self.told
        n = self.made = self.made + 1
        total = told.duration
        body = {
            "id": f"job-{n}",
            "object": "job",
            "state": "succeeded",
            "stage": "transcribing" if view.get("state") == "running" else None,
            "label": f"recording {n}.wav",
            "created_at": int(time.time()) - 60 * n,
            "started_at": None,
            "finished_at": None,
            "progress": {"done_s": total, "total_s": total},
            "options": {"diarize": told.diarized},
            "error": None,
            "speed": 11.0,
            **view,
        }
        job = Job(told, body)
        self.jobs = {body["id"]: job, **self.jobs}
        return job

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(page.router)
        app.add_middleware(OriginGuard, host="127.0.0.1", refused=self.forbidden.append)

        @app.middleware("http")
        async def guarded(request: Request, call_next: Any) -> Response:
            path = request.url.path
            if self.key and path.startswith("/v1"):
                if request.headers.get("authorization") != f"Bearer {self.key}":
                    return refused(401, "invalid_api_key", "give an API key")
            if path.startswith("/v1/jobs") and not self.on:
                return refused(404, "not_found", "GET: Not Found")
            return await call_next(request)

        @app.get("/health")
        async def health() -> Response:
            return PlainTextResponse("OK")

        @app.get("/ready")
        async def ready() -> Response:
            if self.loading:
                return refused(503, "not_ready", "the server is loading")
            return PlainTextResponse("OK")

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "org/tiny", "speakers": True}]}

        @app.get("/v1/models/org/tiny")
        async def model() -> dict[str, Any]:
            known = {"speakers": True, "translates": len(self.languages) > 1}
            return {"id": "org/tiny", "languages": self.languages, **known}

        @app.get("/v1/jobs")
        async def listed(limit: int = 20, after: str = "") -> dict[str, Any]:
            ids = list(self.jobs)
            rest = ids[ids.index(after) + 1 :] if after else ids
            data = [self.jobs[id].view for id in rest[:limit]]
            return {"object": "list", "data": data, "has_more": len(rest) > limit}

        @app.post("/v1/jobs", status_code=202)
        async def submit(request: Request) -> Any:
            form = await self._read(request)
            if self.loading:
                return refused(503, "not_ready", "the server is loading")
            if self.refuse:
                return refused(*self.refuse)
            upload = self.uploads.pop(form["upload_id"])
            self.bodies.append(bytes(upload.body))
            self.names.append(upload.name)
            form |= {"file": upload.name, "bytes": len(upload.body)}
            return self.add(
                label=form["file"],
                state="running",
                progress={"done_s": 0.0, "total_s": self.told.duration},
                options={"diarize": form.get("diarize") == "true"},
                speed=None,
            ).view

        @app.post("/v1/uploads", status_code=201)
        async def create(request: Request) -> Response:
            name = request.headers["upload-metadata"].removeprefix("filename ")
            length = int(request.headers["upload-length"])
            id = f"up_{len(self.uploads) + 1}"
            self.uploads[id] = Upload(base64.b64decode(name).decode(), length)
            return Response(status_code=201, headers={"Location": f"/v1/uploads/{id}"})

        @app.head("/v1/uploads/{id}")
        async def where(id: str) -> Response:
            if id not in self.uploads:
                return refused(404, "not_found", "there is no such upload")
            return Response(headers=told_of(self.uploads[id]))

        @app.patch("/v1/uploads/{id}", status_code=204)
        async def append(id: str, request: Request) -> Response:
            upload, offset = self.uploads[id], int(request.headers["upload-offset"])
            if offset != len(upload.body):
                return refused(409, "conflict", f"the upload is at {len(upload.body)}")
            self.offsets.append(offset)
            async for piece in request.stream():
                if self.holds_at is None:
                    upload.body += piece
                    continue
                upload.body += piece[: max(0, self.holds_at - len(upload.body))]
                if len(upload.body) == self.holds_at:
                    self.held.set()
                    while self.holds_at is not None:
                        await asyncio.sleep(0.02)
                    break  # the sender has disconnected
            return Response(status_code=204, headers=told_of(upload))

        @app.delete("/v1/uploads/{id}", status_code=204)
        async def drop(id: str) -> None:
            self.uploads.pop(id, None)

        @app.get("/v1/jobs/search")
        async def search(q: str, after: str = "") -> dict[str, Any]:
            ids = list(self.jobs)
            rest = ids[ids.index(after) + 1 :] if after else ids
            data = []
            for id in rest[:100]:
                job = self.jobs[id]
                said = [s for s in job.told.segments if q.casefold() in s.text.casefold()]
                places = [
                    {"start": s.words[0].start, "text": s.text.strip()} for s in said if s.words
                ]
                if said and job.state == "succeeded":
                    data.append({"job": job.view, "count": len(said), "places": places[:3]})
            return {"data": data, "after": rest[99] if len(rest) > 100 else None}

        @app.get("/v1/jobs/archive")
        async def archive(response_format: str) -> Response:
            return PlainTextResponse(f"all as {response_format}")

        @app.patch("/v1/jobs/{id}")
        async def rename(id: str, request: Request) -> Any:
            view = self.jobs[id].view
            name, ending = (await request.json())["label"], Path(view["label"]).suffix
            view["label"] = name + ending * (not name.endswith(ending))
            return view

        @app.get("/v1/jobs/{id}")
        async def one(id: str) -> Any:
            if id not in self.jobs:
                return refused(404, "not_found", f"no job {id!r}")
            return self.jobs[id].view

        @app.get("/v1/jobs/{id}/events")
        async def events(id: str, request: Request) -> Response:
            if id not in self.jobs:
                return refused(404, "not_found", f"no job {id!r}")
            last = request.headers.get("last-event-id")
            if last is not None:
                self.resumed.append(last)
            body = self._events(self.jobs[id], 0 if last is None else int(last) + 1)
            return Stream(body, media_type="text/event-stream")

        @app.get("/v1/jobs/{id}/result")
        async def result(id: str, response_format: str, corrected: bool = True) -> Response:
            told, saved = self.jobs[id].told, self.jobs[id].saved
            if corrected and saved:
                told = checked(Corrections, saved[-1]).apply(told)
            if response_format == "transcript":
                return Response(json_(told), media_type="application/json")
            return PlainTextResponse(f"{response_format} of {id}\n")

        @app.get("/v1/jobs/{id}/corrections")
        async def corrections(id: str, version: int | None = None) -> Response:
            saved = self.jobs[id].saved
            found = saved[-1 if version is None else version - 1] if saved else None
            body = {
                "version": len(saved),
                **(found or {"segments": None, "names": {}, "merged": {}}),
            }
            return self._versioned(saved, body)

        @app.put("/v1/jobs/{id}/corrections")
        async def correct(id: str, request: Request) -> Response:
            saved, body = self.jobs[id].saved, await request.json()
            if request.headers["if-match"] != f'"{len(saved)}"':
                return refused(412, "version_conflict", "changed by somebody else")
            # What the service would make of it; a refusal there is a fault of the page.
            checked(Corrections, body).apply(self.jobs[id].told)
            saved.append(body)
            return self._versioned(saved, {"version": len(saved), **body})

        @app.get("/v1/jobs/{id}/audio")
        async def audio(id: str) -> Response:
            if self.audio_gone:
                return refused(404, "not_found", "the job's audio is not kept any more")
            return FileResponse(self.audio, media_type="audio/wav")

        @app.post("/v1/jobs/{id}/cancel")
        async def cancel(id: str) -> Any:
            self.jobs[id].view.update(state="cancelled", stage=None)
            return self.jobs[id].view

        @app.post("/v1/jobs/{id}/retry")
        async def retry(id: str) -> Any:
            self.jobs[id].view.update(state="running", stage="transcribing", error=None)
            return self.jobs[id].view

        @app.delete("/v1/jobs/{id}", status_code=204)
        async def delete(id: str) -> None:
            self.jobs.pop(id).view["state"] = "erased"

        return app

    def _versioned(self, saved: list[dict[str, Any]], body: dict[str, Any]) -> Response:
        history = [
            {"version": n, "saved_at": int(time.time()), "note": one["note"]}
            for n, one in enumerate(saved, 1)
        ]
        return JSONResponse({**body, "history": history}, headers={"ETag": f'"{len(saved)}"'})

    async def _read(self, request: Request) -> dict[str, Any]:
        told: dict[str, Any] = {}
        async with request.form() as form:
            for name, value in form.multi_items():
                if not isinstance(value, str):
                    told["bytes"], value = len(await value.read()), value.filename or ""
                if name.endswith("[]"):
                    told.setdefault(name, []).append(value)
                else:
                    told[name] = value
        self.forms.append(told)
        return told

    async def _events(self, job: Job, first: int) -> AsyncIterator[bytes]:
        total = job.told.duration
        log: list[tuple[str, Any]] = [("state", {**job.view, "state": "running"})]
        for k, segment in enumerate(job.told.segments):
            piece = {"id": k, "start": segment.start, "end": segment.end, "text": segment.text}
            log += [
                ("segment", {"k": k, "segments": [piece]}),
                ("progress", {"done_s": segment.end, "total_s": total}),
            ]
        yield b": ping\n\n"
        stage = job.view["stage"]
        for n in range(first, len(log)):
            while n >= 3 and not job.going.is_set() and job.state == "running":
                if job.view["stage"] != stage:
                    stage = job.view["stage"]
                    yield f"event: stage\ndata: {json.dumps({'stage': stage})}\n\n".encode()
                await asyncio.sleep(0.02)
            if n >= 3 and job.state != "running":
                break
            kind, data = log[n]
            yield f"id: {n}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
        if job.state == "erased":
            return
        if job.state == "running":
            progress = {"done_s": total, "total_s": total}
            job.view.update(state="succeeded", stage=None, progress=progress)
        yield f"id: {len(log)}\nevent: done\ndata: {json.dumps(job.view)}\n\n".encode()


def refused(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": code}}, status)


def told_of(upload: Upload) -> dict[str, str]:
    return {"Upload-Offset": str(len(upload.body)), "Upload-Length": str(upload.length)}


class Server:
    """An application at an address, in a thread; `stop` breaks what is open, as a crash does."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            self.app, port=self.port, log_level="critical", timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server does not start"
            time.sleep(0.01)

    def stop(self) -> None:
        def reset() -> None:
            for listening in self._server.servers:
                listening.close()
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            self._server.should_exit = self._server.force_exit = True

        if self._thread.is_alive():
            self._server.servers[0].get_loop().call_soon_threadsafe(reset)
            self._thread.join()


@contextmanager
def running(app: FastAPI) -> Any:
    """Its address, while it runs in a thread."""
    server = Server(app)
    try:
        yield server.url
    finally:
        server.stop()


def conversation(turns: int) -> list[tuple[str | None, str]]:
    """Two people who plan a walk, for as long as it takes."""
    said = [
        ("Speaker A", "Good morning, thanks for joining. Did the weather report change overnight?"),
        (
            "Speaker B",
            "It did. Rain until ten, then it clears from the west, so we could leave at eleven.",
        ),
        ("Speaker A", "Eleven works. I would take the ridge path, it drains well after rain."),
        (
            "Speaker B",
            "The ridge, then. Bring the map with the new bridge on it, the old one sends you round.",
        ),
        (
            "Speaker B",
            "And something warm; last time the wind up there was stronger than anybody expected.",
        ),
    ]
    return [said[n % len(said)] for n in range(turns)]


WARNING = Notice("mixed_languages", "some windows are in another language: de")
