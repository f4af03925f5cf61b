"""A pipeline folder through pyannote's own loader: as community-1, of random parts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forescribe.asr.errors import ModelError, UsageError
from forescribe.diarize.diarizer import Bounds
from forescribe.diarize.engines import registry
from tests.diarize.engines.fake_engines import CONFIG, RATE, community_folder

HUB = "huggingface_hub.snapshot_download"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return community_folder(tmp_path_factory.mktemp("community"))


@pytest.fixture
def nothing_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without community-1: the hub's cache is empty, and nothing may be fetched."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    def absent(*given: Any, **options: Any) -> str:
        assert options.get("local_files_only"), "an unrequested download"
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(HUB, absent)
    monkeypatch.delenv(registry.FOLDER_VARIABLE, raising=False)


def noise(seconds: float) -> np.ndarray:
    """Bursts, so that something changes."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal(round(seconds * RATE)).astype(np.float32)
    level = np.repeat(rng.random(len(samples) // 4000 + 1), 4000)[: len(samples)]
    return samples * level.astype(np.float32) * np.float32(0.3)


@pytest.mark.slow
def test_a_folder_runs_through_the_stock_loader_and_its_result_says_so(folder: Path) -> None:
    diarizer = registry.load(str(folder), device="cpu")
    steps: list[str] = []
    found = diarizer.diarize(noise(25), hook=lambda step, done: steps.append(step))
    assert found.engine.name == str(folder) and found.engine.encoder is not None
    assert {"segmentation", "embeddings", "done"} <= set(steps)
    assert all(turn.end_sample <= 25 * RATE for turn in found.regular)
    exclusive = list(found.exclusive)
    assert all(
        a.end_sample <= b.start_sample for a, b in zip(exclusive, exclusive[1:], strict=False)
    )
    assert len(found.regular)  # or the claims above say nothing
    for length in (0.0, 0.01, 0.5):
        short = diarizer.diarize(noise(length), Bounds(at_most=2))
        assert all(turn.end_sample <= length * RATE for turn in short.regular)


@pytest.mark.nightly
def test_shared_frames_give_the_vectors_of_pyannote(folder: Path) -> None:
    from pyannote.core import SlidingWindow

    from forescribe.diarize.engines.pyannote_pipeline import SharedFrameDiarization
    from forescribe.diarize.engines.upstream import SlidingWindowFeature, SpeakerDiarization

    pipeline = registry.load_pipeline(folder).pipeline
    assert type(pipeline) is SharedFrameDiarization
    file = {"waveform": torch.from_numpy(noise(14))[None], "sample_rate": RATE, "uri": "x"}
    active = (np.random.default_rng(1).random((2, 589, 3)) > 0.5).astype(np.float32)
    active[1, 5:, 0] = 0.0  # hardly a frame
    windows = SlidingWindowFeature(active, SlidingWindow(duration=10.0, step=4.0))
    for exclude in (False, True):
        fast = pipeline.get_embeddings(file, windows, exclude_overlap=exclude)
        stock = SpeakerDiarization.get_embeddings(pipeline, file, windows, exclude_overlap=exclude)
        assert np.allclose(fast, stock, atol=1e-5, equal_nan=True)


@pytest.mark.slow
def test_memory_that_runs_out_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forescribe.asr.errors import CapacityError

    diarizer = registry.load_pipeline(folder)

    def full(*given: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(type(diarizer.pipeline), "__call__", full)
    with pytest.raises(CapacityError, match="out of memory"):
        diarizer.diarize(noise(1))


def write(folder: Path, checkpoint: object, config: str = CONFIG) -> Path:
    (folder / "segmentation").mkdir(parents=True)
    torch.save(checkpoint, folder / "segmentation" / "pytorch_model.bin")
    (folder / "config.yaml").write_text(config)
    return folder


class Harm:
    """Calls a function when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return print, ("harm",)


def test_a_checkpoint_that_would_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "x", {"state_dict": {}, "more": Harm()})
    assert pickle.dumps(Harm())
    with pytest.raises(ModelError, match=r"would call .*print.*FORESCRIBE_TRUST_CHECKPOINTS=1"):
        registry.load_pipeline(folder)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("config", "culprit"),
    [
        (CONFIG.replace(registry.KLASS, "os.system"), "names os.system"),
        (CONFIG + "preprocessors:\n  x: {name: os.system}\n", "preprocessors"),
        ("[", "does not describe a pipeline"),
        ("pipeline: 5", "does not describe a pipeline"),
    ],
)
def test_a_configuration_of_something_else_is_refused(
    tmp_path: Path, config: str, culprit: str
) -> None:
    with pytest.raises(ModelError, match=culprit):
        registry.load_pipeline(write(tmp_path / "x", {}, config))


def test_a_folder_without_a_pipeline_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.yaml, segmentation/"):
        registry.resolve(str(tmp_path))


@pytest.mark.usefixtures("nothing_cached")
def test_auto_takes_what_is_on_this_machine_and_never_downloads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert registry.resolve("auto") == "embedded"
    local = write(tmp_path / "x", {})
    monkeypatch.setenv(registry.FOLDER_VARIABLE, str(local))
    names = ("auto", "community-1", "pyannote/speaker-diarization-community-1")
    assert [registry.resolve(name) for name in names] == [local] * 3
    monkeypatch.setenv(registry.FOLDER_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(ModelError, match="gone"):
        registry.resolve("auto")  # a folder that was named and is not there is no reason to go on


@pytest.mark.usefixtures("nothing_cached")
def test_community_without_access_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ModelError, match=r"switched off.*HF_TOKEN.*--diarizer embedded"):
        registry.resolve("community-1", network=False)
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*given: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(HUB, unreachable)
    with pytest.raises(ModelError, match=r"cannot be downloaded.*no network.*HF_TOKEN"):
        registry.resolve("community-1")


def test_an_unknown_engine_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known: auto, community-1, embedded"):
        registry.load("lvel")
