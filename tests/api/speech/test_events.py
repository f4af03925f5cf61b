"""Events: text is sent once, in order, and all of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.api.errors import ApiError
from forescribe.api.http import event_streams
from forescribe.api.http.event_streams import PING, encoded
from forescribe.api.speech import answers
from forescribe.api.speech.answers import Deltas, events
from forescribe.asr.decode.results import Part, Token
from tests.api.page.fakejobs import transcript


@given(st.lists(st.text(alphabet="ab \n\u2003", max_size=6)))
def test_deltas_joined_are_the_whole_text(texts) -> None:
    deltas = Deltas()
    assert "".join(deltas.push(text) for text in texts) == "".join(texts).strip()


class Failing:
    """A recording that fails after a while."""

    async def next(self) -> None:
        await asyncio.sleep(0.05)
        raise ApiError("overloaded", "no memory")


async def _collect(following) -> list[bytes]:
    return [event async for event in encoded(events(following, logprobs=False))]


def test_a_failure_on_the_way_is_an_event_of_its_own_and_the_last(monkeypatch) -> None:
    monkeypatch.setattr(event_streams, "PING_S", 0.01)
    *pings, error = asyncio.run(_collect(Failing()))
    assert set(pings) == {PING}
    name, body = error.decode().splitlines()[:2]
    assert name == "event: error"
    assert json.loads(body.removeprefix("data: "))["error"]["code"] == "overloaded"


class Spoken:
    """A following whose windows end together: all text comes as one part."""

    def __init__(self, lines: list[str]) -> None:
        told = transcript([(None, line) for line in lines], stats={"tokens": 2 * len(lines)})
        segments = tuple(replace(s, tokens=(1, 2)) for s in told.segments)
        words = [Token(text, -0.5, text.encode()) for line in lines for text in (" ", line)]
        self.parts = [Part(segments, tuple(words), 1.0), Part((), (), 2.0)]
        self.transcript = replace(told, segments=segments)

    async def next(self) -> Part | None:
        return self.parts.pop(0) if self.parts else None


def said(text: str, pieces: list[bytes]) -> list[tuple[str, int]]:
    """The deltas of a segment with these tokens, and how many tokens each has."""
    assert b"".join(pieces).decode() == text
    tokens = tuple(Token(p.decode(errors="replace"), -0.5, p) for p in pieces)
    told = transcript([(None, "any")])
    segments = tuple(replace(s, text=text, tokens=tuple(range(len(pieces)))) for s in told.segments)
    return [(text, len(own)) for text, own in answers.pieces(Part(segments, tokens, 1.0))]


def test_no_delta_ends_within_a_word_or_a_character() -> None:
    parts = [b" un", b"for", b"get", b"ta", b"ble", b" words"]
    assert said(" unforgettable words", parts) == [(" unforgettable", 5), (" words", 1)]
    text = "今日はいい天気ですねとても"
    for size in (1, 2, 3, 4):  # bytes of a token, which begin anywhere in a character
        data = text.encode()
        found = said(text, [data[k : k + size] for k in range(0, len(data), size)])
        assert "".join(one for one, _ in found) == text
        assert all("\ufffd" not in one for one, _ in found)
    assert len(said(text, [character.encode() for character in text])) == 2


@given(st.text(alphabet="ab é日 ", min_size=1), st.lists(st.integers(1, 5)))
def test_deltas_of_a_segment_are_its_text_however_it_is_cut(text, sizes) -> None:
    data, pieces = text.encode(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    pieces = [piece for piece in (*pieces, data) if piece]
    found = said(text, pieces)
    assert "".join(one for one, _ in found) == text
    assert sum(count for _, count in found) == len(pieces)


@pytest.mark.parametrize("logprobs", [False, True])
def test_windows_that_end_together_still_come_in_pieces(logprobs) -> None:
    lines = ["Good morning.", "How are you?", "Fine."]

    async def collect() -> list[dict]:
        return [event async for event in events(Spoken(lines), logprobs=logprobs)]

    *told, whole = asyncio.run(collect())
    assert [one["delta"].strip() for one in told] == lines
    assert "".join(one["delta"] for one in told) == whole["text"] == " ".join(lines)
    if logprobs:
        assert [[t["token"] for t in one["logprobs"]] for one in told] == [[" ", x] for x in lines]
        assert whole["logprobs"] == [t for one in told for t in one["logprobs"]]
    else:
        assert all("logprobs" not in one for one in told)
