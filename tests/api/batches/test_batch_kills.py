"""A real service that is killed while it works on a batch, and started again: every line is answered once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import openai
import pytest

from tests.api.batches.calls import TRANSCRIBE, jsonl
from tests.api.conftest import memo, until

LINES, KILLS, SEED = 24, 3, 7
URL = os.environ.get("FORESCRIBE_TEST_PG")
START_S = 120


class Process:
    """`forescribe serve` on a folder."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
        environment |= {"FORESCRIBE_DATA_DIR": str(folder), "FORESCRIBE_MIN_FREE_BYTES": "0"}
        if database is not None:
            environment["FORESCRIBE_DATABASE_URL"] = database
        command = "from forescribe.cli.main import main; main()"
        log = folder / f"log-{uuid4().hex[:8]}"  # a pipe that nobody reads would fill
        with log.open("wb") as stderr:
            arguments = ["serve", "--model", "tiny.en", "--port", "0"]
            self.process = subprocess.Popen(
                [sys.executable, "-c", command, *arguments],
                env=environment,
                stderr=stderr,
                stdout=subprocess.DEVNULL,
            )
        until(lambda: "forescribe: http" in log.read_text(), START_S)
        (self.url,) = re.findall(r"^forescribe: (http\S+)$", log.read_text(), re.MULTILINE)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def ready(self) -> Process:
        import httpx

        end = time.monotonic() + START_S
        while True:
            try:
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            assert time.monotonic() < end and self.process.poll() is None
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.client.close()


def begin(client: openai.OpenAI) -> str:
    """A batch of LINES lines over five recordings; its id."""
    audio = [
        client.files.create(file=(f"{k}.wav", memo(2 + k % 5)), purpose="user_data").id
        for k in range(5)
    ]
    lines = [
        {
            "custom_id": str(k),
            "method": "POST",
            "url": TRANSCRIBE,
            "body": {"model": "whisper-1", "file": audio[k % 5], "language": "en"},
        }
        for k in range(LINES)
    ]
    given = client.files.create(file=("r.jsonl", jsonl(lines)), purpose="batch")
    made = client.batches.create(
        input_file_id=given.id, endpoint="/v1/audio/transcriptions", completion_window="24h"
    )
    return made.id


def check(client: openai.OpenAI, id: str) -> None:
    """The batch ends, and every line is answered once, by one job."""
    end = time.monotonic() + START_S
    while (batch := client.batches.retrieve(id)).status != "completed":
        assert batch.status in ("validating", "in_progress", "finalizing")
        assert time.monotonic() < end, batch
        time.sleep(0.1)
    text = client.files.content(batch.output_file_id).text
    rows = [json.loads(row) for row in text.splitlines()]
    assert [row["custom_id"] for row in rows] == [str(k) for k in range(LINES)]
    texts = [row["response"]["body"]["text"] for row in rows]
    for k in range(5):
        assert len(set(texts[k::5])) == 1 and texts[k]
    assert len(client.get("/jobs?limit=100", cast_to=object)["data"]) == LINES
    assert len(list(client.files.list(purpose="batch_output"))) == 1


@pytest.mark.nightly
def test_a_batch_survives_kills_of_the_process(tmp_path) -> None:
    chance, process = random.Random(SEED), Process(tmp_path)
    try:
        batch = begin(process.ready().client)
        unfinished = 0
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            unfinished += process.client.batches.retrieve(batch).completed_at is None
            process.kill()
            process = Process(tmp_path)
            process.ready()
        assert unfinished, "inconclusive: no kill met the batch at work"
        check(process.client, batch)
    finally:
        process.kill()


@pytest.mark.nightly
def test_a_batch_survives_kills_of_replicas(tmp_path) -> None:
    """Two processes on one PostgreSQL: when the one that works on the batch dies, the other goes on."""
    if not URL:
        pytest.skip("FORESCRIBE_TEST_PG names no database")
    import psycopg

    database = f"{URL.rsplit('/', 1)[0]}/forescribe_{uuid4().hex[:12]}"
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(f'create database "{database.rsplit("/", 1)[1]}"')
    chance = random.Random(SEED)
    replicas = [Process(tmp_path, database) for _ in range(2)]
    try:
        for replica in replicas:
            replica.ready()
        batch = begin(replicas[0].client)
        unfinished = 0
        for k in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            victim, other = k % 2, 1 - k % 2
            unfinished += replicas[other].client.batches.retrieve(batch).completed_at is None
            replicas[victim].kill()
            replicas[victim] = Process(tmp_path, database).ready()
        assert unfinished, "inconclusive: no kill met the batch at work"
        check(replicas[0].client, batch)
    finally:
        for replica in replicas:
            replica.kill()
