"""`forescribe listen --server`: a session of a server that transcribes, as an engine (`live_engines`).

    with ServerEngine("http://localhost:8000", key, None, options) as engine: ...

The server is one with OpenAI's Realtime transcription sessions in their GA shape, such as `forescribe serve`.
Loads no model.
"""

from __future__ import annotations

import base64
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

import numpy as np

from forescribe.asr.errors import CapacityError, ForescribeError, UsageError, one_line
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import (
    SAMPLE_RATE,
    Coverage,
    Json,
    Segment,
    Span,
    Turn,
    samples_at,
    seconds,
)
from forescribe.asr.installing import how_to_install
from forescribe.asr.live.commit import LiveWord
from forescribe.asr.live.events import (
    Committed,
    Completed,
    Delta,
    Event,
    Failed,
    Hypothesis,
    LiveOptions,
    SpeechStarted,
    SpeechStopped,
)
from forescribe.diarize.turns import UNKNOWN

if TYPE_CHECKING:
    from forescribe.asr.segment.windows import Samples

SERVER_RATE = 24_000
"""Hz, the only rate that every server takes."""

ANSWER_S = 60.0
"""After the end of the audio, between two messages of a server."""

SERVER_MODEL = "gpt-4o-transcribe"
"""Asked for where no model is named; a forescribe server takes it for its own."""

TRANSCRIPT = "conversation.item.input_audio_transcription."

HYPOTHESES = {"type": "transcription", "include": ["forescribe.hypothesis"]}
"""Of a session: text that may change, which servers of others do not have."""


@dataclass
class _Item:
    """An item of the server: its number here, where it is in the stream, its released text, and the segments
    that were told."""

    number: int
    start_s: float
    end_s: float | None = None  # None until its turn has ended
    text: str = ""
    segments: list[Segment] = field(default_factory=list)


class ServerEngine:
    """A session of a server. Raises UsageError for a wrong address, key or session, CapacityError where the
    server cannot be reached or ends the session."""

    def __init__(self, url: str, key: str | None, model: str | None, options: LiveOptions) -> None:
        import soxr

        self._url, self._key, self._model = realtime_url(url), key, model or SERVER_MODEL
        self._session, self._diarized = session_of(options, self._model), options.speech
        self._told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._items: dict[str, _Item] = {}  # that have no transcript yet
        self._count, self._sent = 0, 0  # items, samples
        self._ended_s = 0.0  # where the last item ended
        self._resampler = soxr.ResampleStream(SAMPLE_RATE, SERVER_RATE, 1, dtype="float32")
        self._finished = self._answered = False  # the last commit
        self._tells_hypotheses = False
        self._failure: ForescribeError | None = None  # of a session that is over
        self._ending: ForescribeError | None = None  # why the server takes no more audio
        self._heard_s = time.monotonic()  # when the last message came
        self._changed = threading.Condition()
        self._socket: Any = None
        self._thread = threading.Thread(target=self._read, name="the server", daemon=True)

    def __enter__(self) -> Self:
        self._socket = connected(self._url, self._key)
        self._thread.start()
        self._send(type="session.update", event_id="session", session=self._session)
        self._send(type="session.update", event_id="hypotheses", session=HYPOTHESES)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finished = self._answered = True
        self._socket.close()
        self._thread.join()

    @property
    def behind_s(self) -> float:
        """0: a server that is behind does not read, so that sending waits."""
        return 0.0

    def feed(self, samples: Samples) -> None:
        self._sent += len(samples)
        self._append(self._resampler.resample_chunk(np.ascontiguousarray(samples, np.float32)))

    def finish(self) -> None:
        self._finished, self._heard_s = True, time.monotonic()
        if self._ending is None:  # else it ends the last item by itself
            self._append(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
            self._send(type="input_audio_buffer.commit", event_id="last")

    def wait(self, timeout_s: float, *, idle: bool = False) -> bool:
        with self._changed:
            over = idle or self._changed.wait_for(self._over, timeout_s)
            told = self._answered and not self._items
        if not told:
            self._check()
        if not over and self._finished and time.monotonic() - self._heard_s > ANSWER_S:
            raise CapacityError(f"{self._url} has not answered for {ANSWER_S:.0f} s")
        return over

    def events(self) -> Iterator[Event]:
        while not self._told.empty():
            yield self._told.get()

    def _over(self) -> bool:
        return self._failure is not None or (self._answered and not self._items)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _append(self, samples: Samples) -> None:
        if len(samples):
            data = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
            self._send(type="input_audio_buffer.append", audio=base64.b64encode(data).decode())

    def _send(self, **message: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        self._check()
        if self._ending is not None:
            raise self._ending
        try:
            self._socket.send(json.dumps(message))
        except ConnectionClosed as closed:
            self._check()  # what the server said before
            raise CapacityError(f"{self._url} has ended the session: {closed}") from closed

    # -- on the thread that reads -----------------------------------------------------------------

    def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        failure: ForescribeError | None = None
        try:
            while failure is None:
                failure = self._take(json.loads(self._socket.recv()))
        except ConnectionClosed as closed:
            failure = CapacityError(f"{self._url} has ended the session: {closed}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"{self._url}: no Realtime transcription session ({one_line(repr(error))})"
            failure = UsageError(text)
        with self._changed:
            self._failure = self._ending or failure
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> ForescribeError | None:
        """Tell what a message says; the error that it is, if it ends the session."""
        kind = message["type"]
        with self._changed:
            self._heard_s = time.monotonic()
            if kind == "error":
                return self._refused(message["error"])
            if kind == "input_audio_buffer.speech_started":
                item = self._item(message["item_id"], message["audio_start_ms"] / 1000)
                self._told.put(SpeechStarted(item.number, item.start_s))
            elif kind == "input_audio_buffer.speech_stopped":
                item = self._item(message["item_id"])
                item.end_s = message["audio_end_ms"] / 1000
                self._told.put(SpeechStopped(item.number, item.end_s))
            elif kind == "input_audio_buffer.committed":
                self._commit(self._item(message["item_id"]))
            elif kind == f"{TRANSCRIPT}delta":
                self._release(self._item(message["item_id"]), message["delta"])
            elif kind == f"{TRANSCRIPT}segment":
                item = self._item(message["item_id"])
                item.segments.append(_segment(len(item.segments), message))
            elif kind == f"{TRANSCRIPT}completed":
                self._complete(self._item(message["item_id"]), message)
                del self._items[message["item_id"]]
            elif kind == f"{TRANSCRIPT}failed":
                item = self._item(message["item_id"])
                error = CapacityError(f"{self._url}: {message['error']['message']}")
                self._told.put(Failed(item.number, error))
                del self._items[message["item_id"]]
            elif kind == "forescribe.hypothesis":
                self._tells_hypotheses = True
                item = self._item(message["item_id"])
                told = Hypothesis(
                    item.number,
                    message["committed"],
                    message["tail"],
                    message["audio_ms"] / 1000,
                    message["rounds"],
                    message["lag_ms"] / 1000,
                )
                self._told.put(told)
            self._changed.notify_all()
        return None

    def _refused(self, error: dict[str, Any]) -> ForescribeError | None:
        """The error, if the session ends at once. A server that ends one by itself tells why, then the text
        of open items."""
        if error.get("event_id") == "hypotheses":
            return None
        if error.get("event_id") == "last" or error.get("code") == (
            "input_audio_buffer_commit_empty"
        ):
            self._answered = True  # nothing was left to commit
            self._changed.notify_all()
            return None
        text = f"{self._url}: {error['message']}"
        if error.get("event_id") is not None or not self._count:
            return UsageError(text)
        self._ending = CapacityError(text)
        return None

    def _item(self, name: str, start_s: float | None = None) -> _Item:
        if name not in self._items:
            self._count += 1
            begins_s = self._ended_s if start_s is None else start_s
            self._items[name] = _Item(self._count, begins_s)
        return self._items[name]

    def _commit(self, item: _Item) -> None:
        if item.end_s is None:  # not by the end of a turn
            item.end_s, self._answered = seconds(self._sent), self._finished
        self._ended_s = item.end_s
        self._told.put(Committed(item.number, item.start_s, item.end_s))

    def _release(self, item: _Item, text: str) -> None:
        item.text += text
        heard_s = seconds(self._sent)
        self._told.put(Delta(item.number, (LiveWord(text),), heard_s))
        if not self._tells_hypotheses:
            self._told.put(Hypothesis(item.number, item.text, "", heard_s, 0, 0.0))

    def _complete(self, item: _Item, message: dict[str, Any]) -> None:
        end_s = seconds(self._sent) if item.end_s is None else item.end_s
        count, text = max(1, samples_at(end_s - item.start_s)), message["transcript"].strip()
        languages = message.get("languages") or [{"code": None}]
        settings: dict[str, Json] = {"model": self._model, "server": self._url}
        segments = item.segments if _words(item.segments) == text.split() else []
        if text and not segments:
            segments = [Segment(0, 0, 0, 0, count, f" {text}")]
        turns = tuple(Turn(s.start_sample, s.end_sample, s.speaker) for s in segments if s.speaker)
        transcript = Transcript(
            tuple(segments),
            count,
            Coverage((Span(0, count, "decoded"),)),
            languages[0]["code"],
            turns=turns,
            diarized=self._diarized,
            settings=settings,
        )
        # What the server counts it does not tell.
        self._told.put(Completed(item.number, transcript, (), item.start_s, 0, 0))


def session_of(options: LiveOptions, model: str) -> dict[str, Any]:
    """The configuration of a session. What a server does anyway is left out: some refuse to be told."""
    chosen, turns = options.options, options.turns
    transcription: dict[str, Any] = {"model": model}
    if chosen.language is not None:
        names = [name.strip() for name in chosen.language.split(",")]
        transcription |= {"language": names[0]} if len(names) == 1 else {"languages": names}
    if chosen.initial_prompt is not None:
        transcription["prompt"] = chosen.initial_prompt
    if options.delay != "medium":
        transcription["delay"] = options.delay
    if options.speech:  # a forescribe server alone takes it
        transcription["diarize"] = True
    detection: dict[str, Any] | None = None
    if turns is not None and turns.eagerness is not None:
        detection = {"type": "semantic_vad", "eagerness": turns.eagerness}
    elif turns is not None:
        silence_ms = round(1000 * turns.silence_s)
        detection = {"type": "server_vad", "silence_duration_ms": silence_ms}
    heard = {"type": "audio/pcm", "rate": SERVER_RATE}
    given = {"format": heard, "transcription": transcription, "turn_detection": detection}
    return {"type": "transcription", "audio": {"input": given}}


def _segment(number: int, message: dict[str, Any]) -> Segment:
    """A segment of an item, as a server tells it."""
    start, end = samples_at(message["start"]), samples_at(message["end"])
    speaker = message.get("speaker")
    named = None if speaker in (None, UNKNOWN) else str(speaker)
    return Segment(number, 0, 0, start, max(start + 1, end), str(message["text"]), speaker=named)


def _words(segments: list[Segment]) -> list[str]:
    return "".join(segment.text for segment in segments).split()


def realtime_url(url: str) -> str:
    """The address of the sessions of a server, by that of its API: http://host:8000, with or without /v1.
    Raises UsageError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise UsageError(f"--server {url}: give an address as http://localhost:8000")
    path = parts.path.rstrip("/")
    if not path.endswith("/realtime"):
        path += "/realtime" if path.endswith("/v1") else "/v1/realtime"
    query = parts.query or urlencode({"intent": "transcription"})
    return urlunsplit((scheme, parts.netloc, path, query, ""))


def connected(url: str, key: str | None) -> Any:
    """An open socket. Raises UsageError and CapacityError."""
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect
    except ModuleNotFoundError as error:
        raise UsageError(f"--server needs {error.name}: {how_to_install('live')}") from error
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    quiet = logging.getLogger("forescribe.live_server")
    # A close that cuts a message would be logged with a traceback.
    quiet.addHandler(logging.NullHandler())
    try:
        # A server that is behind does not read, and answers no ping.
        return connect(
            url,
            additional_headers=headers,
            max_size=None,
            close_timeout=2,
            ping_interval=None,
            logger=quiet,
        )
    except InvalidStatus as error:
        status, said = error.response.status_code, ""
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(error.response.body)["error"]["message"]
        text = f"{url}: status {status} {said}".strip()
        if status in (401, 403):
            raise UsageError(f"{text}; the key is read from OPENAI_API_KEY") from error
        busy = status in (429, 503)
        raise (CapacityError if busy else UsageError)(text) from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise CapacityError(f"{url} cannot be reached: {error}") from error
