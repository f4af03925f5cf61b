"""The service on real Ray Serve: OpenAI's client, streams, 429 at the limit, an end without a lost answer."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from openai import OpenAI, RateLimitError

from .local_cluster import LocalCluster

pytest.importorskip("ray", reason="needs `scripts/setup cluster`")

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SAMPLES = Path(__file__).parents[2] / "samples"
START_S = 300.0

DELETE = """
import sys, ray
from ray import serve
ray.init(address=sys.argv[1], log_to_driver=False)
serve.delete("forescribe")
"""
LIMIT = 2
KEY = "fs-" + "k" * 40
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # Two for the replica and one to spare: Serve's controller and proxy ask for none.
    with LocalCluster(cpus=3, more={"HF_HUB_OFFLINE": "1"}) as running:
        yield running


class Service:
    """`serve run` of a configuration."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": port},
            "applications": [
                {
                    "name": "forescribe",
                    "import_path": "forescribe.cluster:app",
                    "route_prefix": "/",
                    "args": {
                        "model": "tiny.en",
                        "jobs": False,
                        "api_keys": {"team": hashlib.sha256(KEY.encode()).hexdigest()},
                        "max_requests_per_key": LIMIT,
                        "drain_s": 60,
                    },
                    "deployments": [
                        {"name": "forescribe", "ray_actor_options": {"num_cpus": 2}},
                    ],
                }
            ],
        }
        path = folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        self.cluster, self.log = cluster, folder / "serve.log"
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ray.serve.scripts", "run", str(path)]
                + ["--address", cluster.address],
                env=cluster.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=300)

    def wait(self) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        raise AssertionError(self.log.read_text())


@pytest.fixture(scope="module")
def service(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(cluster, tmp_path_factory.mktemp("serve"))
    try:
        running.wait()
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
            try:
                running.process.wait(120)
            except subprocess.TimeoutExpired:
                running.process.kill()


def transcribe(service: Service, name: str = "memo.flac", **more):
    with (SAMPLES / name).open("rb") as file:
        return service.client.audio.transcriptions.create(model="whisper-1", file=file, **more)


def test_openais_client_gets_its_answer(service: Service) -> None:
    assert "printing plant" in transcribe(service).text
    assert service.client.models.list().data


def test_a_stream_arrives_in_parts(service: Service) -> None:
    events = list(transcribe(service, "conversation.flac", stream=True))
    kinds = Counter(event.type for event in events)
    assert kinds["transcript.text.delta"] > 1
    assert kinds["transcript.text.done"] == 1
    deltas = "".join(e.delta for e in events if e.type == "transcript.text.delta")
    assert deltas.strip() == events[-1].text.strip()


def test_above_its_limit_a_key_gets_the_services_own_429(service: Service) -> None:
    answers: list[object] = []

    def one() -> None:
        try:
            answers.append(transcribe(service, "conversation.flac").text)
        except RateLimitError as error:
            answers.append(error)

    threads = [threading.Thread(target=one) for _ in range(3 * LIMIT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    refused = [answer for answer in answers if isinstance(answer, RateLimitError)]
    assert len(answers) == 3 * LIMIT
    assert len(answers) - len(refused) >= LIMIT
    assert refused
    for error in refused:
        assert int(error.response.headers["retry-after"]) >= 1
        assert error.code == "rate_limited"


def test_a_wrong_request_is_answered_by_the_service(service: Service) -> None:
    answer = httpx.post(
        f"{service.url}/v1/audio/transcriptions",
        files={"file": ("a.wav", b"not audio")},
        data={"model": "whisper-1"},
        headers=BEARER,
        timeout=60,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_audio"


def test_at_the_end_a_stream_is_finished(service: Service) -> None:
    """The application is deleted, as an update or a smaller number of replicas ends one. The last test."""
    events: list[dict] = []
    began = threading.Event()
    failed: list[Exception] = []

    def follow() -> None:
        try:
            with (
                (SAMPLES / "conversation.flac").open("rb") as file,
                httpx.stream(
                    "POST",
                    f"{service.url}/v1/audio/transcriptions",
                    files={"file": file},
                    data={"model": "whisper-1", "stream": "true"},
                    headers=BEARER,
                    timeout=300,
                ) as answer,
            ):
                assert answer.status_code == 200
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        events.append(json.loads(line.removeprefix("data: ")))
                        began.set()
        except Exception as error:
            failed.append(error)
            began.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert began.wait(120)
    assert not any(event["type"] == "transcript.text.done" for event in events), "too fast to tell"
    subprocess.run(
        [sys.executable, "-c", DELETE, service.cluster.address],
        env=service.cluster.environment,
        check=True,
        timeout=180,
        capture_output=True,
    )
    thread.join(180)
    assert not failed
    assert events[-1]["type"] == "transcript.text.done"
