"""How many functions of ours lie between a command and a model's forward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from typer.testing import CliRunner

from forescribe.cli.main import app
from forescribe.text import Options, TextGenerator
from tests.text.language_models import write

ROOT = Path(__file__).parent.parent
PARTS = ("speculative", "text", "asr", "diarize", "api", "forescribe")

MOST = 9
"""Functions from a command to the model's forward."""

ENGINE = 5
"""Of these, from `Engine.step` on: step, run, run_round, score, forward."""


def functions() -> list[str]:
    """Functions of the package on the stack, outermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename).resolve()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PARTS:
            found.append(f"{path.stem}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def watch(model: torch.nn.Module, stacks: list[list[str]]) -> Callable[[], None]:
    """Records the stack whenever the model is called."""
    return model.register_forward_pre_hook(lambda *_: stacks.append(functions())).remove


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "model", seed=0)


@pytest.mark.parametrize("gamma", [0, 3])
def test_the_engine_reaches_the_target_in_five_functions(folder: Path, gamma: int) -> None:
    generator = TextGenerator.load(folder, "ngram", device="cpu", gamma=gamma, engine="modules")
    stacks: list[list[str]] = []
    watch(generator.target.model, stacks)
    generator.generate(["the other the other"], Options(max_tokens=8))
    rounds = [stack for stack in stacks if "round.run_round" in stack]
    assert len(rounds) >= 2
    for stack in rounds:
        below = stack[stack.index("engine.Engine.step") :]
        assert below == [
            "engine.Engine.step",
            "runner.RoundRunner.run",
            "round.run_round",
            "modules.ModuleModel.score",
            "modules.CausalDecoder.forward",
        ]
        assert len(below) <= ENGINE


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_generate_command_reaches_the_target_in_nine_functions(
    folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[list[str]] = []
    init = TextGenerator.__init__

    def watched(self: TextGenerator, *given: object, **named: object) -> None:
        init(self, *given, **named)  # type: ignore[arg-type]
        watch(self.target.model, stacks)

    monkeypatch.setattr(TextGenerator, "__init__", watched)
    arguments = ["generate", "the other", "--model", str(folder), "--max-tokens", "4", *options]
    arguments += ["--engine", "modules"]  # its calls are what `watch` records
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    rounds = [stack for stack in stacks if "round.run_round" in stack]
    assert rounds
    for stack in rounds:
        command = next(i for i, name in enumerate(stack) if name.endswith("generate.generate"))
        assert len(stack[command:]) <= MOST, stack
