"""Batches: a line is a job; what comes out is what the route would have said, once for each line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forescribe.api.access import outbound
from forescribe.api.access.keys import digest, new_key
from tests.api.batches.calls import BATCHES, FILES, begin, ended, jsonl, line, lines_of, upload
from tests.api.conftest import TRANSCRIBE, memo, silence, sound, until
from tests.api.jobs.application import FORM, JOBS, application, ready


@pytest.fixture
def client(tmp_path, transcriber, decoders):
    with application(tmp_path, transcriber, decoders) as client:
        yield ready(client)


def test_lines_answer_what_the_route_answers(client) -> None:
    audio = memo(3)
    file = upload(client, audio).json()["id"]
    broken = upload(client, b"no audio at all" * 100).json()["id"]
    kinds = {"json": {}, "srt": {}, "verbose_json": {"timestamp_granularities": ["word"]}}
    lines = [line(kind, file=file, response_format=kind, **more) for kind, more in kinds.items()]
    lines.append(line("broken", file=broken))
    made = begin(client, jsonl(lines), metadata={"from": "a test"})
    assert made.status_code == 200 and made.json()["request_counts"]["total"] == 4
    batch = ended(client, made.json()["id"])
    assert batch["status"] == "completed" and batch["metadata"] == {"from": "a test"}
    assert batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    good = lines_of(client, batch["output_file_id"])
    assert list(good) == list(kinds)
    for kind, more in kinds.items():
        form = {"model": "random", **FORM, "response_format": kind}
        form |= {f"{name}[]": values for name, values in more.items()}
        direct = client.post(TRANSCRIBE, files={"file": audio}, data=form)
        body = good[kind]["response"]["body"]
        if kind == "json":
            assert body == direct.json()
        elif kind == "verbose_json":
            assert body["text"] == direct.json()["text"] and body["words"] == direct.json()["words"]
        else:  # words are timed, as those of jobs are
            job = f"job_{good[kind]['id'].removeprefix('batch_req_')}"
            assert body == client.get(f"{JOBS}/{job}/result?response_format=srt").text
    (error,) = lines_of(client, batch["error_file_id"]).values()
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["code"] == "invalid_audio"
    file = client.get(f"{FILES}/{batch['output_file_id']}").json()
    content = client.get(f"{FILES}/{batch['output_file_id']}/content").content
    refused = client.delete(f"{FILES}/{batch['output_file_id']}")
    assert refused.status_code == 409 and "/v1/jobs" in refused.json()["error"]["message"]
    assert file["purpose"] == "batch_output" and file["bytes"] == len(content)
    jobs = client.get(JOBS).json()["data"]
    assert {job["options"]["batch"] for job in jobs} == {batch["id"]}
    assert [b["id"] for b in client.get(BATCHES).json()["data"]] == [batch["id"]]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "no requests"),
        ([b"{"], "line 1: "),
        ([b"[1]"], "line 1: not an object"),
        ([{**line("a", file="f"), "method": "GET"}], "line 1: method and url"),
        ([{**line("a", file="f"), "url": "/v1/chat/completions"}], "line 1: method and url"),
        ([{**line("a", file="f"), "more": 1}], "line 1: method and url"),
        ([line("a")], "line 1: give `file`"),
        ([line("", file="file-0")], "line 1: custom_id"),
        ([line("a", file="file-0", colour="blue")], "line 1: colour"),
        ([line("a", file="file-0", language="tlh")], "line 1: this model does not know Klingon"),
        ([line("a", file="file-0", model="other")], "line 1: there is no model"),
        ([line("a", file="file-0")], "line 1: there is no such file"),
        ([line("a", file_url="https://example.com/a")], "line 1: file_url: this server fetches no"),
    ],
)
def test_a_file_that_cannot_be_done_is_refused_with_its_line(client, lines, told) -> None:
    data = b"".join(one if isinstance(one, bytes) else jsonl([one]) for one in lines) or b"\n"
    answer = begin(client, data)
    assert answer.status_code == 400 and told in answer.json()["error"]["message"]
    assert client.get(JOBS).json()["data"] == []


def test_so_many_lines_and_each_id_once(tmp_path, transcriber, decoders, monkeypatch) -> None:
    monkeypatch.setattr("forescribe.api.batches.MAX_LINES", 2)
    with application(tmp_path, transcriber, decoders) as client:
        file = upload(ready(client), memo(1)).json()["id"]
        twice = begin(client, jsonl([line("a", file=file)] * 2))
        assert "line 2: the custom_id is used again" in twice.json()["error"]["message"]
        three = begin(client, jsonl([line(name, file=file) for name in "abc"]))
        assert "more than 2 requests" in three.json()["error"]["message"]


def test_a_key_makes_one_batch_and_another_key_does_not_see_it(
    tmp_path, transcriber, decoders
) -> None:
    keys = {name: new_key() for name in ("one", "two")}
    hashes = {name: digest(key) for name, key in keys.items()}
    with application(tmp_path, transcriber, decoders, api_keys=hashes) as client:
        ready(client)
        as_ = {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}
        file = upload(client, memo(1), headers=as_["one"]).json()["id"]
        given = upload(client, jsonl([line("a", file=file)]), "batch", headers=as_["one"]).json()
        body = {"input_file_id": given["id"], "endpoint": TRANSCRIBE, "completion_window": "24h"}
        again = {**as_["one"], "Idempotency-Key": "same"}
        made = [client.post(BATCHES, json=body, headers=again).json()["id"] for _ in range(2)]
        assert made[0] == made[1]
        output = f"file-{made[0].removeprefix('batch_')}-output"
        for path in (f"{BATCHES}/{made[0]}", f"{FILES}/{output}", f"{FILES}/{output}/content"):
            assert client.get(path, headers=as_["two"]).status_code == 404
        assert client.get(BATCHES, headers=as_["two"]).json()["data"] == []
        assert begin(client, jsonl([line("a", file=file)]), as_["two"]).status_code == 400
        ended(client, made[0], headers=as_["one"])


def test_a_cancelled_batch_keeps_what_was_finished(client, held, transcriber) -> None:
    quick, slow = (upload(client, data).json()["id"] for data in (silence(1), sound(3)))
    lines = [line("first", file=quick), *(line(f"l{n}", file=slow) for n in range(8))]
    made = begin(client, jsonl(lines)).json()["id"]
    until(lambda: client.get(f"{BATCHES}/{made}").json()["request_counts"]["completed"] == 1)
    output = f"file-{made.removeprefix('batch_')}-output"
    assert client.get(f"{FILES}/{output}/content").status_code == 409
    assert client.post(f"{BATCHES}/{made}/cancel").json()["status"] == "cancelled"
    held.set()
    batch = ended(client, made)
    assert lines_of(client, batch["output_file_id"]).keys() == {"first"}
    left = lines_of(client, batch["error_file_id"])
    assert len(left) == 8 and {row["error"]["code"] for row in left.values()} == {"batch_cancelled"}
    assert client.post(f"{BATCHES}/{made}/cancel").status_code == 409


def test_a_deleted_file_and_retention(client, tmp_path) -> None:
    file = upload(client, memo(1)).json()["id"]
    made = begin(client, jsonl([line("a", file=file)])).json()["id"]
    assert client.delete(f"{FILES}/{file}").status_code == 200
    assert ended(client, made)["request_counts"]["completed"] == 1
    jobs, now = client.app.state.jobs, client.app.state.jobs.store.clock()
    jobs.store.clock = lambda: now + 31 * 24 * 3600
    jobs.erase_expired()
    assert client.get(f"{BATCHES}/{made}").status_code == 404
    assert not list((tmp_path / "blobs").glob("??/*"))


class Site(BaseHTTPRequestHandler):
    """Answers by path."""

    seen: list[str] = []
    audio = b""

    def do_GET(self) -> None:
        self.seen.append(self.path)
        status = {"/gone": 404, "/moved": 302, "/broken": 500}.get(self.path, 200)
        if self.path == "/twice.wav" and self.seen.count(self.path) == 1:
            status = 503
        self.send_response(status)
        body = self.audio if status == 200 else b"secret"
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
    Site.audio = memo(2)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def by_url(client, *urls: str):
    lines = [line(url, file_url=url) for url in urls]
    batch = ended(client, begin(client, jsonl(lines)).json()["id"])
    bad = lines_of(client, batch["error_file_id"])
    errors = {id: row["response"]["body"]["error"]["code"] for id, row in bad.items()}
    return lines_of(client, batch["output_file_id"]), errors


def test_what_is_fetched_and_what_is_not(
    tmp_path, transcriber, decoders, site, monkeypatch
) -> None:
    monkeypatch.setattr("forescribe.api.jobs.walk.PAUSES_S", (0.01, 0.01))
    given = {"audio_urls": True, "audio_url_networks": ["127.0.0.0/8"], "max_upload_bytes": 200_000}
    names = ("talk.wav?key=s3cr3t", "twice.wav", "gone", "moved", "broken", "endless", "liar")
    urls = [f"{site}/{name}" for name in names]
    with application(tmp_path, transcriber, decoders, **given) as client:
        good, errors = by_url(ready(client), *urls)
        jobs = {job["label"]: job for job in client.get(JOBS).json()["data"]}
        assert jobs[urls[0]]["progress"] == {"done_s": 2.0, "total_s": 2.0}
    assert list(good) == urls[:2]
    assert len({row["response"]["body"]["text"] for row in good.values()}) == 1
    assert {id.rsplit("/", 1)[1]: code for id, code in errors.items()} == {
        "gone": "audio_unreachable",
        "moved": "audio_unreachable",
        "broken": "audio_unreachable",
        "endless": "file_too_large",
        "liar": "file_too_large",
    }
    assert Site.seen.count("/broken") == 3 and Site.seen.count("/endless") == 1


def test_private_addresses_are_refused(tmp_path, transcriber, decoders, monkeypatch) -> None:
    """One by its number, one by what its name means."""
    client_of = outbound.client

    def rebound(**given):
        return client_of(**given, resolve=lambda host, port: ["127.0.0.1"])

    monkeypatch.setattr(outbound, "client", rebound)
    with application(tmp_path, transcriber, decoders, audio_urls=True) as client:
        refused = begin(ready(client), jsonl([line("a", file_url="http://127.0.0.1/a")]))
        assert refused.status_code == 400
        good, errors = by_url(client, "http://rebound.test/a")
    assert good == {} and set(errors.values()) == {"audio_unreachable"}


KILLED = """
import os, signal, sys
from pathlib import Path
from forescribe.api.batches import BatchForm, Batches, Files
from forescribe.api.jobs.service import Jobs
from forescribe.api.jobs.store import JobTable
from forescribe.api.jobs.submissions import JobForm
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
settings = Settings(model="random", data_dir=Path(sys.argv[1]), min_free_bytes=0)
serving = Serving(settings, lambda: None, lambda: None)
jobs = Jobs.open(settings, serving)
batches = Batches(jobs, Files(jobs.store))
insert = JobTable.insert_all
def killed(*given):
    insert(*given)
    os.kill(os.getpid(), signal.SIGKILL)
JobTable.insert_all = killed
Batches._form = lambda self, fields: JobForm(model="random")
form = BatchForm(input_file_id=sys.argv[2], endpoint="/v1/audio/transcriptions")
batches.create("", form)
"""


def test_a_process_that_dies_while_it_creates_a_batch_creates_nothing(
    tmp_path, transcriber, decoders
) -> None:
    with application(tmp_path, transcriber, decoders) as client:
        file = upload(ready(client), memo(1)).json()["id"]
        lines = jsonl([line(f"l{n}", file=file) for n in range(50)])
        given = upload(client, lines, "batch").json()["id"]
    run = [sys.executable, "-c", KILLED, str(tmp_path), given]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with application(tmp_path, transcriber, decoders) as client:
        assert client.get(BATCHES).json()["data"] == client.get(JOBS).json()["data"] == []
        assert len(list((Path(tmp_path) / "blobs").glob("??/*"))) == 2  # the files alone
