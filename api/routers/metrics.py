"""`/metrics` for Prometheus, and `/v1/usage` for the holder of a key.

`/metrics` requires a key, like all routes that reveal something. `/v1/usage` is not OpenAI's: there the usage
of a project needs an administrator's key. Does not know how anything is counted.
"""

from __future__ import annotations

import asyncio
from datetime import date, datetime, timedelta
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from ..access.meter import Amount, until
from ..dependencies import ANONYMOUS, Caller, ServingDep, SettingsDep
from ..errors import ApiError

DAYS = 31
"""How many days of usage are listed."""

router = APIRouter(tags=["operations"])
usage_router = APIRouter(prefix="/v1/usage", tags=["usage"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(serving: ServingDep) -> PlainTextResponse:
    text = await asyncio.to_thread(serving.metrics.text)  # some series query the job database
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


class Used(BaseModel):
    """An amount of use."""

    requests: int
    audio_seconds: float
    tokens: int


class Quotas(BaseModel):
    """The most that may be used; None is no quota."""

    requests: int | None
    audio_seconds: float | None
    tokens: int | None


class Period(BaseModel):
    """A day or a month, in UTC."""

    starts: date
    ends_at: datetime
    used: Used
    quotas: Quotas


class Day(Used):
    day: date


class UsageObject(BaseModel):
    object: Literal["usage"] = "usage"
    day: Period
    month: Period
    days: list[Day]


@usage_router.get("")
async def usage(serving: ServingDep, settings: SettingsDep, caller: Caller) -> UsageObject:
    """What the key has used today, this month, and on each of the last 31 days."""
    meter = serving.usage
    rights = settings.api_keys.get(caller)
    if caller == ANONYMOUS or rights is None or not meter.counts:
        raise ApiError("not_found", "usage is counted per key, and this server has none")
    today = meter.today()
    since = min(today.replace(day=1), today - timedelta(days=DAYS - 1))
    days = await asyncio.to_thread(meter.days, caller, since)

    def period(name: Literal["day", "month"], starts: date) -> Period:
        inside = (amount for day, amount in days.items() if day >= starts)
        return Period(
            starts=starts,
            ends_at=until(today, name),
            used=_used(sum(inside, Amount())),
            quotas=Quotas(
                requests=getattr(rights, f"requests_per_{name}"),
                audio_seconds=getattr(rights, f"audio_s_per_{name}"),
                tokens=getattr(rights, f"tokens_per_{name}"),
            ),
        )

    return UsageObject(
        day=period("day", today),
        month=period("month", today.replace(day=1)),
        days=[Day(day=day, **_used(amount).model_dump()) for day, amount in days.items()],
    )


def _used(amount: Amount) -> Used:
    seconds = round(amount.audio_s, 3)
    return Used(requests=amount.requests, audio_seconds=seconds, tokens=amount.tokens)
