"""`forescribe distill --text`: from prompts to a draft that loads everywhere, and back after every end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.distill.distillation import Distillation, DistillSettings
from forescribe.distill.files import WorkFolder
from forescribe.distill.labels import GENERAL, CutHead, LabelStore
from forescribe.distill.report import Prices, run_rows, tokens_per_round
from forescribe.distill.text import TextPair, label_prompts, prompts_of
from forescribe.distill.training import DraftTraining, TrainingPlan, traces_of
from forescribe.speculative.drafters.draft_tokens import FILE, DraftTokens
from forescribe.speculative.models import hub
from forescribe.speculative.models.quantized import as_floats
from forescribe.text import Options, TextGenerator
from tests.distill.made_rows import made_row

pytestmark = pytest.mark.nightly

WORDS = "life ceiling river garden window letter market winter bridge doctor music paper".split()
LINES = [f'{{"messages": [{{"role": "user", "content": "Define \\"{w}\\"."}}]}}' for w in WORDS]
LINES += [f'{{"prompt": "The {w} was", "kind": "story"}}' for w in WORDS]
PRICES = Prices({0: 1.0, 2: 1.2, 4: 1.4})


def silent(stage: str, done: float, whole: float | None, note: str) -> None:
    """A hook that shows nothing."""


@pytest.fixture(scope="module")
def generator() -> TextGenerator:
    return TextGenerator.load(hub.path("text"), hub.path("text-draft"), batch=8)


@pytest.fixture(scope="module")
def pair(generator: TextGenerator) -> TextPair:
    return TextPair(generator.target, generator.device, longest=32)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("\n".join(LINES))
    return path


@pytest.fixture(scope="module")
def labels(generator: TextGenerator, pair: TextPair, data: Path) -> Path:
    """The labels of all prompts, in both passes."""
    folder = data.parent / "labels"
    prompts, skipped = prompts_of(generator, [str(data)], "own", seed=0)
    assert skipped == []
    with Stop() as stop:
        label_prompts(
            generator,
            pair,
            LabelStore(folder),
            prompts,
            seed=0,
            until=lambda: False,
            stop=stop,
            hook=silent,
        )
    return folder


def test_answers_are_those_of_the_target_alone_and_half_of_them_are_drawn(
    generator: TextGenerator, pair: TextPair, labels: Path
) -> None:
    rows = LabelStore(labels).rows()
    greedy = [row for row in rows if row.greedy]
    assert len(rows) == 2 * len(LINES)
    assert len(greedy) == len(LINES)
    assert {row.kind for row in rows} == {"own", "story"}
    texts = generator.plain().generate(
        [row.tokens[: row.begin] for row in greedy], Options(max_tokens=32)
    )
    for row, text in zip(greedy, texts, strict=True):
        assert row.tokens[row.begin :] == text.ids
        # The distributions are those of the places: greedy text is their choice.
        assert row.wanted.choice.tolist() == list(text.ids)


def test_general_data_are_general_whatever_their_lines_say(
    generator: TextGenerator, data: Path
) -> None:
    prompts, _ = prompts_of(generator, [str(data)], GENERAL, seed=0)
    assert {prompt.kind for prompt in prompts} == {GENERAL}


def test_paragraphs_are_continued_from_their_first_words_and_bad_files_are_named(
    generator: TextGenerator, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(
        "One sentence about a river and its bridge.\n\nAnother about snow."
    )
    (tmp_path / "b.jsonl").write_text('{"prompt": "fine"}\n{"question": "?"}')
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00\xd8")
    prompts, skipped = prompts_of(generator, [str(tmp_path)], "own", seed=0)
    texts = {generator.vocabulary.tokenizer.decode(p.tokens) for p in prompts}
    assert any("One sentence" in text and "bridge" not in text for text in texts)
    assert {Path(s.name).name for s in skipped} == {"b.jsonl", "c.txt"}
    assert "line 2" in next(s.reason for s in skipped if s.name.endswith("jsonl"))


def trained(pair: TextPair, labels: Path, folder: Path, steps: int, seed: int = 0) -> DraftTraining:
    rows = LabelStore(labels).rows()
    torch.manual_seed(0)
    draft = pair.open(hub.path("text-draft"))
    plan = TrainingPlan(seed=seed, steps=steps, on_policy=True)
    return DraftTraining(pair, draft, rows[6:], rows[:6], PRICES, plan, folder / "checkpoint.pt")


def weights(training: DraftTraining) -> dict[str, Any]:
    return {name: value.clone() for name, value in training.draft.state_dict().items()}


def test_one_seed_gives_one_draft_also_when_it_is_interrupted_on_the_way(
    pair: TextPair, labels: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Stop() as stop:
        whole = trained(pair, labels, tmp_path / "a", 6)
        whole.run(stop, silent)
        part = trained(pair, labels, tmp_path / "b", 6)

        def after_three(stage: str, done: float, whole: float | None, note: str) -> None:
            stop.requested = part.state.step >= 3

        part.run(stop, after_three)
        stop.requested = False
        assert part.state.step == 3
        rest = trained(pair, labels, tmp_path / "b", 6)
        assert rest.state.step == 3
        rest.run(stop, silent)
    assert rest.state.finished
    assert rest.state.step == whole.state.step == 6
    one, two = weights(whole), weights(rest)
    assert all(torch.equal(one[name], two[name]) for name in one)
    start = pair.open(hub.path("text-draft")).state_dict()
    changed = {name for name in one if not torch.equal(one[name], start[name])}
    assert changed
    assert not any("embed" in name or "lm_head" in name for name in changed)  # frozen


def test_the_best_state_is_the_one_with_the_most_expected_speed(
    pair: TextPair, labels: Path, tmp_path: Path
) -> None:
    """A rate that ruins the draft: its beginning is what is kept."""
    training = trained(pair, labels, tmp_path, 8)
    training.optimizers.peak = 5.0  # at once: the rate rises over the first steps
    with Stop() as stop:
        state = training.run(stop, silent)
    assert state.chosen.step == 0
    assert state.evaluations[-1].gain < state.chosen.gain
    training.load_best()
    start = pair.open(hub.path("text-draft")).state_dict()
    assert all(torch.equal(v, start[name]) for name, v in weights(training).items())


def test_a_draft_with_a_cut_head_is_trained_and_tried_with_it(
    pair: TextPair, labels: Path, tmp_path: Path
) -> None:
    """Against the engine with the same head: a trace counts what the head lacks as rejected."""
    rows = [row for row in LabelStore(labels).rows() if row.greedy]
    counted = Counter(token for row in rows for token in row.tokens[row.begin :])
    listed = DraftTokens.most_frequent(counted, (), pair.model.vocab_size, "labels", coverage=0.8)
    head = CutHead.of(listed.ids, pair.model.vocab_size, torch.device("cpu"))
    draft = pair.open(hub.path("text-draft"))
    plan = TrainingPlan(steps=3, on_policy=True)
    file = tmp_path / "checkpoint.pt"
    training = DraftTraining(pair, draft, rows[4:], rows[:4], PRICES, plan, file, head)
    with Stop() as stop:
        assert training.run(stop, silent).finished
    cut = traces_of(pair, draft, rows, head)
    whole = traces_of(pair, draft, rows)
    assert sum(map(sum, (t.accepted for t in cut))) != sum(map(sum, (t.accepted for t in whole)))
    (tmp_path / "made").mkdir()
    pair.save(draft, tmp_path / "made")
    run = run_rows(pair, tmp_path / "made", rows, 4, 2, listed)
    assert run.stats.mean_acceptance_length == pytest.approx(tokens_per_round(cut, 4), rel=0.05)


def test_a_checkpoint_of_another_draft_is_refused(
    pair: TextPair, labels: Path, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(UsageError, match=r"no checkpoint of this draft.*--overwrite") as refused:
        trained(pair, labels, tmp_path, 2)
    assert "weights_only" not in str(refused.value)


def distill(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["distill", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def made(data: Path) -> Path:
    """A draft of the command, with a cut head."""
    out = data.parent / "draft"
    result = distill(
        "--text", data, "-o", out, "--steps", 3, "--max-tokens", 32, "--cut-head", "--layers", 2
    )
    assert result.exit_code == 0, result.output
    assert f"--draft {out}" in result.stdout
    return out


def test_the_report_has_acceptance_by_kind_and_depth_beside_equality(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    assert report["finished"]
    assert report["steps"] == 3
    assert report["start"] == "layers [0, 1] of the target"
    assert set(report["after"]) == {"own", "story"}
    for figures in (*report["before"].values(), *report["after"].values()):
        assert figures["equal_to_gamma_0"]
        assert len(figures["acceptance_at_depth"]) == 5
    assert report["head"]["tokens"] < report["head"]["of"] == 2048
    assert {"torch", "transformers", "forescribe"} <= report["versions"].keys()
    assert "| own |" in (made / "report.md").read_text()
    assert not (made / ".distill").exists()


def test_a_made_draft_serves_and_its_texts_are_those_of_plain_decoding(made: Path) -> None:
    assert (made / FILE).is_file()
    drafted = TextGenerator.load(hub.path("text"), made, batch=2, gamma=3)
    prompts = ["Heavy snow closed the", "She wore a green", "The chairman asked"]
    for temperature in (0.0, 1.0):
        options = Options(max_tokens=24, temperature=temperature, seed=3)
        texts = drafted.generate(prompts, options)
        if temperature == 0:
            plain = drafted.plain().generate(prompts, options)
            assert [t.ids for t in texts] == [t.ids for t in plain]
    assert drafted.stats.drafted > 0
    assert drafted.stats.faults == 0


def test_a_made_draft_assists_in_transformers(made: Path, tmp_path: Path) -> None:
    plain_target = as_floats(hub.path("text"), tmp_path / "target")
    target = AutoModelForCausalLM.from_pretrained(plain_target).eval()
    draft = AutoModelForCausalLM.from_pretrained(made).eval()
    tokens = torch.tensor([[0, 2, 300, 268, 87, 574, 299, 1, 3]])
    settings = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 1}
    mask = torch.ones_like(tokens)
    plain = target.generate(tokens, attention_mask=mask, **settings)
    assisted = target.generate(tokens, attention_mask=mask, assistant_model=draft, **settings)
    assert plain.tolist() == assisted.tolist()


def test_weights_are_half_precision_and_the_configuration_says_float32(made: Path) -> None:
    assert {v.dtype for v in load_file(made / "model.safetensors").values()} == {torch.float16}
    assert json.loads((made / "config.json").read_text())["dtype"] == "float32"


def test_a_folder_that_holds_something_is_left_alone(made: Path, data: Path) -> None:
    with pytest.raises(UsageError, match=r"not empty; --overwrite"):
        distill("--text", data, "-o", made, "--steps", 1)
    file = made.parent / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="file of that name"):
        distill("--text", data, "-o", file, "--steps", 1)


def work_folder(out: Path, seed: int, *, data: str = "a", overwrite: bool = False) -> WorkFolder:
    return WorkFolder(out, {"seed": seed}, labels={"data": [data]}, overwrite=overwrite)


def test_other_settings_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with work_folder(out, 1) as work:
        work.keep("prices", {"0": 1})
        with pytest.raises(UsageError, match="another process"), work_folder(out, 1):
            pass
    with work_folder(out, 1) as work:
        assert work.read("prices") == {"0": 1}
    with pytest.raises(UsageError, match="another seed"), work_folder(out, 2):
        pass
    with work_folder(out, 2, overwrite=True) as work:
        assert work.read("prices") is None


def test_labels_are_used_again_where_what_they_depend_on_is_the_same(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with work_folder(out, 1) as work:
        LabelStore(work.labels).add("key", [made_row(0)])
        work.keep("labelled", {"skipped": []})
        work.keep("label_seconds", 30.0)
        (work.path / "start").mkdir()
    with work_folder(out, 2, overwrite=True) as work:
        assert LabelStore(work.labels).has("key")
        assert work.read("labelled") is None  # more may be made
        assert work.read("label_seconds") is None and not work.start.exists()
    with work_folder(out, 2, data="b", overwrite=True) as work:
        assert not LabelStore(work.labels).has("key")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "above 0"),
        (["--layers", "2", "--draft", "ngram"], "give one"),
        (["--choose", "best"], "angular, single, spacing"),
        (["--language", "en"], "no meaning with --text"),
        (["--draft", "ngram"], "no draft to begin with"),
        (["--layers", "16"], "from 1 to 15"),
    ],
)
def test_what_cannot_be_is_refused(
    data: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = ["--steps", "1", "--max-tokens", "24"]
    with pytest.raises(UsageError, match=message):
        distill("--text", data, "-o", tmp_path / "out", *given, *arguments)


def test_ctrl_c_while_training_leaves_a_draft_and_the_same_run_goes_on(
    pair: TextPair, labels: Path, tmp_path: Path
) -> None:
    settings = DistillSettings(
        tmp_path / "out", hub.path("text-draft"), steps=4, record={"model": "demo-text"}
    )

    def copied(store: LabelStore, until: Any) -> list[Any]:
        store.folder.mkdir(parents=True)
        for file in labels.iterdir():
            (store.folder / file.name).write_bytes(file.read_bytes())
        return []

    def never(store: LabelStore, until: Any) -> list[Any]:
        raise AssertionError("labels were made again")

    with Stop() as stop:

        def interrupt(stage: str, done: float, whole: float | None, note: str) -> None:
            stop.requested = stop.requested or stage == "training"

        first = Distillation(pair, copied, settings, stop=stop, hook=interrupt).run()
        stop.requested = False
        assert first is not None
        assert not first["finished"]
        assert first["steps"] == 1
        assert (tmp_path / "out" / "config.json").is_file()
        second = Distillation(pair, never, settings, stop=stop, hook=silent).run()
    assert second is not None
    assert second["finished"]
    assert second["steps"] == 4


def test_a_killed_run_goes_on_with_its_labels_and_its_checkpoint(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "forescribe", "distill", "--text", str(data), "-o", str(out)]
    command += ["--steps", "300", "--max-tokens", "32", "--quiet"]

    def begun() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command)

    def trained() -> bool:
        path = out / ".distill" / "checkpoint.pt"
        return path.exists() and torch.load(path, weights_only=True)["step"] > 0

    def labelled() -> bool:
        return any((out / ".distill").glob("labels/*.safetensors"))

    for wanted in (labelled, trained):
        process = begun()
        deadline = time.monotonic() + 240
        while not wanted():
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (out / "config.json").exists()
    kept = {f: f.stat().st_mtime_ns for f in (out / ".distill" / "labels").iterdir()}
    finished = subprocess.run([*command, "--keep-labels"], check=False)
    assert finished.returncode == 0
    assert {f: f.stat().st_mtime_ns for f in kept} == kept
    report = json.loads((out / "report.json").read_text())
    assert report["finished"]
    assert report["steps"] == 300
