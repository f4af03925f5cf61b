"""The service with a head as draft of its text model."""

from __future__ import annotations

from pathlib import Path

import torch
from fastapi.testclient import TestClient
from transformers import AutoConfig

from forescribe.api.settings import Settings
from forescribe.text import TextGenerator
from forescribe.text.streaming import Options
from tests.api.conftest import until
from tests.api.test_text import app_of
from tests.text.language_models import write
from training.text.heads import published


def test_a_service_drafts_with_a_head(tmp_path: Path) -> None:
    torch.manual_seed(3)
    target = write(tmp_path / "target", layers=8)
    config = AutoConfig.from_pretrained(target)
    made = published.eagle3(config, range(0, config.vocab_size, 2), inner=24)
    head = published.save(tmp_path / "head", *made)
    settings = Settings(
        text_model=str(target),
        text_draft=str(head),
        device="cpu",
        batch_size=2,
        gamma=3,
        drain_s=0,
    )
    app = app_of(settings)
    with TestClient(app, base_url="http://localhost") as client:
        until(lambda: app.state.text_serving.state != "loading", 240)
        asked = {"model": str(target), "prompt": "the other", "max_tokens": 20, "temperature": 0}
        answer = client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        assert app.state.text_serving.generator.stats.drafted > 0
    (plain,) = TextGenerator.load(target, device="cpu").generate(
        ["the other"], Options(max_tokens=20)
    )
    assert answer.json()["choices"][0]["text"] == plain.text
