"""Headers that tell a key what is left of its limits, with OpenAI's names.

    x-ratelimit-limit-requests: 60
    x-ratelimit-remaining-requests: 59
    x-ratelimit-reset-requests: 1s              when all of it is available again
    x-ratelimit-limit-audio-seconds: 3600       likewise -audio-seconds and -tokens

They are on the answers, refusals too, of the routes that are limited, if the key has limits per minute or
hour. Where it has both, the one with the smaller share left is told. Does not know what is counted.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .capacity import Admission

LIMITED = frozenset({"audio", "endpoints", "text", "jobs"})
"""Tags of the routes that count against limits, if they are posted to."""

NAMES = ("requests", "audio-seconds", "tokens")
"""The kinds of limits, as the headers call them."""

HEADERS = tuple(
    f"x-ratelimit-{what}-{name}" for name in NAMES for what in ("limit", "remaining", "reset")
)


class LimitHeaders:
    """ASGI middleware. `api.dependencies.caller` puts the key's name into `state.owner`."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                owner = scope.get("state", {}).get("owner")
                tags = getattr(scope.get("route"), "tags", None) or [""]
                if owner and tags[0] in LIMITED:
                    headers = MutableHeaders(scope=message)
                    for name, value in self.headers(owner).items():
                        headers[name] = value
            await send(message)

        await self.app(scope, receive, send_with_limits)

    def headers(self, owner: str) -> dict[str, str]:
        """The headers for a key; none if it has no limits."""
        now, found = self.admission.clock(), {}
        for name, limits in zip(NAMES, self.admission.limits(owner), strict=True):
            if limits:
                limit = min(limits, key=lambda one: one.remaining(now) / one.maximum)
                found[f"x-ratelimit-limit-{name}"] = number(limit.maximum)
                found[f"x-ratelimit-remaining-{name}"] = number(limit.remaining(now))
                found[f"x-ratelimit-reset-{name}"] = duration(limit.reset_s(now))
        return found


def number(value: float) -> str:
    """A count, or seconds to three places."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `1h0m3s`, `6m0s`, `59.5s`."""
    tenths = -int(-seconds * 10 // 1)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    text = f"{number(tenths / 10)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
