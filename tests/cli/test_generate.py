"""`forescribe generate`, in this process, on a tiny random pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.speculative.errors import LoadError, SpeculativeError
from forescribe.text.presets import NGRAM, Pair, resolve
from tests.text.language_models import write

runner = CliRunner()


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[str]:
    target = write(tmp_path_factory.mktemp("text") / "target")
    draft = write(target.parent / "draft", seed=1, near=target)
    return ["--model", str(target), "--draft", str(draft), "--device", "cpu", "--max-tokens", "12"]


def generate(*arguments: str, stdin: bytes | None = None):
    result = runner.invoke(app, ["generate", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_one_prompt_is_streamed_and_several_are_printed_in_their_order(pair) -> None:
    one = generate("the other", *pair)
    assert one.exit_code == 0 and one.stderr == ""
    piped = generate("-", *pair, stdin=b"the other\n")
    assert piped.stdout == one.stdout
    lines = generate("the other", "on and", *pair, "--json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert first["text"] + "\n" == one.stdout
    assert (first["prompt"], second["prompt"]) == ("the other", "on and")
    assert 0 < second["usage"]["completion_tokens"] <= 12
    assert second["finish_reason"] in ("stop", "length")
    both = generate("the other", "on and", *pair).stdout
    assert both == f"{first['text']}\n\n{second['text']}\n"


def test_quiet_leaves_the_text_alone(pair, monkeypatch) -> None:
    library = "forescribe.speculative.native.library.advice"
    monkeypatch.setattr(library, lambda *_, **__: "kernels would be faster")
    told, quiet = generate("the other", *pair), generate("the other", *pair, "-q")
    assert told.stderr == "note: kernels would be faster\n" and quiet.stderr == ""
    assert quiet.stdout == told.stdout


def test_compare_tells_speed_and_equality(pair) -> None:
    made = generate("the other", "a", *pair, "--gamma", "3", "--compare")
    assert made.exit_code == 0
    drafted, plain, verdict = made.stderr.splitlines()
    assert drafted.startswith("with drafts: 24 tokens") or "tokens in" in drafted
    assert "of drafts accepted" in drafted and "of drafts accepted" not in plain
    assert verdict.endswith("2 of 2 texts equal")
    assert drafted.endswith(("; engine native", "; engine lean"))


def test_an_engine_changes_no_text(pair) -> None:
    lean, modules = (
        generate("the other", *pair, "--stats", "--engine", name) for name in ("lean", "modules")
    )
    assert lean.stdout == modules.stdout
    assert modules.stderr.rstrip().endswith("; engine modules")
    with pytest.raises(LoadError, match="there is no engine 'fast'; known: auto, "):
        generate("a", *pair, "--engine", "fast")


def test_sampling_and_conversations(pair) -> None:
    hot = [*pair, "--temperature", "1", "--top-p", "0.9", "--top_k", "40", "--repetition-penalty"]
    texts = [generate("tea", *hot, "1.1", "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    asked = generate("tea", *pair, "--chat", "--system", "be brief", "--json").stdout
    assert json.loads(asked)["usage"]["prompt_tokens"] > len("tea")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["--gamma", "many"], UsageError, "--gamma many is neither auto nor"),
        (["--system", "x"], UsageError, "add --chat"),
        (["--top-p", "0"], SpeculativeError, "top_p is 0.0"),
        (["--context", "9999"], SpeculativeError, "context is 9999"),
    ],
)
def test_a_users_mistake_is_one_line(pair, arguments, error, said) -> None:
    with pytest.raises(error, match=said):
        generate("a", *pair, *arguments)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpeculativeError, match="neither a local folder nor a hub id"):
        generate("a", "--model", str(tmp_path / "nothing"), "--local-files-only")
    with pytest.raises(SpeculativeError, match="nor a preset: demo-text, "):
        generate("a", "--model", "nowhere")


def test_presets_bring_their_draft_and_other_models_copy_from_their_text(tmp_path: Path) -> None:
    own = resolve(None, None)
    assert isinstance(own.target, Path) and isinstance(own.draft, Path)
    assert (own.target.name, own.draft.name) == ("text", "text-draft")
    assert resolve("demo-text", None) == own
    assert resolve("qwen3-8b", None) == Pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
    assert resolve(str(tmp_path), None) == Pair(tmp_path, NGRAM)
    assert resolve("Qwen/Qwen3-8B", "none").draft is None
    assert resolve("qwen3-8b", "ngram").draft == NGRAM
    assert resolve("Qwen/Qwen3-32B", "qwen3-8b").draft == "Qwen/Qwen3-0.6B"
    with pytest.raises(LoadError, match="--draft nowhere is neither"):
        resolve(None, "nowhere")
