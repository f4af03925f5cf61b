"""`--cluster` and `--workers`: what is refused, and what every worker is told."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.storage.locations import Source
from forescribe.cli.main import main
from forescribe.cli.transcribe import load_transcriber, work_order
from forescribe.cli.transcribe_options import HERE, TranscribeOptions

MEMO = str(Path(__file__).parents[2] / "samples" / "memo.flac")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 2, "audio": ["-"]}, "--workers 2: workers cannot read stdin"),
        ({"cluster": "auto", "audio": ["-"]}, "cannot read stdin"),
    ],
)
def test_what_a_cluster_cannot_serve_is_refused_by_name(given: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TranscribeOptions(**({"audio": [MEMO]} | given))


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, None),
        ({"workers": 1}, None),
        ({"workers": 2}, HERE),
        ({"workers": 2, "cluster": "auto"}, "auto"),
        ({"cluster": "auto"}, "auto"),
    ],
)
def test_several_workers_need_no_cluster(given: dict, address: str | None) -> None:
    assert TranscribeOptions(audio=[MEMO], **given).workers_at == address


def test_known_voices_are_those_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "forescribe.diarize.known_speakers.KnownSpeakers.list", lambda self: ["somebody"]
    )
    with pytest.raises(UsageError, match="enrolled on this machine"):
        TranscribeOptions(audio=[MEMO], cluster="auto", diarize=True, known=True)


def test_every_option_reaches_the_workers(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.txt").write_text("words")
    options = TranscribeOptions(
        audio=[MEMO],
        cluster="auto",
        model="tiny.en",
        draft="none",
        language="en",
        initial_prompt="Helen Porter",
        reference_text="script.txt",
        word_timestamps=True,
        guards=False,
        gamma="3",
        beam_size="1",
        batch_size=4,
        dtype="float32",
        threads=3,
        readers=2,
        diarize=True,
        num_speakers=2,
        local_files_only=True,
    )
    order = work_order(options, [Source(MEMO)])
    assert order.options == options.timed
    assert order.options.hint == "words"
    assert (order.batch, order.network, order.probe) == (4, False, MEMO)
    assert order.folder == str(tmp_path)
    assert order.weights
    function, (there, _) = pickle.loads(pickle.dumps(order.load)).func, order.load.args
    assert function is load_transcriber
    assert (there.num_speakers, there.readers, there.gamma) == (2, 2, "3")


def test_a_model_folder_is_named_from_the_root(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    options = TranscribeOptions(audio=[MEMO], cluster="auto", model="model")
    assert work_order(options, []).load.args[0].model == str(tmp_path / "model")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    options = TranscribeOptions(audio=[str(pipe)], cluster="auto", model="tiny.en")
    with pytest.raises(UsageError, match="cannot read the pipe"):
        work_order(options, [Source(str(pipe))])


def test_without_ray_the_command_says_what_to_install(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    argv = ["forescribe", "transcribe", MEMO, "-o", str(tmp_path), "--model", "tiny.en"]
    monkeypatch.setattr(sys, "argv", [*argv, "--cluster", "auto"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "run `scripts/setup cluster`" in capsys.readouterr().err


def test_a_dry_run_needs_no_cluster(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    argv = ["forescribe", "transcribe", MEMO, "-o", str(tmp_path / "out"), "--model", "tiny.en"]
    monkeypatch.setattr(sys, "argv", [*argv, "--cluster", "ray://head:10001", "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "memo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.0.1"}, "this command is 0.0.1"),
        ({"folder": "/nowhere", "probe": "calls/a.mp3"}, "does not see calls/a.mp3"),
        ({"folder": None, "probe": "/nowhere/a.mp3"}, "does not see /nowhere/a.mp3"),
        ({"weights": "0" * 16}, "has other weights of"),
    ],
)
def test_a_worker_that_could_give_other_results_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict, said: str
) -> None:
    from dataclasses import replace

    from forescribe.asr.errors import ForescribeError

    monkeypatch.chdir(tmp_path)  # restored, whatever the worker does
    options = TranscribeOptions(audio=[MEMO], cluster="auto", model="tiny.en")
    order = work_order(options, [Source(MEMO)])
    order.check_machine()
    with pytest.raises(ForescribeError, match=said):
        replace(order, **change).check_machine()
