"""Heads as drafts of text models, by `TextGenerator` and by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig
from typer.testing import CliRunner

from forescribe.speculative.errors import LoadError
from forescribe.text import TextGenerator
from forescribe.text.drafts import MTP, HeadDraft
from forescribe.text.streaming import Options
from tests.speculative.drafters.heads import published
from tests.text.language_models import write

PROMPTS = ["the other", "a", "on and on and on and on again, on and on", "Zürich, 8 o'clock: tea"]
LAYERS = 8
runner = CliRunner()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("heads") / "target", layers=LAYERS)


@pytest.fixture(scope="module")
def heads(target: Path) -> dict[str, Path]:
    """A head of each format for the target; of MTP a copy of the target with a layer more."""
    torch.manual_seed(3)
    config = AutoConfig.from_pretrained(target)
    kept = range(0, config.vocab_size, 2)
    folder = target.parent
    found = {
        "eagle3": published.save(folder / "eagle3", *published.eagle3(config, kept, inner=24)),
        "speculators": published.save(
            folder / "speculators",
            *published.eagle3(
                config, kept, inner=24, speculators=True, flags={"norm_before_residual": True}
            ),
        ),
    }
    more, tensors = published.mtp(config, inner=config.intermediate_size)
    inside = write(folder / "mtp", layers=LAYERS)
    settings = json.loads((inside / "config.json").read_text()) | more
    whole = load_file(inside / "model.safetensors") | tensors
    found["mtp"] = published.save(inside, settings, whole)
    return found


def pair(kind: str, target: Path, heads: dict[str, Path]) -> tuple[Path, str | Path]:
    return (heads["mtp"], MTP) if kind == "mtp" else (target, heads[kind])


@pytest.mark.parametrize(("kind", "gamma"), [("eagle3", 3), ("speculators", None), ("mtp", 3)])
def test_texts_with_a_head_equal_generate(
    kind: str, gamma: int | None, target: Path, heads: dict[str, Path]
) -> None:
    model, draft = pair(kind, target, heads)
    made = TextGenerator.load(model, draft, batch=3, gamma=gamma, device="cpu")
    assert isinstance(made.draft, HeadDraft)
    reference, tokens = made.target.model, made.vocabulary.tokenizer
    for done, prompt in zip(made.generate(PROMPTS, Options(max_tokens=30)), PROMPTS, strict=True):
        row = tokens(prompt, return_tensors="pt")["input_ids"]
        whole = reference.generate(
            row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=30
        )
        assert done.ids == tuple(whole[0, row.shape[1] :].tolist())
        assert done.draft_error is None
    assert made.stats.drafted > (20 if gamma else 0)


def test_a_head_of_another_target_is_refused_by_name(
    heads: dict[str, Path], tmp_path: Path
) -> None:
    small = write(tmp_path / "small", layers=2)
    with pytest.raises(
        LoadError, match=r"--draft .*eagle3: .*reads layer 2, and .*small has 2 layers"
    ):
        TextGenerator.load(small, heads["eagle3"], device="cpu")
    with pytest.raises(LoadError, match=r"--draft mtp: .*small has no MTP layer"):
        TextGenerator.load(small, MTP, device="cpu")
