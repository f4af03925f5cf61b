"""A real service that is killed while it works on a batch, and started again: every line is answered once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

from tests.api.batches.calls import TRANSCRIBE, jsonl
from tests.api.conftest import memo

LINES, KILLS, SEED = 24, 4, 7
START_S = 120


class Process:
    """`forescribe serve` on a folder."""

    def __init__(self, folder: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
        environment |= {"FORESCRIBE_DATA_DIR": str(folder), "FORESCRIBE_MIN_FREE_BYTES": "0"}
        command = "from forescribe.cli.main import main; main()"
        self.log = (folder / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "serve", "--model", "demo", "--port", "0"],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("forescribe: http"):
                self.url = line.split()[1]
                break
        os.set_blocking(self.process.stderr.fileno(), False)  # the rest is not read
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
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.log.close()


@pytest.mark.slow
def test_a_batch_survives_kills_of_the_process(tmp_path) -> None:
    chance, process = random.Random(SEED), Process(tmp_path)
    try:
        client = process.ready().client
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
        batch = client.batches.create(
            input_file_id=given.id, endpoint="/v1/audio/transcriptions", completion_window="24h"
        )
        unfinished = 0
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            unfinished += process.client.batches.retrieve(batch.id).completed_at is None
            process.kill()
            process = Process(tmp_path)
            process.ready()
        assert unfinished, "inconclusive: no kill met the batch at work"
        end = time.monotonic() + START_S
        while (batch := process.client.batches.retrieve(batch.id)).status != "completed":
            assert batch.status in ("validating", "in_progress", "finalizing")
            assert time.monotonic() < end, batch
            time.sleep(0.1)
        import json

        text = process.client.files.content(batch.output_file_id).text
        rows = [json.loads(row) for row in text.splitlines()]
        assert [row["custom_id"] for row in rows] == [str(k) for k in range(LINES)]
        texts = [row["response"]["body"]["text"] for row in rows]
        for k in range(5):
            assert len(set(texts[k::5])) == 1 and texts[k]
        jobs = process.client.get("/jobs?limit=100", cast_to=object)["data"]
        assert len(jobs) == LINES
    finally:
        process.kill()
