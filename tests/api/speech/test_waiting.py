"""A recording in the engine, for those who wait for it: threads of jobs and handlers, and the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from forescribe.api.errors import ApiError
from forescribe.api.speech.decoding import Decoding
from forescribe.asr.decode.results import Outcome, Part
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.transcript import Coverage, Transcript
from forescribe.asr.formats.transcript_parts import Notice

PATIENCE = 20.0

FAILED = Outcome("a.wav", error=AudioError("no audio"))
TRANSCRIPT = Transcript((), 0, Coverage(()))
DONE = Outcome("a.wav", TRANSCRIPT)


class FakeSession:
    """Takes notes of what is cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[object] = []

    def cancel(self, submission: object) -> None:
        self.cancelled.append(submission)


def queued(decoding: Decoding) -> FakeSession:
    session: Any = FakeSession()
    decoding.queued(session, SimpleNamespace())  # type: ignore[arg-type]
    return session


def group(k: int) -> Any:
    return SimpleNamespace(k=k)


def test_a_thread_waits_for_a_group_though_others_end_before_it() -> None:
    decoding = Decoding()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(decoding.wait_for, 0)
        decoding.grouped(group(1))
        assert not first.done()
        decoding.grouped(group(0))
        assert first.result(PATIENCE).k == 0
    assert decoding.wait_for(1).k == 1
    decoding.ended(DONE)
    assert decoding.outcome() is DONE
    with pytest.raises(ForescribeError, match="without one of its groups"):
        decoding.wait_for(1)  # each is returned once


def test_whoever_waits_is_told_why_it_ends() -> None:
    """Of the recording's error, or of a reason to cancel it, which comes before the engine is done."""
    decoding = Decoding()
    session = queued(decoding)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(decoding.wait_for, 0), pool.submit(decoding.outcome)]
        decoding.cancel(KeyboardInterrupt())
        assert all(isinstance(one.exception(PATIENCE), KeyboardInterrupt) for one in waiting)
        assert session.cancelled == [decoding.submission]
        released = pool.submit(decoding.wait_until_released, PATIENCE)
        assert not released.done()
        decoding.ended(None)
        released.result(PATIENCE)
    decoding.cancel(KeyboardInterrupt())
    assert len(session.cancelled) == 1  # it has ended
    failed = Decoding()
    failed.ended(FAILED)
    with pytest.raises(AudioError):
        failed.outcome()


def test_what_was_never_queued_is_released_at_once() -> None:
    Decoding().wait_until_released(PATIENCE * 100)


def test_the_event_loop_reads_parts_and_then_the_transcript() -> None:
    part, done, seconds = Part((), (), 2.5), list[object](), list[float]()

    async def read() -> Transcript:
        decoding = Decoding(timeout_s=PATIENCE, progressed=seconds.append, done=done.append)
        session = queued(decoding)
        decoding.notices = (Notice("unused_fields", "best_of"),)

        def engine() -> None:
            decoding.progressed(part)
            decoding.ended(DONE)

        threading.Thread(target=engine).start()
        assert await decoding.next() is part
        assert await decoding.next() is None
        decoding.cancel()
        assert not session.cancelled and decoding.submission is None
        return decoding.transcript

    assert [notice.code for notice in asyncio.run(read()).warnings] == ["unused_fields"]
    assert seconds == [2.5] and done == [DONE]


def test_the_event_loop_is_told_of_an_error_as_a_client_is() -> None:
    async def read(outcome: Outcome | None) -> None:
        decoding = Decoding(timeout_s=0.05)
        if outcome is not None:
            decoding.ended(outcome)
        await decoding.next()

    with pytest.raises(ApiError) as caught:
        asyncio.run(read(FAILED))
    assert caught.value.code == ApiError.of(FAILED.error).code  # type: ignore[arg-type]
    with pytest.raises(ApiError) as caught:
        asyncio.run(read(None))
    assert caught.value.code == "inference_timeout"
