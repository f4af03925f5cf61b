"""What waits for a slow reader: in order, without what is out of date, and never much for one item."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from forescribe.api.realtime.events import DELTA, HYPOTHESIS
from forescribe.api.realtime.outbox import Outbox


def delta(text: str, item: str = "a", logprobs: list[int] | None = None) -> dict[str, Any]:
    return {"type": DELTA, "item_id": item, "content_index": 0, "delta": text, "logprobs": logprobs}


def hypothesis(text: str, item: str = "a") -> dict[str, Any]:
    return {"type": HYPOTHESIS, "item_id": item, "tail": text}


def sent(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What is sent of messages that were put before anything could be."""

    async def run() -> list[dict[str, Any]]:
        outbox, texts = Outbox(), []

        async def send(text: str) -> None:
            texts.append(json.loads(text))

        for message in messages:
            outbox.put(message)
        sender = asyncio.ensure_future(outbox.run(send))
        await outbox.empty()
        sender.cancel()
        assert outbox.size == 0
        return texts

    return asyncio.run(run())


def test_messages_are_sent_in_order_with_an_id_each() -> None:
    found = sent(*({"type": str(n)} for n in range(5)))
    assert [message["type"] for message in found] == list("01234")
    assert len({message["event_id"] for message in found}) == 5


def test_deltas_of_an_item_are_joined_as_long_as_nothing_is_between_them() -> None:
    found = sent(delta("a", logprobs=[1]), delta(" b", logprobs=[2]), {"type": "x"}, delta(" c"))
    assert [message.get("delta") for message in found] == ["a b", None, " c"]
    assert found[0]["logprobs"] == [1, 2] and found[2]["logprobs"] is None
    assert [m["delta"] for m in sent(delta("a"), delta("b", "b"), delta("c"))] == ["a", "b", "c"]


def test_a_hypothesis_takes_the_place_of_the_one_before() -> None:
    found = sent(
        hypothesis("1"), delta("a"), hypothesis("x", "b"), hypothesis("2"), hypothesis("3")
    )
    assert [message.get("tail") for message in found] == [None, "x", "3"]


def test_what_waits_is_measured() -> None:
    async def run() -> None:
        outbox = Outbox()
        for n in range(1000):
            outbox.put(hypothesis("words " * 100 + str(n)))
        assert outbox.size < 1000
        outbox.put({"type": "error", "message": "x" * 5000})
        assert 5000 < outbox.size < 6500

    asyncio.run(run())
