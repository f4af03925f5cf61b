"""Recording in a real browser: words while they are spoken, and the recording afterwards."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from fastapi import WebSocket

from tests import browser as browsing
from tests.api.conftest import until
from tests.api.page.conftest import ROOT, free_port, lines, listens, served, walk
from tests.api.page.fakejobs import Fake, running

pytestmark = pytest.mark.slow

KEY = "sk-live"
RATE = 16_000
SECONDS = 14
TRANSCRIPT = "conversation.item.input_audio_transcription"
ALLOWED: Any = {"permissions": ["microphone"]}

RESAMPLED = """
async ([from, to, pitch]) => {
  const { Resampler } = await import("/page/resample.js");
  const [heard, resampler] = [[], new Resampler(from, to)];
  for (let at = 0; at < from; at += 128)
    resampler.push(Float32Array.from({ length: Math.min(128, from - at) },
      (_, n) => Math.sin((2 * Math.PI * pitch * (at + n)) / from)), (value) => heard.push(value));
  resampler.finish((value) => heard.push(value));
  return heard;
}
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    """Its microphone hears the first seconds of the sample, and may be used by those who are allowed to."""
    path = tmp_path_factory.mktemp("voice") / "memo.wav"
    samples, rate = soundfile.read(ROOT / "samples" / "memo.flac", dtype="int16")
    soundfile.write(path, samples[: SECONDS * rate], rate)
    microphone = f"--use-file-for-fake-audio-capture={path}"
    with browsing.launched("--use-fake-device-for-media-stream", microphone) as running:
        yield running


class Live:
    """The live sessions of a fake service. An item begins at each second, and the one before has its text
    then; the first `breaks` sessions break at the beginning of their third item."""

    def __init__(self, fake: Fake, breaks: int) -> None:
        self.breaks, self.open = breaks, 0
        self.sessions: list[bytearray] = []
        self.configured: list[dict[str, Any]] = []
        fake.app.post("/v1/realtime/client_secrets")(self._asked)
        fake.app.websocket("/v1/realtime")(self._session)

    async def _asked(self) -> dict[str, str]:
        return {"value": "ek_"}

    async def _session(self, websocket: WebSocket) -> None:
        offered = websocket.scope["subprotocols"]
        assert offered == ["realtime", f"openai-insecure-api-key.{KEY}"]
        await websocket.accept("realtime")
        self.open += 1
        try:
            await self._serve(websocket)
        finally:
            self.open -= 1

    async def _serve(self, websocket: WebSocket) -> None:
        audio, number, items = bytearray(), len(self.sessions), 0
        self.sessions.append(audio)

        async def send(type: str, **fields: object) -> None:
            await websocket.send_text(json.dumps({"type": type, **fields}))

        await send("session.created")
        async for text in websocket.iter_text():
            event = json.loads(text)
            if event["type"] == "session.update":
                self.configured.append(event["session"])
                await send("session.updated")
            elif event["type"] == "input_audio_buffer.append":
                audio += base64.b64decode(event["audio"])
            else:
                said = f"item {items} of {number}"
                await send("input_audio_buffer.committed", item_id=f"{number}-{items}")
                await send(f"{TRANSCRIPT}.completed", item_id=f"{number}-{items}", transcript=said)
            while len(audio) > 2 * RATE * items:
                if items:
                    said = f"item {items} of {number}"
                    for speaker, text in (
                        ("A", " item"),
                        ("A", f" {items}"),
                        ("B", f" of {number}"),
                    ):
                        await send(
                            f"{TRANSCRIPT}.segment",
                            item_id=f"{number}-{items}",
                            speaker=speaker,
                            text=text,
                        )
                    await send(
                        f"{TRANSCRIPT}.completed", item_id=f"{number}-{items}", transcript=said
                    )
                items += 1
                id, at_ms = f"{number}-{items}", 1000 * (items - 1)
                await send("input_audio_buffer.speech_started", item_id=id, audio_start_ms=at_ms)
                await send(f"{TRANSCRIPT}.delta", item_id=id, delta=" item")
                await send("forescribe.hypothesis", item_id=id, tail=" perhaps")
                if number < self.breaks and items == 3:
                    return await websocket.close(1011)


def with_key(page: Any) -> None:
    page.add_init_script(f"sessionStorage.setItem('forescribe.key', '{KEY}')")


def test_after_a_broken_session_words_go_on_and_the_recording_is_sent(browser, tone) -> None:
    fake = Fake(tone, walk(), key=KEY)
    live = Live(fake, breaks=1)
    with (
        running(fake.app) as url,
        browsing.watched(browser, url, refusals=True, before=with_key, **ALLOWED) as page,
    ):
        page.get_by_text("None yet.").wait_for()
        page.locator("#settings summary").click()
        page.get_by_label("Names and spellings").fill("Zoë\nHetzner *2")
        page.get_by_role("button", name="Record").click()
        words = page.get_by_role("log", name="Words of the recording")
        words.get_by_text("of 1").first.wait_for()
        said = [text.replace("\n", " ") for text in words.locator("p").all_inner_texts()]
        assert said[:2] == [f"Speaker A: item {n} Speaker B: of 0" for n in (1, 2)]
        tail = words.locator(".tail").last
        assert tail.inner_text().strip() == "perhaps"
        colours = "e => [e, e.previousSibling].map(one => getComputedStyle(one).color)"
        grey, ink = tail.evaluate(colours)
        assert grey != ink and tail.get_attribute("aria-live") == "off"
        fake.loading = True
        page.get_by_role("button", name="Stop and send").click()
        page.get_by_text("The recording is being sent.").wait_for()
        words.locator(".tail", has_text="perhaps").wait_for(state="detached")
        until(lambda: live.open == 0, 10)  # once the last words are there
        fake.loading = False
        page.locator(".running-text").wait_for(state="attached")
        page.locator("#live").wait_for(state="hidden")
        name = page.locator("h1").inner_text()
        for rate in (44_100, 48_000, 8_000):  # what is in the band stays, what is above is gone
            heard = np.array(page.evaluate(RESAMPLED, [rate, RATE, 1000]))
            wanted = np.sin(2 * np.pi * 1000 * np.arange(len(heard)) / RATE)
            assert len(heard) == RATE and np.abs(heard - wanted)[200:-200].max() < 1e-3
        assert np.abs(page.evaluate(RESAMPLED, [48_000, RATE, 9000]))[200:-200].max() < 1e-3
    samples, rate = soundfile.read(io.BytesIO(fake.bodies[0]), dtype="int16")
    assert rate == RATE and np.abs(samples).max() > 1000 and fake.names == [name]
    first = np.frombuffer(live.sessions[0], "<i2")
    assert np.array_equal(first, samples[: len(first)])
    assert live.configured[0]["audio"]["input"]["turn_detection"] == {"type": "server_vad"}
    assert live.configured[0]["audio"]["input"]["transcription"] == {
        "diarize": True,
        "terms": ["Zoë", "Hetzner *2"],
    }


def test_words_are_shown_while_they_are_spoken_and_then_the_transcript(browser, tmp_path) -> None:
    port = free_port()

    url = f"http://127.0.0.1:{port}"
    with served(port, tmp_path):
        until(lambda: listens(port), 300)
        with browsing.watched(browser, url, refusals=True) as page:
            page.locator(".server.ready").wait_for()
            page.get_by_role("button", name="Record").click()
            page.get_by_text("does not allow this page to use the microphone").wait_for()
        with browsing.watched(browser, url, **ALLOWED) as page:
            page.get_by_text("None yet.").wait_for()
            page.get_by_role("button", name="Record").click()
            words = page.get_by_role("log", name="Words of the recording")
            words.get_by_text("short").wait_for()
            # By what is heard, not by the clock: on a busy machine a pass takes longer than the file.
            assert "loading dock" not in words.inner_text(), "before the end of the file"
            words.get_by_text("printing plant").wait_for()
            page.get_by_role("button", name="Stop and send").click()
            page.locator(".viewer").wait_for()
            assert "printing plant in Denver" in lines(page)
            assert page.locator("#list a .label").inner_text().startswith("Recording 20")


def test_a_server_without_live_sessions_takes_what_the_microphone_gave(browser, tone) -> None:
    kept = (
        "const media = navigator.mediaDevices, was = media.getUserMedia.bind(media);"
        "media.getUserMedia = async (wanted) => (window.heard = await was(wanted));"
    )
    fake = Fake(tone, walk())
    given: Any = {"refusals": True, "before": lambda page: page.add_init_script(kept), **ALLOWED}
    with running(fake.app) as url, browsing.watched(browser, url, **given) as page:
        page.get_by_text("None yet.").wait_for()
        page.get_by_role("button", name="Record").click()
        page.get_by_text("this server has no live transcription").wait_for()
        page.locator(".live .time", has_text="0:01").wait_for()
        page.get_by_role("button", name="Discard").click()
        page.locator("#live").wait_for(state="hidden")
        page.get_by_role("button", name="Record").click()
        page.locator(".live .time", has_text="0:01").wait_for()
        page.evaluate("heard.getAudioTracks()[0].dispatchEvent(new Event('ended'))")
        page.get_by_text("The microphone was disconnected.").wait_for()
        page.locator(".running-text").wait_for(state="attached")
    assert [form["file"].rpartition(".")[2] for form in fake.forms] == ["wav"]
    assert fake.forms[0]["bytes"] > 2 * RATE
