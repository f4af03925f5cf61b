"""The load benchmark against a fake server: its requests, counts and output."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import service


class Service(BaseHTTPRequestHandler):
    """Turns every third request away, says the length of the others."""

    protocol_version = "HTTP/1.1"
    count, together, most, lock = 0, 0, 0, threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with Service.lock:
            Service.count += 1
            Service.together += 1
            Service.most = max(Service.most, Service.together)
            away = Service.count % 3 == 0
        threading.Event().wait(0.02)
        with Service.lock:
            Service.together -= 1
        broken = b"broken" in body
        told = {"error": "full"} if away or broken else {"text": f"{b'fLaC' in body}"}
        data = json.dumps(told).encode()
        self.send_response(500 if broken else 503 if away else 200)
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address():
    Service.count = Service.most = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_clip_is_sent_once_by_so_many_clients(address) -> None:
    work = [service.Clip(f"{i:03}", b"fLaC", 1.0) for i in range(12)]
    wall_s, answers = service.load(address, work, 4, {"model": "load"})
    assert sorted(answer.clip.name for answer in answers) == [clip.name for clip in work]
    assert Service.most <= 4 and {answer.text for answer in answers} == {"True"}
    away = [status for answer in answers for status in answer.refusals]
    assert away == [503] * (Service.count - 12) and away
    assert all(0 < answer.latency_s <= wall_s for answer in answers)


def test_an_unexpected_status_ends_the_benchmark(address) -> None:
    work = [service.Clip(f"{i}", b"broken" if i == 3 else b"fLaC", 1.0) for i in range(9)]
    with pytest.raises(service.ServerError, match="500"):
        service.load(address, work, 2, {})
