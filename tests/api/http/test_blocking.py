"""What is done outside the event loop: blocks that wait for disks and databases, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import anyio.to_thread
import pytest

from forescribe.api.http.bodies import in_thread
from tests.api.conftest import FORM, TRANSCRIBE, sound


def test_a_block_that_was_being_entered_for_a_cancelled_task_is_left() -> None:
    go, left = threading.Event(), threading.Event()

    @contextmanager
    def slow():
        assert go.wait(30)
        try:
            yield
        finally:
            left.set()

    async def use() -> None:
        async def enter() -> None:
            async with in_thread(slow()):
                raise AssertionError("it was cancelled")

        task = asyncio.create_task(enter())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        assert await asyncio.to_thread(left.wait, 30)

    asyncio.run(use())


def test_what_a_route_depends_on_needs_no_thread(service, monkeypatch) -> None:
    client, run, called = service(), anyio.to_thread.run_sync, []

    async def counted(work, *arguments, **options):
        called.append(getattr(work, "func", work).__module__)
        return await run(work, *arguments, **options)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
    answer = client.post(TRANSCRIBE, files={"file": sound(1)}, data=FORM)
    assert answer.status_code == 200
    assert not [module for module in called if module.startswith("forescribe")]
