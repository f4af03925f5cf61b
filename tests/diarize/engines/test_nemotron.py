"""Nemotron's engine: a folder with random weights through transformers, and blocks with a stub network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import ModelError
from forescribe.diarize.diarizer import Bounds, Diarization, Engine
from forescribe.diarize.engines import embedded, nemotron_blocks, registry
from forescribe.diarize.engines.nemotron_blocks import NemotronDiarizer
from forescribe.diarize.turns import read_rttm
from tests.diarize.engines.fake_engines import RATE, nemotron_folder

SAMPLES = Path(__file__).parents[3] / "samples"
HOP = 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nemotron_folder(tmp_path_factory.mktemp("nemotron"))


@pytest.fixture(scope="module")
def conversation() -> np.ndarray:
    return read_audio(SAMPLES / "conversation.flac")[: 50 * RATE]


class Stub:
    """Hears `truth` [F, K], in another order of speakers in every block."""

    def __init__(self, truth: np.ndarray) -> None:
        self.truth, self.calls = truth, 0
        self.blocks = list(nemotron_blocks._blocks(len(truth)))

    def probabilities(self, samples: np.ndarray, report: Any) -> np.ndarray:
        start, end = self.blocks[self.calls]
        assert len(samples) // HOP == end - start
        self.calls += 1
        report(0.5)
        report(1.0)
        order = np.random.default_rng(self.calls).permutation(8)[: self.truth.shape[1]]
        found = np.full((end - start, 8), 0.1, np.float32)
        found[:, order] = np.where(self.truth[start:end], 0.9 - 0.1 * np.arange(len(order)), 0.1)
        return found


def diarized(
    truth: np.ndarray, samples: np.ndarray | None = None, bounds: Bounds | None = None
) -> Diarization:
    samples = np.zeros(len(truth) * HOP, np.float32) if samples is None else samples
    engine = Engine("stub", "campplus", embedded.THRESHOLDS)
    shares: list[float] = []
    diarizer = NemotronDiarizer(Stub(truth), embedded.folder(), engine)
    found = diarizer.diarize(samples, bounds, lambda step, done: shares.append(done))
    assert shares == sorted(shares)
    return found


def spans(found: Diarization) -> list[list[tuple[int, int]]]:
    """The turns of each speaker in frames."""
    return [
        [
            (t.start_sample // HOP, t.end_sample // HOP)
            for t in found.regular
            if t.speaker == speaker
        ]
        for speaker in found.speakers
    ]


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemotron_blocks, "BLOCK", 2000)
    monkeypatch.setattr(nemotron_blocks, "OVERLAP", 400)


def test_a_folder_runs_through_transformers(folder: Path, conversation: np.ndarray) -> None:
    diarizer = registry.load(str(folder), device="cpu")
    shares: list[float] = []
    part = conversation[: 20 * RATE]
    found = diarizer.diarize(part, hook=lambda step, done: shares.append(done))
    assert found.engine.name == str(folder)
    assert found.engine.encoder == embedded.encoder_identity(embedded.folder())
    assert len(shares) > 3 and shares == sorted(shares) and shares[-1] == 1
    network = diarizer.network  # type: ignore[attr-defined]
    inputs = network.processor(part, sampling_rate=RATE, return_tensors="pt")
    logits, mask = network.model(**inputs).logits, inputs.attention_mask
    (heard,) = network.processor.extract_speaker_dict(logits, mask)
    expected = [(t["Start"], t["End"]) for t in heard if t["End"] - t["Start"] > 0.045]
    assert expected and [(t.start, t.end) for t in found.regular] == sorted(expected)
    for length in (0, 1, 159, 160, 1000, 8000):
        short = diarizer.diarize(conversation[RATE : RATE + length])
        assert all(turn.end_sample <= length for turn in short.regular)


@pytest.mark.usefixtures("short_blocks")
def test_blocks_are_linked_by_activity_and_by_voice(conversation: np.ndarray) -> None:
    truth = np.zeros((len(conversation) // HOP, 2), bool)
    for turn in read_rttm((SAMPLES / "conversation.rttm").read_text())["conversation"]:
        frames = slice(turn.start_sample // HOP, turn.end_sample // HOP)
        truth[frames, "AB".index(turn.speaker)] = True
    found = diarized(truth, conversation)
    heard = np.zeros_like(truth)
    for column, own in enumerate(spans(found)):
        for start, end in own:
            heard[start:end, column] = True
    assert len(found.speakers) == 2 and (heard == truth).mean() > 0.999
    bundled = embedded.build(embedded.folder()).diarize(conversation)  # one space of voices
    cosines = np.array([[a.vector @ b.vector for b in bundled.voices] for a in found.voices])
    assert cosines.diagonal().min() > embedded.THRESHOLDS.same > cosines[0, 1]


@pytest.mark.usefixtures("short_blocks")
def test_only_who_is_heard_in_the_overlap_is_linked_by_it() -> None:
    truth = np.zeros((3600, 3), bool)
    truth[100:3500, 0] = truth[1500:2100, 1] = True
    truth[50:90, 2] = truth[3550:3590, 2] = True  # too short for a voice
    expected = [[(50, 90)], [(100, 3500)], [(1500, 2100)], [(3550, 3590)]]
    assert spans(diarized(truth)) == expected
    single = diarized(truth, bounds=Bounds(exactly=1))
    assert spans(single) == [[(50, 90), (100, 3500), (3550, 3590)]]


def test_two_at_once_are_two_turns_and_one_is_dominant() -> None:
    truth = np.zeros((1000, 2), bool)
    truth[100:600, 0] = truth[400:900, 1] = True
    found = diarized(truth)
    assert spans(found) == [[(100, 600)], [(400, 900)]] and found.warnings == ()
    assert [t.start_sample // HOP for t in found.exclusive] == [100, 600]
    assert diarized(truth[:90]).speakers == ()


def test_a_number_that_is_not_met_is_said_and_one_speaker_is_met() -> None:
    truth = np.zeros((1000, 3), bool)
    truth[100:200, 0] = truth[300:400, 1] = truth[500:600, 2] = True
    for bounds in (Bounds(exactly=2), Bounds(at_least=4)):
        (notice,) = diarized(truth, bounds=bounds).warnings
        assert notice.code == "speaker_count"
    found = diarized(truth, bounds=Bounds(exactly=1))
    assert spans(found) == [[(100, 200), (300, 400), (500, 600)]] and found.warnings == ()


@pytest.mark.parametrize("count", [0, 1, 60_000, 60_001, 119_999, 225_000])
def test_blocks_cover_every_frame_and_share_the_overlap(count: int) -> None:
    blocks = [(0, 0), *nemotron_blocks._blocks(count)]
    assert blocks[-1][1] == count
    assert all(end - start <= nemotron_blocks.BLOCK for start, end in blocks)
    shared = [a[1] - b[0] for a, b in zip(blocks, blocks[1:], strict=False)]
    assert shared == [0, *[nemotron_blocks.OVERLAP] * (len(shared) - 1)][: len(shared)]


@pytest.mark.parametrize(
    ("name", "old", "new", "culprit"),
    [
        ("model.safetensors", "", None, r"holds no model\.safetensors"),
        ("processor_config.json", "", None, r"holds no processor_config"),
        ("config.json", "emotron3", "emotron2", "not a diarization pipeline"),
        ("config.json", '"hidden_size": 16', '"hidden_size": 8', "another shape"),
        ("processor_config.json", '"hop_length": 160', '"hop_length": 80', "hop"),
    ],
)
def test_a_wrong_folder_is_refused(
    folder: Path, tmp_path: Path, name: str, old: str, new: str | None, culprit: str
) -> None:
    path = shutil.copytree(folder, tmp_path / "copy") / name
    if new is None:  # a pickle is not taken instead
        path.rename(path.with_name("pytorch_model.bin"))
    else:
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ModelError, match=culprit):
        registry.load(str(path.parent), device="cpu")


def test_weights_that_are_not_finite_are_refused(folder: Path, tmp_path: Path) -> None:
    """Of NaN it would hear nobody, and say nothing."""
    path = shutil.copytree(folder, tmp_path / "copy") / "model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[0]
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="holds numbers that are not finite"):
        registry.load(str(path.parent), device="cpu")


def test_the_name_takes_the_hubs_cache_and_says_what_to_do_without_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    hub = "huggingface_hub.snapshot_download"
    monkeypatch.setattr(hub, lambda *given, **options: str(folder))
    assert registry.resolve("nvidia/Nemotron-3-Diarization", network=False) == folder
    assert registry.load("nemotron", device="cpu").engine.name == "nemotron"

    def absent(*given: Any, **options: Any) -> str:
        assert options.get("local_files_only"), "an unrequested download"
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(hub, absent)
    with pytest.raises(ModelError, match=r"switched off.*folder to --diarizer.*embedded"):
        registry.resolve("nemotron", network=False)
