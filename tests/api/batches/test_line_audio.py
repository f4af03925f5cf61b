"""Audio by URL: what is fetched, and everything that is not."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forescribe.api.batches.lines import LineAudio
from tests.api.batches.calls import begin, ended, jsonl, line, lines_of
from tests.api.conftest import memo
from tests.api.jobs.application import JOBS, application, ready

AUDIO = memo(2)


class Site(BaseHTTPRequestHandler):
    """Answers by path."""

    seen: list[str] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        status = {"/gone": 404, "/moved": 302, "/broken": 500}.get(self.path, 200)
        if self.path == "/twice.wav" and self.seen.count(self.path) == 1:
            status = 503
        self.send_response(status)
        body = AUDIO if status == 200 else b"secret"
        if self.path == "/moved":
            self.send_header("Location", "/talk.wav")
        if self.path == "/endless":
            body = b"x" * 300_000
        elif self.path == "/liar":
            self.send_header("Content-Length", "999999999")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    Site.seen.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(client, *urls: str):
    ready(client)
    audio: LineAudio = client.app.state.batches.runner.steps.audio
    audio.pauses_s = (0.01, 0.01)
    lines = [line(url, file_url=url) for url in urls]
    batch = ended(client, begin(client, jsonl(lines)).json()["id"])
    good = lines_of(client, batch["output_file_id"])
    bad = lines_of(client, batch["error_file_id"])
    errors = {
        id: (row["response"]["body"]["error"]["code"], row["response"]["body"]["error"]["message"])
        for id, row in bad.items()
    }
    return good, errors


def test_what_is_fetched_and_what_is_not(tmp_path, transcriber, decoders, site) -> None:
    given = {
        "audio_urls": True,
        "audio_url_networks": ["127.0.0.0/8"],
        "max_upload_bytes": 200_000,
        "audio_url_timeout_s": 60.0,
    }
    names = ("talk.wav?key=s3cr3t", "twice.wav", "gone", "moved", "broken", "endless", "liar")
    urls = [f"{site}/{name}" for name in names]
    with application(tmp_path, transcriber, decoders, **given) as client:
        good, errors = run(client, *urls)
        labels = {job["label"] for job in client.get(JOBS).json()["data"]}
    assert list(good) == urls[:2] and labels == {"talk.wav", "twice.wav"}
    assert len({row["response"]["body"]["text"] for row in good.values()}) == 1
    codes = {id.rsplit("/", 1)[1]: code for id, (code, _) in errors.items()}
    assert codes == {
        "gone": "audio_unreachable",
        "moved": "audio_unreachable",
        "broken": "audio_unreachable",
        "endless": "file_too_large",
        "liar": "file_too_large",
    }
    assert Site.seen.count("/broken") == 3 and Site.seen.count("/gone") == 1
    assert "s3cr3t" not in str([message for _, message in errors.values()])
    assert b"s3cr3t" not in (tmp_path / "jobs.db").read_bytes()


def test_private_addresses_are_refused(tmp_path, transcriber, decoders) -> None:
    """One by its number, one by what its name means."""
    urls = ("http://127.0.0.1/a", "http://rebound.test/a")
    with application(tmp_path, transcriber, decoders, audio_urls=True) as client:
        audio: LineAudio = client.app.state.batches.runner.steps.audio
        audio.resolve = lambda host, port: ["127.0.0.1"]
        good, errors = run(client, *urls)
    assert good == {} and errors.keys() == set(urls)
    assert {code for code, _ in errors.values()} <= {"invalid_value", "audio_unreachable"}
