"""Heads learn to agree with their target, and the saved ones draft for it without changing a token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forescribe.speculative.models import hub
from forescribe.text import Options, TextGenerator
from tests.training.text.test_corpus import NEEDS_WORDNET
from training.methods import heads

pytestmark = [pytest.mark.nightly, NEEDS_WORDNET]


def test_a_trained_head_drafts_and_changes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(heads, "WORK", tmp_path)
    monkeypatch.setattr(heads, "TEXTS", tmp_path / "written.json")
    monkeypatch.setattr(heads, "HELD_OUT", 20)
    torch.manual_seed(0)
    heads.train(20, ["eagle3-ttt3", "mtp"], heads.written(5))
    assert "eagle3-ttt3: held out" in capsys.readouterr().out
    options = Options(max_tokens=24)
    for model, draft in ((hub.path("text"), tmp_path / "eagle3-ttt3"), (tmp_path / "mtp", "mtp")):
        made = TextGenerator.load(model, draft, batch=2, gamma=3)
        prompts = ["Heavy snow closed the", "She wore a green"]
        texts = made.generate(prompts, options)
        assert [t.ids for t in texts] == [t.ids for t in made.plain().generate(prompts, options)]
        assert made.stats.accepted > 0
