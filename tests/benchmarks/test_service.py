"""The load benchmark against a fake server: its requests, counts and output."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import provenance, service
from forescribe.asr.audio.reading import read_audio

SAMPLES = provenance.ROOT / "samples"


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


def test_clips_have_their_lengths_and_differ() -> None:
    made = service.clips([SAMPLES / "memo.flac"], 6, (1.0, 2.5))
    assert [clip.seconds for clip in made] == [1.0, 2.5] * 3
    assert [len(read_audio(clip.data)) / 16_000 for clip in made] == [1.0, 2.5] * 3
    assert len({clip.data for clip in made}) == 6
    around = service.clips([SAMPLES / "memo.flac"], 3, (40.0,))  # of 63 s: from the start again
    assert [len(read_audio(clip.data)) for clip in around] == [640_000] * 3


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


def row(**given) -> service.Row:
    latencies = tuple(float(i) for i in range(1, 101))
    facts = dict(
        clients=8, wall_s=10.0, audio_s=200.0, share=0.9, latencies_s=latencies, refusals={503: 2}
    )
    more = dict(equal=99, of=100)
    return service.Row(**{**facts, **more, **given})


def test_a_row_says_what_was_measured() -> None:
    made = row()
    assert (made.at(0.5), made.at(0.95), made.at(0.99)) == (51.0, 96.0, 100.0)
    cells = dict(zip(service.HEAD, made.cells(), strict=True))
    assert cells["x real time"] == "20.0" and cells["of batch"] == "90%"
    assert cells["turned away"] == "2 x 503" and cells["equal"] == "99 of 100"
    text = service.table([made], 9.0)
    assert "22.2 x real time" in text
