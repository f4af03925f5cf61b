"""Origins, shown with a real browser: what a page of another origin can do to a server without keys."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from tests import browser as browsing
from tests.api.conftest import until
from tests.api.jobs.application import FORM, JOBS, application

pytestmark = pytest.mark.slow

READ = """async ([url, mode]) => {
  try {
    const answer = await fetch(url, { mode });
    return [answer.status, await answer.text()];
  } catch (error) {
    return [0, String(error)];
  }
}"""

POST = """async ([url, mode, fields]) => {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  const samples = new Int16Array(16000).map((_, i) => 9000 * Math.sin(i / 9));
  const header = new DataView(new ArrayBuffer(44));
  const text = (at, word) => [...word].forEach((c, i) => header.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); header.setUint32(4, 36 + 32000, true); text(8, "WAVEfmt ");
  header.setUint32(16, 16, true); header.setUint16(20, 1, true); header.setUint16(22, 1, true);
  header.setUint32(24, 16000, true); header.setUint32(28, 32000, true);
  header.setUint16(32, 2, true); header.setUint16(34, 16, true);
  text(36, "data"); header.setUint32(40, 32000, true);
  form.append("file", new Blob([header, samples]), "a.wav");
  try {
    return (await fetch(url, { method: "POST", mode, body: form })).status;
  } catch (error) {
    return String(error);
  }
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """With a resolver for which evil.test is this machine, as a rebound name is."""
    flags = ["--no-proxy-server", "--host-resolver-rules=MAP evil.test 127.0.0.1"]
    with browsing.launched(*flags) as running:
        yield running


@pytest.fixture(scope="module")
def served(transcriber, decoders, tmp_path_factory) -> Iterator[tuple[str, Any]]:
    """A service without keys that has a job with a transcript, and its jobs."""
    app = application(tmp_path_factory.mktemp("jobs"), transcriber, decoders).app
    with listening() as shared:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, args=([shared],))
        thread.start()
        until(lambda: app.state.serving.state == "ready")
        yield f"127.0.0.1:{shared.getsockname()[1]}", app.state.jobs
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """A page on another port of this machine."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, *args: object) -> None:
            """The test's output is enough."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


@pytest.fixture
def page(chromium) -> Iterator[Any]:
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def count(jobs: Any) -> int:
    return len(jobs.store.jobs.page("", 100)[0])


def test_the_servers_own_page_reads_and_starts_jobs(page, served) -> None:
    """Else the tests below would hold of a server that refuses everybody."""
    place, jobs = served
    page.goto(f"http://{place}/")
    before = count(jobs)
    assert page.evaluate(POST, [JOBS, "cors", FORM]) == 202
    assert count(jobs) == before + 1
    status, text = page.evaluate(READ, [JOBS, "cors"])
    assert status == 200 and '"job_' in text


def test_a_rebound_name_reads_and_starts_nothing(page, served) -> None:
    place, jobs = served
    page.goto(f"http://evil.test:{place.rpartition(':')[2]}/health")  # the page's origin
    before = count(jobs)
    for path in (JOBS, "/v1/models", "/metrics", "/openapi.json"):
        status, text = page.evaluate(READ, [path, "cors"])
        assert status == 403 and '"job_' not in text, path
    assert page.evaluate(POST, [JOBS, "cors", FORM]) == 403
    assert count(jobs) == before


def test_a_page_of_another_origin_reads_and_starts_nothing(page, served, elsewhere) -> None:
    place, jobs = served
    for home in (elsewhere, elsewhere.replace("127.0.0.1", "evil.test")):
        page.goto(home)
        before = count(jobs)
        for mode in ("cors", "no-cors"):
            status, text = page.evaluate(READ, [f"http://{place}{JOBS}", mode])
            assert status == 0 and '"job_' not in text
            page.evaluate(POST, [f"http://{place}{JOBS}", mode, FORM])
        assert count(jobs) == before


def test_a_recording_cannot_be_embedded(page, served, elsewhere) -> None:
    place, jobs = served
    page.goto(f"http://{place}/")
    assert page.evaluate(POST, [JOBS, "cors", FORM]) == 202
    newest = jobs.store.jobs.page("", 1)[0][0].id
    address = f"http://{place}{JOBS}/{newest}/audio"
    load = """url => new Promise(done => {
      const audio = document.createElement("audio");
      audio.onloadedmetadata = () => done("loaded");
      audio.onerror = () => done("refused");
      audio.src = url;
    })"""
    assert page.evaluate(load, address) == "loaded"
    page.goto(elsewhere)
    assert page.evaluate(load, address) == "refused"
