"""Routes about the service itself: `/health`, `/ready`, `/metrics` and `/v1/models`.

`/health` and `/ready` answer without a key and without details. A process is ready if its models are loaded
and warm, no end is announced, the disk for uploads has room, and the job database accepts writes. If only the
disk of jobs and files is full, it is ready, because it still transcribes.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from forescribe.asr.model.languages import LANGUAGES

from ..dependencies import ServingDep, SettingsDep
from ..errors import ApiError
from ..settings import NO_DIARIZER, Settings
from ..speech.forms import check_model
from ..speech.serving import Serving
from ..text.serving import TextServing

if TYPE_CHECKING:
    from ..jobs.service import Jobs


FRESH_S = 1.0
"""How long the result of a check is used."""

WAIT_S = 2.0
"""How long a probe waits for the disks and the database."""

SCRATCH_SHARE = 8
"""The part of `min_free_bytes`, one in so many, that the disk for uploads needs. Jobs and files are refused
below all of it, often on the same disk, so that the rest is left for transcriptions."""

health_router = APIRouter(tags=["health"])

metrics_router = APIRouter(tags=["operations"])

models_router = APIRouter(prefix="/v1/models", tags=["models"])


class Readiness:
    """Whether one application can accept work, and why not. Used on the event loop only.

    Disks and database are checked once a second at most, however many probes there are, and a database that
    hangs is detected.
    """

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        text_serving: TextServing,
        jobs: Jobs | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.serving = settings, serving
        self.text_serving, self.jobs = text_serving, jobs
        self.clock, self.wait_s = clock, WAIT_S
        self._looking: asyncio.Future[Storage] | None = None
        self._began_s = 0.0

    async def check(self) -> Storage:
        """The state of the storage. Raises ApiError `not_ready` with the reason."""
        if self.serving.life.state != "ready":
            raise ApiError("not_ready", f"the server is {self.serving.life.state}")
        if self.text_serving.life.state not in ("off", "ready"):
            raise ApiError("not_ready", f"the text model is {self.text_serving.life.state}")
        storage = await self._storage()
        if storage.fault is not None:
            raise ApiError("not_ready", storage.fault)
        return storage

    async def _storage(self) -> Storage:
        """What the last look has found, or the one that all waiting probes share."""
        looking, now_s = self._looking, self.clock()
        if looking is None or (looking.done() and now_s - self._began_s >= FRESH_S):
            looking = asyncio.ensure_future(asyncio.to_thread(self._check_storage))
            self._looking, self._began_s = looking, now_s
        if not looking.done():
            await asyncio.wait({looking}, timeout=self.wait_s)
        if not looking.done():
            return Storage(fault="the jobs' database does not answer")  # the look goes on
        try:
            return looking.result()
        except OSError:
            return Storage(fault="a disk cannot be read")

    def _check_storage(self) -> Storage:
        least = self.settings.min_free_bytes
        if shutil.disk_usage(tempfile.gettempdir()).free < least // SCRATCH_SHARE:
            return Storage(fault="the disk for uploads is nearly full (min_free_bytes)")
        if self.jobs is None:
            return Storage()
        database = self.jobs.store.database
        if self.jobs.store.files.free < least:  # nor may SQLite, on the same disk, take a row
            if not database.available():
                return Storage(fault="the jobs' database does not answer")
            return Storage(full="the disk of data_dir is nearly full (min_free_bytes)")
        if not database.accepts_writes():
            return Storage(fault="the jobs' database cannot be written")
        return Storage()


@dataclass(frozen=True)
class Storage:
    """The state of disks and database: a `fault` that ends readiness, and why nothing new is stored (`full`)
    while transcriptions go on."""

    fault: str | None = None
    full: str | None = None


@health_router.get("/health", response_class=PlainTextResponse)
@health_router.head("/health", include_in_schema=False)
async def health() -> str:
    """Whether the process answers, also while every slot is busy."""
    return "OK"


@health_router.get("/ready", response_class=PlainTextResponse)
@health_router.head("/ready", include_in_schema=False)
async def ready(request: Request) -> str:
    """503 until the models are loaded and warm, while the disk for uploads is full or the job database cannot
    be written, and from the announcement of the end. The text says if only jobs and files cannot be stored,
    and if the model was unloaded because it was idle."""
    readiness: Readiness = request.app.state.readiness
    storage = await readiness.check()
    if storage.full is not None:
        return f"OK, but cannot store: {storage.full}"
    unloaded = readiness.serving.idle.unloaded
    return "OK, and the next request waits until the model is loaded" if unloaded else "OK"


@metrics_router.get("/metrics", response_class=PlainTextResponse)
async def metrics(serving: ServingDep) -> PlainTextResponse:
    text = await asyncio.to_thread(serving.metrics.text)  # some series query the job database
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


class Model(BaseModel):
    """OpenAI's model object, and from `speakers` on what it does not have."""

    id: str
    object: str = "model"
    created: int = 0  # unknown; the contract requires a number
    owned_by: str = "forescribe"
    speakers: bool = False  # whether it can tell who speaks
    translates: bool = False  # into English
    languages: dict[str, str] = {}  # their codes and English names; not in the list of models


class Models(BaseModel):
    object: str = "list"
    data: list[Model]


@models_router.get("", response_model_exclude={"data": {"__all__": {"languages"}}})
async def models(settings: SettingsDep, serving: ServingDep) -> Models:
    texts = [] if settings.text_name is None else [settings.text_name]
    names = dict.fromkeys([settings.model_name, *settings.aliases])  # its own first
    speech = [_speech_model(name, settings, serving) for name in names]
    return Models(data=[*speech, *(Model(id=name) for name in texts)])


@models_router.get("/{name:path}")
async def model(name: str, settings: SettingsDep, serving: ServingDep) -> Model:
    if name in (settings.text_name, settings.text_model):
        return Model(id=name)
    return _speech_model(check_model(name, settings), settings, serving)


def _speech_model(name: str, settings: Settings, serving: Serving) -> Model:
    speakers, tokens = settings.diarizer != NO_DIARIZER, serving.tokens
    known = LANGUAGES if tokens is None else tokens.made_for or tokens.languages or ("en",)
    names = {code: LANGUAGES.get(code, code).title() for code in known}
    return Model(id=name, speakers=speakers, translates=serving.translates, languages=names)
