"""The public name `forescribe`: what it exports, what it loads, and that no other project shadows it."""

from __future__ import annotations

import ast
import functools
import http.server
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import forescribe
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import AudioError, UsageError
from tests.asr.model import folders
from tests.test_architecture import ROOT

PARTS = ("speculative", "text", "asr", "diarize", "api", "bundled", "benchmarks", "training")


RATE = 16_000
SAMPLES = ROOT / "samples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(folders.write(tmp_path_factory.mktemp("model"), max_target_positions=24))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "noise.wav"
    rng = np.random.default_rng(0)
    soundfile.write(path, 0.1 * rng.standard_normal(2 * 16_000), 16_000)
    return path


# Names


def test_all_public_names_can_be_imported() -> None:
    for name in forescribe.__all__:
        assert getattr(forescribe, name).__name__ == name
    assert set(forescribe.__all__) <= set(dir(forescribe))


def test_the_three_lists_of_public_names_agree() -> None:
    """`__all__`, the table of modules, and the imports that type checkers read."""
    tree = ast.parse(Path(forescribe.__file__).read_text(encoding="utf-8"))
    checked = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == forescribe._MODULES
    assert sorted(forescribe.__all__) == sorted(imports)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'transcribed'"):
        forescribe.transcribed  # noqa: B018


# transcribe()


def test_a_recording_becomes_a_transcript(model: str, recording: Path) -> None:
    transcript = forescribe.transcribe(recording, model, device="cpu", words=True)
    assert isinstance(transcript, forescribe.Transcript)
    assert transcript.duration == 2.0
    assert all(segment.words is not None for segment in transcript.segments)
    assert transcript.settings["guards"] is not None


def test_the_search_is_the_models_unless_one_is_asked_for() -> None:
    """Five beams with the bundled model; a draft is loaded where it has something to draft."""
    memo, found = soundfile.read(SAMPLES / "memo.flac", start=20 * RATE, stop=25 * RATE), {}
    for asked in (None, 5, 1):
        made = forescribe.transcribe(
            memo, "tiny.en", device="cpu", beam_size=asked, local_files_only=True
        )
        assert made.settings["beam_size"] == (asked or 5)
        assert (made.settings["draft"] is not None) == (asked == 1)
        found[asked] = made.text
    assert found[None] == found[5] != found[1]
    with pytest.raises(UsageError, match="beam_size is 1000"):
        forescribe.transcribe(memo, "tiny.en", device="cpu", beam_size=1000)


def test_speakers_are_labelled_on_request(model: str, recording: Path) -> None:
    transcript = forescribe.transcribe(
        recording, model, device="cpu", diarize=True, num_speakers=1, local_files_only=True
    )
    assert transcript.diarized


def test_errors_are_raised(model: str) -> None:
    with pytest.raises(AudioError, match="no such file"):
        forescribe.transcribe("nowhere.wav", model, device="cpu")
    with pytest.raises(UsageError, match="does not know Klingon"):
        forescribe.transcribe("nowhere.wav", model, device="cpu", language="klingon")
    with pytest.raises(UsageError, match="num_speakers needs diarize"):
        forescribe.transcribe("nowhere.wav", model, num_speakers=2)


def test_the_version_is_that_of_the_distribution() -> None:
    assert forescribe.__version__ == importlib.metadata.version("forescribe")


def test_progress_is_told(model: str, spoken) -> None:
    seen: list[forescribe.Progress] = []
    transcript = forescribe.transcribe(spoken, model, device="cpu", on_progress=seen.append)
    assert (seen[-1].done_s, seen[-1].total_s) == (8.0, 8.0)
    told = [segment for progress in seen for segment in progress.spoken]
    assert len(told) == len(transcript.segments)


# Several recordings


@pytest.mark.parametrize("diarize", [False, True])
def test_a_list_gives_a_list_in_its_order(model: str, recording: Path, diarize: bool) -> None:
    wave, file = np.zeros(3 * RATE, np.float32), io.BytesIO(recording.read_bytes())
    sources = [recording, (wave, RATE), file, str(recording), recording]
    options = {"device": "cpu", "diarize": diarize, "local_files_only": True}
    found = forescribe.transcribe(sources, model, **options)
    assert [transcript.duration for transcript in found] == [2.0, 3.0, 2.0, 2.0, 2.0]
    assert {transcript.diarized for transcript in found} == {diarize}
    found = forescribe.transcribe([wave, wave[:RATE]], model, sample_rate=RATE, **options)
    assert [transcript.duration for transcript in found] == [3.0, 1.0]
    assert forescribe.transcribe([], "no/such-model") == []


def test_a_recording_that_fails_costs_the_list_no_other(model: str, recording: Path) -> None:
    wave = np.zeros(RATE, np.float32)
    with pytest.raises(forescribe.BatchError) as caught:
        forescribe.transcribe([recording, "nowhere.wav", wave, recording], model, device="cpu")
    first, missing, unrated, last = caught.value.outcomes
    assert first.transcript is not None and last.transcript == first.transcript
    assert missing.source == "nowhere.wav" and "no such file" in str(missing.error)
    assert unrated.source is wave and isinstance(unrated.error, UsageError)
    assert caught.value.message.startswith("2 of 4 recordings failed")
    assert caught.value.code == "missing_file"


# The other functions


def test_given_words_are_timed_where_they_are_spoken() -> None:
    sentences = json.loads((SAMPLES / "memo.json").read_text())[:6]
    memo = soundfile.read(SAMPLES / "memo.flac", stop=31 * RATE)  # longer than a window
    text = " ".join(s["text"] for s in sentences).replace("printing", "rubber")
    words = forescribe.align(memo, text, "tiny.en", local_files_only=True)
    assert "".join(word.text for word in words).split() == text.split()
    first = 0
    for sentence in sentences:
        assert words[first].start == pytest.approx(sentence["start"], abs=0.15)
        first += len(sentence["text"].split())
        assert words[first - 1].end == pytest.approx(sentence["end"], abs=0.6)
    assert {word.text: word.probability for word in words}[" rubber"] < 0.1, "it is not spoken"


def test_a_text_without_a_place_is_refused(model: str, recording: Path) -> None:
    one = forescribe.Transcriber.load(model, device="cpu")
    assert one.align(recording, "  ", "en") == ()
    for audio, text, error, message in (
        (recording, "many words " * 50, UsageError, "the model reads .* at a time"),
        (recording, "a <|endoftext|>", UsageError, "special token"),
        ((np.zeros(40 * RATE), RATE), "a", AudioError, "no speech was recognised"),
    ):
        with pytest.raises(error, match=message):
            one.align(audio, text, "en")


def test_a_language_comes_with_its_probability(model: str, spoken) -> None:
    language, probability = forescribe.detect_language(spoken, model, device="cpu")
    transcript = forescribe.transcribe(spoken, model, device="cpu")
    assert language == transcript.language
    assert probability == pytest.approx(transcript.language_probability)
    with pytest.raises(AudioError, match="no speech was found"):
        forescribe.detect_language(WAVE, model, device="cpu", sample_rate=RATE)
    with pytest.raises(UsageError, match="take a multilingual Whisper"):
        forescribe.detect_language(spoken, "tiny.en", local_files_only=True)


def test_speakers_are_found_without_words() -> None:
    audio = soundfile.read(SAMPLES / "conversation.flac", stop=20 * RATE)
    found = forescribe.find_speakers(audio, "embedded", num_speakers=2)
    assert found.speakers == ("Speaker A", "Speaker B")


def test_speech_is_found_between_silences(spoken) -> None:
    samples, quiet = spoken[0] / 32768, np.zeros(3 * RATE)
    both = np.concatenate([quiet, samples[: 4 * RATE], quiet, samples[: 4 * RATE], quiet]), RATE
    first, second = forescribe.speech_segments(both, min_pause_s=1.0)
    assert 3 <= first.start < 4 < 6.5 < first.end < 7.5
    assert second.start - first.start == pytest.approx(7.0, abs=0.1)
    assert forescribe.speech_segments(quiet, sample_rate=RATE) == ()


# Samples


@pytest.fixture(scope="module")
def spoken() -> tuple[np.ndarray, int]:
    """The first seconds of a sample that the demo model understands, as 16-bit integers."""
    samples, rate = soundfile.read(SAMPLES / "memo.flac", dtype="int16")
    return samples[: 8 * rate], rate


def test_samples_are_a_recording_in_every_form(spoken, model: str, tmp_path: Path) -> None:
    """What is decoded are the samples of the file, and a list of all forms gives equal tokens."""
    samples, rate = spoken
    soundfile.write(tmp_path / "a.wav", samples, rate, subtype="PCM_16")
    data, floats = (tmp_path / "a.wav").read_bytes(), samples / 32768
    stereo = np.stack([floats, floats], axis=1)
    forms = [
        str(tmp_path / "a.wav"),
        data,
        bytearray(data),
        io.BytesIO(data),
        (samples, rate),
        (rate, samples),  # scipy, gradio
        (samples.astype(np.int32) << 16, rate),
        (floats, rate),
        (floats.astype(np.float32), float(rate)),
        (torch.from_numpy(floats).to(torch.float32), rate),
        (torch.from_numpy(stereo.T.copy()), rate),  # torchaudio: [C, T]
        (stereo, rate),  # soundfile: [T, C]
        (floats.tolist(), rate),
        {"array": floats, "sampling_rate": rate, "path": None},
        {"bytes": data, "path": "a.wav"},
        {"bytes": None, "path": str(tmp_path / "a.wav")},
        types.SimpleNamespace(
            get_all_samples=lambda: types.SimpleNamespace(
                data=torch.from_numpy(floats)[None], sample_rate=rate
            )
        ),
    ]
    for form in forms:
        assert np.allclose(read_audio(form), floats, atol=1e-6), type(form)
    transcriber = forescribe.Transcriber.load(model, device="cpu", batch=4)
    outcomes = list(transcriber.transcribe(forms))
    assert [outcome.error for outcome in outcomes] == [None] * len(forms)
    found = {tuple(s.tokens for s in outcome.transcript.segments) for outcome in outcomes}
    assert len(found) == 1 and found.pop()
    names = {outcome.name for outcome in outcomes if isinstance(outcome.source, tuple | dict)}
    assert names == {"<array>"}


WAVE = np.zeros(16000, np.float32)


@pytest.mark.parametrize(
    ("audio", "rate", "message"),
    [
        (WAVE, None, "samples need their rate: sample_rate=16000"),
        (torch.zeros(16000), None, "samples need their rate"),
        ({"array": WAVE}, None, "samples need their rate"),
        (WAVE, 3999, "sample_rate is 3999; a whole number from 4000 to 768000 Hz"),
        (torch.ones(16000).to_sparse(), 16000, "samples that cannot be read"),
        (torch.empty(16000, device="meta"), 16000, "samples that cannot be read"),
        ((WAVE, 16000), 8000, "sample_rate is 8000, and the samples come with 16000"),
        ("a.wav", 16000, "a file says its own"),
        (WAVE, 0, "sample_rate is 0"),
        (WAVE, 44100.5, "sample_rate is 44100.5"),
        (WAVE, True, "sample_rate is True"),
        ((WAVE, "16000"), None, "sample_rate is '16000'"),
        ((WAVE, 16000, 1), None, "samples are .samples, rate."),
        (("a.wav", "b.wav"), None, "several recordings are a list"),
        (np.zeros(()), 16000, r"shape \[\]"),
        (np.zeros((1, 1, 16000)), 16000, r"shape \[1, 1, 16000\]; expected \[T\]"),
        (np.zeros((500, 400)), 16000, "up to 64 channels"),
        (np.zeros(0), 16000, "there are no samples"),
        (np.zeros((2, 0)), 16000, "there are no samples"),
        ([[0.0], [0.0, 1.0]], 16000, "samples that cannot be read"),
        (np.array([0.0, np.nan, np.inf]), 16000, "2 of 3 samples are not finite"),
        (np.full(16000, 23000.0), 16000, "divide those of 16-bit integers by 32768"),
        (np.zeros(16000, np.int64), 16000, "type int64"),
        (np.zeros(16000, bool), 16000, "type bool"),
        (np.zeros(16000, complex), 16000, "type complex128"),
        (np.array(["a"]), 16000, "type <U1"),
        ({"text": "hello"}, None, "a mapping with 'text'"),
        (None, None, "NoneType is no recording"),
        (7, None, "int is no recording"),
    ],
)
def test_samples_that_are_none_are_refused_before_a_model_is_loaded(audio, rate, message) -> None:
    with pytest.raises(forescribe.ForescribeError, match=message) as caught:
        forescribe.transcribe(audio, "no/such-model", sample_rate=rate, local_files_only=True)
    assert isinstance(caught.value, UsageError | AudioError)


def test_one_recording_in_place_of_a_list_is_refused(model: str) -> None:
    transcriber = forescribe.Transcriber.load(model, device="cpu")
    for one in ("a.wav", WAVE, torch.zeros(9), {"path": "a.wav"}, io.BytesIO(b"RIFF")):
        with pytest.raises(UsageError, match="give a list"):
            transcriber.transcribe(one)  # type: ignore[arg-type]


def test_samples_without_a_rate_fail_alone_in_a_list(model: str, recording: Path) -> None:
    transcriber = forescribe.Transcriber.load(model, device="cpu")
    bad, good = transcriber.transcribe([WAVE, recording])  # type: ignore[list-item]
    assert isinstance(bad.error, UsageError) and "need their rate" in bad.error.message
    assert good.transcript is not None


# Addresses


def test_a_recording_at_an_address_is_fetched_and_its_copy_removed(
    model: str, recording: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    handler = functools.partial(_Silent, directory=str(recording.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        found = forescribe.transcribe(f"{address}/{recording.name}", model, device="cpu")
        with pytest.raises(forescribe.ForescribeError, match="missing.wav"):
            forescribe.transcribe(f"{address}/missing.wav", model, device="cpu")
        server.shutdown()
        thread.join()
    assert found.duration == 2.0
    assert list((tmp_path / "spool").iterdir()) == []


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


# Shadowing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Another project, with packages named like our parts."""
    for name in PARTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} of this project')")
    return tmp_path


PUBLIC = (
    "from forescribe import *",
    "import forescribe.asr.decode.driver",
    "from forescribe.speculative import *",
    "import forescribe.api.app",
    "import forescribe.text.generator",
)
"""Ways to import what decodes: torch, and nothing that takes as long again."""

SLOW = {"transformers", "sympy", "triton", "scipy", "sklearn", "numba", "librosa", "torchaudio"}
SLOW_PARTS_OF_TORCH = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor"}

COMMANDS = {
    "the command": [str(Path(sys.executable).with_name("forescribe")), "models"],
    "the module": [sys.executable, "-m", "forescribe", "models"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_project_with_packages_of_our_names_breaks_nothing(project: Path, command: str) -> None:
    if not Path(COMMANDS[command][0]).exists():
        pytest.skip("the console script is not installed beside this Python")
    run = subprocess.run(
        COMMANDS[command],
        cwd=project,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, "large" in run.stdout) == (0, True), run.stderr


def test_public_names_load_torch_and_no_modelling(project: Path) -> None:
    """In such a project, too. What torch itself loads is not ours to forbid; `modules` and heads of
    transformers' layers load the rest where a model needs them."""
    forbidden = SLOW | SLOW_PARTS_OF_TORCH | {"torch.distributed"}
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        f"for statement in {PUBLIC!r}:\n"
        "    exec(statement)\n"
        f"    if loaded := {forbidden!r} & (sys.modules.keys() - before):\n"
        "        sys.exit(f'{statement} loads {sorted(loaded)}')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
