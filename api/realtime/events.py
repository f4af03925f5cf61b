"""Events: what a client may send, and the server's events for what a stream tells.

An item gets its id when it begins. Messages of one item: speech_started, deltas, speech_stopped, committed,
conversation.item.added and .done, further deltas, segments, and in the end completed or failed; those of
speech with turn detection only. Does not know sockets.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from forescribe.asr.live.events import (
    Committed,
    Completed,
    Delta,
    Event,
    Failed,
    Hypothesis,
    SpeechStarted,
    SpeechStopped,
)

from ..errors import ApiError, invalid, unknown
from ..http.bodies import loads
from ..speech.answers import languages, speaker_segments, token_logprobs, warnings

Message = dict[str, Any]

UPDATE, APPEND = "session.update", "input_audio_buffer.append"
COMMIT, CLEAR = "input_audio_buffer.commit", "input_audio_buffer.clear"

FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        UPDATE: frozenset({"session"}),
        APPEND: frozenset({"audio"}),
        COMMIT: frozenset(),
        CLEAR: frozenset(),
    }
)
"""The events of clients, with their fields besides `type` and `event_id`; all of these are required."""

MAX_EVENT_ID = 512
"""Characters of a client's id, as in OpenAI's reference."""

TRANSCRIPT = "conversation.item.input_audio_transcription"
"""What the events of an item's transcript are called before the last point."""


def client_event(text: str) -> Message:
    """The object in a text message. Raises ApiError."""
    event = loads(text, "event")
    if not isinstance(event, dict):
        raise invalid("event", "not a JSON object")
    return event


def id_of(event: Message) -> str | None:
    """The client's id of its event, if there is a usable one."""
    given = event.get("event_id")
    return given if isinstance(given, str) and len(given) <= MAX_EVENT_ID else None


def check(event: Message) -> None:
    """Raises ApiError for an event that is not one of `FIELDS`."""
    kind = event.get("type")
    known = FIELDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise invalid("type", f"{str(kind)[:100]!r} is not one of {', '.join(FIELDS)}")
    if event.get("event_id") is not None and id_of(event) is None:
        raise invalid("event_id", f"not a string of at most {MAX_EVENT_ID} characters")
    for name in event.keys() - known - {"type", "event_id"}:
        raise unknown(name, known)
    for name, wanted in (("session", dict), ("audio", str)):
        if name in known and not isinstance(event.get(name), wanted):
            what = "an object" if wanted is dict else "a string in base64"
            raise invalid(name, f"{kind} needs {what}")


def error_event(error: ApiError, event_id: str | None = None) -> Message:
    """`event_id` is that of the client's event."""
    return {"type": "error", "error": {**error.body()["error"], "event_id": event_id}}


class ItemEvents:
    """The messages of one session's items. `logprobs` and `hypotheses` say what the client has asked for."""

    def __init__(self) -> None:
        self.logprobs = self.hypotheses = False
        self.open: set[int] = set()
        """Items that are committed and have neither a transcript nor a failure."""
        self._session = secrets.token_hex(6)
        self._previous: str | None = None

    def of(self, event: Event) -> list[Message]:
        item_id = f"item_{self._session}{event.item:06}"
        if isinstance(event, Delta):
            logprobs = None
            if self.logprobs:
                logprobs = token_logprobs(token for word in event.words for token in word.tokens)
            return [_of_transcript(item_id, "delta", delta=event.text, logprobs=logprobs)]
        if isinstance(event, Hypothesis):
            told = {
                "type": "forescribe.hypothesis",
                "item_id": item_id,
                "committed": event.committed,
                "tail": event.tail,
                "audio_ms": _ms(event.audio_s),
                "rounds": event.rounds,
                "lag_ms": _ms(event.lag_s),
            }
            return [told] if self.hypotheses else []
        if isinstance(event, SpeechStarted):
            at = {"audio_start_ms": _ms(event.at_s)}
            return [{"type": "input_audio_buffer.speech_started", **at, "item_id": item_id}]
        if isinstance(event, SpeechStopped):
            at = {"audio_end_ms": _ms(event.at_s)}
            return [{"type": "input_audio_buffer.speech_stopped", **at, "item_id": item_id}]
        if isinstance(event, Committed):
            self.open.add(event.item)
            return self._committed(item_id)
        if isinstance(event, Completed):
            self.open.discard(event.item)
            found = speaker_segments(event.transcript)
            segments = [_of_transcript(item_id, "segment", **segment) for segment in found]
            return [*segments, self._completed(item_id, event)]
        assert isinstance(event, Failed)
        self.open.discard(event.item)
        error = ApiError.of(event.error).body()["error"]
        return [_of_transcript(item_id, "failed", error=error)]

    def _committed(self, item_id: str) -> list[Message]:
        place = {"previous_item_id": self._previous}
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        self._previous = item_id
        return [
            {"type": "input_audio_buffer.committed", **place, "item_id": item_id},
            {"type": "conversation.item.added", **place, "item": item},
            {"type": "conversation.item.done", **place, "item": item},
        ]

    def _completed(self, item_id: str, event: Completed) -> Message:
        transcript = event.transcript
        return _of_transcript(
            item_id,
            "completed",
            transcript=transcript.text,
            languages=languages(transcript),
            usage={"type": "duration", "seconds": round(transcript.duration, 3)},
            logprobs=token_logprobs(event.tokens) if self.logprobs else None,
            **warnings(transcript),
        )


def _of_transcript(item_id: str, name: str, **facts: object) -> Message:
    kind = {"type": f"{TRANSCRIPT}.{name}"}
    return {**kind, "item_id": item_id, "content_index": 0, **facts, **kind}


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
